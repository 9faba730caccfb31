// The parts of reductions of the input alone (combine.cuh). A walk may have ordered its elements in
// another way (visit_input_element): keys are only compared here, in whichever order they are.
#include "cuda/reducer.cuh"

namespace reduceops::cuda {

void launch_combine(const Reduction& r, const Problem& problem, const FoldedColumns& columns,
                    bool early, void* stream) {
  visit_element(r, [&](auto element) {
    const Stored<decltype(element)> source{element};
    launch_combine_of(problem, columns, source, Extreme(), early, stream);
  });
}

}  // namespace reduceops::cuda
