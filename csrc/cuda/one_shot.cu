// A collective and unpack_kernel (pack.cu) without the launches and barriers between. Bound by
// latency, that of a store to another GPU's memory.
//
// A word of 8 bytes is sent as two of them, each half of it beside the number of the call. Whoever
// waits for a word sees by that number that it has come, so nothing has to be ordered. Calls take
// one half of the buffers and the other in turns: a rank that sends in call n has ended call n - 1,
// for which every rank had ended call n - 2, whose half it now overwrites. For that the kernels of
// a rank have to run one after another, and those of all ranks in one order.
//
// The calls of a rank are numbered by its kernels, not by the host, so a CUDA graph can be
// replayed. All ranks begin with the same number.
#include <algorithm>
#include <cassert>

#include "cuda/device.cuh"
#include "cuda/one_shot.h"

namespace reduceops::cuda {
namespace {

constexpr int kOneShotThreads = 128;

struct alignas(kSlotBytes) Slot {
  uint64_t halves[2];
};

__device__ void send(Slot* slot, int64_t word, uint32_t call) {
  const auto bits = static_cast<uint64_t>(word);
  const uint64_t tag = static_cast<uint64_t>(call) << 32;
  const uint64_t low = tag | static_cast<uint32_t>(bits), high = tag | bits >> 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(slot), "l"(low), "l"(high)
               : "memory");
}

__device__ uint64_t now() {
  uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

// The words of all ranks, as they come.
struct Received {
  const Slot* slots;  // of this call
  int64_t capacity;
  uint32_t call;
  uint64_t timeout;

  __device__ int64_t operator()(int64_t rank, int64_t i) const {
    const Slot* slot = slots + rank * capacity + i;
    uint64_t low, high, start = 0;
    for (uint32_t spins = 1;; ++spins) {
      asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                   : "=l"(low), "=l"(high)
                   : "l"(slot)
                   : "memory");
      if (low >> 32 == call && high >> 32 == call) break;
      if (spins % 1024 != 0) continue;
      if (start == 0) start = now();
      if (now() - start > timeout)
        __assert_fail("a rank has not sent its words within the timeout of enable_symmetric_memory",
                      __FILE__, __LINE__, __func__);
    }
    return static_cast<int64_t>(high << 32 | static_cast<uint32_t>(low));
  }
};

template <class Element>
__global__ void __launch_bounds__(kOneShotThreads)
    one_shot_kernel(const __grid_constant__ Unpacking u, const __grid_constant__ OneShot e,
                    Element element) {
  const uint32_t call = max(e.state[0] + 1, 2u);  // 0 is that of no call; halves take turns
  const int64_t half = (call & 1) * u.ranks * e.capacity;
  const int64_t i = blockIdx.x * int64_t(kOneShotThreads) + threadIdx.x;
  // To the next rank first, so that not all send to one.
  for (int64_t r = 1; r <= u.ranks; ++r) {
    const int64_t to = (e.rank + r) % u.ranks;
    Slot* slots = static_cast<Slot*>(e.buffers[to]) + half + e.rank * e.capacity;
    if (i == 0) send(slots, e.words[0], call);
    if (i < u.count) send(slots + 1 + i, e.words[1 + i], call);
    if (i < u.count && u.wide) send(slots + 1 + u.count + i, e.words[1 + u.count + i], call);
  }
  if (i < u.count) {
    const Slot* own = static_cast<const Slot*>(e.buffers[e.rank]) + half;
    unpack(u, element, i, Received{own, e.capacity, call, e.timeout});
  }
  // The last block counts the call, when all have read the number.
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(e.state + 1, 1u) == gridDim.x - 1) {
    e.state[1] = 0;
    e.state[0] = call;
  }
}

}  // namespace

void launch_one_shot(const Unpacking& u, const OneShot& e, const Reduction& order, void* stream) {
  visit_element(order, [&](auto element) {
    const auto config = launch_config(ceil_div(u.count, kOneShotThreads), kOneShotThreads, stream);
    check(cudaLaunchKernelEx(&config, one_shot_kernel<decltype(element)>, u, e, element));
  });
}

}  // namespace reduceops::cuda
