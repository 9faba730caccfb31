// Columns of which each element and each byte of the mask is loaded by itself, or the latter alone.
#include "cuda/columns.cuh"
#include "cuda/masked.cuh"

namespace reduceops::cuda {

void launch_columns_of_masks_apart(const Reduction& r, const Problem& problem, void* stream) {
  visit_masked(r, [&](auto element) {
    const auto apart = masked<MaskOf::kApart>(r, element);
    problem.plan.columns.vector ? launch_columns_of<true>(problem, apart, Extreme(), stream)
                                : launch_columns_of<false>(problem, apart, Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
