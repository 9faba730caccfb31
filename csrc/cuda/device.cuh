// The building blocks that the walks share: combining over a warp, launching.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <limits>
#include <mutex>

#include "cuda/problem.h"
#include "element.h"

namespace reduceops::cuda {

// Blocks that shall find room in a multiprocessor: so many, or as many as its threads are enough
// for.
constexpr int room_for(int blocks, int threads) {
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ % 100 != 0 && __CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
  constexpr int kResident = 1536;
#else
  constexpr int kResident = 2048;
#endif
  return std::min(blocks, kResident / threads);
}

// Shared memory of the size that the launch asks for, from the begin of a line on.
__device__ inline char* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(128) char shared[];
  return shared;
#else
  return running::shared();
#endif
}

// Of a power of two.
__device__ inline int log2_of(uint32_t power) { return 31 - __clz(power); }

template <class Key>
struct alignas(kLoadBytes) Vector {
  static constexpr int kWidth = kLoadBytes / sizeof(Key);
  Key at[kWidth];

  // In one load; a copy of the struct may be one of its elements.
  static __device__ Vector load(const Vector* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    Vector vector;
    memcpy(&vector, &words, sizeof(vector));
    return vector;
  }
};

// A candidate: a key and where it was found. Of no element: keys and indices do not come so large.
template <class Key, class Index>
struct Found {
  Key key = std::numeric_limits<Key>::max();
  Index index = std::numeric_limits<Index>::max();

  __device__ void take(Key k, Index i) {
    if (k < key || (k == key && i < index)) {
      key = k;
      index = i;
    }
  }
  __device__ bool none() const { return index == std::numeric_limits<Index>::max(); }
};

template <class Key>
using Near = Found<Key, uint32_t>;  // within a run or a part, of less than 2^32 elements
template <class Key>
using Far = Found<Key, int64_t>;  // within a group: a result index

// The smallest of each group of `lanes` neighbouring lanes, in all of them; `lanes` is a power of
// two, and every lane of the warp takes part.
template <class T>
__device__ T warp_min(T x, uint32_t lanes = 32) {
  if (lanes == 32) {
    if constexpr (sizeof(T) == 8) {
      const auto high = static_cast<int32_t>(x >> 32), highest = __reduce_min_sync(~0u, high);
      const uint32_t low = __reduce_min_sync(~0u, high == highest ? static_cast<uint32_t>(x) : ~0u);
      return static_cast<T>(highest) << 32 | low;
    } else if constexpr (std::is_signed_v<T>) {
      return static_cast<T>(__reduce_min_sync(~0u, static_cast<int32_t>(x)));
    } else {
      return static_cast<T>(__reduce_min_sync(~0u, static_cast<uint32_t>(x)));
    }
  }
#pragma unroll
  for (uint32_t d = 16; d > 0; d /= 2) {
    if (d < lanes) x = std::min(x, static_cast<T>(__shfl_xor_sync(~0u, x, d)));
  }
  return x;
}

// The blocks of a cluster meet: what each wrote before it arrived is seen after the wait. (Not the
// `.aligned` kind, for which a warp has to come with all of its threads at once.)
__device__ inline void cluster_arrive() {
#ifndef __CUDACC__
  running::cluster_arrive();
#elif __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#ifndef __CUDACC__
  running::cluster_wait();
#elif __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// A kernel may be launched before the previous one has ended; it then waits for that one's memory.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The same variable of another block of the cluster.
template <class T>
__device__ T* in_block(T* shared, uint32_t rank) {
#ifndef __CUDACC__
  return reinterpret_cast<T*>(running::in_block(reinterpret_cast<char*>(shared), rank));
#elif __CUDA_ARCH__ >= 900
  uint64_t mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(shared), "r"(rank));
  return reinterpret_cast<T*>(mapped);
#else
  return shared;
#endif
}

[[noreturn]] void fail(cudaError_t error);
inline void check(cudaError_t error) {
  if (error != cudaSuccess) fail(error);
}

// Allows a kernel as much shared memory as a block may have, once on each device and before its
// first launch: while one thread changes that, others cannot launch it.
template <auto kKernel>
void allow_shared() {
  static std::array<std::atomic<bool>, kDevices> allowed{};
  static std::mutex mutex;
  int device = 0;
  check(cudaGetDevice(&device));
  std::atomic<bool>& is_allowed = allowed.at(device);
  if (is_allowed.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex);
  if (is_allowed) return;
  int most = 0;
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  is_allowed.store(true, std::memory_order_release);
}

// What a launch takes; `shared` is bytes of shared memory.
inline cudaLaunchConfig_t launch_config(int64_t blocks, int64_t threads, void* stream,
                                        int64_t shared = 0) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  return config;
}

// Lets a kernel begin before what the stream does before it has ended, for whose memory it then
// waits (wait_for_previous), if it may; good until it is launched. Not for the first kernel of a
// call: as that begins after all that comes before the call, what the call reads is ready for the
// others before they wait (hide.cu reads its mask so).
class EarlyLaunch {
 public:
  EarlyLaunch(const EarlyLaunch&) = delete;
  EarlyLaunch(cudaLaunchConfig_t& config, bool may) {
    attribute_.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute_.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute_;
    config.numAttrs = may;
  }

 private:
  cudaLaunchAttribute attribute_{};
};

// Enqueues a kernel.
template <class... Parameters>
void enqueue(void (*kernel)(Parameters...), const Plan& plan, void* stream, int64_t shared,
             const Parameters&... parameters) {
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  auto config = launch_config(std::min(plan.blocks, kMaxBlocks), plan.threads, stream, shared);
  config.attrs = &cluster;
  config.numAttrs = plan.cluster > 1;
  check(cudaLaunchKernelEx(&config, kernel, parameters...));
}

template <class Parameters, class Element>
void launch(void (*kernel)(Element, Parameters), const Plan& plan, const Parameters& parameters,
            Element element, void* stream, int64_t shared = 0) {
  enqueue(kernel, plan, stream, shared, element, parameters);
}

}  // namespace reduceops::cuda
