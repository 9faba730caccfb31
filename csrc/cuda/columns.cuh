// Columns: a kept dim is innermost. `lanes` threads lie side by side over columns (one each, or as
// many as 16 bytes hold); where columns are few, threads share them by turns and the reduced extent
// is cut into parts as well.
//
// Bound by reading memory. Where rows of columns are not aligned, what is loaded is joined
// (Realigned) if that is faster; else elements are loaded one by one, bound by the number of loads
// in flight. What is done for an element under a mask or for a sum takes registers that loads would
// have: those go by way of shared memory, so that some are always in flight.
#pragma once

#include "cuda/mask_groups.h"
#include "cuda/reducer.cuh"
#include "cuda/results.cuh"

namespace reduceops::cuda {

constexpr int kPitch = kThreads + 1;  // of states in shared memory; odd, for its banks

// Whether each thread has all of its columns, and writes their results itself.
__host__ __device__ inline bool alone(const Problem& p) {
  return p.plan.columns.shares == 1 && p.reduced_count == 1;
}

// Whether threads lie over the groups of a block before they share columns: where columns are few
// and read element by element, and the next group is nearer in memory than the next row.
template <bool kVector, class Source, class Reducer>
__device__ bool groups_first(const Problem& p) {
  if constexpr (kVector || Source::kMasked || !Reducer::kTakesElement) return false;
  return p.axis_count > 1 && p.reduced_count > 0 && p.axes()[1].stride < p.reduced()[0].stride;
}

// Of which columns a tile is.
struct TileOfColumns {
  int64_t outer, across;
};
template <class Source>
__device__ TileOfColumns tile_of_columns(const Problem& p, int64_t tile) {
  if (Source::kMasked &&
      (is_mask_across(p.axes(), p.axis_count) || are_columns_repeated(p.axes(), p.axis_count))) {
    const auto [across, outer] = split(tile, p.plan.columns.tiles / p.plan.columns.across);
    return {outer, across};
  }
  const auto [outer, across] = split(tile, p.plan.columns.across);
  return {outer, across};
}

// Where the reduced positions of a part are, by their distance from its begin, which is at most
// kMaxPartExtent. The next one is mostly behind the last in the same run of the innermost dim: then
// it takes no division. One before the last does, whatever the run.
template <class Source>
class Positions {
 public:
  using At = typename Source::At;
  __device__ Positions(const Problem& p, const Source& source, At base, int64_t begin)
      : p_(p), source_(source), base_(base), begin_(begin), run_(base) {
    if (p.reduced_count > 1) return;
    run_ = source.along(base, p.reduced()[0], begin);
    left_ = ~0u;
  }

  __device__ At operator()(uint32_t distance) {
    if (distance - from_ >= left_) enter_run(distance);
    return source_.along(run_, p_.reduced()[0], distance - from_);
  }

 private:
  __device__ void enter_run(uint32_t distance) {
    from_ = distance;
    if (!p_.plan.columns.flat) {
      const Run far = far_run(p_, source_, base_, begin_ + distance);
      run_ = far.at;
      left_ = far.left;
      return;
    }
    auto number = static_cast<uint32_t>(begin_ + distance);
    run_ = base_;
    REDUCEOPS_ROLLED
    for (int d = 0; d < p_.reduced_count; ++d) {
      const Dim dim = p_.reduced()[d];
      const auto size = static_cast<uint32_t>(dim.size);
      const uint32_t over = p_.by_size[d].quotient(number), digit = number - over * size;
      if (d == 0) left_ = size - digit;
      run_ = source_.along(run_, dim, digit);
      number = over;
    }
  }
  struct Run {
    At at;
    uint32_t left;
  };
  // Of more dims, or more positions than 32 bits have: so seldom that its code must not be in the
  // way.
  static __device__ __noinline__ Run far_run(const Problem& p, const Source& source, At base,
                                             int64_t position) {
    const int64_t size = p.reduced()[0].size, left = size - position % size, most = kMaxPartExtent;
    return {source.move(base, p.reduced(), p.reduced_count, position).at,
            static_cast<uint32_t>(std::min(left, most))};
  }

  const Problem& p_;
  const Source& source_;
  const At base_;
  const int64_t begin_;  // of the part
  At run_;               // the place of the position that is this far from it
  uint32_t from_ = 0;
  uint32_t left_ = 0;  // positions of the run from there on
};

// The results of a block's groups from the states of their threads, of which there are
// states[c * kPitch + thread] for column c of a thread's load. Neighbouring threads take
// neighbouring columns.
template <int kWidth, class Source, class Reducer, class State>
__device__ void combine_shares(const Problem& p, const Source& source, const Reducer& reducer,
                               const State* states, bool by_groups, int64_t unit, int64_t part) {
  const uint32_t lanes = p.plan.columns.lanes, shares = p.plan.columns.shares;
  const uint32_t groups = p.plan.threads / (lanes * shares), columns = lanes * kWidth;
  const uint32_t takers = std::clamp<uint32_t>(shares / kWidth, 1, 32);  // of a column
  const uint32_t pitch = lanes * (by_groups ? groups : 1);               // from a share to the next
  const Dim inner = p.axes()[0];
  const auto slots = [&](uint32_t item) {
    const uint32_t group = item / columns, here = item - group * columns;
    const uint32_t from = group * lanes * (by_groups ? 1 : shares);
    return states + here % kWidth * kPitch + here / kWidth + from;
  };
  merge_items<State>(
      groups * columns, takers, blockDim.x, shares, pitch, slots, [&](uint32_t item, State state) {
        const uint32_t group = item / columns, here = item - group * columns;
        const int64_t tile = unit * groups + group;
        const auto [outer, across] = tile_of_columns<Source>(p, tile);
        const int64_t column = across * columns + here;
        if (tile >= p.plan.columns.tiles || column >= inner.size) return;
        const int64_t offset =
            place(p.axes() + 1, p.axis_count - 1, outer).offset + column * inner.stride;
        typename Reducer::template State<typename Source::Key, int64_t> found;
        if (!state.none()) {
          const int64_t position = part * p.plan.part_extent + state.index;
          found = widen(state, place(p.reduced(), p.reduced_count, position).step);
        }
        const auto* input = reinterpret_cast<const typename Source::Key*>(p.input);
        emit(p, source, reducer, outer * inner.size + column, input + offset, part, found);
      });
}

// The results of `count` neighbouring columns, from output number `output` on, that are each a
// thread's alone, of positions from `begin` on.
template <int kWidth, class Source, class Reducer, class State>
__device__ void put_alone(const Problem& p, const Source& source, const Reducer& reducer,
                          const typename Source::Key* first, int64_t output, uint32_t count,
                          int64_t part, int64_t begin, const State (&states)[kWidth]) {
  using Key = typename Source::Key;
  const int64_t stride = p.axes()[0].stride, step = p.reduced()[0].step;
  const int64_t offset = first - reinterpret_cast<const Key*>(p.input);
  // What has no element is the first one, if it is not to be combined with others.
  const bool may_be_none = !Reducer::kTakesElement || (Source::kMasked && p.candidates);
  using Element = typename Source::Element;
  const Results<Element> results(p, offset, stride, output, part, begin * step);
  const auto key_of = [&](const State& state) {
    return state.none() ? std::numeric_limits<Key>::max() : state.key;
  };
  const auto position_of = [&](const State& state) {
    return static_cast<uint32_t>(reducer.index(state));
  };
  if (!may_be_none && results.side_by_side()) {
    Key keys[kWidth];
    uint32_t positions[kWidth];
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      keys[c] = key_of(states[c]);
      positions[c] = position_of(states[c]);
    }
    return results.put_run(source.element, 0, count, keys, positions);
  }
  if constexpr (!Reducer::kTakesElement) {
    if (results.side_by_side()) {
      uint32_t positions[kWidth];
#pragma unroll
      for (int c = 0; c < kWidth; ++c) positions[c] = position_of(states[c]);
      return results.put_run(count, positions, [&](int c) {
        return reducer.value(source, states[c], [&](int64_t i) {
          return first[c * stride + i * p.reduced()[0].stride];
        });
      });
    }
  }
  State each[kWidth];  // for a loop that takes them by their number
#pragma unroll
  for (int c = 0; c < kWidth; ++c) each[c] = states[c];
  REDUCEOPS_ROLLED
  for (uint32_t c = 0; c < count; ++c) {
    const State& state = each[c];
    if (!may_be_none) {
      results.put(source.element, c, key_of(state), position_of(state));
      continue;
    }
    typename Reducer::template State<Key, int64_t> found;
    if (!state.none()) found = widen(state, (begin + state.index) * step);
    emit(p, source, reducer, output + c, first + c * stride, part, found);
  }
}

// kVector: a thread takes as many columns as 16 bytes hold; the last ones may be fewer.
// kStages: loads go through so many stages of shared memory, if any, each of kLoads.
template <bool kVector, int kLoads, int kBlocks, int kStages, class Source, class Reducer>
__global__ void __launch_bounds__(kThreads, kBlocks)
    columns(const Source source, const Reducer reducer, const __grid_constant__ Problem p) {
  using Element = typename Source::Element;
  using S = Slots<Element>;
  using Key = typename S::Key;
  using State = typename Reducer::template State<Key, uint32_t>;
  constexpr int kWidth = kVector ? Vector<Key>::kWidth : 1;
  constexpr int kSlots = kVector ? kLoadBytes / sizeof(typename S::Slot) : 1;
  auto* states = reinterpret_cast<State*>(dynamic_shared());
  if (p.candidates) let_next_launch();
  const uint32_t lanes = p.plan.columns.lanes,
                 shares = p.plan.columns.shares;  // shares: a power of two
  const uint32_t column_of = threadIdx.x / lanes, lane = threadIdx.x - column_of * lanes;
  const int shares_log2 = log2_of(shares);
  const uint32_t groups = p.plan.threads / (lanes * shares);
  const bool by_groups = groups_first<kVector, Source, Reducer>(p);
  uint32_t share = column_of & (shares - 1), group = column_of >> shares_log2;
  if (by_groups) {
    share = column_of / groups;
    group = column_of - share * groups;
  }
  const Dim inner = p.axes()[0];
  for (int64_t block = blockIdx.x; block < p.plan.blocks; block += gridDim.x) {
    const auto [unit, part] = split(block, p.plan.parts);
    const int64_t tile = unit * groups + group;
    const auto [outer, across] = tile_of_columns<Source>(p, tile);
    const int64_t column = (across * lanes + lane) * kWidth;
    const bool inside =
        group < groups && share < shares && tile < p.plan.columns.tiles && column < inner.size;
    const int64_t begin = part * p.plan.part_extent,
                  stop = std::min(begin + p.plan.part_extent, p.walk);
    // Of positions begin + share + turn * shares.
    typename Reducer::template Columns<Source, kSlots> tracker;
    const auto extent = static_cast<uint32_t>(stop - begin);
    const uint32_t turns = share < extent ? ((extent - share - 1) >> shares_log2) + 1 : 0;
    const auto base = source.along(
        source.move(source.begin(p), p.axes() + 1, p.axis_count - 1, inside ? outer : 0).at, inner,
        inside ? column : 0);
    typename Source::Seen seen;
    // Past the end there is the last turn again, which must not count twice.
    // `at(turn)`: where it is. Without stages, kMost loads are in flight, kFew of the last turns.
    const auto walk = [&]<int kMost, int kFew>(auto at, std::integral_constant<int, kMost>,
                                               std::integral_constant<int, kFew>) {
      using Load = std::conditional_t<kVector, typename Source::Pack, typename Source::Item>;
      const auto fill = [&](auto& loads, uint32_t turn) {
        fill_past_end(source, reducer, loads, [&](int r) { return turn + r >= turns; });
      };
      const auto load = [&]<int kTaken, bool kWhole>(Load(&loads)[kTaken], uint32_t turn,
                                                     std::bool_constant<kWhole>) {
#pragma unroll
        for (int r = 0; r < kTaken; ++r) {
          const auto from = at(kWhole ? turn + r : std::min(turn + r, turns - 1));
          if constexpr (kVector) {
            loads[r] = source.pack(from, inner);
          } else {
            loads[r] = source.item(from);
          }
        }
        if (!kWhole) fill(loads, turn);
      };
      const auto use = [&]<int kTaken>(const Load(&loads)[kTaken], uint32_t turn) {
        constexpr int kRows = std::min<int>(kTaken, rows_at_once(sizeof(Key)));
#pragma unroll
        for (int r = 0; r < kTaken; ++r) source.see(loads[r], seen);
#pragma unroll
        for (int from = 0; from < kTaken; from += kRows) {
          typename S::Slot slots[kSlots][kRows];
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const auto bits = source.bits(loads[from + r]);
            if constexpr (kVector) {
              typename S::Slot row[kSlots];
              memcpy(row, &bits, kLoadBytes);
#pragma unroll
              for (int u = 0; u < kSlots; ++u) slots[u][r] = row[u];
            } else {
              slots[0][r] = slot_of<Element>(bits);
            }
          }
          tracker.take(source, slots, turn + from);
        }
      };
      uint32_t turn = 0;
      const auto take = [&]<int kTaken, bool kWhole>(std::integral_constant<int, kTaken>,
                                                     std::bool_constant<kWhole> whole) {
        Load loads[kTaken];
        load(loads, turn, whole);
        use(loads, turn);
        turn += kTaken;
      };
      if constexpr (kStages > 0) {
        // Each thread reads what it has copied itself: there is nothing to wait for but that.
        constexpr uint32_t kRow = kLoadBytes * kThreads;
        const auto row = [&](uint32_t stage, int r) {
          return dynamic_shared() + (stage * kLoads + r) * kRow;
        };
        const auto row_of = [&](uint32_t turn) { return at(std::min(turn, turns - 1)); };
        uint32_t asked = 0, next = 0, stage = 0;
        const auto ask = [&] {
          if (asked < turns) {
#pragma unroll
            for (int r = 0; r < kLoads; ++r) source.copy(row_of(asked + r), row(next, r));
          }
          commit_copies();
          asked += kLoads;
          next = next + 1 < kStages ? next + 1 : 0;
        };
        typename Source::Ahead ahead[kLoads];
        const auto load_ahead = [&](uint32_t turn) {
          typename Source::At from[kLoads];
#pragma unroll
          for (int r = 0; r < kLoads; ++r) from[r] = row_of(turn + r);
          source.load_ahead(from, inner, ahead);
        };
#pragma unroll
        for (int i = 1; i < kStages; ++i) ask();
        if (turns > 0) load_ahead(0);
#pragma unroll 1
        for (; turn < turns; turn += kLoads) {
          Load loads[kLoads];
          ask();
          wait_for_copies<kStages - 1>();
#pragma unroll
          for (int r = 0; r < kLoads; ++r) loads[r] = source.copied(row(stage, r), ahead[r]);
          load_ahead(turn + kLoads);
          if (turn + kLoads > turns) fill(loads, turn);
          use(loads, turn);
          stage = stage + 1 < kStages ? stage + 1 : 0;
        }
      } else {
        using Most = std::integral_constant<int, kMost>;
        if constexpr (!Reducer::kRepeats) {
          while (turn + kMost <= turns) take(Most(), std::true_type());
        }
        if constexpr (kFew < kMost) {
          while (turn + kMost / 2 < turns) take(Most(), std::false_type());
        }
        while (turn < turns) take(std::integral_constant<int, kFew>(), std::false_type());
      }
    };
    const auto walk_positions = [&]<int kMost, int kFew>(std::integral_constant<int, kMost> most,
                                                         std::integral_constant<int, kFew> few) {
      Positions<Source> positions(p, source, base, begin);
      walk([&](uint32_t turn) { return positions(share + turn * shares); }, most, few);
    };
    using All = std::integral_constant<int, kLoads>;
    using Few = std::integral_constant<int, kLoads / 4>;
    // To find positions is as fast as to add a stride for packs of the input alone, each of which
    // is one load of many bytes. For others there is a loop of its own where they are of one dim.
    if constexpr (kVector && kStages == 0 && !Source::kMasked) {
      if (inside) walk_positions(All(), Few());
    } else if (inside && (Reducer::kOneDim || p.reduced_count == 1)) {
      const Dim along = p.reduced()[0];
      const Dim turn_dim{0, shares * along.stride, 0, shares * along.mask_stride};
      const auto first = source.along(base, along, begin + share);
      walk([&](uint32_t turn) { return source.along(first, turn_dim, turn); }, All(), Few());
    } else if constexpr (!Reducer::kOneDim) {  // a loop of less code, for few inputs need it
      constexpr int kSome = kStages == 0 ? kLoads / 2 : kLoads;
      using Some = std::integral_constant<int, kSome>;
      if (inside) walk_positions(Some(), Some());
    }
    tracker.finish();
    // As if each thread had a column; those that have none do not use it.
    State found[kWidth];
    tracker.states(
        source, seen, inside ? turns : 0,
        [&](uint32_t turn) {
          const int64_t position = begin + share + int64_t(turn) * shares;
          return source.move(base, p.reduced(), p.reduced_count, position).at;
        },
        inner, inner.size - column, found);
    if (alone(p)) {
      if (inside) {
        const auto count = static_cast<uint32_t>(std::min<int64_t>(inner.size - column, kWidth));
        put_alone<kWidth>(p, source, reducer, base.input, outer * inner.size + column, count, part,
                          begin, found);
      }
      continue;
    }
    // A walk over columns is in index order, so positions compare like indices until the winner is
    // known.
    if constexpr (kStages > 0) __syncthreads();  // the states take the place of the stages
    const bool any = inside && turns > 0;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      State state;
      if (any) state = found[c];
      if (!state.none()) state.index = share + state.index * shares;
      states[c * kPitch + threadIdx.x] = state;
    }
    __syncthreads();
    combine_shares<kWidth>(p, source, reducer, states, by_groups, unit, part);
    __syncthreads();
  }
}

template <bool kVector, class Source, class Reducer>
void launch_columns_of(const Problem& p, const Source& source, const Reducer& reducer,
                       void* stream) {
  using Key = typename Source::Key;
  using State = typename Reducer::template State<Key, uint32_t>;
  constexpr Room kRoom = Reducer::template column_room<Source>(kVector);
  const size_t columns_of_thread = kVector ? Vector<Key>::kWidth : 1;
  const size_t states = alone(p) ? 0 : columns_of_thread * kPitch * sizeof(State);
  constexpr size_t kStaged = kRoom.stages * kRoom.loads * kThreads * kLoadBytes;
  const size_t shared = std::max(states, kStaged);
  constexpr auto kernel =
      columns<kVector, kRoom.loads, kRoom.blocks, kRoom.stages, Source, Reducer>;
  if constexpr (kStaged > 0) allow_shared<kernel>();
  enqueue(kernel, p.plan, stream, shared, source, reducer, p);
}

}  // namespace reduceops::cuda
