// Columns of the elements that a mask lets through.
#include "cuda/columns.cuh"
#include "cuda/masked.cuh"
#include "cuda/staged_columns.cuh"

namespace reduceops::cuda {

void launch_masked_columns(const Reduction& r, const Problem& problem, void* stream) {
  const Plan& plan = problem.plan;
  visit_masked(r, [&]<class Element>(const MaskedBy<Element>& masked) {
    constexpr int64_t kBytes = sizeof(typename Element::Key);
    if constexpr (kBytes == 4) {
      if (plan.staged) return launch_staged_columns_of(problem, masked.apart, Extreme(), stream);
    }
    if (!plan.vector) {
      launch_columns_of<false>(problem, masked.apart, Extreme(), stream);
    } else if (lies_in_blocks(r, r.groups.axes.dim[0], std::min(int64_t(4), kLoadBytes / kBytes))) {
      launch_columns_of<true>(problem, masked.words, Extreme(), stream);
    } else {
      launch_columns_of<true>(problem, masked.apart, Extreme(), stream);
    }
  });
}

}  // namespace reduceops::cuda
