// softmax_max of groups of one element, repeated `weight` times: 1 / weight.
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
    Cursor cursor(dims, 0, begin);
    for (; begin < end; ++begin, cursor.next()) {
      const Compute x = Format::decode(get<Key>(input + cursor.place().offset));
      const Key value = SoftmaxLanes<Format>::probability(x, Compute(1), weight);
      std::memcpy(static_cast<Key*>(r.values) + begin, &value, sizeof(value));
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
