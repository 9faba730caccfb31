// softmax_max of groups of one element, repeated `weight` times: 1 / weight, or NaN of what is not
// finite.
//
// Goes over the results in their order. Bound by writing them.
#pragma once

#include "cpu/softmax.h"
#include "make_groups.h"

namespace reduceops::cpu {
namespace {

template <class Format>
struct SoftmaxFill : SoftmaxWalk<Format> {
  using Base = SoftmaxWalk<Format>;
  using Base::input, Base::r;
  using typename Base::Compute;
  using typename Base::Key;

  explicit SoftmaxFill(const Job& job) : Base(job) {}

  // Results [begin, end), repeats among them.
  void operator()(int64_t begin, int64_t end) const {
    const Dims dims = result_dims(r.groups);
    const auto weight = static_cast<Compute>(r.groups.weight);
    const auto of = [&](Compute x) {
      return SoftmaxLanes<Format>::probability(x, Compute(1), weight);
    };
    const Key finite = of(0), other = of(std::numeric_limits<Compute>::infinity());
    const auto infinity = static_cast<Key>(r.dtype->max_magnitude);
    const Dim inner = dims.count ? dims.dim[0] : Dim{1, 1, 1};
    Cursor outer(dims, 1, begin / inner.size);
    for (int64_t start = begin % inner.size; begin < end; start = 0, outer.next()) {
      const int64_t n = least(inner.size - start, end - begin);
      const Key* from = input + outer.place().offset + start * inner.stride;
      Key* to = static_cast<Key*>(r.values) + begin;
      for (int64_t i = 0; i < n; ++i) {
        const Key magnitude = get<Key>(from + i * inner.stride) & std::numeric_limits<Key>::max();
        to[i] = magnitude < infinity ? finite : other;
      }
      begin += n;
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
