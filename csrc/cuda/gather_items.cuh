// Groups of a few elements under a mask, and of softmax_max: a thread has an output, or a pack of
// neighbouring ones of 8 or 16 bits, or several of these, wherever they and their bytes of the mask
// lie. Longer groups over one dim are shared by threads of a block.
//
// Bound by instructions, of which an element with its byte of a mask takes about fifteen, and one
// with its exponential about twenty, and by L1 where elements and mask lie in different orders.
// Without it, such groups, whose mask or results lie in another order than memory, take up to 12
// times as long.
#pragma once

#include "cuda/gather_loads.cuh"
#include "cuda/option_policy.h"
#include "cuda/reducer.cuh"

namespace reduceops::cuda {

template <class Source, class Reducer>
struct ItemOperands {
  Source source;
  Reducer reducer;
};

// Rows of a unit that are loaded at once: with a mask, no more than the compiler has registers for
// (else it waits for the first ones before it loads the next); for a sum.
constexpr int masked_at_once(int units) { return units > 1 ? 2 : 4; }
constexpr int summed_at_once(int64_t bytes, int units) {
  return (units > 1 ? 4 : 8) / (bytes == 8 ? 2 : 1);
}

// What a unit has in a row: an element, or a pack of them.
template <bool kPacked, class Key>
using ItemSlot = std::conditional_t<kPacked, uint32_t, std::make_unsigned_t<Key>>;
template <bool kPacked, class Key>
constexpr int kItemWidth = kPacked ? 4 / sizeof(Key) : 1;

// Calls take(slots, bytes of the mask, number of the row) for all rows, of which it loads some at a
// time. (None is loaded twice to make a whole batch: groups of two and three rows take an eighth
// longer so.) Which load the bytes of a pack take is asked once.
template <int kAtOnce, class Slot, class Key, int kUnits, class Take>
__device__ void take_masked_rows(const GatherProblem& p, Rows rows, const GatherPlace (&at)[kUnits],
                                 Take take) {
  constexpr int kWidth = sizeof(Slot) / sizeof(Key);
  const auto run_slots = [&](auto slot_at, auto bytes_from) {
    uint32_t row = 0;
    const auto batch = [&]<int kRows>(std::integral_constant<int, kRows>) {
      Slot slots[kRows][kUnits];
      uint32_t masks[kRows][kUnits];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint32_t from = rows.from(p, row + r), mask_from = rows.mask_from(p, row + r);
#pragma unroll
        for (int i = 0; i < kUnits; ++i) slots[r][i] = slot_at(at[i], from);
#pragma unroll
        for (int i = 0; i < kUnits; ++i) masks[r][i] = bytes_from(at[i].mask + mask_from);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) take(slots[r], masks[r], row + r);
      row += kRows;
    };
    REDUCEOPS_ROLLED
    while (row + kAtOnce <= rows.count) batch(std::integral_constant<int, kAtOnce>());
    if (kAtOnce > 4 && row + 4 <= rows.count) batch(std::integral_constant<int, 4>());
    if (kAtOnce > 2 && row + 2 <= rows.count) batch(std::integral_constant<int, 2>());
    if (row < rows.count) batch(std::integral_constant<int, 1>());
  };
  const auto run = [&](auto bytes_from) {
    run_slots([&](GatherPlace at, uint32_t behind) { return element_of<Slot, Key>(p, at, behind); },
              bytes_from);
  };
  const auto same = [&](uint32_t first) { return p.mask[first] * 0x1010101u; };
  const auto apart = [&](uint32_t first) {
    uint32_t bytes = 0;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) bytes |= uint32_t(p.mask[first + e * p.mask_step]) << (8 * e);
    return bytes;
  };
  if constexpr (kWidth == 4) {
    if (p.realigned) {  // so the bytes of the mask are neighbours, or one
      bool inside = true;
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        inside &= at[i].from - rows.behind <= p.last_inside &&
                  (p.mask_step == 0 || at[i].mask - rows.mask_behind <= p.last_mask_inside);
      const auto realigned = [&](GatherPlace at, uint32_t behind) {
        return realigned_of(p, at, behind);
      };
      if (!inside) {
        run_slots([&](GatherPlace at, uint32_t behind) { return bytes_of(p, at, behind); }, apart);
      } else if (p.mask_step == 0) {
        run_slots(realigned, same);
      } else {
        run_slots(realigned, [&](uint32_t first) { return realigned_word(p.mask + first); });
      }
      return;
    }
  }
  if constexpr (kWidth == 1) {
    run([&](uint32_t first) { return uint32_t(p.mask[first]); });
  } else if (p.mask_words) {
    using Word = std::conditional_t<kWidth == 2, uint16_t, uint32_t>;
    run([&](uint32_t first) { return uint32_t(*reinterpret_cast<const Word*>(p.mask + first)); });
  } else if (p.mask_step == 0) {
    run(same);
  } else {
    run(apart);
  }
}

// The best of each output of some units, whose elements begin at places: under a mask.
template <bool kPacked, int kUnits, int kAtOnce, class Source, class Reducer>
class BestItems {
  static_assert(Source::kMasked && Reducer::kTakesElement && !kPacked);
  using Key = typename Source::Key;
  using Operands = ItemOperands<Source, Reducer>;

 public:
  static constexpr int kWidth = 1;

  __device__ BestItems(const GatherProblem& p, const Operands& operands, Rows rows,
                       const GatherPlace (&at)[kUnits], bool)
      : source_(operands.source) {
    take_masked_rows<kAtOnce, std::make_unsigned_t<Key>, Key>(
        p, rows, at, [&](const auto& slots, const auto& masks, uint32_t row) {
#pragma unroll
          for (int i = 0; i < kUnits; ++i)
            bests_[i].template take_if<kUnits == 1>(masks[i] != 0, source_.element, slots[i], row);
        });
  }
  // Of a unit without an element that takes part, the first one, and the value of an absent one.
  __device__ uint32_t position(int unit, int) const {
    return is_none(unit) ? 0 : bests_[unit].row();
  }
  __device__ Key value(int unit, int) const {
    return is_none(unit) ? source_.absent() : bests_[unit].bits();
  }
  __device__ Near<Key> state(int, uint32_t position) const {
    if (is_none(0)) return {};
    return {source_.element.key(bests_[0].bits()), position};
  }

 private:
  __device__ bool is_none(int unit) const { return bests_[unit].row() == kNowhere; }

  const Source& source_;
  Winner<typename Source::Element> bests_[kUnits];
};

// The same of 8 and 16 bits: a key above the row that it is of, in one integer, of which the
// smallest is the best of any; what does not take part is above all of them.
template <bool kPacked, int kUnits, int kAtOnce, class Source>
  requires(sizeof(typename Source::Key) <= 2 && Source::kMasked)
class BestItems<kPacked, kUnits, kAtOnce, Source, Extreme> {
  using Key = typename Source::Key;
  using Element = typename Source::Element;
  using Operands = ItemOperands<Source, Extreme>;
  using Slot = ItemSlot<kPacked, Key>;
  static constexpr int kRowBits = 32 - 8 * sizeof(Key);
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

 public:
  static constexpr int kWidth = kItemWidth<kPacked, Key>;

  __device__ BestItems(const GatherProblem& p, const Operands& operands, Rows rows,
                       const GatherPlace (&at)[kUnits], bool)
      : source_(operands.source) {
#pragma unroll
    for (int32_t& best : bests_) best = kNone;
    take_masked_rows<kAtOnce, Slot, Key>(
        p, rows, at,
        [&](const auto& slots, const auto& masks, uint32_t row) { take(slots, masks, row); });
  }
  // Of a unit without an element that takes part, the first one, and the value of an absent one.
  __device__ uint32_t position(int unit, int e) const {
    const int32_t best = bests_[unit * kWidth + e];
    return best == kNone ? 0 : best & ((1u << kRowBits) - 1);
  }
  __device__ Key value(int unit, int e) const {
    const int i = unit * kWidth + e;
    if (bests_[i] == kNone) return source_.absent();
    if constexpr (kHasKnownValues) {
      Key value;
      source_.element.value_of_key(static_cast<Key>(bests_[i] >> kRowBits), value);
      return value;
    } else {
      return element_in<Key>(slots_[i], e);
    }
  }
  __device__ Near<Key> state(int e, uint32_t position) const {
    if (bests_[e] == kNone) return {};
    return {static_cast<Key>(bests_[e] >> kRowBits), position};
  }

 private:
  static constexpr bool kHasKnownValues =
      std::is_same_v<Element, Plain<Key, false>> || std::is_same_v<Element, Bool>;
  // Units whose elements are made keys together.
  static constexpr int kTogether = kPacked ? 1 : std::min<int>(kUnits, 4 / sizeof(Key));
  static constexpr int kOfWord = kWidth * kTogether;

  __device__ void take(const Slot (&slots)[kUnits], const uint32_t (&masks)[kUnits], uint32_t row) {
#pragma unroll
    for (int first = 0; first < kUnits * kWidth; first += kOfWord) {
      const uint32_t keys = keys_of(word_of<kTogether>(slots, first / kOfWord));
#pragma unroll
      for (int e = 0; e < kOfWord; ++e) {
        const int i = first + e;
        const uint32_t present = kPacked ? masks[i / kWidth] & 0xffu << (8 * e) : masks[i];
        const auto here = static_cast<int32_t>(
            __byte_perm(keys, row, sizeof(Key) == 2 ? (e ? 0x3254 : 0x1054) : 0x0654 | e << 12));
        const bool is_best = (present != 0) & (here < bests_[i]);
        bests_[i] = is_best ? here : bests_[i];
        if constexpr (!kHasKnownValues) slots_[i] = is_best ? slots[i / kWidth] : slots_[i];
      }
    }
  }
  // Of the elements of a word, in their places.
  __device__ uint32_t keys_of(uint32_t word) const {
    const Element element = source_.element;
    if constexpr (sizeof(Key) == 2) {
      return pair_of_keys(element, word);
    } else if constexpr (kHasWordKeys<Element>) {
      return keys_of_word(element, word);
    } else {
      const uint32_t even = pair_of_keys(element, word, 0);
      if constexpr (kOfWord == 1) return even >> 8;
      return __byte_perm(even, pair_of_keys(element, word, 1), 0x7351);
    }
  }

  const Source& source_;
  int32_t bests_[kUnits * kWidth];
  Slot slots_[kHasKnownValues ? 1 : kUnits * kWidth] = {};  // that the best is in
};

// The largest of each output with a sum, for which each element counts once.
template <bool kPacked, int kUnits, int kAtOnce, class Source, class Format>
class BestItems<kPacked, kUnits, kAtOnce, Source, SoftmaxMax<Format>> {
  using Reducer = SoftmaxMax<Format>;
  using Key = typename Source::Key;
  using Sum = typename Format::Compute;
  using Operands = ItemOperands<Source, Reducer>;

 public:
  static constexpr int kWidth = kItemWidth<kPacked, Key>;

  __device__ BestItems(const GatherProblem& p, const Operands& operands, Rows rows,
                       const GatherPlace (&at)[kUnits], bool)
      : reducer_(operands.reducer) {
    in_batches<kAtOnce>(
        rows.count, [&]<int kSome>(std::integral_constant<int, kSome>, uint32_t row) {
          ItemSlot<kPacked, Key> slots[kSome][kUnits];
          load_rows<Key>(p, rows, row, at, slots);
#pragma unroll
          for (int i = 0; i < kUnits * kWidth; ++i) {
            Sum x[kSome];
#pragma unroll
            for (int r = 0; r < kSome; ++r) {
              x[r] = Format::decode(element_in<Key>(slots[r][i / kWidth], i % kWidth));
              if (r >= (kSome + 1) / 2 && row + r >= rows.count)  // half of them are there
                x[r] = -std::numeric_limits<Sum>::infinity();
            }
            sums_[i].take(x, row);
          }
        });
  }
  __device__ uint32_t position(int unit, int e) const { return sums_[unit * kWidth + e].row(); }
  __device__ Key value(int unit, int e) const {
    const ExpSum<Format>& sum = sums_[unit * kWidth + e].sum();
    const auto [all, less] = sum.parts();
    return reducer_.probability(sum.largest(), all, less);
  }
  __device__ Summed<Format, uint32_t> state(int e, uint32_t position) const {
    const ExpSum<Format>& sum = sums_[e].sum();
    const typename Source::Element element{kDescending<Format>};
    return {{element.key(Format::encode(sum.largest())), position}, sum.sum()};
  }

 private:
  const Reducer& reducer_;
  SummedRows<Format> sums_[kUnits * kWidth];
};

// As the kernels of gather.cuh take it.
template <bool kPacked, int kSome, class Source, class Reducer>
struct ItemGather {
  using Key = typename Source::Key;
  static constexpr int kAtOnce =
      Source::kMasked ? masked_at_once(kSome) : summed_at_once(sizeof(Key), kSome);
  using Bests = BestItems<kPacked, kSome, kAtOnce, Source, Reducer>;
  using Operands = ItemOperands<Source, Reducer>;
  static constexpr int kUnits = kSome;
  static constexpr bool kMasked = Source::kMasked, kHasLargeTiles = false;
  static constexpr int kBlocks = kUnits > 1 ? 4 : kPacked || sizeof(Key) == 8 ? 5 : 8;
  static constexpr int kTileBlocks = (kPacked && kMasked) || (sizeof(Key) == 8 && !kMasked) ? 3 : 4;

  // Of a few, which may lie anywhere.
  static __device__ Rows rows(const GatherProblem& p) { return {p.rows, 0, 0, false}; }
};

// The same of units that threads share.
template <bool kPacked, class Source, class Reducer>
struct SharedItemGather {
  using Key = typename Source::Key;
  using Operands = ItemOperands<Source, Reducer>;
  using Bests = BestItems<kPacked, 1, loads_at_once(sizeof(Key)), Source, Reducer>;
  using State = typename Reducer::template State<Key, uint32_t>;
  static constexpr int kSharedBlocks = room_for(kSharedItemBlocks, kSharedGatherThreads);

  static __device__ bool wants_positions(const Outputs&) { return true; }
  static __device__ State state(const Bests& bests, int e, uint32_t position) {
    return bests.state(e, position);
  }
  static __device__ int64_t index(const Operands& operands, const State& state) {
    return operands.reducer.index(state);
  }
  static __device__ Key value(const GatherProblem& p, const Operands& operands, const State& state,
                              uint32_t from) {
    return operands.reducer.value(operands.source, state, [&](uint32_t i) {
      return reinterpret_cast<const Key*>(p.input)[from + int64_t(i) * p.row_stride];
    });
  }
};

template <class Source, class Reducer>
void launch_gather_of(const Reduction& r, const Problem& problem, const Source& source,
                      const Reducer& reducer, void* stream) {
  constexpr int64_t kBytes = sizeof(typename Source::Key);
  const Plan& plan = problem.plan;
  const GatherProblem p(problem, r.groups, kBytes);
  const ItemOperands<Source, Reducer> operands{source, reducer};
  const auto run = [&](auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    constexpr int kUnits = item_units(kPacked, kBytes, Source::kMasked);
    if (plan.gather.shared()) {
      launch_gather_shared<SharedItemGather<kPacked, Source, Reducer>>(plan, p, operands, stream);
    } else if (plan.gather.tiled()) {
      constexpr int kSome = kTileUnits;
      launch(gather_tiles<ItemGather<kPacked, kSome, Source, Reducer>>, plan, p, operands, stream,
             plan.gather.shared_bytes(kBytes));
    } else if (plan.gather.units == 1) {
      launch(gather<ItemGather<kPacked, 1, Source, Reducer>>, plan, p, operands, stream);
    } else {
      launch(gather<ItemGather<kPacked, kUnits, Source, Reducer>>, plan, p, operands, stream);
    }
  };
  if constexpr (kBytes < 4) {
    if (plan.gather.packed) return run(std::true_type());
  }
  run(std::false_type());
}

}  // namespace reduceops::cuda
