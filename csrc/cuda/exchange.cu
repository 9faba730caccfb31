// Groups of a few elements whose results lie in another order than memory: a block copies a tile to
// shared memory that is short runs of memory times groups with neighbouring results, and stores the
// results in their order.
//
// Bound by memory, of which as much is written as is read, or more: in the order of memory each
// store would cost a sector of 32 bytes instead of the index's 8.
#include "cuda/async.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

struct ExchangeProblem {
  const char* input;
  const char* whole_blocks;  // the end of the last 16-byte block that lies in the input altogether
  Outputs out;
  Exchange plan;
  Dim inner;           // the innermost kept dim
  int64_t row_stride;  // of the reduced dim, in bytes
  int64_t index_step;
  int64_t groups;
  uint32_t rows;
  int outer_count;
  Dim outer[kBoxDims];  // the other kept dims, in the order of the results

  ExchangeProblem(const Problem& p, const Groups& groups_of, int64_t bytes)
      : input(p.input),
        whole_blocks(p.whole_blocks),
        out(p.out),
        plan(p.plan.exchange),
        inner(p.dims[0]),
        row_stride(p.dims[p.kept_count].stride * bytes),
        index_step(p.dims[p.kept_count].step),
        groups(p.outputs / inner.size),
        rows(static_cast<uint32_t>(p.walk)) {
    const Dims dims = outer_dims(groups_of);
    outer_count = dims.count;
    std::copy_n(dims.dim, dims.count, outer);
  }
};

// The tile of a block, in shared memory: before the groups, where the results of each go, and then
// how many bytes behind a block of 16 it begins. (Offsets, for of a pointer that is passed on it
// would not be known that it is one to shared memory.)
struct ExchangeTile {
  uint32_t columns, groups;
  uint32_t begin, pitch, capacity;

  __device__ int64_t& result(uint32_t group) const {
    return reinterpret_cast<int64_t*>(dynamic_shared())[group];
  }
  __device__ uint16_t& lead(uint32_t group) const {
    return reinterpret_cast<uint16_t*>(dynamic_shared() + capacity * sizeof(int64_t))[group];
  }
  __device__ uint32_t at(uint32_t group) const { return begin + group * pitch + lead(group); }
};

template <class Key>
__device__ ExchangeTile load_tile(const ExchangeProblem& p) {
  const Exchange& plan = p.plan;
  const uint32_t chunks = static_cast<uint32_t>(plan.chunks);
  const uint32_t number = blockIdx.x / chunks, chunk = blockIdx.x - number * chunks;
  const int64_t column = chunk * plan.columns, group = number * plan.groups;
  ExchangeTile tile;
  tile.columns = static_cast<uint32_t>(std::min(plan.columns, p.inner.size - column));
  tile.groups = static_cast<uint32_t>(std::min(plan.groups, p.groups - group));
  tile.begin = plan.lead_bytes;
  tile.pitch = plan.group_pitch;
  tile.capacity = static_cast<uint32_t>(plan.groups);
  const auto missing = static_cast<uint32_t>(plan.columns) - tile.columns;
  const uint32_t bytes = plan.piece_bytes - missing * plan.column_pitch;
  const uint32_t lanes = plan.copy_lanes, lane = threadIdx.x & (lanes - 1);
  const uint32_t pieces = plan.by_row ? p.rows : 1;
  for (uint32_t g = threadIdx.x >> log2_of(lanes); g < tile.groups; g += kGroupThreads / lanes) {
    const Place at = place(p.outer, p.outer_count, group + g);
    const char* from = p.input + (at.offset + column * p.inner.stride) * int64_t(sizeof(Key));
    const uint32_t lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) % kLoadBytes;
    if (lane == 0) {
      tile.result(g) = at.step + column * p.inner.step;
      tile.lead(g) = static_cast<uint16_t>(lead);
    }
    char* to = dynamic_shared() + tile.begin + g * tile.pitch + lead;
    for (uint32_t j = 0; j < pieces; ++j) {
      copy_piece(from, to, bytes, p.whole_blocks, lane, lanes);
      from += p.row_stride;
      to += plan.row_pitch;
    }
  }
  wait_for_copies();
  __syncthreads();
  return tile;
}

// The result of a column of a group whose best element is row `row` of what lies `at` in the tile.
template <class Element>
__device__ void store(const ExchangeProblem& p, Element element, int64_t to, uint32_t at,
                      uint32_t row) {
  using Key = typename Element::Key;
  p.out.put(to, row * p.index_step, [&] {
    return element.value(
        *reinterpret_cast<const Key*>(dynamic_shared() + at + row * p.plan.row_pitch));
  });
}

// Calls take(group, item) for the items of all groups: neighbouring threads have neighbouring
// groups.
template <class F>
__device__ void each(uint32_t groups, uint32_t items, F&& take) {
  uint32_t item = threadIdx.x / groups, group = threadIdx.x - item * groups;
  const uint32_t items_on = kGroupThreads / groups, groups_on = kGroupThreads - items_on * groups;
  while (item < items) {
    take(group, item);
    group += groups_on;
    item += items_on;
    if (group >= groups) {
      group -= groups;
      ++item;
    }
  }
}

// A thread to a slot of neighbouring columns.
template <class Element>
__device__ void read_slots(const ExchangeProblem& p, Element element, const ExchangeTile& tile) {
  using S = Slots<Element>;
  using Key = typename S::Key;
  each(tile.groups, (tile.columns + S::kElements - 1) / S::kElements,
       [&](uint32_t group, uint32_t slot) {
         const uint32_t at = tile.at(group) + slot * uint32_t(sizeof(typename S::Slot));
         const auto row = [&](uint32_t j) {
           const uint32_t last = std::min(j, p.rows - 1);
           return typename S::Row(dynamic_shared(), at + last * p.plan.row_pitch)[0];
         };
         Tracker<Element> tracker;
         if (p.rows == 2) {
           tracker.take(element, {{row(0), row(1)}}, 0);
         } else {
           for (uint32_t j = 0; j < p.rows; j += 4)
             tracker.take(element, {{row(j), row(j + 1), row(j + 2), row(j + 3)}}, j);
         }
         tracker.finish();
         const uint32_t column = slot * S::kElements;
         const int64_t result = tile.result(group);
#pragma unroll
         for (int e = 0; e < S::kElements; ++e) {
           if (column + e < tile.columns)
             store(p, element, result + (column + e) * p.inner.step, at + e * uint32_t(sizeof(Key)),
                   tracker.turn(0, e));
         }
       });
}

// A thread to a column, wherever in the tile its elements lie.
template <class Element>
__device__ void read_elements(const ExchangeProblem& p, Element element, const ExchangeTile& tile) {
  using Key = typename Element::Key;
  constexpr int kAtOnce = 4;
  each(tile.groups, tile.columns, [&](uint32_t group, uint32_t column) {
    const uint32_t at = tile.at(group) + column * p.plan.column_pitch;
    Near<Key> best;
    best.index = 0;
    for (uint32_t j = 0; j < p.rows; j += kAtOnce) {
      // Past the end there is the last element again, which changes nothing.
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const uint32_t row = std::min(j + u, p.rows - 1);
        const char* from = dynamic_shared() + at + row * p.plan.row_pitch;
        const Key key = element.key(*reinterpret_cast<const Key*>(from));
        if (key < best.key) best = {key, row};
      }
    }
    store(p, element, tile.result(group) + column * p.inner.step, at, best.index);
  });
}

template <bool kSlots, class Element>
__global__ void __launch_bounds__(kGroupThreads, kGroupBlocks)
    exchange(const __grid_constant__ ExchangeProblem p, const Element element) {
  const ExchangeTile tile = load_tile<typename Element::Key>(p);
  if constexpr (kSlots) {
    read_slots(p, element, tile);
  } else {
    read_elements(p, element, tile);
  }
}

}  // namespace

void launch_exchange(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    const ExchangeProblem p(problem, r.groups, sizeof(typename Element::Key));
    const auto kernel = p.plan.vector ? exchange<true, Element> : exchange<false, Element>;
    launch(kernel, problem.plan, p, element, stream, shared_bytes(p.plan));
  });
}

}  // namespace reduceops::cuda
