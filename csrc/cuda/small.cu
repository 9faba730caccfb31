// Small inputs, of the input alone (small.cuh).
#include "cuda/small.cuh"

namespace reduceops::cuda {

void launch_small(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    launch_small_of(problem, Stored<decltype(element)>{element}, Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
