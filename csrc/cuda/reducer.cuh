// Reducer: what is computed of a group of elements.
//
//   State<Key, Index>  of some elements, with an index in a run or part (32 bits) or in the whole
//                      group (64); combine.cuh merges them. State() is that of no element
//   kOneDim            whether there is at most one reduced dim
//   kRepeats           whether an element may be taken twice, as a tail without branches does. If
//                      not, `absent()` are the bits that a walk puts in place of such
//
// What one thread keeps while it walks, and its state in the end, in the four ways that a walk may
// go: Items, elements one by one; Row, packs of neighbouring elements of one group; Batches, as
// many packs of one group as it holds at once, for which lanes of a warp look together; Columns,
// slots (keys.cuh) of neighbouring groups side by side.
//
// At the end of a group: `index(state)`, and `value(source, state, bits_at)` where values are
// wanted: `bits_at(index)` reads an element again. A row that is held whole ends by `of_held`.
//
// What a walk asks before it starts: `kTakesElement`, whether the result is one of the elements;
// `Stored`, a State as the workspace holds it; and how many loads of a thread, and blocks of a
// multiprocessor, there is room for (`row_room`, `column_room`, `held_blocks`).
//
// Extreme is every operator but softmax_max, whose SoftmaxMax keeps a sum beside what Extreme does,
// for which each element counts once.
#pragma once

#include "cuda/combine.cuh"
#include "cuda/source.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {

template <class Key>
__device__ Far<Key> widen(Near<Key> found, int64_t index) {
  return {found.key, index};
}

// Puts absent elements in place of those loads that are past the end, where `past(i)`: a walk
// without branches takes the last one again there, and some reducers may not.
template <class Source, class Reducer, class Load, int kCount, class Past>
__device__ void fill_past_end(const Source& source, const Reducer& reducer, Load (&loads)[kCount],
                              Past past) {
  if constexpr (!Reducer::kRepeats) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (past(i)) source.fill(loads[i], reducer.absent());
    }
  }
}

// The smallest key, and the lowest index of such an element.
struct Extreme {
  static constexpr bool kRepeats = true;
  // The value is the element at the index, which results.cuh may also make of its key.
  static constexpr bool kTakesElement = true;
  static constexpr bool kOneDim = false;
  template <class Key, class Index>
  using State = Found<Key, Index>;
  template <class Key>
  using Stored = Far<int64_t>;  // in the workspace

  template <class Source>
  class Items {
    using Key = typename Source::Key;

   public:
    // `index(i)` of each.
    template <int kCount, class Index>
    __device__ void take(const Source& source, const typename Source::Item (&items)[kCount],
                         Index index) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (Source::kMasked) {
          if (!source.present(items[i])) continue;
        }
        state_.take(source.element.key(source.bits(items[i])), index(i));
      }
    }
    __device__ Near<Key> state() const { return state_; }

   private:
    Near<Key> state_;
  };

  // Takes the minimum of a pack, compares it once with its best, and remembers only which pack it
  // was; the element is looked up at the end.
  template <class Source>
  class Row {
    using Key = typename Source::Key;
    using Best = Comparable<typename Source::Element>;
    using Pack = typename Source::Pack;
    static constexpr int kWidth = Vector<Key>::kWidth;

   public:
    // `first`: a pack of the run.
    __device__ Row(const Source& source, uint32_t first) : pack_(first) {
      if constexpr (Source::kMasked) {
        least_ = comparable(source.element, source.absent());
        pack_ = kNowhere;
      }
    }
    // `number(i)` of each, in the run.
    template <int kPacks, class Number>
    __device__ void take(const Source& source, const Pack (&packs)[kPacks], Number number) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const Best least = least_of(source.element, {source.bits(packs[i])});
        bool is_best = wins(least, least_);
        // A present element wins against absent ones, even if it equals them.
        if constexpr (Source::kMasked) is_best |= pack_ == kNowhere && source.any_present(packs[i]);
        if (is_best) {
          least_ = least;
          pack_ = number(i);
        }
      }
    }
    __device__ Best least() const { return least_; }
    // `again(number)` loads a pack once more. Should somebody have written to it meanwhile, the
    // element is its last one.
    template <class Again>
    __device__ Near<Key> state(const Source& source, Again again) const {
      if (pack_ == kNowhere) return {};
      const Pack pack = again(pack_);
      uint32_t at;
      if constexpr (Source::kMasked) {
        at = same(least_, comparable(source.element, source.absent()))
                 ? source.first_present(pack)
                 : first_of(source.element, {source.bits(pack)}, least_);
      } else {
        at = first_of(source.element, {source.bits(pack)}, least_);
      }
      return {key_of_comparable(source.element, least_),
              pack_ * kWidth + std::min<uint32_t>(at, kWidth - 1)};
    }

   private:
    Best least_ = kLast<Best>;
    uint32_t pack_;  // if nothing comes before the last of all, the first holds it too
  };

  // The same of all packs of a batch at once.
  template <class Source>
  class Batches {
    using Key = typename Source::Key;
    using Best = Comparable<typename Source::Element>;
    using Pack = typename Source::Pack;

   public:
    explicit __device__ Batches(const Source& source) {
      if constexpr (Source::kMasked) {
        least_ = comparable(source.element, source.absent());
        batch_ = kNowhere;
      }
    }
    // `batch`: its number.
    template <int kPacks>
    __device__ void take(const Source& source, const Pack (&packs)[kPacks], uint32_t batch) {
      Vector<Key> bits[kPacks];
      bits_of(source, packs, bits);
      take(source, packs, bits, batch);
    }
    template <int kPacks>
    __device__ void take(const Source& source, const Pack (&packs)[kPacks],
                         const Vector<Key> (&bits)[kPacks], uint32_t batch) {
      const Best least = least_of(source.element, bits);
      bool is_best = wins(least, least_);
      // A present element wins against absent ones, even if it equals them.
      if constexpr (Source::kMasked) {
        if (batch_ == kNowhere && !is_best) {
#pragma unroll
          for (int i = 0; i < kPacks; ++i) is_best |= source.any_present(packs[i]);
        }
      }
      if (is_best) {
        least_ = least;
        batch_ = batch;
      }
    }
    __device__ Best least() const { return least_; }
    // The state of `lanes` neighbouring lanes, with what each found `beside` its batches. What
    // `again(batch, find)` does is to hold a batch, and to make of the place in it that
    // `find(packs)` gives one in the row. Should somebody have written to it meanwhile, the element
    // is its last one.
    template <class Again>
    __device__ Near<Key> state(const Source& source, Near<Key> beside, uint32_t lanes,
                               Again again) const {
      Key smallest = beside.key;
      if (batch_ != kNowhere)
        smallest = std::min(smallest, key_of_comparable(source.element, least_));
      const Key key = warp_min(smallest, lanes);
      uint32_t index = beside.key == key ? beside.index : kNowhere;
      if (batch_ != kNowhere && key_of_comparable(source.element, least_) == key) {
        index = std::min(index, again(batch_, [&]<int kPacks>(const Pack(&packs)[kPacks]) {
                           Vector<Key> bits[kPacks];
                           bits_of(source, packs, bits);
                           return place_in(source, packs, bits);
                         }));
      }
      return {key, warp_min(index, lanes)};
    }
    // Of the best, in its batch, whose bits these are.
    template <int kPacks>
    __device__ uint32_t place_in(const Source& source, const Pack (&packs)[kPacks],
                                 const Vector<Key> (&bits)[kPacks]) const {
      constexpr int kWidth = Vector<Key>::kWidth;
      uint32_t first = kNowhere;
      if constexpr (Source::kMasked) {
        if (same(least_, comparable(source.element, source.absent()))) {
#pragma unroll
          for (int i = kPacks - 1; i >= 0; --i) {
            const uint32_t here = source.first_present(packs[i]);
            if (here != kNowhere) first = i * kWidth + here;
          }
          return std::min<uint32_t>(first, kPacks * kWidth - 1);
        }
      }
      return std::min<uint32_t>(first_of(source.element, bits, least_), kPacks * kWidth - 1);
    }
    template <int kPacks>
    static __device__ void bits_of(const Source& source, const Pack (&packs)[kPacks],
                                   Vector<Key> (&bits)[kPacks]) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) bits[i] = source.bits(packs[i]);
    }

   private:
    Best least_ = kLast<Best>;
    uint32_t batch_ = 0;  // if nothing comes before the last of all, the first holds it too
  };

  template <class Source, int kSlots>
  class Columns {
    using Element = typename Source::Element;
    using Key = typename Source::Key;
    using Slot = typename Slots<Element>::Slot;
    static constexpr int kElements = Slots<Element>::kElements;

   public:
    template <int kRows>
    __device__ void take(const Source& source, const Slot (&slots)[kSlots][kRows], uint32_t turn) {
      tracker_.take(source.element, slots, turn);
    }
    __device__ void finish() { tracker_.finish(); }
    // Of element e of slot u, with a turn as its index, whether one is present or not.
    __device__ Near<Key> state(const Source& source, int u, int e) const {
      return {tracker_.key(source.element, u, e), tracker_.turn(u, e)};
    }
    // Of each column, of which the first `count` along `inner` are wanted; `turns` have been taken,
    // from `row(turn)` on. Should somebody have written to the last one while the end of a walk
    // took it again, it is that one.
    template <int kWidth, class Row>
    __device__ void states(const Source& source, typename Source::Seen seen, uint32_t turns,
                           Row row, const Dim& inner, int64_t count,
                           Near<Key> (&states)[kWidth]) const {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        states[c] = state(source, c / kElements, c % kElements);
        states[c].index = std::min(states[c].index, turns - 1);
      }
      if constexpr (Source::kMasked) {
        uint32_t unsure = 0;  // a bit to a column
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          if (!seen.of(c)) {
            states[c] = {};
          } else if (c < count && states[c].key == source.element.key(source.absent())) {
            unsure |= 1u << c;
          }
        }
        // Where all that are present equal absent ones. (Rare, except for bytes and where few are
        // present, so it may read the mask once more.)
        if (unsure)
          find_first_present<kWidth>(source, unsure, turns, row, inner,
                                     [&](int c, uint32_t turn) { states[c].index = turn; });
      }
    }

   private:
    Tracker<Element, kSlots> tracker_;
  };

  // The same of a single batch, whose bits stay in registers.
  template <class Source, int kPacks, class Again>
  __device__ auto of_held(const Source& source, const typename Source::Pack (&packs)[kPacks],
                          Near<typename Source::Key> beside, uint32_t lanes, Again again) const {
    Batches<Source> batch(source);
    Vector<typename Source::Key> bits[kPacks];
    batch.bits_of(source, packs, bits);
    batch.take(source, packs, bits, 0);
    return batch.state(source, beside, lanes, [&](uint32_t number, auto&&) {
      return again(number, [&](const auto& held) { return batch.place_in(source, held, bits); });
    });
  }

  // What finds room in a multiprocessor, as far as it is up to the Reducer.
  template <class Source>
  static constexpr Room row_room() {
    return Source::row_room();
  }
  template <class Source>
  static constexpr Room column_room(bool vector) {
    return Source::column_room(vector);
  }
  template <class Source>
  static constexpr int held_blocks(int loads) {
    return Source::held_blocks(loads);
  }

  template <class State>
  __device__ int64_t index(const State& state) const {
    return state.none() ? 0 : state.index;
  }
  // `bits_at(index)` are those of the element there.
  template <class Source, class State, class BitsAt>
  __device__ typename Source::Key value(const Source& source, const State& state,
                                        BitsAt bits_at) const {
    if constexpr (Source::kMasked) {
      if (state.none()) return source.element.value(source.absent());
    }
    return source.element.value(bits_at(state.index));
  }
};

// Instructions that have no function: the larger, NaN if one is; 2 to the power of x, to two units
// in the last place; the inverse of x, to one.
#ifdef __CUDA_ARCH__
__device__ inline float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
__device__ inline float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ inline float about_inverse(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}
#else
inline float max_or_nan(float a, float b) { return a != a || a > b ? a : b; }
inline float power_of_two(float x) { return std::exp2(x); }
inline float about_inverse(float x) { return 1 / x; }
#endif
__device__ inline double max_or_nan(double a, double b) { return a != a || a > b ? a : b; }

// e to the power of x, which is not above 2, for sums of elements of a format. What is lost of the
// product with log2(e) counts in float32: what is too much, as shares of ln2, goes to `excess`;
// results of 16 bits do not show it.
template <class Format>
__device__ typename Format::Compute power_of_e(typename Format::Compute x,
                                               typename Format::Compute& excess) {
  constexpr float kLog2E = 1.44269502f, kRest = 1.92596299e-8f;
  if constexpr (sizeof(typename Format::Key) == 8) {
    return exp(x);
  } else if constexpr (sizeof(typename Format::Key) == 2) {
    return power_of_two(x * kLog2E);
  } else {
    x = max_or_nan(x, -150.0f);  // e to the power of less is 0, too
    const float product = x * kLog2E;
    const float power = power_of_two(product);
    const float above = fmaf(x, -kRest, fmaf(x, -kLog2E, product));
    excess = fmaf(power, above, excess);
    return power;
  }
}
constexpr float kLn2 = 0.693147181f;

template <class Format>
__device__ typename Format::Compute exponential(typename Format::Compute x) {
  typename Format::Compute excess = 0;
  const auto power = power_of_e<Format>(x, excess);
  return sizeof(typename Format::Key) == 4 ? power - excess * kLn2 : power;
}

template <class Format>
constexpr typename Format::Key kInfinity = 0x7f800000;
template <>
inline constexpr int16_t kInfinity<BFloat16> = 0x7f80;
template <>
inline constexpr int16_t kInfinity<Float16> = 0x7c00;
template <>
inline constexpr int64_t kInfinity<Float64> = 0x7ff0000000000000;

// That of the largest first.
template <class Format, class Key = typename Format::Key>
constexpr Order<Key> kDescending{
    -1, std::numeric_limits<Key>::max() - kInfinity<Format>,
    Key(std::numeric_limits<Key>::max() - kInfinity<Format> - kInfinity<Format> - 1)};

// The element of which this is the key, the largest first; of zeros and NaNs, one of them.
template <class Format, class Key = typename Format::Key>
__device__ typename Format::Compute number_of(Key key) {
  Key bits;
  bits_of<true>(key, kDescending<Format>, bits);
  return Format::decode(bits);
}

// The same of what rows are compared by.
template <class Format, class T>
__device__ typename Format::Compute number_of_best(T best) {
  if constexpr (std::is_floating_point_v<T>) {
    return -best;
  } else {
    return number_of<Format>(best);
  }
}

// The elements of a pack. (Those of 16 bits out of words, lest each be held in a register.)
template <class Format, int kWidth, class Key = typename Format::Key>
__device__ void numbers_of(Vector<Key> vector, typename Format::Compute (&x)[kWidth]) {
  if constexpr (sizeof(Key) == 2) {
    uint32_t words[kLoadBytes / 4];
    memcpy(words, &vector, kLoadBytes);
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      x[e] = Format::decode(static_cast<Key>(words[e / 2] >> (16 * (e % 2))));
  } else {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) x[e] = Format::decode(vector.at[e]);
  }
}

// exp(a - b) of their keys, b being the larger. (The difference of two infinities is none.)
template <class Format, class Key = typename Format::Key>
__device__ typename Format::Compute ratio(Key a, Key b) {
  return a == b ? 1 : exponential<Format>(number_of<Format>(a) - number_of<Format>(b));
}

// The sum of what several threads have summed, without rounding that results of 32 bits would show.
template <class Format>
using Total = std::conditional_t<sizeof(typename Format::Key) == 2, float, double>;

// The largest of some elements and the sum of exp(x - largest), which is 0 where all are -infinity.
template <class F, class Index>
struct Summed : Found<typename F::Key, Index> {
  Total<F> sum = 0;
};

template <class F, class Index>
__device__ void merge(Summed<F, Index>& state, Summed<F, Index> other) {
  const auto largest = std::min(state.key, other.key);
  state.sum = state.sum * ratio<F>(state.key, largest) + other.sum * ratio<F>(other.key, largest);
  state.take(other.key, other.index);
}

template <class F, class Index>
__device__ Summed<F, Index> warp_combine(Summed<F, Index> state, uint32_t lanes = 32) {
  const Found<typename F::Key, Index> best = state;
  const auto agreed = warp_combine(best, lanes);
  state.sum *= ratio<F>(state.key, agreed.key);
  for (uint32_t d = lanes / 2; d > 0; d /= 2) state.sum += __shfl_xor_sync(~0u, state.sum, d);
  state.key = agreed.key;
  state.index = agreed.index;
  return state;
}

template <class F>
__device__ Summed<F, int64_t> widen(Summed<F, uint32_t> state, int64_t index) {
  return {{state.key, index}, state.sum};
}

template <class F>
__device__ void put(const Candidates& candidates, int64_t at, const Summed<F, int64_t>& state) {
  static_cast<Summed<F, int64_t>*>(candidates.workspace)[at] = state;
}
template <class F>
__device__ void get(const Candidates& candidates, int64_t at, Summed<F, int64_t>& state) {
  state = static_cast<const Summed<F, int64_t>*>(candidates.workspace)[at];
}

// A thread's sum of exp(x - largest), as the largest grows. What rounding loses of it is carried
// on, for a thread may take thousands of elements one after the other; 16 bits do not show it.
template <class Format>
class ExpSum {
  using Sum = typename Format::Compute;
  static constexpr Sum kAboveBase = sizeof(Sum) == 8 ? 2 : 0;
  static constexpr bool kCarries = sizeof(typename Format::Key) > 2;

 public:
  ExpSum() = default;
  explicit __device__ ExpSum(Sum largest) : largest_(largest), base_(largest) {}

  // The base of a float64 sum follows the largest element only where that is far above it:
  // ascending elements would else round all of the sum again with each of them. (In float32
  // ex2.approx is the more exact the nearer an element is to the base.)
  __device__ void raise(Sum largest) {
    largest_ = largest;
    if (kAboveBase > 0 && largest <= base_ + kAboveBase) return;
    const Sum factor = exponential<Format>(base_ - largest);
    sum_ *= factor;
    lost_ *= factor;
    base_ = largest;
  }
  // Of elements of which none is larger than the largest.
  template <int kCount>
  __device__ Sum of(const Sum (&x)[kCount]) const {
    // Of nothing but -infinity, the difference would be NaN.
    const Sum base = base_ == -std::numeric_limits<Sum>::infinity() ? 0 : base_;
    Sum terms[kCount], excess = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) terms[i] = power_of_e<Format>(x[i] - base, excess);
    // By twos, which is exact where adding one after the other is not.
#pragma unroll
    for (int apart = 1; apart < kCount; apart *= 2) {
#pragma unroll
      for (int i = 0; i + apart < kCount; i += 2 * apart) terms[i] += terms[i + apart];
    }
    return sizeof(typename Format::Key) == 4 ? terms[0] - excess * kLn2 : terms[0];
  }
  __device__ void add(Sum some) {
    if (!kCarries) {
      sum_ += some;
      return;
    }
    const Sum exact = some - lost_, sum = sum_ + exact;
    lost_ = (sum - sum_) - exact;
    sum_ = sum;
  }
  __device__ Sum largest() const { return kAboveBase > 0 ? largest_ : base_; }
  // The sum, and what is too much in it.
  struct Parts {
    Sum sum, less;
  };
  __device__ Parts parts() const {
    if (kAboveBase == 0 || base_ == largest_) return {sum_, lost_};
    const Sum factor = exponential<Format>(base_ - largest_);
    return {sum_ * factor, lost_ * factor};
  }
  __device__ Total<Format> sum() const {
    const Parts all = parts();
    return Total<Format>(all.sum) - all.less;
  }

 private:
  Sum largest_ = -std::numeric_limits<Sum>::infinity(), base_ = largest_;
  Sum sum_ = 0, lost_ = 0;
};

// The same with the row of the largest, of elements that come in the order of their rows.
template <class F>
class SummedRows {
  using Sum = typename F::Compute;

 public:
  // Rows from number `first` on.
  template <int kRows>
  __device__ void take(const Sum (&x)[kRows], uint32_t first) {
    Sum largest = x[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) largest = max_or_nan(largest, x[r]);
    if (!(largest <= sum_.largest()) && sum_.largest() == sum_.largest()) {
      if (first == 0) {
        sum_ = ExpSum<F>(largest);
      } else {
        sum_.raise(largest);
      }
      // The first NaN if there is one.
      uint32_t row = kRows - 1;
#pragma unroll
      for (int r = kRows - 2; r >= 0; --r) {
        if (x[r] == largest || x[r] != x[r]) row = r;
      }
      row_ = first + row;
    }
    sum_.add(sum_.of(x));
  }
  __device__ const ExpSum<F>& sum() const { return sum_; }
  __device__ uint32_t row() const { return row_; }

 private:
  ExpSum<F> sum_;
  uint32_t row_ = 0;
};

// The inverse of x - less, of which x is not below 1 and `less` a small part: by one step of
// Newton's method, which a division would end with, too.
__device__ inline float inverse_of(float x, float less) {
  const float inverse = about_inverse(x);
  return fmaf(inverse, fmaf(-x, inverse, 1) + less * inverse, inverse);
}
__device__ inline double inverse_of(double x, double less) { return 1 / (x - less); }

// The largest element and its softmax, in one pass. A maximum that is infinite has none.
template <class F>
struct SoftmaxMax {
  static constexpr bool kRepeats = false;
  static constexpr bool kTakesElement = false;
  static constexpr bool kOneDim = true;
  using Sum = typename F::Compute;
  template <class Key, class Index>
  using State = Summed<F, Index>;
  template <class Key>
  using Stored = Summed<F, int64_t>;

  Sum weight;  // so often each element counts (Groups::weight)

  static constexpr typename F::Key absent() {
    return kInfinity<F> | std::numeric_limits<typename F::Key>::min();
  }

  template <class Source>
  class Items {
   public:
    template <int kCount, class Index>
    __device__ void take(const Source& source, const typename Source::Item (&items)[kCount],
                         Index index) {
      Sum x[kCount];
      const auto before = best_.state().key;
      best_.take(source, items, index);
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = F::decode(source.bits(items[i]));
      if (best_.state().key != before) sum_.raise(number_of<F>(best_.state().key));
      sum_.add(sum_.of(x));
    }
    __device__ Summed<F, uint32_t> state() const { return {best_.state(), sum_.sum()}; }

   private:
    Extreme::Items<Source> best_;
    ExpSum<F> sum_;
  };

  // One pack after the other: small elements of several would lose more beside a large one.
  template <class Source, int kPacks>
  static __device__ void add_packs(const Source& source,
                                   const typename Source::Pack (&packs)[kPacks], ExpSum<F>& sum) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      Sum x[Vector<typename F::Key>::kWidth];
      numbers_of<F>(source.bits(packs[i]), x);
      sum.add(sum.of(x));
    }
  }

  template <class Source>
  class Row {
    using Pack = typename Source::Pack;

   public:
    __device__ Row(const Source& source, uint32_t first) : best_(source, first) {}
    template <int kPacks, class Number>
    __device__ void take(const Source& source, const Pack (&packs)[kPacks], Number number) {
      const auto before = best_.least();
      best_.take(source, packs, number);
      if (!same(best_.least(), before)) sum_.raise(number_of_best<F>(best_.least()));
      add_packs(source, packs, sum_);
    }
    template <class Again>
    __device__ Summed<F, uint32_t> state(const Source& source, Again again) const {
      return {best_.state(source, again), sum_.sum()};
    }

   private:
    Extreme::Row<Source> best_;
    ExpSum<F> sum_;
  };

  // Of lanes that agree on the best, each with a sum for it and what it found beside.
  static __device__ Summed<F, uint32_t> with_sum(Near<typename F::Key> best, Total<F> sum,
                                                 Summed<F, uint32_t> beside, uint32_t lanes) {
    if (!beside.none()) sum += beside.sum * ratio<F>(beside.key, best.key);
    for (uint32_t d = lanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    return {best, sum};
  }

  template <class Source>
  class Batches {
    using Pack = typename Source::Pack;

   public:
    explicit __device__ Batches(const Source& source) : best_(source) {}
    template <int kPacks>
    __device__ void take(const Source&, const Pack (&packs)[kPacks], uint32_t batch) {
      // Its order being known costs an instruction less for each element.
      const Source source{typename Source::Element{kDescending<F>}};
      const auto before = best_.least();
      best_.take(source, packs, batch);
      if (!same(best_.least(), before)) sum_.raise(number_of_best<F>(best_.least()));
      add_packs(source, packs, sum_);
    }
    template <class Again>
    __device__ Summed<F, uint32_t> state(const Source& source, Summed<F, uint32_t> beside,
                                         uint32_t lanes, Again again) const {
      const auto best = best_.state(source, beside, lanes, again);
      const auto key = key_of_comparable(source.element, best_.least());
      return with_sum(best, sum_.sum() * ratio<F>(key, best.key), beside, lanes);
    }

   private:
    Extreme::Batches<Source> best_;
    ExpSum<F> sum_;
  };

  template <class Source, int kSlots>
  class Columns {
    using Element = typename Source::Element;
    using Key = typename Source::Key;
    using Slot = typename Slots<Element>::Slot;
    static constexpr int kElements = Slots<Element>::kElements;

   public:
    template <int kRows>
    __device__ void take(const Source&, const Slot (&slots)[kSlots][kRows], uint32_t turn) {
#pragma unroll
      for (int u = 0; u < kSlots; ++u) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          Sum x[kRows];
#pragma unroll
          for (int r = 0; r < kRows; ++r)
            x[r] = F::decode(static_cast<Key>(slots[u][r] >> (8 * sizeof(Key) * e)));
          columns_[u * kElements + e].take(x, turn);
        }
      }
    }
    __device__ void finish() {}
    template <int kWidth, class Row>
    __device__ void states(const Source& source, typename Source::Seen, uint32_t, Row, const Dim&,
                           int64_t, Summed<F, uint32_t> (&states)[kWidth]) const {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        const ExpSum<F>& sum = columns_[c].sum();
        const Key key = source.element.key(F::encode(sum.largest()));
        states[c] = {{key, columns_[c].row()}, sum.sum()};
      }
    }

   private:
    SummedRows<F> columns_[kSlots * kElements];
  };

  // Sums take registers, and those of 64 bits, whose exponential is long, twice as many.
  template <class Source>
  static constexpr Room row_room() {
    if (sizeof(Sum) == 8) return {4, 3};
    return {8, sizeof(typename F::Key) == 2 ? 2 : 3};
  }
  template <class Source>
  static constexpr Room column_room(bool vector) {
    if (!vector) return {sizeof(Sum) == 8 ? 4 : 8, sizeof(Sum) == 8 ? 3 : 4};
    if (std::is_same_v<typename Source::Pack, Anywhere<typename F::Key>>) return {4, 2};
    if (sizeof(Sum) == 8) return {4, 3, 3};
    return sizeof(typename F::Key) == 2 ? Room{8, 2, 3} : Room{4, 4, 3};
  }

  // Of a single batch, lanes agree on the largest before they sum.
  template <class Source, int kPacks, class Again>
  __device__ auto of_held(const Source&, const typename Source::Pack (&packs)[kPacks],
                          Summed<F, uint32_t> beside, uint32_t lanes, Again again) const {
    const Source source{typename Source::Element{kDescending<F>}};
    const auto best = Extreme().of_held(source, packs, beside, lanes, again);
    ExpSum<F> sum(number_of<F>(best.key));
    add_packs(source, packs, sum);
    return with_sum(best, sum.sum(), beside, lanes);
  }

  template <class Source>
  static constexpr int held_blocks(int loads) {
    return sizeof(Sum) == 8 ? 3 : std::is_same_v<F, BFloat16> && loads <= 4 ? 5 : 4;
  }

  template <class State>
  __device__ int64_t index(const State& state) const {
    return state.index;
  }
  template <class Source, class State, class BitsAt>
  __device__ typename Source::Key value(const Source&, const State& state, BitsAt) const {
    return probability(number_of<F>(state.key), state.sum, decltype(state.sum)(0));
  }
  // Of a sum in which so much is too much.
  template <class T>
  __device__ typename F::Key probability(Sum largest, T sum, T less) const {
    if (largest - largest != 0) return F::encode(std::numeric_limits<Sum>::quiet_NaN());
    const T times = weight, product = sum * times, rest = fma(sum, times, -product);
    return F::encode(Sum(inverse_of(product, less * times - rest)));
  }
};

}  // namespace reduceops::cuda
