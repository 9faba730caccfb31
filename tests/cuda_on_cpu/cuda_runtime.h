// Stands in for CUDA where kernels run on the CPU: the threads of a block are coroutines, of which
// each runs until it waits for others; one block, or cluster of blocks, comes after the other. What
// takes long is in cuda_runtime.cpp, which is compiled once and with optimization.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __device__
#define __noinline__
#define __global__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local  // each block of a cluster has a thread of its own

struct Index {
  uint32_t x = 0;
};
inline thread_local Index threadIdx, blockIdx;
inline Index blockDim, gridDim;
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) longlong2 {
  long long x, y;
};

// The running thread's block, and its cluster.
namespace running {
char* shared();                                 // the block's memory
char* in_block(char* variable, unsigned rank);  // the same variable of another block

void sync();
void sync(unsigned threads);
void sync_warp();
void cluster_arrive();
void cluster_wait();

void count_progress();
// Until what others do has come true.
void wait_until(bool (*is_true)(void*), void* of);
template <class F>
void wait_until(F is_true) {
  wait_until([](void* of) { return (*static_cast<F*>(of))(); }, &is_true);
}

// What the lanes of the calling warp give, for a moment.
const uint64_t* exchange(uint64_t x);
template <class T>
T of_lane(T x, uint32_t lane) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  std::memcpy(&x, &exchange(bits)[lane % 32], sizeof x);
  return x;
}
}  // namespace running

// A barrier in shared memory: a phase ends when so many threads have come, and so many bytes.
struct Barrier {
  uint16_t count, pending;
  int32_t bytes : 31;
  uint32_t phase : 1;

  static Barrier& at(uint32_t address) {
    return *reinterpret_cast<Barrier*>(running::shared() + address);
  }
  void end() {
    if (pending > 0 || bytes > 0) return;
    pending = count;
    phase ^= 1;
    running::count_progress();
  }
};
static_assert(sizeof(Barrier) == 8);

inline uint32_t __cvta_generic_to_shared(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - running::shared());
}
inline void __syncwarp() { running::sync_warp(); }
inline void __syncthreads() { running::sync(); }
template <class T>
T __shfl_xor_sync(uint32_t, T x, uint32_t mask) {
  return running::of_lane(x, threadIdx.x ^ mask);
}
template <class T>
T __shfl_sync(uint32_t, T x, uint32_t lane) {
  return running::of_lane(x, lane);
}
int32_t __reduce_min_sync(uint32_t mask, int32_t x);
uint32_t __reduce_min_sync(uint32_t mask, uint32_t x);
uint32_t __reduce_add_sync(uint32_t mask, uint32_t x);
inline bool __all_sync(uint32_t mask, bool x) { return __reduce_min_sync(mask, uint32_t(x)) != 0; }
inline uint32_t __ballot_sync(uint32_t mask, bool x) {
  return __reduce_add_sync(mask, uint32_t(x) << threadIdx.x % 32);
}

inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint64_t(a) * b >> 32; }
inline int __clz(uint32_t x) { return std::countl_zero(x); }
inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __ffs(uint32_t x) { return x ? std::countr_zero(x) + 1 : 0; }
uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector);
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t(high) << 32 | low) >> (shift & 31));
}
// What f makes of the lower halves and of the upper ones.
template <class Half, class F>
uint32_t of_halves(uint32_t a, uint32_t b, F&& f) {
  const auto low = static_cast<uint16_t>(f(static_cast<Half>(a), static_cast<Half>(b)));
  const auto high =
      static_cast<uint16_t>(f(static_cast<Half>(a >> 16), static_cast<Half>(b >> 16)));
  return low | uint32_t(high) << 16;
}
uint32_t __vmins2(uint32_t a, uint32_t b);
uint32_t __vminu2(uint32_t a, uint32_t b);
uint32_t __vcmpne4(uint32_t a, uint32_t b);
uint32_t __viaddmax_s16x2(uint32_t a, uint32_t b, uint32_t c);
uint32_t __viaddmin_u16x2(uint32_t a, uint32_t b, uint32_t c);
inline float __int_as_float(int32_t x) { return std::bit_cast<float>(x); }
inline double __longlong_as_double(int64_t x) { return std::bit_cast<double>(x); }

using cudaError_t = int;
using cudaStream_t = void*;
enum {
  cudaSuccess,
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaDevAttrMaxSharedMemoryPerBlockOptin
};
struct cudaLaunchAttribute {
  int id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  unsigned gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
enum { cudaMemcpyDeviceToDevice };
inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  std::memset(to, byte, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) {
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) {
  *value = 227 << 10;
  return cudaSuccess;
}

namespace running {
void launch(const cudaLaunchConfig_t& config, void (*kernel)(void*), void* of);
}
template <class Kernel, class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, Kernel kernel,
                               Parameters... parameters) {
  auto run = [&] { kernel(parameters...); };
  running::launch(*config, [](void* of) { (*static_cast<decltype(run)*>(of))(); }, &run);
  return cudaSuccess;
}
