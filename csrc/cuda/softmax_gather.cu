// softmax_max of groups of a few elements (gather_items.cuh).
#include "cuda/gather_items.cuh"
#include "cuda/softmax.cuh"

namespace reduceops::cuda {

void gather_softmax(const Reduction& r, const Problem& problem, void* stream) {
  visit_softmax(
      r, [&](auto source, auto reducer) { launch_gather_of(r, problem, source, reducer, stream); });
}

}  // namespace reduceops::cuda
