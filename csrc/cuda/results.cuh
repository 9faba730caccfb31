// Where the results of neighbouring outputs go, for walks over one reduced dim.
#pragma once

#include "cuda/device.cuh"

namespace reduceops::cuda {

template <class Element>
class Results {
  using Key = typename Element::Key;

 public:
  // Outputs `stride` elements apart in memory, the first of which begins at `offset` and is number
  // `output` in the order of memory, along one reduced dim; `first`: the index of position 0, which
  // is index 0 where no candidates are wanted.
  __device__ Results(const Problem& p, int64_t offset, int64_t stride, int64_t output, int64_t part,
                     int64_t first)
      : p_(p),
        input_(reinterpret_cast<const Key*>(p.input) + offset),
        stride_(stride),
        output_(output),
        part_(part),
        first_(first),
        along_(p.reduced()[0]) {}

  // Whether results lie side by side, their indices being positions that count from the first, for
  // what is cut leaves candidates.
  __device__ bool side_by_side() const {
    return !p_.candidates && !p_.out.pairs.words && p_.in_order && along_.step == 1;
  }
  // Those of neighbours from `here` on, as far as they are below `end`.
  template <int kCount>
  __device__ void put_run(Element element, uint32_t here, uint32_t end, const Key (&keys)[kCount],
                          const uint32_t (&positions)[kCount]) const {
    if (here >= end) return;
    const uint32_t count = end - here;
    if (p_.out.indices) p_.out.put_indices(output_ + here, count, positions);
    if (!p_.out.values) return;
    Neighbours<Key, kCount> some;
    auto* to = static_cast<Key*>(p_.out.values) + output_ + here;
    const bool whole = count >= kCount && some.may_begin(to);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count && !element.value_of_key(keys[i], some.at[i]))
        some.at[i] = element.value(
            input_[(here + i) * stride_ + static_cast<int64_t>(positions[i]) * along_.stride]);
      if (i < count && !whole) to[i] = some.at[i];
    }
    if (whole) some.put(to);
  }

  // Those of the first `count` outputs; value(i) is that of a position.
  template <int kCount, class ValueOf>
  __device__ void put_run(uint32_t count, const uint32_t (&positions)[kCount],
                          ValueOf value) const {
    if (p_.out.indices) p_.out.put_indices(output_, count, positions);
    if (!p_.out.values) return;
    if (count >= kCount) return p_.out.template put_values<Key, kCount>(output_, value);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) static_cast<Key*>(p_.out.values)[output_ + i] = value(i);
    }
  }

  __device__ void put(Element element, uint32_t here, Key key, int64_t position) const {
    const int64_t index = first_ + position * along_.step;
    if (p_.candidates) {
      p_.candidates.put((output_ + here) * p_.plan.candidates() + part_, {key, index});
      return;
    }
    p_.out.put(p_.result(output_ + here), index, [&] {
      Key value;
      if (!element.value_of_key(key, value))
        value = element.value(input_[here * stride_ + position * along_.stride]);
      return value;
    });
  }

 private:
  const Problem& p_;
  const Key* input_;
  const int64_t stride_, output_, part_, first_;
  const Dim along_;
};

}  // namespace reduceops::cuda
