// Aligned columns of which the mask comes in aligned words, or is a byte for all.
#include "cuda/columns.cuh"
#include "cuda/masked.cuh"

namespace reduceops::cuda {

void launch_columns_of_masks_in_words(const Reduction& r, const Problem& problem, void* stream) {
  visit_masked(r, [&](auto element) {
    launch_columns_of<true>(problem, masked<MaskOf::kWords>(r, element), Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
