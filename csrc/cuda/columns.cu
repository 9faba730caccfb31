// Columns of the input alone (columns.cuh).
#include "cuda/columns.cuh"

namespace reduceops::cuda {

void launch_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    const Stored<decltype(element)> source{element};
    problem.plan.vector ? launch_columns_of<true>(problem, source, Extreme(), stream)
                        : launch_columns_of<false>(problem, source, Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
