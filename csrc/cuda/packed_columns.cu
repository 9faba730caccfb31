// Columns of up to 32 bits of the input alone (packed_columns.cuh).
#include "cuda/packed_columns.cuh"

namespace reduceops::cuda {

void launch_packed_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    constexpr size_t kBytes = sizeof(typename Element::Key);
    const Stored<Element> source{element};
    if constexpr (kBytes <= 2) {
      if (problem.plan.columns.realigned) {
        const Realigned<Element> anywhere{source, problem.end};
        return launch_packed_columns_of<true>(problem, anywhere, stream);
      }
    }
    if constexpr (kBytes <= 4) launch_packed_columns_of<false>(problem, source, stream);
  });
}

}  // namespace reduceops::cuda
