// Stands in for CUDA where kernels run on the CPU: the threads of a block are coroutines, of which
// each runs until it waits for others; one block comes after the other. Only what walks by plain
// loads use: no clusters.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct Index {
  uint32_t x = 0;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) longlong2 {
  long long x, y;
};

class Block {
 public:
  explicit Block(unsigned threads) : threads_(threads), warps_(threads / 32) { current_ = this; }

  // To the end of all threads. That none can go on is an error of the kernel.
  void run(const std::function<void()>& kernel) {
    kernel_ = &kernel;
    alive_ = static_cast<unsigned>(threads_.size());
    for (Thread& thread : threads_) {
      thread.done = false;
      getcontext(&thread.context);
      thread.context.uc_stack = {thread.stack.get(), 0, kStackBytes};
      thread.context.uc_link = &scheduler_;
      makecontext(&thread.context, enter, 0);
    }
    while (alive_ > 0) {
      const uint64_t before = progress_;
      for (threadIdx.x = 0; threadIdx.x < threads_.size(); ++threadIdx.x) {
        Thread& thread = threads_[threadIdx.x];
        if (!thread.done) swapcontext(&scheduler_, &thread.context);
      }
      if (progress_ == before) {
        std::puts("the threads of a block wait for each other");
        std::exit(1);
      }
    }
  }

  static void sync() { current_->all_.wait(current_->alive_); }

  // What the lanes of the calling warp give, for a moment.
  template <class T, class F>
  static auto exchange(T x, F&& use) {
    Warp& warp = current_->warps_[threadIdx.x / 32];
    std::memcpy(&warp.lanes[threadIdx.x % 32], &x, sizeof x);
    warp.meeting.wait(32);
    const auto result = use([&](uint32_t lane) {
      T of_lane;
      std::memcpy(&of_lane, &warp.lanes[lane], sizeof of_lane);
      return of_lane;
    });
    warp.meeting.wait(32);
    return result;
  }

 private:
  static constexpr size_t kStackBytes = 128 << 10;
  struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    bool done;
  };
  struct Meeting {
    unsigned arrived = 0;
    uint64_t times = 0;

    void wait(unsigned expected) {
      ++arrived;
      const uint64_t now = times;
      if (!end(expected)) {
        while (times == now)
          swapcontext(&current_->threads_[threadIdx.x].context, &current_->scheduler_);
      }
    }
    bool end(unsigned expected) {
      if (arrived < expected) return false;
      arrived = 0;
      ++times;
      ++current_->progress_;
      return true;
    }
  };
  struct Warp {
    Meeting meeting;
    uint64_t lanes[32];
  };

  static void enter() {
    (*current_->kernel_)();
    current_->threads_[threadIdx.x].done = true;
    ++current_->progress_;
    // Those at a barrier do not wait for threads that have ended.
    if (--current_->alive_ > 0) current_->all_.end(current_->alive_);
  }

  static inline Block* current_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Meeting all_;
  ucontext_t scheduler_;
  const std::function<void()>* kernel_;
  unsigned alive_;
  uint64_t progress_ = 0;
};

inline void __syncthreads() { Block::sync(); }
template <class T>
T __shfl_xor_sync(uint32_t, T x, uint32_t mask) {
  return Block::exchange(x, [&](auto of) { return of(threadIdx.x % 32 ^ mask); });
}
template <class T>
T __reduce_min_sync(uint32_t, T x) {
  return Block::exchange(x, [&](auto of) {
    T smallest = x;
    for (uint32_t lane = 0; lane < 32; ++lane) smallest = std::min(smallest, of(lane));
    return smallest;
  });
}

inline int __clz(uint32_t x) { return std::countl_zero(x); }
inline int __ffs(uint32_t x) { return x ? std::countr_zero(x) + 1 : 0; }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return chosen;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t(high) << 32 | low) >> (shift & 31));
}
template <class Half, class F>
uint32_t of_halves(uint32_t a, uint32_t b, F&& f) {
  const auto low = static_cast<uint16_t>(f(static_cast<Half>(a), static_cast<Half>(b)));
  const auto high =
      static_cast<uint16_t>(f(static_cast<Half>(a >> 16), static_cast<Half>(b >> 16)));
  return low | uint32_t(high) << 16;
}
inline uint32_t __vmins2(uint32_t a, uint32_t b) {
  return of_halves<int16_t>(a, b, [](int16_t x, int16_t y) { return std::min(x, y); });
}
inline uint32_t __vminu2(uint32_t a, uint32_t b) {
  return of_halves<uint16_t>(a, b, [](uint16_t x, uint16_t y) { return std::min(x, y); });
}
inline uint32_t __viaddmax_s16x2(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t sums = of_halves<uint16_t>(a, b, [](int x, int y) { return x + y; });
  return of_halves<int16_t>(sums, c, [](int16_t x, int16_t y) { return std::max(x, y); });
}
inline float __int_as_float(int32_t x) { return std::bit_cast<float>(x); }
inline double __longlong_as_double(int64_t x) { return std::bit_cast<double>(x); }

using cudaError_t = int;
using cudaStream_t = void*;
enum {
  cudaSuccess,
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaFuncAttributeMaxDynamicSharedMemorySize
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
inline const char* cudaGetErrorString(cudaError_t) { return "an error"; }
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) {
  return cudaSuccess;
}

inline std::unique_ptr<char[]> dynamic_shared_memory;

template <class Kernel, class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, Kernel kernel,
                               Parameters... parameters) {
  blockDim.x = config->blockDim;
  gridDim.x = config->gridDim;
  dynamic_shared_memory.reset(new char[config->dynamicSmemBytes]);
  Block block(config->blockDim);
  for (blockIdx.x = 0; blockIdx.x < config->gridDim; ++blockIdx.x)
    block.run([&] { kernel(parameters...); });
  return cudaSuccess;
}
