// Columns of 8- and 32-bit types that begin anywhere, as does their mask, or with a byte for all.
#include "cuda/columns.cuh"
#include "cuda/masked.cuh"

namespace reduceops::cuda {

void launch_realigned_columns_of_masks(const Reduction& r, const Problem& problem, void* stream) {
  visit_masked(r, [&]<class Element>(Element element) {
    constexpr size_t kBytes = sizeof(typename Element::Key);
    if constexpr (kBytes == 1 || kBytes == 4) {
      const auto words = masked<MaskOf::kWords>(r, element);
      const RealignedMasked<Element> anywhere{words, problem.end, end_of_mask(r)};
      launch_columns_of<true>(problem, anywhere, Extreme(), stream);
    }
  });
}

}  // namespace reduceops::cuda
