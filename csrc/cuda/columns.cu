// Columns of the input alone (columns.cuh, packed_columns.cuh).
#include "cuda/columns.cuh"
#include "cuda/packed_columns.cuh"

namespace reduceops::cuda {

void launch_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    const Stored<Element> source{element};
    constexpr int64_t kBytes = sizeof(typename Element::Key);
    const bool packed = is_packed(problem.plan, problem.reduced_count, kBytes);
    if constexpr (kBytes <= 2) {
      if (problem.plan.realigned) {
        const Realigned<Element> anywhere{source, problem.end};
        return packed ? launch_packed_columns<true>(problem, anywhere, stream)
                      : launch_columns_of<true>(problem, anywhere, Extreme(), stream);
      }
    }
    if constexpr (kBytes <= 4) {
      if (packed) return launch_packed_columns<false>(problem, source, stream);
    }
    problem.plan.vector ? launch_columns_of<true>(problem, source, Extreme(), stream)
                        : launch_columns_of<false>(problem, source, Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
