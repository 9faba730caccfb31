// Long rows by bulk copies: the reduced dim is innermost. A row, or a part of one, comes through a
// ring of stages in shared memory and is taken as bands of neighbouring slots, of which each thread
// keeps some columns' bests; at its end these are combined.
//
// Bound by reading memory.
#include "cuda/results.cuh"
#include "cuda/ring.cuh"
#include "cuda/trackers.cuh"

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
  const uint32_t stage = row_stage_bytes(sizeof(Key));
  Turn turn;
  for (int64_t number = blockIdx.x; number < p.outputs * p.plan.parts; number += gridDim.x) {
    const Item item = Item::of<Key>(p, number);
    const char* end = item.origin + item.extent * int64_t(sizeof(Key));
    for (const char* from = item.origin; from < end; from += stage) {
      ring.fill(turn, from, std::min(from + stage, end), p.whole_blocks);
      ring.next(turn);
    }
  }
}

template <class Element>
__device__ void read(const Problem& p, Element element, const Ring& ring) {
  using S = Slots<Element>;
  using Key = typename S::Key;
  constexpr uint32_t kBandBytes = band_bytes(sizeof(Key)), kBands = rows_at_once(sizeof(Key));
  constexpr uint32_t kSlots = kBandBytes / kReaders / sizeof(typename S::Slot);
  constexpr uint32_t kElements = S::kElements, kBand = kBandBytes / sizeof(Key);
  __shared__ Near<Key> warps[kReaders / 32];
  const uint32_t first_slot = threadIdx.x / 32 * 32 * kSlots + threadIdx.x % 32;
  Turn turn;
  for (int64_t number = blockIdx.x; number < p.outputs * p.plan.parts; number += gridDim.x) {
    const Item item = Item::of<Key>(p, number);
    const uint32_t lead = lead_of(item.origin);
    Tracker<Element, kSlots> tracker;  // turns are bands
    Near<Key> best;
    const uint32_t bands = item.extent / kBand;
    for (uint32_t band = 0; band * kBand < item.extent; band += kBands) {
      const char* buffer = ring.buffer(turn);
      const uint32_t at = lead + first_slot * uint32_t(sizeof(typename S::Slot));
      ring.wait_full(turn);
      if (band + kBands <= bands) {
        typename S::Slot slot[kSlots][kBands];
#pragma unroll
        for (int r = 0; r < kBands; ++r) {
          const typename S::Row row(buffer, at + r * kBandBytes);
#pragma unroll
          for (int u = 0; u < kSlots; ++u) slot[u][r] = row[u * 32];
        }
        tracker.take(element, slot, band);
      } else {
#pragma unroll 1
        for (uint32_t j = band; j < bands; ++j) {
          const typename S::Row row(buffer, at + (j - band) * kBandBytes);
          typename S::Slot slot[kSlots][1];
#pragma unroll
          for (int u = 0; u < kSlots; ++u) slot[u][0] = row[u * 32];
          tracker.take(element, slot, j);
        }
        // What does not fill a band.
        const auto* rest =
            reinterpret_cast<const Key*>(buffer + lead + (bands - band) * kBandBytes);
        for (uint32_t i = threadIdx.x; i < item.extent - bands * kBand; i += kReaders)
          best.take(element.key(rest[i]), bands * kBand + i);
      }
      ring.release(turn);
      ring.next(turn);
    }
    if (bands > 0) {
      tracker.finish();
#pragma unroll
      for (int u = 0; u < kSlots; ++u) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          best.take(tracker.key(element, u, e),
                    tracker.turn(u, e) * kBand + (first_slot + u * 32) * kElements + e);
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
