// Groups of one element: index 0 is the answer, and the element itself the value.
//
// Goes over the results in their order. Bound by writing them, and by reading the values where
// these lie apart in memory.
#pragma once

#include "cpu/walk.h"
#include "make_groups.h"

namespace reduceops::cpu {
namespace {

template <class Element>
struct Fill : Walk<Element> {
  using Base = Walk<Element>;
  using Base::element, Base::input, Base::r;
  using typename Base::Key;

  Fill(const Job& job, Element element) : Base(job, element) {}

  // Results [begin, end), repeats among them.
  void operator()(int64_t begin, int64_t end) const {
    if (r.indices) std::memset(r.indices64() + begin, 0, (end - begin) * sizeof(int64_t));
    if (!r.values) return;
    const Dims dims = result_dims(r.groups);
    const Dim inner = dims.count ? dims.dim[0] : Dim{1, 1, 1};
    Cursor outer(dims, 1, begin / inner.size);
    Key* values = static_cast<Key*>(r.values);
    for (int64_t start = begin % inner.size; begin < end; start = 0, outer.next()) {
      const int64_t n = least(inner.size - start, end - begin);
      const Key* from = input + outer.place().offset + start * inner.stride;
      for (int64_t i = 0; i < n; ++i)
        values[begin + i] = element.value(get<Key>(from + i * inner.stride));
      begin += n;
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
