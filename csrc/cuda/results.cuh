// Where the results of neighbouring outputs go, for walks over one reduced dim.
#pragma once

#include "cuda/device.cuh"

namespace reduceops::cuda {

template <class Element>
class Results {
  using Key = typename Element::Key;

 public:
  // Outputs along `kept` from the one that lies `at` and is number `output` in walk order, each
  // from reduced position `begin` on.
  __device__ Results(const Problem& p, Place at, const Dim& kept, int64_t output, int64_t part,
                     int64_t begin)
      : input_(reinterpret_cast<const Key*>(p.input) + at.offset),
        indices_(p.indices ? p.indices + at.step : nullptr),
        values_(p.values ? static_cast<Key*>(p.values) + at.step : nullptr),
        candidates_(p.candidates),
        candidate_(output * p.plan.candidates() + part),
        kept_(kept),
        along_(p.reduced()[0]),
        parts_(p.plan.candidates()),
        begin_(begin) {}

  // Whether indices are all that is wanted, side by side.
  __device__ bool only_indices() const {
    return !candidates_ && !values_ && kept_.step == 1 && along_.step == 1;
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
    if (candidates_) {
      candidates_.put(candidate_ + here * parts_, {key, index});
      return;
    }
    const int64_t to = kept_.step == 1 ? here : here * kept_.step;
    if (indices_) indices_[to] = index;
    if (values_) {
      Key value;
      if (!element.value_of_key(key, value)) {
        value = element.value(input_[here * kept_.stride + (begin_ + position) * along_.stride]);
      }
      values_[to] = value;
    }
  }

 private:
  const Key* input_;
  int64_t* indices_;
  Key* values_;
  const Candidates candidates_;
  const int64_t candidate_;
  const Dim kept_, along_;
  const int64_t parts_, begin_;
};

}  // namespace reduceops::cuda
