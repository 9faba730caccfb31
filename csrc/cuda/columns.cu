// Columns of the input alone (columns.cuh).
#include "cuda/columns.cuh"

namespace reduceops::cuda {

void launch_columns(const Reduction& r, const Problem& problem, void* stream) {
  const Plan& plan = problem.plan;
  if (plan.columns.pairs) return launch_packed_columns(r, problem, stream);
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    const Stored<Element> source{element};
    if constexpr (sizeof(typename Element::Key) <= 2) {
      if (plan.columns.realigned) {
        const Realigned<Element> anywhere{source, problem.end};
        return launch_columns_of<true>(problem, anywhere, Extreme(), stream);
      }
    }
    plan.columns.vector ? launch_columns_of<true>(problem, source, Extreme(), stream)
                        : launch_columns_of<false>(problem, source, Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
