// Columns of the elements that a mask lets through.
#include "cuda/masked.cuh"
#include "cuda/staged_columns.cuh"

namespace reduceops::cuda {

void launch_masked_columns(const Reduction& r, const Problem& problem, void* stream) {
  const Plan& plan = problem.plan;
  const Dim& inner = r.groups.axes.dim[0];
  if (plan.columns.listed) {
    launch_columns_of_listed_rows(r, problem, stream);
  } else if (plan.columns.staged) {
    visit_masked(r, [&]<class Element>(Element element) {
      if constexpr (sizeof(typename Element::Key) == 4)
        launch_staged_columns_of(problem, masked<MaskOf::kApart>(r, element), Extreme(), stream);
    });
  } else if (plan.columns.vector &&
             (inner.mask_stride == 0 ||
              lies_in_blocks(r, inner, std::min(int64_t(4), kLoadBytes / r.dtype->bytes)))) {
    launch_columns_of_masks_in_words(r, problem, stream);
  } else if ((plan.columns.realigned || (r.dtype->bytes == 1 && plan.columns.vector)) &&
             inner.mask_stride <= 1) {
    launch_realigned_columns_of_masks(r, problem, stream);
  } else {
    launch_columns_of_masks_apart(r, problem, stream);
  }
}

}  // namespace reduceops::cuda
