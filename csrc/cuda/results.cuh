// Where the results of neighbouring outputs go, for walks over one reduced dim.
#pragma once

#include "cuda/device.cuh"

namespace reduceops::cuda {

template <class Element>
class Results {
  using Key = typename Element::Key;

 public:
  // Outputs `stride` elements apart in memory, the first of which begins at `offset` and is number
  // `output` in the order of memory, each from reduced position `begin` on.
  __device__ Results(const Problem& p, int64_t offset, int64_t stride, int64_t output, int64_t part,
                     int64_t begin)
      : p_(p),
        input_(reinterpret_cast<const Key*>(p.input) + offset),
        stride_(stride),
        output_(output),
        part_(part),
        begin_(begin),
        indices_(p.indices ? p.indices + output : nullptr),
        along_(p.reduced()[0]) {}

  // Whether indices are all that is wanted, side by side.
  __device__ bool only_indices() const {
    return !p_.candidates && !p_.values && p_.in_order && along_.step == 1;
  }
  __device__ void put_index(uint32_t here, int64_t position) const {
    indices_[here] = begin_ + position;
  }
  // Of neighbours from `here` on, as far as they are below `end`, in 16-byte stores if possible.
  template <int kCount>
  __device__ void put_indices(uint32_t here, uint32_t end,
                              const uint32_t (&positions)[kCount]) const {
    if (kCount % 2 == 0 && here + kCount <= end &&
        reinterpret_cast<uintptr_t>(indices_ + here) % sizeof(longlong2) == 0) {
      auto* pairs = reinterpret_cast<longlong2*>(indices_ + here);
#pragma unroll
      for (int i = 0; i + 1 < kCount; i += 2)
        pairs[i / 2] = {begin_ + positions[i], begin_ + positions[i + 1]};
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (here + i < end) put_index(here + i, positions[i]);
    }
  }

  __device__ void put(Element element, uint32_t here, Key key, int64_t position) const {
    const int64_t index = (begin_ + position) * along_.step;
    if (p_.candidates) {
      p_.candidates.put((output_ + here) * p_.plan.candidates() + part_, {key, index});
      return;
    }
    const int64_t to = p_.result(output_ + here);
    if (p_.indices) p_.indices[to] = index;
    if (p_.values) {
      Key value;
      if (!element.value_of_key(key, value))
        value = element.value(input_[here * stride_ + (begin_ + position) * along_.stride]);
      static_cast<Key*>(p_.values)[to] = value;
    }
  }

 private:
  const Problem& p_;
  const Key* input_;
  const int64_t stride_, output_, part_, begin_;
  int64_t* indices_;
  const Dim along_;
};

}  // namespace reduceops::cuda
