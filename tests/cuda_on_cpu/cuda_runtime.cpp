// What runs the threads of blocks, and instructions that the CPU does not have.
#include "cuda_runtime.h"

#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "context.h"

namespace {

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
  void run(void (*kernel)(void*), void* of) {
    current_ = this;
    kernel_ = kernel;
    of_ = of;
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

  static void wait_until(bool (*is_true)(void*), void* of) {
    if (is_true(of)) return;
    Thread& thread = current_->threads_[threadIdx.x];
    thread.awaited = of;
    thread.has_come_true = is_true;
    thread.context.pause();
  }
  static void count_progress() { ++current_->progress_; }

  static const uint64_t* exchange(uint64_t x) {
    Warp& warp = current_->warps_[threadIdx.x / 32];
    // The lanes' next values go elsewhere; those after them cannot come before all have read these.
    uint64_t* const lanes = warp.lanes[warp.turns[threadIdx.x % 32]++ % 2];
    lanes[threadIdx.x % 32] = x;
    warp.meeting.wait(32);
    return lanes;
  }

  // The cluster's barrier, which the calling thread comes to and goes on from.
  static void cluster_arrive() {
    current_->threads_[threadIdx.x].arrival = Cluster::current().arrive();
    count_progress();
  }
  static void cluster_wait() {
    const uint64_t arrival = current_->threads_[threadIdx.x].arrival;
    running::wait_until([&] { return Cluster::current().is_met(arrival); });
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
      if (!end(expected)) running::wait_until([&] { return times != now; });
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
    current_->kernel_(current_->of_);
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
  void (*kernel_)(void*);
  void* of_;
  unsigned alive_;
  uint64_t progress_ = 0;
};

template <class T>
T smallest_of_lanes(T x) {
  const uint64_t* lanes = Block::exchange(static_cast<std::make_unsigned_t<T>>(x));
  for (int lane = 0; lane < 32; ++lane) x = std::min(x, static_cast<T>(lanes[lane]));
  return x;
}

}  // namespace

namespace running {

char* shared() { return Cluster::current().shared(); }
char* in_block(char* variable, unsigned rank) {
  return Cluster::current().in_block(variable, rank);
}
void sync() { Block::sync(); }
void sync(unsigned threads) { Block::sync(threads); }
void sync_warp() { Block::sync_warp(); }
void cluster_arrive() { Block::cluster_arrive(); }
void cluster_wait() { Block::cluster_wait(); }
void count_progress() { Block::count_progress(); }
void wait_until(bool (*is_true)(void*), void* of) { Block::wait_until(is_true, of); }
const uint64_t* exchange(uint64_t x) { return Block::exchange(x); }

void launch(const cudaLaunchConfig_t& config, void (*kernel)(void*), void* of) {
  blockDim.x = config.blockDim;
  gridDim.x = config.gridDim;
  unsigned in_cluster = 1;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension)
      in_cluster = config.attrs[i].val.clusterDim.x;
  }
  std::vector<Block> blocks;
  for (unsigned rank = 0; rank < in_cluster; ++rank) blocks.emplace_back(config.blockDim);
  for (unsigned first = 0; first < config.gridDim; first += in_cluster) {
    Cluster(in_cluster, config.blockDim, config.dynamicSmemBytes).run([&](unsigned rank) {
      blockIdx.x = first + rank;
      blocks[rank].run(kernel, of);
    });
  }
}

}  // namespace running

int32_t __reduce_min_sync(uint32_t, int32_t x) { return smallest_of_lanes(x); }
uint32_t __reduce_min_sync(uint32_t, uint32_t x) { return smallest_of_lanes(x); }
uint32_t __reduce_add_sync(uint32_t, uint32_t x) {
  const uint64_t* lanes = Block::exchange(x);
  return std::accumulate(lanes, lanes + 32, uint32_t(0));
}

uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return chosen;
}
uint32_t __vmins2(uint32_t a, uint32_t b) {
  return of_halves<int16_t>(a, b, [](int16_t x, int16_t y) { return std::min(x, y); });
}
uint32_t __vminu2(uint32_t a, uint32_t b) {
  return of_halves<uint16_t>(a, b, [](uint16_t x, uint16_t y) { return std::min(x, y); });
}
uint32_t __vcmpne4(uint32_t a, uint32_t b) {
  uint32_t differ = 0;
  for (int i = 0; i < 32; i += 8) differ |= ((a ^ b) >> i & 0xff ? 0xffu : 0u) << i;
  return differ;
}
uint32_t __viaddmax_s16x2(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t sums = of_halves<uint16_t>(a, b, [](int x, int y) { return x + y; });
  return of_halves<int16_t>(sums, c, [](int16_t x, int16_t y) { return std::max(x, y); });
}
uint32_t __viaddmin_u16x2(uint32_t a, uint32_t b, uint32_t c) {
  return __vminu2(of_halves<uint16_t>(a, b, [](int x, int y) { return x + y; }), c);
}
