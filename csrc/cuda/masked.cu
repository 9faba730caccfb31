// Reductions of the elements that a mask lets through, on the walks that fit every layout.
#include "cuda/columns.cuh"
#include "cuda/held_rows.cuh"
#include "cuda/rows.cuh"
#include "cuda/small.cuh"

namespace reduceops::cuda {
namespace {

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

// Whether the bytes of the mask lie along `dim` as the elements do, and those of every whole vector
// of elements are whole words.
bool in_words(const Reduction& r, const Dim& along) {
  const int64_t bytes = r.dtype->bytes, width = std::min<int64_t>(4, kLoadBytes / bytes);
  const auto element = reinterpret_cast<intptr_t>(r.input) / bytes;
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

}  // namespace

void launch_masked(const Reduction& r, const Problem& problem, bool early, void* stream) {
  const Plan& plan = problem.plan;
  const Groups& groups = r.groups;
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    if constexpr (kIsPlain<Element> || std::is_same_v<Element, Bool>) {
      const auto none = absent_bits(element);
      const Masked<Element, true> words{element, none};
      const Masked<Element, false> bytes{element, none};
      switch (plan.walk) {
        case Walk::kSmall:
          launch_small_of(problem, bytes, Extreme(), stream);
          break;
        case Walk::kColumns:
          if (!plan.vector) {
            launch_columns_of<false>(problem, bytes, Extreme(), stream);
          } else if (in_words(r, groups.axes.dim[0])) {
            launch_columns_of<true>(problem, words, Extreme(), stream);
          } else {
            launch_columns_of<true>(problem, bytes, Extreme(), stream);
          }
          break;
        case Walk::kWholeRows: {
          const Dim& along = groups.reduced.dim[0];
          along.mask_stride == 0 || in_words(r, along)
              ? launch_held_rows_of(problem, words, Extreme(), stream)
              : launch_held_rows_of(problem, bytes, Extreme(), stream);
          break;
        }
        default:
          if (!plan.vector) {
            launch_rows_of<false>(problem, bytes, Extreme(), stream);
          } else if (in_words(r, groups.reduced.dim[0])) {
            launch_rows_of<true>(problem, words, Extreme(), stream);
          } else {
            launch_rows_of<true>(problem, bytes, Extreme(), stream);
          }
      }
      if (plan.split()) launch_combine_of(problem, bytes, Extreme(), early, stream);
    }
  });
}

}  // namespace reduceops::cuda
