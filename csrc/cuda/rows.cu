// Rows of the input alone (rows.cuh).
#include "cuda/rows.cuh"

namespace reduceops::cuda {

void launch_rows(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    const Stored<decltype(element)> source{element};
    problem.plan.vector ? launch_rows_of<true>(problem, source, Extreme(), stream)
                        : launch_rows_of<false>(problem, source, Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
