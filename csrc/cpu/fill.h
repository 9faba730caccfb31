// Groups of one element: index 0 is the answer, and the element itself the value, or the identity
// where a mask says that it takes no part.
//
// Goes over the results in their order. Bound by writing them, and by reading the values where
// these lie apart in memory.
#pragma once

#include "cpu/mask.h"
#include "make_groups.h"

namespace reduceops::cpu {
namespace {

template <class Element, bool kMasked>
struct Fill : Walk<Element> {
  using Base = Walk<Element>;
  using Base::element, Base::input, Base::r;
  using typename Base::Key;

  Fill(const Job& job, Element element) : Base(job, element) {}

  // Results [begin, end), repeats among them.
  void operator()(int64_t begin, int64_t end) const {
    if (r.indices) {
      std::memset(static_cast<char*>(r.indices) + begin * r.index_bytes, 0,
                  (end - begin) * r.index_bytes);
    }
    if (!r.values) return;
    const Dims dims = result_dims(r.groups);
    const Dim inner = dims.count ? dims.dim[0] : Dim{1, 1, 1};
    const Masking<Element> masking(element);
    Cursor outer(dims, 1, begin / inner.size);
    Marks<kMasked> outer_marks(r, dims, 1, begin / inner.size);
    Key* values = static_cast<Key*>(r.values);
    for (int64_t start = begin % inner.size; begin < end; start = 0) {
      const int64_t n = least(inner.size - start, end - begin);
      const Key* from = input + outer.place().offset + start * inner.stride;
      if constexpr (kMasked) {
        const uint8_t* marks = outer_marks.place() + start * inner.mask_stride;
        for (int64_t i = 0; i < n; ++i) {
          const Key bits = get<Key>(from + i * inner.stride);
          values[begin + i] = element.value(masking.marked(bits, marks[i * inner.mask_stride]));
        }
      } else {
        for (int64_t i = 0; i < n; ++i)
          values[begin + i] = element.value(get<Key>(from + i * inner.stride));
      }
      begin += n;
      outer.next();
      outer_marks.next();
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
