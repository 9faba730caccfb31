// Reductions of the elements that a mask lets through, on the walks that fit every layout.
#include "cuda/masked.cuh"

#include "cuda/held_rows.cuh"
#include "cuda/rows.cuh"
#include "cuda/small.cuh"

namespace reduceops::cuda {

void launch_masked(const Reduction& r, const Problem& problem, bool early, void* stream) {
  const Plan& plan = problem.plan;
  const auto launch_rows_by = [&](const auto& masked) {
    const int64_t step = r.groups.reduced.count > 0 ? r.groups.reduced.dim[0].mask_stride : 0;
    if (plan.walk == Walk::kWholeRows) {
      if (step == 0 || lies_in_blocks(r, r.groups.reduced.dim[0], kLoadBytes / r.dtype->bytes)) {
        launch_held_rows_of(problem, masked.blocks, Extreme(), stream);
      } else if (step == 1) {
        launch_held_rows_of(problem, masked.neighbors, Extreme(), stream);
      } else {
        launch_held_rows_of(problem, masked.apart, Extreme(), stream);
      }
    } else if (!plan.vector) {
      launch_rows_of<false>(problem, masked.apart, Extreme(), stream);
    } else if (step > 1) {
      launch_rows_of<true>(problem, masked.apart, Extreme(), stream);
    } else {
      launch_rows_of<true>(problem, masked.neighbors, Extreme(), stream);
    }
  };
  if (plan.walk == Walk::kColumns) launch_masked_columns(r, problem, stream);
  if (plan.walk == Walk::kColumns && !plan.split()) return;
  visit_masked(r, [&](const auto& masked) {
    if (plan.walk == Walk::kSmall) {
      launch_small_of(problem, masked.apart, Extreme(), stream);
    } else if (plan.walk != Walk::kColumns) {
      launch_rows_by(masked);
    }
    if (plan.split()) launch_combine_of(problem, masked.apart, Extreme(), early, stream);
  });
}

}  // namespace reduceops::cuda
