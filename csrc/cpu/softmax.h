// What softmax_max computes of a group: its largest element, where that is, and the sum of
// exp(x - largest) over all of it. Unlike a minimum, a sum must not take an element twice.
//
// Included by kernels.cpp only, as walk.h is.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/exp.h"
#include "cpu/walk.h"

namespace reduceops::cpu {
namespace {

// A sum is relative to exp(base), where base is some element that the largest is little above. As
// long as it is, nothing already added is scaled, and rounded, again; where it is not, what is
// scaled becomes so small that its errors do not add up.
constexpr double kAboveBase = 2;

// A group, or a part of it.
struct Softmax {
  double largest;  // or NaN, if one is there
  double sum;      // over exp(largest); means nothing where that is not finite
  int64_t index;
};

// Puts a group together from parts.
class SoftmaxSum {
 public:
  REDUCEOPS_NOINLINE void add(const Softmax& part) {
    const bool nan = std::isnan(largest_), part_nan = std::isnan(part.largest);
    const bool same = largest_ == part.largest || (nan && part_nan);
    if (same ? part.index < index_ : !nan && (part_nan || part.largest > largest_)) {
      largest_ = part.largest;
      index_ = part.index;
    }
    if (!(largest_ <= base_ + kAboveBase)) {
      const double share = std::exp(base_ - largest_);
      sum_ *= share;
      excess_ *= share;
      base_ = largest_;
    }
    const double added = part.sum * std::exp(part.largest - base_) - excess_;
    const double total = sum_ + added;
    excess_ = (total - sum_) - added;
    sum_ = total;
  }

  Softmax group() const {
    return {largest_, sum_ * std::exp(base_ - std::max(largest_, kLowest)), index_};
  }

 private:
  static constexpr double kLowest = std::numeric_limits<double>::lowest();
  double largest_ = -std::numeric_limits<double>::infinity(), base_ = kLowest;
  double sum_ = 0, excess_ = 0;  // by which the sum is too large: what rounding added (Kahan)
  int64_t index_ = std::numeric_limits<int64_t>::max();
};

// -infinity minus itself is NaN; what is subtracted instead leaves it what it is.
template <class V>
REDUCEOPS_INLINE V at_least_finite(V v) {
  using T = std::remove_cvref_t<decltype(v[0])>;
  return larger(v, V{} + std::numeric_limits<T>::lowest());
}

// Elements of a format as lanes to compute with, and what a lane knows of its elements.
template <class F>
struct SoftmaxLanes {
  using Format = F;
  using Key = typename Format::Key;
  using Compute = typename Format::Compute;
  using Bits = std::conditional_t<sizeof(Compute) == 4, int32_t, int64_t>;
  using Vectors = Lanes<Plain<Bits, true>>;
  using V = Vector<Compute>;
  using Number = std::make_unsigned_t<Bits>;
  using Index = Vector<Number>;
  static constexpr int kLanes = kVectorBytes / sizeof(Compute);
  static constexpr Compute kInfinity = std::numeric_limits<Compute>::infinity();

  struct State {
    V largest = V{} - kInfinity;
    V base = V{} + std::numeric_limits<Compute>::lowest();
    V sum{}, excess{};  // by which the sum is too large: what rounding added (Kahan)
    Index at{};         // what the caller numbers; 0 while nothing was found
  };

  static REDUCEOPS_INLINE V load(const Key* p) {
    if constexpr (sizeof(Key) == sizeof(Compute)) {
      return get<V>(p);
    } else {
      return Narrow<Format>::decode(get<typename Narrow<Format>::Half>(p));
    }
  }
  static REDUCEOPS_INLINE V all(Compute value) { return V{} + value; }

  // Takes n vectors. Where they have a new largest, `find(improved, largest, at)` says which of
  // them it is in; it is called for all if it costs less than a branch that is hard to predict. A
  // NaN, or an infinite largest, only becomes a NaN in the sum.
  template <int n, bool kAsks, class Find>
  static REDUCEOPS_INLINE void take(const V* v, State& state, const Find& find) {
    V largest = v[0];
    for (int u = 1; u < n; ++u) largest = larger(largest, v[u]);
    if (!kAsks || any(Vectors::less(state.largest, largest))) {
      find(largest > state.largest, largest, state.at);
      state.largest = larger(state.largest, largest);
      const V limit = state.base + all(kAboveBase);
      if (any(Vectors::less(limit, state.largest))) {
        const V base = state.largest > limit ? state.largest : state.base;
        const V share = exp_of<Compute>(state.base - base);
        state.sum *= share;
        state.excess *= share;
        state.base = base;
      }
    }
    const V sum = sum_of_exp<Compute, n>(v, state.base) - state.excess;
    const V total = state.sum + sum;
    state.excess = (total - state.sum) - sum;
    state.sum = total;
  }

  // The sum has the largest element's share as the fast exponential computes it; what that lacks of
  // the share computed with care.
  static REDUCEOPS_INLINE V more(V largest, V base, V share) {
    return share - sum_of_exp<Compute, 1>(&largest, base);
  }

  // The result's value: the share of the largest in the sum.
  template <class T>
  static REDUCEOPS_INLINE Key probability(T largest, T share, T sum) {
    const bool finite = largest - largest == 0;
    return Format::encode(static_cast<Compute>(finite ? share / sum : T(NAN)));
  }
};

// What the walks of softmax_max share. It reduces one dim, so a position is the result's index; and
// if that dim has stride 0, no walk is needed (softmax_fill.h).
template <class Format>
struct SoftmaxWalk : Walk<Plain<typename Format::Key, true>>, SoftmaxLanes<Format> {
  using Ordered = Plain<typename Format::Key, true>;
  using Lanes = SoftmaxLanes<Format>;
  using Base = Walk<Ordered>;
  using Base::job, Base::r;
  using typename Lanes::Compute;
  using typename Lanes::Key;

  explicit SoftmaxWalk(const Job& job)
      : Base(job, Ordered{order_of<Key>(*job.reduction.dtype, true)}) {}

  // Writes the result of the group that lies `at`.
  REDUCEOPS_NOINLINE void store(Place at, const Softmax& group) const {
    store(at, Lanes::probability(group.largest, 1.0, group.sum), group.index);
  }
  void store(Place at, Key value, int64_t index) const {
    static_cast<int64_t*>(r.indices)[at.step] = index;
    std::memcpy(static_cast<Key*>(r.values) + at.step, &value, sizeof(value));
  }

  void store_candidate(int64_t item, const Softmax& group) const {
    job.candidates[item] = {std::bit_cast<int64_t>(group.largest), group.index};
    job.sums[item] = group.sum;
  }

  // Merges the candidates of outputs [begin, end) and writes the results.
  REDUCEOPS_SMALL void combine(int64_t begin, int64_t end) const {
    Cursor kept(r.groups.kept, 0, begin);
    int64_t item = begin * job.plan.parts;
    for (; begin < end; ++begin, kept.next()) {
      SoftmaxSum group;
      for (int64_t p = 0; p < job.plan.parts; ++p, ++item) {
        const Candidate& part = job.candidates[item];
        group.add({std::bit_cast<double>(part.key), job.sums[item], part.index});
      }
      store(kept.place(), group.group());
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
