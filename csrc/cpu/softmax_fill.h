// softmax_max of groups of one element, repeated `weight` times, as what Fill makes values of:
// 1 / weight, or NaN of what is not finite.
#pragma once

#include "cpu/softmax.h"

namespace reduceops::cpu {
namespace {

template <class Format>
struct OnlyElement : Plain<typename Format::Key, true> {
  using typename Plain<typename Format::Key, true>::Key;
  Key infinity, finite, other;

  explicit OnlyElement(const Reduction& r)
      : Plain<Key, true>{order_of<Key>(*r.dtype, true)},
        infinity(static_cast<Key>(r.dtype->max_magnitude)),
        finite(of(0, r.groups.weight)),
        other(of(std::numeric_limits<double>::infinity(), r.groups.weight)) {}

  Key value(Key bits) const {
    return (bits & std::numeric_limits<Key>::max()) < infinity ? finite : other;
  }

 private:
  static Key of(double x, int64_t weight) {
    using Compute = typename Format::Compute;
    return SoftmaxLanes<Format>::probability(static_cast<Compute>(x), Compute(1),
                                             static_cast<Compute>(weight));
  }
};

}  // namespace
}  // namespace reduceops::cpu
