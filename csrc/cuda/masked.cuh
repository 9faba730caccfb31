// What the launches of masked reductions share.
#pragma once

#include "cuda/source.cuh"

namespace reduceops::cuda {

// Those of an element that does not take part: all others beat them, or equal them.
template <class Element, class Key = typename Element::Key>
Key absent_bits(Element element) {
  if constexpr (std::is_same_v<Element, Bool>) {
    return element.order.flip != 0;
  } else {
    constexpr bool kFloat = !std::is_same_v<Element, Plain<Key, false>>;
    Key bits;
    bits_of<kFloat>(std::numeric_limits<Key>::max(), element.order, bits);
    return bits;
  }
}

// Whether the bytes of the mask lie along `dim` as the elements do, and those of every pack begin
// where a block of `width` bytes does.
inline bool lies_in_blocks(const Reduction& r, const Dim& along, int64_t width) {
  const auto element = reinterpret_cast<intptr_t>(r.input) / r.dtype->bytes;
  int64_t apart = reinterpret_cast<intptr_t>(r.mask) - element;
  if (along.mask_stride != 1 || apart % width != 0) return false;
  for (const Dims* dims : {&r.groups.kept, &r.groups.reduced}) {
    for (int d = 0; d < dims->count; ++d) {
      apart = dims->dim[d].mask_stride - dims->dim[d].stride;
      if (apart % width != 0) return false;
    }
  }
  return true;
}

inline const char* end_of_mask(const Reduction& r) {
  const int64_t last =
      reach(r.groups.kept, &Dim::mask_stride) + reach(r.groups.reduced, &Dim::mask_stride);
  return static_cast<const char*>(r.mask) + last + 1;
}

template <MaskOf kMask, class Element>
Masked<Element, kMask> masked(const Reduction& r, Element element) {
  const char* end = end_of_mask(r);
  return {element, absent_bits(element), end - reinterpret_cast<uintptr_t>(end) % kLoadBytes};
}

// Parts of launch_masked, which take long to compile.
void gather_masked(const Reduction& r, const Problem& problem, void* stream);
void launch_masked_whole_rows(const Reduction& r, const Problem& problem, void* stream);
void launch_columns_of_listed_rows(const Reduction& r, const Problem& problem, void* stream);
void launch_columns_of_masks_apart(const Reduction& r, const Problem& problem, void* stream);
void launch_columns_of_masks_in_words(const Reduction& r, const Problem& problem, void* stream);
void launch_realigned_columns_of_masks(const Reduction& r, const Problem& problem, void* stream);

// Calls f with the element of a reduction that may be masked.
template <class F>
void visit_masked(const Reduction& r, F&& f) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    if constexpr (kIsPlain<Element> || std::is_same_v<Element, Bool>) f(element);
  });
}

}  // namespace reduceops::cuda
