// Columns of 8-bit types that begin anywhere, as does their mask, or with a byte for all.
#include "cuda/columns.cuh"
#include "cuda/masked.cuh"

namespace reduceops::cuda {

void launch_realigned_columns_of_masks(const Reduction& r, const Problem& problem, void* stream) {
  visit_masked(r, [&]<class Element>(Element element) {
    if constexpr (sizeof(typename Element::Key) == 1) {
      const auto words = masked<MaskOf::kWords>(r, element);
      const RealignedMasked<Element> anywhere{words, problem.end, end_of_mask(r)};
      launch_columns_of<true>(problem, anywhere, Extreme(), stream);
    }
  });
}

}  // namespace reduceops::cuda
