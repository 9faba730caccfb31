// Columns of the elements that a mask lets through.
#include "cuda/columns.cuh"
#include "cuda/masked.cuh"
#include "cuda/staged_columns.cuh"

namespace reduceops::cuda {

void launch_masked_columns(const Reduction& r, const Problem& problem, void* stream) {
  const Plan& plan = problem.plan;
  const Dim& inner = r.groups.axes.dim[0];
  visit_masked(r, [&]<class Element>(Element element) {
    constexpr int64_t kBytes = sizeof(typename Element::Key);
    const auto apart = masked<MaskOf::kApart>(r, element);
    if constexpr (kBytes == 4) {
      if (plan.staged) return launch_staged_columns_of(problem, apart, Extreme(), stream);
    }
    if (!plan.vector && !plan.realigned) {
      launch_columns_of<false>(problem, apart, Extreme(), stream);
    } else if (plan.vector && lies_in_blocks(r, inner, std::min(int64_t(4), kLoadBytes / kBytes))) {
      launch_columns_of<true>(problem, masked<MaskOf::kWords>(r, element), Extreme(), stream);
    } else if (inner.mask_stride <= 1) {
      const auto words = masked<MaskOf::kWords>(r, element);
      const RealignedMasked<Element> anywhere{words, problem.end, end_of_mask(r)};
      launch_columns_of<true>(problem, anywhere, Extreme(), stream);
    } else {
      launch_columns_of<true>(problem, apart, Extreme(), stream);
    }
  });
}

}  // namespace reduceops::cuda
