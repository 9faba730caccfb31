// Columns: a kept dim is innermost. `lanes` threads lie side by side over columns (one each, or as
// many as 16 bytes hold); where columns are few, threads share them by turns and the reduced extent
// is cut into parts as well.
//
// Bound by reading memory where 16-byte loads are possible, at most; with an odd row pitch by the
// number of loads in flight.
#include "cuda/results.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

constexpr int kPitch = kThreads + 1;  // of bests in shared memory; odd, for its banks

// Whether each thread has all of its columns, and writes their results itself.
__host__ __device__ inline bool alone(const Problem& p) {
  return p.plan.shares == 1 && p.reduced_count == 1;
}

// The results of a block's groups from the bests of their threads, of which there are
// bests[c * kPitch + thread] for column c of a thread's load. Neighbouring threads take
// neighbouring columns.
template <int kWidth, class Element, class Key = typename Element::Key>
__device__ void combine_shares(const Problem& p, Element element, const Near<Key>* bests,
                               int64_t unit, int64_t part) {
  const uint32_t lanes = p.plan.lanes, shares = p.plan.shares;
  const uint32_t groups = p.plan.threads / (lanes * shares), columns = lanes * kWidth;
  const uint32_t takers = std::clamp<uint32_t>(shares / kWidth, 1, 32);  // of a column
  const Dim inner = p.axes()[0];
  for (uint32_t first = 0; first < groups * columns * takers; first += blockDim.x) {
    const uint32_t item = first + threadIdx.x, taker = item & (takers - 1);
    const uint32_t group = (item >> log2_of(takers)) / columns;
    const uint32_t here = (item >> log2_of(takers)) - group * columns;
    Near<Key> best;
    if (group < groups) {
      const Near<Key>* of_column = bests + here % kWidth * kPitch + here / kWidth;
      for (uint32_t share = taker; share < shares; share += takers) {
        const Near<Key> other = of_column[(group * shares + share) * lanes];
        best.take(other.key, other.index);
      }
    }
    best = warp_best(best, takers);
    const int64_t tile = unit * groups + group;
    const auto [outer, across] = split(tile, p.plan.across);
    const int64_t column = across * columns + here;
    if (taker > 0 || group >= groups || tile >= p.plan.tiles || column >= inner.size) continue;
    const int64_t offset =
        place(p.axes() + 1, p.axis_count - 1, outer).offset + column * inner.stride;
    const int64_t position = part * p.plan.part_extent + best.index;
    const int64_t index = place(p.reduced(), p.reduced_count, position).step;
    emit(p, element, outer * inner.size + column, offset, part, Best<Key>{best.key, index});
  }
}

// The slot of one element.
template <class Element, class Key = typename Element::Key>
__device__ typename Slots<Element>::Slot slot_of(Key element) {
  const auto bits = static_cast<std::make_unsigned_t<Key>>(element);
  return sizeof(Key) == 2 ? bits * 0x10001u : bits;  // twice: half a slot of zeros is a rare case
}

// In flight of a thread, and blocks that shall find room in a multiprocessor beside them.
constexpr int column_loads(size_t bytes, bool vector) {
  return vector ? bytes == 1 ? 8 : 4 : bytes == 8 ? 8 : 16;
}
constexpr int column_blocks(size_t bytes, bool vector) { return vector && bytes == 1 ? 2 : 4; }

// kVector: a thread takes as many columns as 16 bytes hold.
template <bool kVector, class Element>
__global__ void __launch_bounds__(kThreads, column_blocks(sizeof(typename Element::Key), kVector))
    columns(const __grid_constant__ Problem p, Element element) {
  using S = Slots<Element>;
  using Key = typename S::Key;
  constexpr int kWidth = kVector ? Vector<Key>::kWidth : 1;
  constexpr int kSlots = kVector ? kLoadBytes / sizeof(typename S::Slot) : 1;
  constexpr int kElements = kWidth / kSlots;
  constexpr int kLoads = column_loads(sizeof(Key), kVector);
  auto* bests = reinterpret_cast<Near<Key>*>(dynamic_shared());
  if (p.candidates) let_next_launch();
  const uint32_t lanes = p.plan.lanes, shares = p.plan.shares;  // shares: a power of two
  const uint32_t column_of = threadIdx.x / lanes, lane = threadIdx.x - column_of * lanes;
  const int shares_log2 = log2_of(shares);
  const uint32_t share = column_of & (shares - 1), group = column_of >> shares_log2;
  const uint32_t groups = p.plan.threads / (lanes * shares);
  const Dim inner = p.axes()[0];
  for (int64_t block = blockIdx.x; block < p.plan.blocks; block += gridDim.x) {
    const auto [unit, part] = split(block, p.plan.parts);
    const int64_t tile = unit * groups + group;
    const auto [outer, across] = split(tile, p.plan.across);
    const int64_t column = (across * lanes + lane) * kWidth;
    const bool inside = group < groups && tile < p.plan.tiles && column < inner.size;
    const int64_t begin = part * p.plan.part_extent,
                  stop = std::min(begin + p.plan.part_extent, p.walk);
    Tracker<Element, kSlots> tracker;  // of positions begin + share + turn * shares
    if (inside) {
      const Key* base = reinterpret_cast<const Key*>(p.input) +
                        place(p.axes() + 1, p.axis_count - 1, outer).offset + column * inner.stride;
      const auto extent = static_cast<uint32_t>(stop - begin);
      const uint32_t turns = share < extent ? ((extent - share - 1) >> shares_log2) + 1 : 0;
      // Past the end there is the last turn again, which cannot win.
      const auto walk = [&](auto at) {
        uint32_t turn = 0;
        const auto take = [&]<int kTaken>(std::integral_constant<int, kTaken>) {
          constexpr int kRows = std::min<int>(kTaken, rows_at_once(sizeof(Key)));
          typename S::Slot slots[kTaken / kRows][kSlots][kRows];
#pragma unroll
          for (int r = 0; r < kTaken; ++r) {
            const Key* from = at(std::min(turn + r, turns - 1));
            typename S::Slot load[kSlots];
            if constexpr (kVector) {
              const auto vector = Vector<Key>::load(reinterpret_cast<const Vector<Key>*>(from));
              memcpy(load, &vector, kLoadBytes);
            } else {
              load[0] = slot_of<Element>(*from);
            }
#pragma unroll
            for (int u = 0; u < kSlots; ++u) slots[r / kRows][u][r % kRows] = load[u];
          }
#pragma unroll
          for (int r = 0; r < kTaken; r += kRows) tracker.take(element, slots[r / kRows], turn + r);
          turn += kTaken;
        };
        while (turn + kLoads / 2 < turns) take(std::integral_constant<int, kLoads>());
        if (turn + kLoads / 4 < turns) {
          take(std::integral_constant<int, kLoads / 2>());
        } else if (turn < turns) {
          take(std::integral_constant<int, kLoads / 4>());
        }
      };
      if (p.reduced_count == 1) {
        const int64_t step = shares * p.reduced()[0].stride;
        const Key* first = base + (begin + share) * p.reduced()[0].stride;
        walk([&](uint32_t turn) { return first + turn * step; });
      } else {
        walk([&](uint32_t turn) {
          const int64_t position = begin + share + int64_t(turn) * shares;
          return base + place(p.reduced(), p.reduced_count, position).offset;
        });
      }
    }
    tracker.finish();
    if (alone(p)) {
      if (!inside) continue;
      const int64_t offset =
          place(p.axes() + 1, p.axis_count - 1, outer).offset + column * inner.stride;
      const Results<Element> results(p, offset, inner.stride, outer * inner.size + column, part,
                                     begin);
      if (results.only_indices()) {
        uint32_t turns[kWidth];
#pragma unroll
        for (int c = 0; c < kWidth; ++c) turns[c] = tracker.turn(c / kElements, c % kElements);
        results.put_indices(turns);
        continue;
      }
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        const int u = c / kElements, e = c % kElements;
        results.put(element, c, tracker.key(element, u, e), tracker.turn(u, e));
      }
      continue;
    }
    // A walk over columns is in index order, so positions compare like indices until the winner is
    // known.
    const bool any = inside && begin + share < stop;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      const int u = c / kElements, e = c % kElements;
      Near<Key> best;
      if (any) best = {tracker.key(element, u, e), share + tracker.turn(u, e) * shares};
      bests[c * kPitch + threadIdx.x] = best;
    }
    __syncthreads();
    combine_shares<kWidth>(p, element, bests, unit, part);
    __syncthreads();
  }
}

}  // namespace

void launch_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    using Key = typename Element::Key;
    const Kernel<Element> kernel =
        problem.plan.vector ? columns<true, Element> : columns<false, Element>;
    const size_t columns_of_thread = problem.plan.vector ? Vector<Key>::kWidth : 1;
    const size_t shared = alone(problem) ? 0 : columns_of_thread * kPitch * sizeof(Near<Key>);
    launch(kernel, problem.plan, problem, element, stream, shared);
  });
}

}  // namespace reduceops::cuda
