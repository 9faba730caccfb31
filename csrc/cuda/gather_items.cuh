// Groups of a few elements under a mask, and of softmax_max: a thread takes those of its outputs
// one by one, wherever they and their bytes of the mask lie.
//
// Bound by instructions, of which an element with its byte takes about fifteen, and by L1 where
// these lie in different orders. Without it, such groups, whose mask or results lie in another
// order than memory, take up to 12 times as long.
#pragma once

#include "cuda/gather.cuh"
#include "cuda/option_policy.h"
#include "cuda/reducer.cuh"

namespace reduceops::cuda {

template <class Source, class Reducer>
struct ItemOperands {
  Source source;
  Reducer reducer;
};

// Loads the items of rows, kAtOnce of each unit at a time as long as there are any, and calls
// take(items, number of the first row).
template <int kAtOnce, class Source, int kUnits, class Take>
__device__ void load_items(const GatherProblem& p, Rows rows, const GatherPlace (&at)[kUnits],
                           Take take) {
  typename Source::At first[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
    first[i] = Source::behind(Source::begin(p), at[i].from, at[i].mask);
  REDUCEOPS_ROLLED
  for (uint32_t row = 0; row < rows.count; row += kAtOnce) {
    typename Source::Item items[kUnits][kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (r > 0 && row + r >= rows.count) break;
      const uint32_t from = p.row_from[row + r], mask = p.row_mask_from[row + r];
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        items[i][r] = Source::item(Source::behind(first[i], from, mask));
    }
    take(items, row);
  }
}

// The best of each of some units, whose elements begin at places: under a mask.
template <int kUnits, class Source, class Reducer>
class BestItems {
  static_assert(Source::kMasked && Reducer::kTakesElement);
  using Key = typename Source::Key;
  using Operands = ItemOperands<Source, Reducer>;

 public:
  static constexpr int kWidth = 1;

  __device__ BestItems(const GatherProblem& p, const Operands& operands, Rows rows,
                       const GatherPlace (&at)[kUnits], bool)
      : source_(operands.source) {
    load_items<kAtOnce, Source>(p, rows, at, [&](const auto& items, uint32_t row) {
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (r > 0 && row + r >= rows.count) break;
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          const auto item = items[i][r];
          bests_[i].take_if(Source::present(item), source_.element, item.bits, row + r);
        }
      }
    });
  }
  // Of a unit without an element that takes part, the first one, and the value of an absent one.
  __device__ uint32_t position(int unit, int) const {
    return is_none(unit) ? 0 : bests_[unit].row();
  }
  __device__ Key value(int unit, int) const {
    return source_.element.value(is_none(unit) ? source_.absent() : bests_[unit].bits());
  }

 private:
  static constexpr int kAtOnce = kUnits > 1 ? 2 : 4;

  __device__ bool is_none(int unit) const { return bests_[unit].row() == kNowhere; }

  const Source& source_;
  Winner<typename Source::Element> bests_[kUnits];
};

// The same with a sum, for which each element counts once.
template <int kUnits, class Source, class Format>
class BestItems<kUnits, Source, SoftmaxMax<Format>> {
  using Reducer = SoftmaxMax<Format>;
  using Key = typename Source::Key;
  using Operands = ItemOperands<Source, Reducer>;

 public:
  static constexpr int kWidth = 1;

  __device__ BestItems(const GatherProblem& p, const Operands& operands, Rows rows,
                       const GatherPlace (&at)[kUnits], bool)
      : operands_(operands) {
    const Source& source = operands.source;
    load_items<kAtOnce, Source>(p, rows, at, [&](auto& items, uint32_t row) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        fill_past_end(source, operands.reducer, items[i],
                      [&](int r) { return r > 0 && row + r >= rows.count; });
        items_[i].take(source, items[i], [&](int r) { return std::min(row + r, rows.count - 1); });
      }
    });
  }
  __device__ uint32_t position(int unit, int) const { return items_[unit].state().index; }
  __device__ Key value(int unit, int) const {
    return operands_.reducer.value(operands_.source, items_[unit].state(), nullptr);
  }

 private:
  static constexpr int kAtOnce = kUnits > 1 ? 2 : 4;

  const Operands& operands_;
  typename Reducer::template Items<Source> items_[kUnits];
};

// As the kernels of gather.cuh take it.
template <int kSome, class Source, class Reducer>
struct ItemGather {
  using Bests = BestItems<kSome, Source, Reducer>;
  using Operands = ItemOperands<Source, Reducer>;
  using Key = typename Source::Key;
  static constexpr int kUnits = kSome;
  static constexpr bool kMasked = Source::kMasked, kHasLargeTiles = false;
  static constexpr int kBlocks = !kMasked || kUnits > 1 ? 4 : sizeof(Key) == 8 ? 6 : 8;
  static constexpr int kTileBlocks = kMasked ? 4 : 3;
};

template <class Source, class Reducer>
void launch_gather_of(const Reduction& r, const Problem& problem, const Source& source,
                      const Reducer& reducer, void* stream) {
  constexpr int64_t kBytes = sizeof(typename Source::Key);
  const Plan& plan = problem.plan;
  const GatherProblem p(problem, r.groups, kBytes);
  const ItemOperands<Source, Reducer> operands{source, reducer};
  constexpr int kUnits = item_units(Source::kMasked);
  if (plan.gather.tiled()) {
    launch(gather_tiles<ItemGather<kTileUnits, Source, Reducer>>, plan, p, operands, stream,
           plan.gather.shared_bytes(kBytes));
  } else if (plan.gather.units == 1) {
    launch(gather<ItemGather<1, Source, Reducer>>, plan, p, operands, stream);
  } else {
    launch(gather<ItemGather<kUnits, Source, Reducer>>, plan, p, operands, stream);
  }
}

}  // namespace reduceops::cuda
