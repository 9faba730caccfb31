// Reductions of the elements that a mask lets through, on the walks that fit every layout, on whole
// rows, of groups of a few elements, and of small inputs.
#include "cuda/masked.cuh"

#include "cuda/rows.cuh"
#include "cuda/small.cuh"

namespace reduceops::cuda {

void launch_masked(const Reduction& r, const Problem& problem, bool early, void* stream) {
  const Plan& plan = problem.plan;
  if (plan.walk == Walk::kGather) return gather_masked(r, problem, stream);
  visit_masked(r, [&](auto element) {
    const auto apart = masked<MaskOf::kApart>(r, element);
    switch (plan.walk) {
      case Walk::kSmall:
        if (plan.small.vector) {
          const auto words = masked<MaskOf::kWords>(r, element);
          const auto size = static_cast<uint32_t>(problem.walk);
          const MaskedRowPacks<decltype(element)> packs{{words, problem.end, end_of_mask(r)}, size};
          launch_small_packs_of(problem, packs, Extreme(), stream);
        } else {
          launch_small_of(problem, apart, Extreme(), stream);
        }
        break;
      case Walk::kColumns:
        launch_masked_columns(r, problem, stream);
        break;
      case Walk::kWholeRows:
        launch_masked_whole_rows(r, problem, stream);
        break;
      default:
        if (!plan.rows.vector) {
          launch_rows_of<false>(problem, apart, Extreme(), stream);
        } else if (r.groups.reduced.dim[0].mask_stride > 1) {
          launch_rows_of<true>(problem, apart, Extreme(), stream);
        } else {
          launch_rows_of<true>(problem, masked<MaskOf::kNeighbors>(r, element), Extreme(), stream);
        }
    }
    if (plan.split()) launch_combine_of(problem, {}, apart, Extreme(), early, stream);
  });
}

}  // namespace reduceops::cuda
