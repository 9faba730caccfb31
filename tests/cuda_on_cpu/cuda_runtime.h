// Stands in for CUDA where kernels run on the CPU: the threads of a block are coroutines, of which
// each runs until it waits for others; one block, or cluster of blocks, comes after the other.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "context.h"

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

// The blocks that run at the same time. One of them has the turn.
class Cluster {
 public:
  Cluster(unsigned blocks, unsigned threads, size_t shared_bytes)
      : alive_(blocks * threads), has_ended_(blocks), local_(blocks) {
    for (unsigned rank = 0; rank < blocks; ++rank) {
      void* memory = operator new(shared_bytes, kAlignment);
      std::memset(memory, 0x5a, shared_bytes);  // what no kernel may rely on
      shared_.emplace_back(static_cast<char*>(memory));
    }
  }

  void run(const std::function<void(unsigned)>& block) {
    const auto run_one = [&](unsigned rank) {
      rank_ = rank;
      current_ = this;
      local_[rank] = static_cast<char*>(__builtin_thread_pointer());
      if (rank > 0) wait_for_turn();
      block(rank);
      has_ended_[rank] = true;
      pass();
    };
    // All blocks have begun, and so have their variables, before one of them runs.
    std::vector<std::thread> others;
    for (unsigned rank = 1; rank < local_.size(); ++rank) {
      others.emplace_back(run_one, rank);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return waiting_ == rank; });
    }
    run_one(0);
    for (std::thread& other : others) other.join();
  }

  static Cluster& current() { return *current_; }
  char* shared() const { return shared_[rank_].get(); }

  // Another block's turn, until it is this one's again. Blocks that all only wait are an error of
  // the kernel.
  void yield(bool progress) {
    idle_ = progress ? 0 : idle_ + 1;
    if (idle_ > local_.size()) {
      std::puts("the threads of a block or a cluster wait for each other");
      std::exit(1);
    }
    if (local_.size() == 1) return;
    pass();
    wait_for_turn();
  }

  uint64_t arrive() {
    const uint64_t now = times_;
    ++arrived_;
    end();
    return now;
  }
  bool is_met(uint64_t arrival) const { return times_ != arrival; }
  void thread_ended() {
    --alive_;
    end();
  }

  // The same variable of another block.
  char* in_block(char* variable, unsigned rank) const {
    const size_t in_shared = variable - shared();
    if (in_shared < size_t(1) << 20) return shared_[rank].get() + in_shared;
    return local_[rank] + (variable - local_[rank_]);
  }

 private:
  static constexpr std::align_val_t kAlignment{128};
  struct Free {
    void operator()(char* memory) const { operator delete(memory, kAlignment); }
  };

  void end() {
    if (arrived_ < alive_ || alive_ == 0) return;
    arrived_ = 0;
    ++times_;
    idle_ = 0;
  }
  void pass() {
    const std::lock_guard lock(mutex_);
    for (unsigned i = 0; i < local_.size(); ++i) {
      turn_ = (turn_ + 1) % local_.size();
      if (!has_ended_[turn_]) break;
    }
    changed_.notify_all();
  }
  void wait_for_turn() {
    std::unique_lock lock(mutex_);
    waiting_ = rank_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return turn_ == rank_; });
  }

  static inline thread_local Cluster* current_;
  static inline thread_local unsigned rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned turn_ = 0, waiting_ = 0, alive_, arrived_ = 0, idle_ = 0;
  uint64_t times_ = 0;
  std::vector<char> has_ended_;
  std::vector<char*> local_;  // where the thread-local variables of each block are
  std::vector<std::unique_ptr<char, Free>> shared_;
};

class Block {
 public:
  explicit Block(unsigned threads) : threads_(threads), warps_(threads / 32) {
    for (Thread& thread : threads_) {
      if (stacks_.empty()) stacks_.emplace_back(new char[kStackBytes]);
      thread.stack = std::move(stacks_.back());
      stacks_.pop_back();
    }
  }
  Block(Block&&) = default;
  ~Block() {
    for (Thread& thread : threads_) stacks_.push_back(std::move(thread.stack));
  }

  // To the end of all threads.
  void run(const std::function<void()>& kernel) {
    current_ = this;
    kernel_ = &kernel;
    alive_ = static_cast<unsigned>(threads_.size());
    for (Thread& thread : threads_) {
      thread.done = false;
      thread.context.start(thread.stack.get(), kStackBytes, enter);
    }
    while (alive_ > 0) {
      const uint64_t before = progress_;
      for (threadIdx.x = 0; threadIdx.x < threads_.size(); ++threadIdx.x) {
        Thread& thread = threads_[threadIdx.x];
        if (!thread.done && !thread.waits()) thread.context.go_on();
      }
      if (alive_ > 0) Cluster::current().yield(progress_ != before);
    }
  }

  static void sync() { current_->all_.wait(current_->alive_); }
  static void sync(unsigned threads) { current_->some_.wait(threads); }
  static void sync_warp() { current_->warps_[threadIdx.x / 32].meeting.wait(32); }

  // Until what others do has come true.
  template <class F>
  static void wait_until(F&& is_true) {
    if (is_true()) return;
    Thread& thread = current_->threads_[threadIdx.x];
    thread.awaited = &is_true;
    thread.has_come_true = [](void* awaited) { return (*static_cast<F*>(awaited))(); };
    thread.context.pause();
  }
  static void count_progress() { ++current_->progress_; }

  // What the lanes of the calling warp give, for a moment.
  template <class T, class F>
  static auto exchange(T x, F&& use) {
    Warp& warp = current_->warps_[threadIdx.x / 32];
    // The lanes' next values go elsewhere; those after them cannot come before all have read these.
    uint64_t* const lanes = warp.lanes[warp.turns[threadIdx.x % 32]++ % 2];
    std::memcpy(&lanes[threadIdx.x % 32], &x, sizeof x);
    warp.meeting.wait(32);
    return use([&](uint32_t lane) {
      T of_lane;
      std::memcpy(&of_lane, &lanes[lane], sizeof of_lane);
      return of_lane;
    });
  }

  // The cluster's barrier, which the calling thread comes to and goes on from.
  static void cluster_arrive() {
    current_->threads_[threadIdx.x].arrival = Cluster::current().arrive();
    count_progress();
  }
  static void cluster_wait() {
    const uint64_t arrival = current_->threads_[threadIdx.x].arrival;
    wait_until([&] { return Cluster::current().is_met(arrival); });
  }

 private:
  static constexpr size_t kStackBytes = 128 << 10;
  struct Thread {
    Context context;
    std::unique_ptr<char[]> stack;
    bool done;
    uint64_t arrival;
    void* awaited;
    bool (*has_come_true)(void*) = nullptr;

    bool waits() {
      if (has_come_true && !has_come_true(awaited)) return true;
      has_come_true = nullptr;
      return false;
    }
  };
  struct Meeting {
    unsigned arrived = 0;
    uint64_t times = 0;

    void wait(unsigned expected) {
      ++arrived;
      const uint64_t now = times;
      if (!end(expected)) wait_until([&] { return times != now; });
    }
    bool end(unsigned expected) {
      if (arrived < expected) return false;
      arrived = 0;
      ++times;
      count_progress();
      return true;
    }
  };
  struct Warp {
    Meeting meeting;
    uint64_t lanes[2][32];
    uint8_t turns[32] = {};
  };

  static void enter() {
    Context& context = current_->threads_[threadIdx.x].context;
    context.entered();
    (*current_->kernel_)();
    current_->threads_[threadIdx.x].done = true;
    count_progress();
    Cluster::current().thread_ended();
    // Those at a barrier do not wait for threads that have ended.
    if (--current_->alive_ > 0) current_->all_.end(current_->alive_);
    context.leave();
  }

  static inline std::vector<std::unique_ptr<char[]>> stacks_;  // that no block uses
  static inline thread_local Block* current_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Meeting all_, some_;
  const std::function<void()>* kernel_;
  unsigned alive_;
  uint64_t progress_ = 0;
};

// A barrier in shared memory: a phase ends when so many threads have come, and so many bytes.
struct Barrier {
  uint16_t count, pending;
  int32_t bytes : 31;
  uint32_t phase : 1;

  static Barrier& at(uint32_t address) {
    return *reinterpret_cast<Barrier*>(Cluster::current().shared() + address);
  }
  void end() {
    if (pending > 0 || bytes > 0) return;
    pending = count;
    phase ^= 1;
    Block::count_progress();
  }
};
static_assert(sizeof(Barrier) == 8);

inline uint32_t __cvta_generic_to_shared(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - Cluster::current().shared());
}
inline void __syncwarp() { Block::sync_warp(); }
inline void __syncthreads() { Block::sync(); }
template <class T>
T __shfl_xor_sync(uint32_t, T x, uint32_t mask) {
  return Block::exchange(x, [&](auto of) { return of(threadIdx.x % 32 ^ mask); });
}
template <class T>
T __shfl_sync(uint32_t, T x, uint32_t lane) {
  return Block::exchange(x, [&](auto of) { return of(lane % 32); });
}
template <class T>
T __reduce_min_sync(uint32_t, T x) {
  return Block::exchange(x, [&](auto of) {
    T smallest = x;
    for (uint32_t lane = 0; lane < 32; ++lane) smallest = std::min(smallest, of(lane));
    return smallest;
  });
}
inline bool __all_sync(uint32_t mask, bool x) { return __reduce_min_sync(mask, uint32_t(x)) != 0; }

template <class T>
T __reduce_add_sync(uint32_t, T x) {
  return Block::exchange(x, [&](auto of) {
    T sum = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) sum += of(lane);
    return sum;
  });
}
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
inline uint32_t __vcmpne4(uint32_t a, uint32_t b) {
  uint32_t differ = 0;
  for (int i = 0; i < 32; i += 8) differ |= ((a ^ b) >> i & 0xff ? 0xffu : 0u) << i;
  return differ;
}
inline uint32_t __viaddmax_s16x2(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t sums = of_halves<uint16_t>(a, b, [](int x, int y) { return x + y; });
  return of_halves<int16_t>(sums, c, [](int16_t x, int16_t y) { return std::max(x, y); });
}
inline uint32_t __viaddmin_u16x2(uint32_t a, uint32_t b, uint32_t c) {
  return __vminu2(of_halves<uint16_t>(a, b, [](int x, int y) { return x + y; }), c);
}
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

template <class Kernel, class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, Kernel kernel,
                               Parameters... parameters) {
  blockDim.x = config->blockDim;
  gridDim.x = config->gridDim;
  unsigned in_cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      in_cluster = config->attrs[i].val.clusterDim.x;
  }
  std::vector<Block> blocks;
  for (unsigned rank = 0; rank < in_cluster; ++rank) blocks.emplace_back(config->blockDim);
  for (unsigned first = 0; first < config->gridDim; first += in_cluster) {
    Cluster(in_cluster, config->blockDim, config->dynamicSmemBytes).run([&](unsigned rank) {
      blockIdx.x = first + rank;
      blocks[rank].run([&] { kernel(parameters...); });
    });
  }
  return cudaSuccess;
}
