// Groups of few elements, wherever they lie: a thread loads all elements of an output itself, or of
// a pack of neighbouring outputs, whose elements have 4 bytes. Where results follow each other in
// another order than memory, a block takes a tile of both, and its threads exchange results; or, if
// a warp's elements lie in few sectors even so, threads lie over results. Longer groups of small
// inputs are shared by threads of a block, so that each waits for memory a few times.
//
// Bound by memory; of elements of 8 and 16 bits by instructions, so two are compared at once, and a
// thread has several outputs; of small inputs by launch latency and by the chain of instructions
// from a thread's number to its result. So positions have 32 bits, divisors come from the host, and
// elements do not go by way of shared memory. Without this walk, inputs of 4 to 40 MB whose groups
// have up to 32 elements take 1.3 times as long (median of random layouts on an H100), and groups
// of 33 to 64 elements at even distances 1.16 times (in the mean of 72 random layouts on an H200).
#include "cuda/gather_loads.cuh"

namespace reduceops::cuda {
namespace {

// The best of each output of some units, whose elements begin at places: of kRows elements, or of
// any number. The constructor's last argument: whether positions are asked for.
template <bool kPacked, int kUnits, int kRows, class Element>
class Bests {
  using S = Slots<Element>;
  using Key = typename S::Key;

 public:
  static constexpr int kWidth = kPacked ? S::kElements : 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows, const GatherPlace (&at)[kUnits],
                   bool)
      : element_(element) {
    using Slot = std::conditional_t<kPacked, typename S::Slot, std::make_unsigned_t<Key>>;
    Slot slots[kRows][kUnits];
    load_all_rows<Key>(p, at, slots);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          bests_[i][e].take(element, element_in<Key>(slots[r][i], e), r, r == 0);
      }
    }
  }
  __device__ uint32_t position(int unit, int e) const { return bests_[unit][e].row(); }
  __device__ Key value(int unit, int e) const { return element_.value(bests_[unit][e].bits()); }

 private:
  Element element_;
  Winner<Element> bests_[kUnits][kWidth];
};

// Two 16-bit floats at once, those of a pack or of two units. Which row the best is of is found
// where positions are asked for, or where its value does not follow from its order (a negative
// zero, a NaN). (Of one row nothing is compared, which is what gives a NaN its bits.)
template <bool kPacked, int kUnits, int kRows, class Element>
  requires(kIsHalf<Element> && kRows > 1)
class Bests<kPacked, kUnits, kRows, Element> {
  static_assert(kPacked || kUnits % 2 == 0);
  using Key = typename Element::Key;
  using Format = typename Element::Format;
  using Slot = std::conditional_t<kPacked, uint32_t, uint16_t>;
  static constexpr int kPairs = kPacked ? kUnits : kUnits / 2;
  using Pairs = uint32_t[kRows * kPairs];  // [row][pair]

 public:
  static constexpr int kWidth = kPacked ? 2 : 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows, const GatherPlace (&at)[kUnits],
                   bool positions)
      : element_(element) {
    Pairs pairs;
    Slot slots[kRows][kUnits];
    load_all_rows<Key>(p, at, slots);
#pragma unroll
    for (int i = 0; i < kRows * kPairs; ++i)
      pairs[i] = word_of<kPacked ? 1 : 2>(slots[i / kPairs], i % kPairs);
    scale_pairs(element, pairs);
#pragma unroll
    for (uint32_t& pair : pairs) pair = ordered_pair(of_values(element), pair);
    uint32_t least = ~0u;  // of all, with kBehindAmbiguous added
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      best_[i] = pairs[i];
#pragma unroll
      for (int r = 1; r < kRows; ++r)
        best_[i] = smaller_pair<Element>(best_[i], pairs[r * kPairs + i]);
      least = __viaddmin_u16x2(best_[i], kBehindAmbiguous, least);
    }
    if ((least & 0xfffe) == 0 || (least & 0xfffe0000) == 0) {
      find<true>(pairs);
    } else if (positions) {
      find<false>(pairs);
    }
  }
  __device__ uint32_t position(int unit, int e) const { return half_of(found_, unit, e) & 0xffff; }
  __device__ Key value(int unit, int e) const {
    return value_of_ordered(element_, static_cast<Key>(half_of(best_, unit, e)));
  }

 private:
  // A NaN is 0x7fff once it was compared, and -0, the smaller of zeros, is 0x8000: with this added
  // to each half, they alone are 0 and 1.
  static constexpr uint32_t kBehindAmbiguous = 0x8001 * kBoth;

  // The first rows that have the bests, and their bits.
  template <bool kAmbiguous>
  __device__ void find(const Pairs& pairs) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      uint32_t bits = pairs[(kRows - 1) * kPairs + i];
      found_[i] = (kRows - 1) * kBoth;
#pragma unroll
      for (int r = kRows - 2; r >= 0; --r) {
        const uint32_t pair = pairs[r * kPairs + i];
        const uint32_t same =
            kAmbiguous ? like<Format>(pair, best_[i]) : equal_halves(Format(), pair, best_[i]);
        found_[i] = choose_halves(same, r * kBoth, found_[i]);
        if (kAmbiguous) bits = choose_halves(same, pair, bits);
      }
      if (kAmbiguous) best_[i] = bits;
    }
  }
  static __device__ uint32_t half_of(const uint32_t (&pairs)[kPairs], int unit, int e) {
    return kPacked ? pairs[unit] >> (16 * e) : pairs[unit / 2] >> (16 * (unit % 2));
  }

  const Element element_;
  uint32_t best_[kPairs], found_[kPairs] = {};  // found: rows
};

// Products of 32 bits. Where the value alone is asked for, it is a minimum, unless that is a zero
// or a NaN, whose bits are those of the first one.
template <int kUnits, int kRows>
  requires(kRows > 1)
class Bests<false, kUnits, kRows, Product<Float32>> {
  using Element = Product<Float32>;
  using Key = typename Element::Key;

 public:
  static constexpr int kWidth = 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows, const GatherPlace (&at)[kUnits],
                   bool positions) {
    uint32_t slots[kRows][kUnits];
    load_all_rows<Key>(p, at, slots);
    if (!positions) {
      bool is_clear = true;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        float best = ordered(element, Key(slots[0][i]));
#pragma unroll
        for (int r = 1; r < kRows; ++r) best = min_or_nan(best, ordered(element, Key(slots[r][i])));
        is_clear &= best < 0 || best > 0;
        values_[i] = bits_as<Key>(element.order.flip ? -best : best);
      }
      if (is_clear) return;
    }
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      Winner<Element> best;
#pragma unroll
      for (int r = 0; r < kRows; ++r) best.take(element, Key(slots[r][i]), r, r == 0);
      positions_[i] = best.row();
      values_[i] = element.value(best.bits());
    }
  }
  __device__ uint32_t position(int unit, int) const { return positions_[unit]; }
  __device__ Key value(int unit, int) const { return values_[unit]; }

 private:
  uint32_t positions_[kUnits] = {};
  Key values_[kUnits];
};

// Elements of 32 and 64 bits. Where the value alone is asked for, it is a minimum, unless that is a
// zero or a NaN, whose bits are those of the first one.
template <int kUnits, class Element>
  requires(sizeof(typename Element::Key) >= 4)
class Bests<false, kUnits, kAnyRows, Element> {
  using Key = typename Element::Key;
  using Ordered = Comparable<Element>;

 public:
  static constexpr int kWidth = 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows rows,
                   const GatherPlace (&at)[kUnits], bool positions)
      : p_(p), element_(element), rows_(rows), at_(at) {
#pragma unroll
    for (Ordered& best : bests_) best = kLast<Ordered>;
    take_batches<Key, Key>(p, rows, at, [&](const auto& slots, uint32_t row) {
      positions ? take<true>(slots, row) : take<false>(slots, row);
    });
    if (positions) return;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (is_ambiguous(i)) rows_of_[i] = row_of_best(i);
    }
  }
  // Should somebody have written to the last row while it was read twice, it is that one.
  __device__ uint32_t position(int unit, int) const {
    return std::min(rows_of_[unit], rows_.count - 1);
  }
  __device__ Key key(int unit, int) const { return key_of_comparable(element_, bests_[unit]); }
  __device__ Key value(int unit, int) const {
    if constexpr (kIsFloat<Element>) {
      const Ordered best = bests_[unit];
      return is_ambiguous(unit) ? element_.value(bits(unit, position(unit, 0)))
                                : bits_as<Key>(element_.order.flip ? -best : best);
    } else {
      Key value;
      element_.value_of_key(bests_[unit], value);
      return value;
    }
  }

 private:
  // Whether equal elements may have other bits: of a zero or a NaN.
  __device__ bool is_ambiguous(int unit) const {
    if constexpr (kIsFloat<Element>) return !(bests_[unit] < 0 || bests_[unit] > 0);
    return false;
  }
  __device__ Key bits(int unit, uint32_t row) const {
    return reinterpret_cast<const Key*>(p_.input)[at_[unit].from + rows_.from(p_, row)];
  }
  __device__ uint32_t row_of_best(int unit) const {
    uint32_t row = 0;
    REDUCEOPS_ROLLED
    while (row + 1 < rows_.count && !same(comparable(element_, bits(unit, row)), bests_[unit]))
      ++row;
    return row;
  }
  // Rows from number `row` on. (What is the last of all may be that of row 0.)
  template <bool kPositions, int kSome>
  __device__ void take(const Key (&slots)[kSome][kUnits], uint32_t row) {
#pragma unroll
    for (int r = 0; r < kSome; ++r) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const Ordered here = comparable(element_, slots[r][i]);
        if (!kPositions) {
          bests_[i] = lesser(bests_[i], here);
        } else if (wins(here, bests_[i])) {
          bests_[i] = here;
          rows_of_[i] = row + r;
        }
      }
    }
  }

  const GatherProblem& p_;
  const Element element_;
  const Rows rows_;
  const GatherPlace (&at_)[kUnits];
  Ordered bests_[kUnits];
  uint32_t rows_of_[kUnits] = {};
};

// Of bytes and of 16-bit integers: a key above the row that it is of, in one integer, of which the
// smallest is the best of any. Those of bytes have 16 bits, and two are compared at once.
template <bool kPacked, int kUnits, int kRows, class Element>
class BestsWithRows {
  using Key = typename Element::Key;
  using Slot = std::conditional_t<kPacked, uint32_t, std::make_unsigned_t<Key>>;
  static constexpr bool kOfBytes = sizeof(Key) == 1;
  static constexpr int kRowBits = 8 * sizeof(Key);
  static_assert(std::max(kEvenGatherRows, kSharedGatherRows) <= 1 << kRowBits);

 public:
  static constexpr int kWidth = sizeof(Slot) / sizeof(Key);

  __device__ BestsWithRows(const GatherProblem& p, Element element, Rows rows,
                           const GatherPlace (&at)[kUnits], bool)
      : p_(p), element_(element), rows_(rows), at_(at) {
#pragma unroll
    for (uint32_t& best : bests_) best = kOfBytes ? 0x7fff7fff : 0x7fffffff;
    if constexpr (kRows != kAnyRows) {
      Slot slots[kRows][kUnits];
      load_all_rows<Key>(p, at, slots);
      take(slots, 0);
    } else {
      take_batches<Key, Slot>(p, rows, at,
                              [&](const auto& slots, uint32_t row) { take(slots, row); });
    }
  }
  // Should somebody have written to the last row while it was read twice, it is that one.
  __device__ uint32_t position(int unit, int e) const {
    const uint32_t row = best_of(unit, e) & ((1 << kRowBits) - 1);
    return kRows == kAnyRows ? std::min(row, rows_.count - 1) : row;
  }
  __device__ Key key(int unit, int e) const {
    return static_cast<Key>(best_of(unit, e) >> kRowBits);
  }
  __device__ Key value(int unit, int e) const {
    return value_at(p_, element_, key(unit, e),
                    at_[unit].from + e + rows_.from(p_, position(unit, e)));
  }

 private:
  // Of a pack of bytes, a word has outputs 0 and 2, or 1 and 3; of single ones, those of two units.
  static constexpr int kWords = !kOfBytes ? kUnits * kWidth
                                : kPacked ? 2 * kUnits
                                          : (kUnits + 1) / 2;

  __device__ uint32_t best_of(int unit, int e) const {
    if constexpr (!kOfBytes) return bests_[unit * kWidth + e];
    return kPacked ? bests_[2 * unit + e % 2] >> (16 * (e / 2))
                   : bests_[unit / 2] >> (16 * (unit % 2));
  }
  // Rows from number `row` on.
  template <int kSome>
  __device__ void take(const Slot (&slots)[kSome][kUnits], uint32_t row) {
#pragma unroll
    for (int r = 0; r < kSome; ++r) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) take_word(i, slots[r], row + r);
    }
  }
  __device__ void take_word(int i, const Slot (&slots)[kUnits], uint32_t row) {
    if constexpr (kOfBytes) {
      const uint32_t word = word_of<kPacked ? 1 : std::min(2, kUnits)>(slots, kPacked ? i / 2 : i);
      const uint32_t keys = pair_above_rest(element_, word, kPacked ? i % 2 : 0);
      bests_[i] = __vmins2(bests_[i], keys & 0xff00ff00u | row * kBoth);
    } else {
      const uint32_t keys = pair_of_keys(element_, uint32_t(slots[i / kWidth]));
      const uint32_t other = __byte_perm(keys, row, i % kWidth ? 0x3254 : 0x1054);
      bests_[i] = std::min(static_cast<int32_t>(bests_[i]), static_cast<int32_t>(other));
    }
  }

  const GatherProblem& p_;
  const Element element_;
  const Rows rows_;
  const GatherPlace (&at_)[kUnits];
  uint32_t bests_[kWords];
};

template <class Element>
constexpr bool kHasRoomForRow = sizeof(typename Element::Key) == 1 || kIsShort<Element>;

template <bool kPacked, int kUnits, int kRows, class Element>
  requires(kHasRoomForRow<Element> && kRows > 1)
class Bests<kPacked, kUnits, kRows, Element>
    : public BestsWithRows<kPacked, kUnits, kRows, Element> {
  using BestsWithRows<kPacked, kUnits, kRows, Element>::BestsWithRows;
};
template <bool kPacked, int kUnits, class Element>
  requires kHasRoomForRow<Element>
class Bests<kPacked, kUnits, kAnyRows, Element>
    : public BestsWithRows<kPacked, kUnits, kAnyRows, Element> {
  using BestsWithRows<kPacked, kUnits, kAnyRows, Element>::BestsWithRows;
};

// 16-bit floats. A word holds a pack, the elements of two units, or one element. Which row the best
// is of is found where positions are asked for; else a value that does not follow from its order (a
// zero, a NaN) is looked for in the end.
template <bool kPacked, int kUnits, class Element>
  requires(kIsHalf<Element>)
class Bests<kPacked, kUnits, kAnyRows, Element> {
  static_assert(kPacked || kUnits == 1 || kUnits % 2 == 0);
  using Key = typename Element::Key;
  using Format = typename Element::Format;
  using Slot = std::conditional_t<kPacked, uint32_t, uint16_t>;
  static constexpr bool kPaired = !kPacked && kUnits > 1;
  static constexpr int kPairs = kPaired ? kUnits / 2 : kUnits;
  static constexpr int kCompared = 2;  // rows that are taken together

 public:
  static constexpr int kWidth = kPacked ? 2 : 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows rows,
                   const GatherPlace (&at)[kUnits], bool positions)
      : p_(p), element_(element), rows_(rows), at_(at), positions_(positions) {
    // What is the last of all may be that of row 0.
    const auto last = static_cast<uint16_t>(Format::encode(kLast<float>));
#pragma unroll
    for (uint32_t& best : best_) best = last * kBoth;
    take_batches<Key, Slot, kCompared>(
        p, rows, at, [&](const auto& slots, uint32_t row) { take_some(slots, row); });
  }
  // Should somebody have written to the last row while it was read twice, it is that one.
  __device__ uint32_t position(int unit, int e) const {
    return std::min(half_of(found_, unit, e) & 0xffff, rows_.count - 1);
  }
  __device__ Key key(int unit, int e) const {
    return key_of_ordered(element_, static_cast<Key>(half_of(best_, unit, e)));
  }
  __device__ Key value(int unit, int e) const {
    const auto best = static_cast<Key>(half_of(best_, unit, e));
    // Of zeros the smaller is the negative one, so where that is +0 there is no other.
    if (!is_ambiguous<Element>(best) || best == 0) return value_of_ordered(element_, best);
    return element_.value(bits(unit, e, positions_ ? position(unit, e) : row_like(best, unit, e)));
  }

 private:
  __device__ Key bits(int unit, int e, uint32_t row) const {
    return reinterpret_cast<const Key*>(p_.input)[at_[unit].from + e + rows_.from(p_, row)];
  }
  // The first row that has a zero, or a NaN, as `best` is.
  __device__ uint32_t row_like(Key best, int unit, int e) const {
    constexpr Key kSign = std::numeric_limits<Key>::min();
    const bool is_zero = (best & ~kSign) == 0;
    uint32_t row = 0;
    REDUCEOPS_ROLLED
    for (; row + 1 < rows_.count; ++row) {
      const float here = Format::decode(element_.value(bits(unit, e, row)));
      if (is_zero ? here == 0 : here != here) break;
    }
    return row;
  }
  template <class Pairs>
  static __device__ uint32_t half_of(const Pairs& pairs, int unit, int e) {
    return kPaired ? pairs[unit / 2] >> (16 * (unit % 2)) : pairs[unit] >> (16 * e);
  }
  // Rows from number `row` on.
  template <int kSome>
  __device__ void take_some(const Slot (&slots)[kSome][kUnits], uint32_t row) {
#pragma unroll
    for (int r = 0; r < kSome; r += kCompared) {
      uint32_t pairs[kCompared * kPairs];
#pragma unroll
      for (int i = 0; i < kCompared * kPairs; ++i)
        pairs[i] = word_of<kPaired ? 2 : 1>(slots[r + i / kPairs], i % kPairs);
      scale_pairs(element_, pairs);
#pragma unroll
      for (uint32_t& pair : pairs) pair = ordered_pair(of_values(element_), pair);
      positions_ ? take<true>(pairs, row + r) : take<false>(pairs, row + r);
    }
  }
  template <bool kPositions>
  __device__ void take(const uint32_t (&pairs)[kCompared * kPairs], uint32_t row) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int c = 0; c < kCompared; ++c) {
        const uint32_t here = pairs[c * kPairs + i];
        if (kPositions)
          found_[i] =
              choose_halves(winning_halves<Format>(here, best_[i]), (row + c) * kBoth, found_[i]);
        best_[i] = smaller_pair<Element>(best_[i], here);
      }
    }
  }

  const GatherProblem& p_;
  const Element element_;
  const Rows rows_;
  const GatherPlace (&at_)[kUnits];
  const bool positions_;
  uint32_t best_[kPairs], found_[kPairs] = {};  // rows
};

}  // namespace

// As the kernels of gather.cuh take them. Blocks find room as threads do, but many loads at once
// take more registers, and so do words of bytes, of any number of rows, and packs of them in tiles.
template <bool kPacked, int kSome, int kRows, class Element>
struct ElementGather {
  using Bests = cuda::Bests<kPacked, kSome, kRows, Element>;
  using Operands = Element;
  using Key = typename Element::Key;
  static constexpr int kUnits = kSome;
  static constexpr bool kMasked = false, kHasLargeTiles = kRows != kAnyRows;
  static constexpr int kBlocks = kRows != kAnyRows            ? blocks_of_known_rows(kRows, kUnits)
                                 : kUnits * Bests::kWidth < 4 ? 8
                                                              : 5;
  static constexpr int kTileBlocks = kPacked && sizeof(Key) == 1 ? 3 : 4;
  static constexpr int kSharedBlocks = room_for(kSharedGatherBlocks, kSharedGatherThreads);

  static __device__ Rows rows(const GatherProblem& p) {
    return {p.rows, p.row_stride, 0, p.even_rows};
  }

  using State = Near<Key>;
  // (Where the value alone is asked for, floats of 16 bits do not know which row a zero is of;
  // integers and bytes know their rows anyway.)
  static __device__ bool wants_positions(const Outputs& out) {
    return out.indices || out.pairs.words || sizeof(Key) < 4;
  }
  static __device__ State state(const Bests& bests, int e, uint32_t position) {
    return {bests.key(0, e), position};
  }
  static __device__ uint32_t index(Element, State state) { return state.index; }
  static __device__ Key value(const GatherProblem& p, Element element, State state, uint32_t from) {
    return value_at(p, element, state.key, from + int64_t(state.index) * p.row_stride);
  }
};

namespace {

// Calls f with the number of rows that a kernel is compiled for, which is at most kMost. (Of one
// row are the values that fill.cu copies.)
template <int kMost, class F>
void visit_rows(int64_t rows, F&& f) {
  if constexpr (kMost > 0) {
    rows == kMost ? f(std::integral_constant<int, kMost>()) : visit_rows<kMost - 1>(rows, f);
  } else {
    f(std::integral_constant<int, kAnyRows>());
  }
}

template <bool kPacked, int kRows, class Element>
void launch_units(const Plan& plan, const GatherProblem& p, Element element, void* stream) {
  constexpr int64_t kBytes = sizeof(typename Element::Key);
  constexpr int kMany = gather_units(kRows, kPacked, kBytes);
  constexpr int kFew = few_gather_units(kRows, kPacked, kBytes);
  auto kernel = gather<ElementGather<kPacked, kMany, kRows, Element>>;
  if constexpr (kFew < kMany) {
    if (plan.gather.units == kFew) kernel = gather<ElementGather<kPacked, kFew, kRows, Element>>;
  }
  launch(kernel, plan, p, element, stream);
}

}  // namespace

void launch_gather(const Reduction& r, const Problem& problem, void* stream) {
  const Plan& plan = problem.plan;
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    constexpr int64_t kBytes = sizeof(typename Element::Key);
    const GatherProblem p(problem, r.groups, kBytes);
    const auto run = [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      if (plan.gather.shared()) {
        launch_gather_shared<ElementGather<kPacked, 1, kAnyRows, Element>>(plan, p, element,
                                                                           stream);
      } else if (plan.gather.tiled()) {
        visit_rows<kKnownRows>(problem.walk, [&](auto rows) {
          launch(gather_tiles<ElementGather<kPacked, kTileUnits, rows.value, Element>>, plan, p,
                 element, stream, plan.gather.shared_bytes(kBytes));
        });
      } else {
        visit_rows<known_rows_of_units(kBytes)>(problem.walk, [&](auto rows) {
          launch_units<kPacked, rows.value>(plan, p, element, stream);
        });
      }
    };
    if constexpr (kBytes < 4) {
      if (plan.gather.packed) return run(std::true_type());
    }
    run(std::false_type());
  });
}

}  // namespace reduceops::cuda
