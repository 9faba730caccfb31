// Long rows by bulk copies: the reduced dim is innermost. A row, or a part of one, comes through a
// ring of stages in shared memory and is taken as lines of neighbouring slots, of which each thread
// keeps some columns' bests; at its end these are combined.
//
// Bound by reading memory.
#include "cuda/keys.cuh"
#include "cuda/results.cuh"
#include "cuda/ring.cuh"

namespace reduceops::cuda {
namespace {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// One part of a row.
struct Item {
  int64_t output, part, begin;
  uint32_t extent;
  const char* origin;

  template <class Key>
  __device__ static Item of(const Problem& p, int64_t number) {
    Item item;
    const auto [output, part] = split(number, p.plan.parts);
    item.output = output;
    item.part = part;
    item.begin = part * p.plan.part_extent;
    item.extent = static_cast<uint32_t>(std::min(p.plan.part_extent, p.walk - item.begin));
    item.origin = p.input + (place(p.kept(), p.kept_count, output).offset + item.begin) *
                                int64_t(sizeof(Key));
    return item;
  }
};

template <class Key>
__device__ void produce(const Problem& p, const Ring& ring) {
  if (threadIdx.x % 32 != 0) return;
  const uint32_t stage = kLines * kLineBytes;
  Turn turn;
  for (int64_t number = blockIdx.x; number < p.outputs * p.plan.parts; number += gridDim.x) {
    const Item item = Item::of<Key>(p, number);
    const char* end = item.origin + item.extent * int64_t(sizeof(Key));
    for (const char* from = item.origin; from < end; from += stage) {
      const char* to = std::min(from + stage, end);
      const Span span(from, to, p.whole_blocks);
      ring.wait_empty(turn);
      span.copy_rest(ring.buffer(turn), to);
      ring.expect(turn, span.bytes());
      if (span.bytes()) ring.copy(turn, ring.buffer(turn), span.begin, span.bytes());
      ring.next(turn);
    }
  }
}

template <class Element>
__device__ void read(const Problem& p, Element element, const Ring& ring) {
  using S = Slots<Element>;
  using Key = typename S::Key;
  constexpr uint32_t kSlots = kLineBytes / kReaders / sizeof(typename S::Slot);
  constexpr uint32_t kElements = S::kElements, kLine = kLineBytes / sizeof(Key);
  __shared__ Near<Key> warps[kReaders / 32];
  const uint32_t first_slot = threadIdx.x / 32 * 32 * kSlots + threadIdx.x % 32;
  Turn turn;
  for (int64_t number = blockIdx.x; number < p.outputs * p.plan.parts; number += gridDim.x) {
    const Item item = Item::of<Key>(p, number);
    const uint32_t lead = reinterpret_cast<uintptr_t>(item.origin) % kLoadBytes;
    Tracker<Element> tracker[kSlots];
#pragma unroll
    for (int u = 0; u < kSlots; ++u) tracker[u] = Tracker<Element>(0);
    Near<Key> best;
    const uint32_t lines = item.extent / kLine;
    for (uint32_t line = 0; line * kLine < item.extent; line += kLines) {
      const char* buffer = ring.buffer(turn);
      const uint32_t at = lead + first_slot * uint32_t(sizeof(typename S::Slot));
      ring.wait_full(turn);
      if (line + kLines <= lines) {
        typename S::Slot slot[kSlots][kLines];
#pragma unroll
        for (int r = 0; r < kLines; ++r) {
          const typename S::Row row(buffer, at + r * kLineBytes);
#pragma unroll
          for (int u = 0; u < kSlots; ++u) slot[u][r] = row[u * 32];
        }
#pragma unroll
        for (int u = 0; u < kSlots; ++u) tracker[u].take(element, slot[u], line, 1);
      } else {
#pragma unroll 1
        for (uint32_t j = line; j < lines; ++j) {
          const typename S::Row row(buffer, at + (j - line) * kLineBytes);
#pragma unroll
          for (int u = 0; u < kSlots; ++u) tracker[u].take(element, {row[u * 32]}, j, 1);
        }
        // What does not fill a line.
        const auto* rest =
            reinterpret_cast<const Key*>(buffer + lead + (lines - line) * kLineBytes);
        for (uint32_t i = threadIdx.x; i < item.extent - lines * kLine; i += kReaders)
          best.take(element.key(rest[i]), lines * kLine + i);
      }
      ring.release(turn);
      ring.next(turn);
    }
    if (lines > 0) {
#pragma unroll
      for (int u = 0; u < kSlots; ++u) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          best.take(tracker[u].key(element, e),
                    tracker[u].index(e) * kLine + (first_slot + u * 32) * kElements + e);
        }
      }
    }
    best = warp_best(best, 32);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    sync_readers();
    if (threadIdx.x < 32) {
      best = warp_best(threadIdx.x < kReaders / 32 ? warps[threadIdx.x] : Near<Key>{}, 32);
      if (threadIdx.x == 0) {
        const Place at = place(p.kept(), p.kept_count, item.output);
        const Results<Element> results(p, at, {}, item.output, item.part, item.begin);
        results.put(element, 0, best.key, best.index);
      }
    }
    sync_readers();
  }
}

#endif

template <class Element>
__global__ void __launch_bounds__(kReaders + kProducers, 2)
    bulk_rows(const __grid_constant__ Problem p, const Element element) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  if (p.candidates) let_next_launch();
  const Ring ring(shared, p.plan.stages, p.plan.stage_bytes);
  if (threadIdx.x >= kReaders) {
    produce<typename Element::Key>(p, ring);
  } else {
    read(p, element, ring);
  }
#endif
}

}  // namespace

void launch_bulk_rows(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    launch<Element>(bulk_rows<Element>, problem.plan.blocks, problem, element,
                    ring_bytes(problem.plan), stream);
  });
}

}  // namespace reduceops::cuda
