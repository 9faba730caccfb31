// Small groups that follow each other in memory: short rows (channels_last channels, say), or a
// short reduced dim outside a short kept one. A block copies a tile of many groups to shared
// memory; a thread, or a few lanes for a longer row, takes each output. So many blocks find room
// that some always copy.
//
// Bound by reading memory; rows of 8- and 16-bit types by instructions: 190 of them for a row of 21
// that a thread holds.
#include "cuda/results.cuh"
#include "cuda/ring.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// The groups of a block, in a ring of one stage.
struct Tile {
  int64_t first;
  uint32_t count;
  const char* buffer;
  uint32_t lead;  // of the first group in the buffer
};

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

// The same of a row of kVectors vectors, the last of which may go past its end: one thread holds
// it.
template <int kVectors, class Element, class Key = typename Element::Key>
__device__ Near<Key> hold_row(Element element, const char* tile, uint32_t row, uint32_t n) {
  using S = Slots<Element>;
  constexpr int kSlots = kLoadBytes / sizeof(typename S::Slot), kAll = kVectors * kSlots;
  const typename S::Row slots(tile, row);
  const uint32_t last = (n - 1) / S::kElements;
  typename S::Slot slot[kAll];
#pragma unroll
  for (int i = 0; i < kAll; ++i)
    slot[i] = slots[i < kAll - kSlots ? i : std::min<uint32_t>(i, last)];
  if constexpr (S::kPacked) {
    // In place of elements past the end there are some of the last slot again.
    const uint32_t bytes = (n - last * S::kElements) * sizeof(Key);
    const uint32_t kept = bytes == 1 ? 0x0000 : bytes == 2 ? 0x1010 : bytes == 3 ? 0x2210 : 0x3210;
#pragma unroll
    for (int i = kAll - kSlots; i < kAll; ++i)
      slot[i] = __byte_perm(slot[i], 0, i < last ? 0x3210 : kept);
  }
  Vector<Key> held[kVectors];
  memcpy(held, slot, sizeof(held));
  const Key key = smallest_of(element, held);
  return {key, first_of(element, held, key)};
}

template <int kVectors, class Element>
__device__ void read_rows(const Problem& p, Element element, const Tile& tile) {
  using Key = typename Element::Key;
  const uint32_t n = static_cast<uint32_t>(p.walk), row_bytes = n * sizeof(Key);
  const uint32_t lanes = p.plan.lanes, at_once = kGroupThreads / lanes, lane = threadIdx.x % lanes;
  const Dim kept = p.kept()[0];
  const Results<Element> results(p, {tile.first * kept.stride, tile.first * kept.step}, kept, 0, 0,
                                 0);
  const bool only_indices = results.only_indices();
  for (uint32_t r0 = 0; r0 < tile.count; r0 += at_once) {
    const uint32_t r = r0 + threadIdx.x / lanes;
    const uint32_t row = tile.lead + std::min(r, tile.count - 1) * row_bytes;
    Near<Key> best;
    if constexpr (kVectors > 0) {
      best = hold_row<kVectors>(element, tile.buffer, row, n);
    } else {
      best = scan_row(element, tile.buffer, row, n, lane, lanes);
    }
    if (lane != 0 || r >= tile.count) continue;
    if (only_indices) {
      results.put_index(r, best.index);
    } else {
      results.put(element, r, best.key, best.index);
    }
  }
}

template <class Element>
__device__ void read_columns(const Problem& p, Element element, const Tile& tile) {
  using S = Slots<Element>;
  using Key = typename S::Key;
  const Dim inner = p.kept()[0], outer = p.kept()[1];
  const uint32_t n = static_cast<uint32_t>(p.walk), columns = static_cast<uint32_t>(inner.size);
  const uint32_t slots = (columns + S::kElements - 1) / S::kElements;
  const uint32_t next_group = kGroupThreads / slots, next_slot = kGroupThreads % slots;
  const uint32_t pitch = columns * sizeof(Key);
  const auto results_of = [&](int64_t group) {
    return Results<Element>(p, {group * outer.stride, group * outer.step}, inner, 0, 0, 0);
  };
  const Results<Element> from_first = results_of(tile.first);
  const bool only_indices = from_first.only_indices() && outer.step == inner.size;
  uint32_t group = threadIdx.x / slots, slot = threadIdx.x % slots;
  while (group < tile.count) {
    const uint32_t at = tile.lead + group * n * pitch + slot * uint32_t(sizeof(typename S::Slot));
    const auto row = [&](uint32_t i) {
      return typename S::Row(tile.buffer, at + std::min(i, n - 1) * pitch)[0];
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
      const Results<Element> results = results_of(tile.first + group);
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
}

#endif

constexpr int kColumns = -1;

// kVectors: of a row that a thread holds, 0 of a longer one.
template <int kVectors, class Element>
__global__ void __launch_bounds__(kGroupThreads, kGroupBlocks)
    bulk_groups(const __grid_constant__ Problem p, const Element element) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr bool kOfColumns = kVectors == kColumns;
  char* shared = dynamic_shared();
  const Ring ring(shared, p.plan.stages, p.plan.stage_bytes);
  const int64_t groups = kOfColumns ? p.kept()[1].size : p.outputs;
  const int64_t group_bytes =
      p.walk * (kOfColumns ? p.kept()[0].size : 1) * int64_t(sizeof(typename Element::Key));
  Tile tile;
  tile.first = blockIdx.x * p.plan.tile;
  tile.count = static_cast<uint32_t>(std::min(p.plan.tile, groups - tile.first));
  const char* from = p.input + tile.first * group_bytes;
  if (threadIdx.x == 0) ring.fill({}, from, from + tile.count * group_bytes, p.whole_blocks);
  tile.buffer = ring.buffer({});
  tile.lead = lead_of(from);
  ring.wait_full({});
  if constexpr (kOfColumns) {
    read_columns(p, element, tile);
  } else {
    read_rows<kVectors>(p, element, tile);
  }
#endif
}

}  // namespace

void launch_bulk_groups(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    const auto launch_for = [&]<int kVectors>(std::integral_constant<int, kVectors>) {
      launch_ring<bulk_groups<kVectors, Element>>(r, problem, element, stream);
    };
    if (problem.kept_count == 2) return launch_for(std::integral_constant<int, kColumns>());
    switch (problem.plan.loads) {
      case 1:
        return launch_for(std::integral_constant<int, 1>());
      case 2:
        return launch_for(std::integral_constant<int, 2>());
      case 3:
        return launch_for(std::integral_constant<int, 3>());
      case 4:
        return launch_for(std::integral_constant<int, 4>());
      default:
        return launch_for(std::integral_constant<int, 0>());
    }
  });
}

}  // namespace reduceops::cuda
