// Small groups that follow each other in memory: short rows (channels_last channels, say), or a
// short reduced dim outside a short kept one. A tile of many groups is copied to shared memory; a
// thread, or a few lanes for a longer row, takes each output.
//
// Bound by reading memory; for 8-bit types by the key arithmetic.
#include "cuda/results.cuh"
#include "cuda/ring.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <class Element>
__device__ void produce(const Problem& p, const Ring& ring, int64_t group_bytes) {
  if (threadIdx.x % 32 != 0) return;
  const int64_t groups = p.outputs * p.walk * int64_t(sizeof(typename Element::Key)) / group_bytes;
  Turn turn;
  for (int64_t t = blockIdx.x; t < p.plan.tiles; t += gridDim.x) {
    const char* from = p.input + t * p.plan.tile * group_bytes;
    const char* to = from + std::min(p.plan.tile, groups - t * p.plan.tile) * group_bytes;
    ring.fill(turn, from, to, p.whole_blocks);
    ring.next(turn);
  }
}

// The best of a row of n elements `row` bytes into `tile`, which `lanes` lanes share.
template <class Element, class Key = typename Element::Key>
__device__ Near<Key> scan_row(Element element, const char* tile, uint32_t row, uint32_t n,
                              uint32_t lane, uint32_t lanes) {
  using S = Slots<Element>;
  const uint32_t count = n / S::kElements;
  const typename S::Row slots(tile, row);
  // Past the end there is the last slot again, which cannot win.
  std::conditional_t<S::kPacked, ShortTracker<Element>, Tracker<Element>> tracker;
  for (uint32_t s = lane, turn = 0; s < count; s += 4 * lanes, turn += 4) {
    const auto slot = [&](uint32_t i) { return slots[std::min(s + i * lanes, count - 1)]; };
    if constexpr (S::kPacked) {
      tracker.take(element, {slot(0), slot(1), slot(2), slot(3)}, s * S::kElements,
                   lanes * S::kElements);
    } else {
      tracker.take(element, {{slot(0), slot(1), slot(2), slot(3)}}, turn);
    }
  }
  Near<Key> best;
  if (lane < count) {
    if constexpr (S::kPacked) {
      best = tracker.best();
    } else {
      best.take(tracker.key(element, 0, 0), lane + tracker.turn(0, 0) * lanes);
    }
  }
  for (uint32_t i = count * S::kElements + lane; i < n; i += lanes)
    best.take(element.key(reinterpret_cast<const Key*>(tile + row)[i]), i);
  return warp_best(best, lanes);
}

template <class Element>
__device__ void read_rows(const Problem& p, Element element, const Ring& ring) {
  using Key = typename Element::Key;
  const uint32_t n = static_cast<uint32_t>(p.walk), row_bytes = n * sizeof(Key);
  const uint32_t lanes = p.plan.lanes, at_once = kGroupReaders / lanes, lane = threadIdx.x % lanes;
  const uint32_t row = threadIdx.x / lanes;
  Turn turn;
  for (int64_t t = blockIdx.x; t < p.plan.tiles; t += gridDim.x) {
    const int64_t first = t * p.plan.tile;
    const auto count = static_cast<uint32_t>(std::min(p.plan.tile, p.outputs - first));
    const uint32_t lead = lead_of(p.input + first * row_bytes);
    const char* tile = ring.buffer(turn);
    const Dim kept = p.kept()[0];
    const Results<Element> results(p, {first * kept.stride, first * kept.step}, kept, 0, 0, 0);
    const bool only_indices = results.only_indices();
    ring.wait_full(turn);
    for (uint32_t r0 = 0; r0 < count; r0 += at_once) {
      const uint32_t r = r0 + row;
      const Near<Key> best =
          scan_row(element, tile, lead + std::min(r, count - 1) * row_bytes, n, lane, lanes);
      if (lane != 0 || r >= count) continue;
      if (only_indices) {
        results.put_index(r, best.index);
      } else {
        results.put(element, r, best.key, best.index);
      }
    }
    ring.release(turn);
    ring.next(turn);
  }
}

template <class Element>
__device__ void read_columns(const Problem& p, Element element, const Ring& ring) {
  using S = Slots<Element>;
  using Key = typename S::Key;
  const Dim inner = p.kept()[0], outer = p.kept()[1];
  const uint32_t n = static_cast<uint32_t>(p.walk), columns = static_cast<uint32_t>(inner.size);
  const uint32_t slots = (columns + S::kElements - 1) / S::kElements;
  const uint32_t next_group = kGroupReaders / slots, next_slot = kGroupReaders % slots;
  const uint32_t pitch = columns * sizeof(Key), group_bytes = n * pitch;
  Turn turn;
  for (int64_t t = blockIdx.x; t < p.plan.tiles; t += gridDim.x) {
    const int64_t first = t * p.plan.tile;
    const auto groups = static_cast<uint32_t>(std::min(p.plan.tile, outer.size - first));
    const uint32_t lead = lead_of(p.input + first * group_bytes);
    const char* tile = ring.buffer(turn);
    const auto results_of = [&](int64_t group) {
      return Results<Element>(p, {group * outer.stride, group * outer.step}, inner, 0, 0, 0);
    };
    const Results<Element> from_first = results_of(first);
    const bool only_indices = from_first.only_indices() && outer.step == inner.size;
    ring.wait_full(turn);
    uint32_t group = threadIdx.x / slots, slot = threadIdx.x % slots;
    while (group < groups) {
      const uint32_t at = lead + group * group_bytes + slot * uint32_t(sizeof(typename S::Slot));
      const auto row = [&](uint32_t i) {
        return typename S::Row(tile, at + std::min(i, n - 1) * pitch)[0];
      };
      Tracker<Element> tracker;
      for (uint32_t j = 0; j < n; j += 4)
        tracker.take(element, {{row(j), row(j + 1), row(j + 2), row(j + 3)}}, j);
      tracker.finish();
      const uint32_t column = slot * S::kElements;
      if (only_indices) {
        uint32_t positions[S::kElements];
#pragma unroll
        for (int e = 0; e < S::kElements; ++e) positions[e] = tracker.turn(0, e);
        const uint32_t line = group * columns;
        from_first.put_indices(line + column, line + columns, positions);
      } else {
        const Results<Element> results = results_of(first + group);
#pragma unroll
        for (int e = 0; e < S::kElements; ++e) {
          if (column + e < columns)
            results.put(element, column + e, tracker.key(element, 0, e), tracker.turn(0, e));
        }
      }
      const bool next_line = slot + next_slot >= slots;
      group += next_group + next_line;
      slot += next_slot - (next_line ? slots : 0);
    }
    ring.release(turn);
    ring.next(turn);
  }
}

#endif

template <bool kColumns, class Element>
__global__ void __launch_bounds__(kGroupReaders + kProducers, 2)
    bulk_groups(const __grid_constant__ Problem p, const Element element) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  const Ring ring(shared, p.plan.stages, p.plan.stage_bytes);
  if (threadIdx.x >= kGroupReaders) {
    const int64_t group = p.walk * (kColumns ? p.kept()[0].size : 1);
    produce<Element>(p, ring, group * int64_t(sizeof(typename Element::Key)));
  } else if constexpr (kColumns) {
    read_columns(p, element, ring);
  } else {
    read_rows(p, element, ring);
  }
#endif
}

}  // namespace

void launch_bulk_groups(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    const Kernel<Element> kernel =
        problem.kept_count == 2 ? bulk_groups<true, Element> : bulk_groups<false, Element>;
    launch(kernel, problem.plan.blocks, problem, element, ring_bytes(problem.plan), stream);
  });
}

}  // namespace reduceops::cuda
