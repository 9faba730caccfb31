// A ring of stages in shared memory: one warp copies memory into them with the bulk copy engine
// (sm_90 on), the others read. Copies in flight cost no registers, so there are enough of them
// whatever the readers do.
#pragma once

#include "cuda/device.cuh"

namespace reduceops::cuda {

constexpr int kProducers = 32;  // threads of the warp that copies: the last of the block

// Enqueues a kernel that reads a ring, which may use all shared memory there is.
template <auto kKernel, class Element>
void launch_ring(const Problem& problem, Element element, void* stream) {
  allow_shared<kKernel>();
  launch(kKernel, problem.plan, problem, element, stream, shared_bytes(problem.plan.bulk_columns));
}

// A stage's turn: which it is and how often the ring has gone round.
struct Turn {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Instructions that have no function, on barriers at addresses of shared memory.
#ifdef __CUDA_ARCH__
__device__ inline void init_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void wait_for(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}
__device__ inline void bulk_copy(uint32_t to, const char* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// What the thread wrote to shared memory comes before the next bulk copy there.
__device__ inline void order_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Waits for so many threads of the block, the same ones each time; those of a warp need not come at
// once.
__device__ inline void sync_threads(uint32_t threads) {
  asm volatile("barrier.cta.sync 1, %0;" ::"r"(threads) : "memory");
}
#else
void init_barrier(uint32_t barrier, int count);
void show_barriers();
void arrive(uint32_t barrier);
void arrive_and_expect(uint32_t barrier, uint32_t bytes);
void wait_for(uint32_t barrier, uint32_t phase);
void bulk_copy(uint32_t to, const char* from, uint32_t bytes, uint32_t barrier);
void order_before_copies();
void sync_threads(uint32_t threads);
#endif

// Where in a stage an address of memory falls. Its offset in a line of kLineBytes bytes stays: with
// another one, copies reach three quarters of the bandwidth.
__device__ inline uint32_t lead_of(const char* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) % kLineBytes;
}

// A span of the input on its way into a stage: the 16-byte blocks that hold it, but nothing past
// the last whole block of the input; what lies beyond is copied by hand.
struct Span {
  const char *begin, *end;  // of the blocks
  __device__ Span(const char* from, const char* to, const char* whole) {
    begin = align_down(from);
    end = std::min(align_down(to + kLoadBytes - 1), whole);
  }
  __device__ uint32_t bytes() const { return end > begin ? end - begin : 0; }
  __device__ void copy_rest(char* into, const char* to) const {
    const char* p = std::max(end, begin);
    if (p >= to) return;
    REDUCEOPS_ROLLED
    for (; p < to; ++p) into[p - begin] = *p;
    order_before_copies();
  }
  static __device__ const char* align_down(const char* p) {
    return reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(p) &
                                         ~uintptr_t(kLoadBytes - 1));
  }
};

class Ring {
 public:
  // All threads of the block call it; `shared` holds ring_bytes().
  __device__ Ring(char* shared, int stages, int stage_bytes)
      : shared_(shared), stages_(stages), stage_bytes_(stage_bytes) {
    if (threadIdx.x == 0) {
      REDUCEOPS_ROLLED
      for (int s = 0; s < stages; ++s) {
        init_barrier(full(s), 1);
        init_barrier(empty(s), blockDim.x - kProducers);
      }
      show_barriers();
    }
    __syncthreads();
  }

  __device__ char* buffer(Turn turn) const { return shared_ + turn.stage * stage_bytes_; }
  __device__ void next(Turn& turn) const { turn.next(stages_); }

  // Producer: waits until the stage has been read.
  __device__ void wait_empty(Turn turn) const { wait_for(empty(turn.stage), turn.phase ^ 1); }
  // Producer, one thread: the stage is full when so many bytes have arrived.
  __device__ void expect(Turn turn, uint32_t bytes) const {
    arrive_and_expect(full(turn.stage), bytes);
  }
  __device__ void copy(Turn turn, char* to, const char* from, uint32_t bytes) const {
    if (bytes > 0) bulk_copy(address(to), from, bytes, full(turn.stage));
  }

  // Producer, one thread: fills the stage with the bytes from `from` to `to`.
  __device__ void fill(Turn turn, const char* from, const char* to, const char* whole) const {
    const Span span(from, to, whole);
    char* into = buffer(turn) + lead_of(span.begin);
    wait_empty(turn);
    span.copy_rest(into, to);
    expect(turn, span.bytes());
    copy(turn, into, span.begin, span.bytes());
  }

  // Readers.
  __device__ void wait_full(Turn turn) const { wait_for(full(turn.stage), turn.phase); }
  // (One arrival for a warp, after __syncwarp(), is no faster, and racecheck does not follow it.)
  __device__ void release(Turn turn) const { arrive(empty(turn.stage)); }

 private:
  static __device__ uint32_t address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
  }
  __device__ uint32_t full(int stage) const {
    return address(shared_ + stages_ * stage_bytes_ + stage * kStageBarriers);
  }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }

  char* shared_;
  int stages_, stage_bytes_;
};

// Waits for the threads that read.
__device__ inline void sync_readers() { sync_threads(blockDim.x - kProducers); }

#endif

}  // namespace reduceops::cuda
