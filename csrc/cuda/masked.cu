// Reductions of the elements that a mask lets through, on the walks that fit every layout.
#include "cuda/columns.cuh"
#include "cuda/held_rows.cuh"
#include "cuda/rows.cuh"
#include "cuda/small.cuh"
#include "cuda/staged_columns.cuh"

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

// Whether the bytes of the mask lie along `dim` as the elements do, and those of every pack begin
// where a block of `width` bytes does.
bool lies_in_blocks(const Reduction& r, const Dim& along, int64_t width) {
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

const char* whole_blocks_of_mask(const Reduction& r) {
  const char* end = static_cast<const char*>(r.mask) + 1;
  for (const Dims* dims : {&r.groups.kept, &r.groups.reduced}) {
    for (int d = 0; d < dims->count; ++d) end += (dims->dim[d].size - 1) * dims->dim[d].mask_stride;
  }
  return end - reinterpret_cast<uintptr_t>(end) % kLoadBytes;
}

}  // namespace

void launch_masked(const Reduction& r, const Problem& problem, bool early, void* stream) {
  const Plan& plan = problem.plan;
  const Groups& groups = r.groups;
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    if constexpr (kIsPlain<Element> || std::is_same_v<Element, Bool>) {
      const auto none = absent_bits(element);
      const char* whole = whole_blocks_of_mask(r);
      const Masked<Element, MaskOf::kBlocks> blocks{element, none, whole};
      const Masked<Element, MaskOf::kWords> words{element, none, whole};
      const Masked<Element, MaskOf::kNeighbors> neighbors{element, none, whole};
      const Masked<Element, MaskOf::kApart> apart{element, none, whole};
      const int64_t width = kLoadBytes / r.dtype->bytes;
      switch (plan.walk) {
        case Walk::kSmall:
          launch_small_of(problem, apart, Extreme(), stream);
          break;
        case Walk::kColumns:
          if constexpr (sizeof(typename Element::Key) == 4) {
            if (plan.staged) {
              launch_staged_columns_of(problem, apart, Extreme(), stream);
              break;
            }
          }
          if (!plan.vector) {
            launch_columns_of<false>(problem, apart, Extreme(), stream);
          } else if (lies_in_blocks(r, groups.axes.dim[0], std::min<int64_t>(4, width))) {
            launch_columns_of<true>(problem, words, Extreme(), stream);
          } else {
            launch_columns_of<true>(problem, apart, Extreme(), stream);
          }
          break;
        case Walk::kWholeRows: {
          const Dim& along = groups.reduced.dim[0];
          if (along.mask_stride == 0 || lies_in_blocks(r, along, width)) {
            launch_held_rows_of(problem, blocks, Extreme(), stream);
          } else if (along.mask_stride == 1) {
            launch_held_rows_of(problem, neighbors, Extreme(), stream);
          } else {
            launch_held_rows_of(problem, apart, Extreme(), stream);
          }
          break;
        }
        default:
          if (!plan.vector) {
            launch_rows_of<false>(problem, apart, Extreme(), stream);
          } else if (groups.reduced.dim[0].mask_stride > 1) {
            launch_rows_of<true>(problem, apart, Extreme(), stream);
          } else {
            launch_rows_of<true>(problem, neighbors, Extreme(), stream);
          }
      }
      if (plan.split()) launch_combine_of(problem, apart, Extreme(), early, stream);
    }
  });
}

}  // namespace reduceops::cuda
