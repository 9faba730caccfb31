// Groups of a few elements for any Source and Reducer: a thread takes those of its outputs one by
// one. Where elements and their mask lie does not matter.
//
// Bound by instructions, of which an element with its mask takes about twenty, so packs of columns
// are left to columns.cuh. Without it, a mask in another order than memory and groups of two
// elements cost up to 12 times as much.
#pragma once

#include "cuda/gather.cuh"
#include "cuda/reducer.cuh"

namespace reduceops::cuda {

template <class Source, class Reducer>
struct ItemOperands {
  Source source;
  Reducer reducer;
};

// The best of each of some units, whose elements begin at places.
template <int kUnits, class Source, class Reducer>
class BestItems {
  using Items = typename Reducer::template Items<Source>;
  using Key = typename Source::Key;
  using Operands = ItemOperands<Source, Reducer>;

 public:
  static constexpr int kWidth = 1;

  __device__ BestItems(const GatherProblem& p, const Operands& operands, Rows rows,
                       const GatherPlace (&at)[kUnits], bool)
      : p_(p), operands_(operands), rows_(rows), at_(at) {
    const Source& source = operands.source;
    REDUCEOPS_ROLLED
    for (uint32_t row = 0; row < rows.count; row += kAtOnce) {
      const auto is_past = [&](int r) { return r > 0 && row + r >= rows.count; };
      typename Source::Item items[kUnits][kAtOnce];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (is_past(r)) break;
#pragma unroll
        for (int i = 0; i < kUnits; ++i) items[i][r] = source.item(place(i, row + r));
      }
      if constexpr (Reducer::kRepeats) {
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r) {
          if (is_past(r)) break;
#pragma unroll
          for (int i = 0; i < kUnits; ++i) {
            const typename Source::Item item[1]{items[i][r]};
            items_[i].take(source, item, [&](int) { return row + r; });
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r) {
            if (is_past(r)) source.fill(items[i][r], operands.reducer.absent());
          }
          items_[i].take(source, items[i],
                         [&](int r) { return std::min(row + r, rows.count - 1); });
        }
      }
    }
  }
  __device__ uint32_t position(int unit, int) const {
    return static_cast<uint32_t>(operands_.reducer.index(items_[unit].state()));
  }
  __device__ Key value(int unit, int) const {
    return operands_.reducer.value(operands_.source, items_[unit].state(), [&](uint32_t row) {
      return reinterpret_cast<const Key*>(p_.input)[at_[unit].from + rows_.from(p_, row)];
    });
  }

 private:
  static constexpr int kAtOnce = kUnits > 1 ? 2 : 4;

  struct Offsets {
    uint32_t stride, mask_stride;
  };
  __device__ typename Source::At place(int unit, uint32_t row) const {
    const Offsets offsets{at_[unit].from + rows_.from(p_, row),
                          Source::kMasked ? at_[unit].mask + rows_.mask_from(p_, row) : 0};
    return Source::along(Source::begin(p_), offsets, 1u);
  }

  const GatherProblem& p_;
  const Operands& operands_;
  const Rows rows_;
  const GatherPlace (&at_)[kUnits];
  Items items_[kUnits];
};

// As the kernels of gather.cuh take it.
template <int kSome, class Source, class Reducer>
struct GatheredItems {
  using Bests = BestItems<kSome, Source, Reducer>;
  using Operands = ItemOperands<Source, Reducer>;
  using Key = typename Source::Key;
  static constexpr int kUnits = kSome;
  static constexpr bool kMasked = Source::kMasked, kHasLargeTiles = false;
  static constexpr int kBlocks = !Reducer::kRepeats ? 4 : sizeof(Key) == 8 ? 6 : 8;
  static constexpr int kTileBlocks = Reducer::kRepeats ? 4 : 3;
};

template <class Source, class Reducer>
void launch_gather_of(const Reduction& r, const Problem& problem, const Source& source,
                      const Reducer& reducer, void* stream) {
  constexpr int64_t kBytes = sizeof(typename Source::Key);
  const Plan& plan = problem.plan;
  const GatherProblem p(problem, r.groups, kBytes);
  const auto run = [&]<int kUnits>(std::integral_constant<int, kUnits>) {
    using Of = GatheredItems<kUnits, Source, Reducer>;
    const typename Of::Operands operands{source, reducer};
    if constexpr (kUnits > 1) {
      launch(gather_tiles<Of>, plan, p, operands, stream, plan.gather.shared_bytes(kBytes));
    } else {
      launch(gather<Of>, plan, p, operands, stream);
    }
  };
  plan.gather.tiled() ? run(std::integral_constant<int, kTileUnits>())
                      : run(std::integral_constant<int, 1>());
}

}  // namespace reduceops::cuda
