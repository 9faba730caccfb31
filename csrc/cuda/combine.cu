// The parts of reductions of the input alone (combine.cuh).
#include "cuda/reducer.cuh"

namespace reduceops::cuda {

void launch_combine(const Reduction& r, const Problem& problem, bool early, void* stream) {
  visit_element(r, [&](auto element) {
    launch_combine_of(problem, Stored<decltype(element)>{element}, Extreme(), early, stream);
  });
}

}  // namespace reduceops::cuda
