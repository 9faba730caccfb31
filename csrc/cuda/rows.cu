// Rows of the input alone (rows.cuh).
#include "cuda/packed_rows.cuh"

namespace reduceops::cuda {

void launch_rows(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    const Stored<Element> source{element};
    if constexpr (sizeof(typename Element::Key) <= 4) {
      if (problem.plan.rows.spaced)
        return launch_rows_of<true>(problem, Spaced<Element>{source}, Extreme(), stream);
    }
    if (problem.plan.rows.flat && problem.plan.rows.vector) {
      if (problem.plan.rows.realigned) {
        const Realigned<Element> anywhere{source, problem.end};
        return enqueue(packed_rows<Realigned<Element>>, problem.plan, stream, 0, anywhere, problem);
      }
      return enqueue(packed_rows<Stored<Element>>, problem.plan, stream, 0, source, problem);
    }
    problem.plan.rows.vector ? launch_rows_of<true>(problem, source, Extreme(), stream)
                             : launch_rows_of<false>(problem, source, Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
