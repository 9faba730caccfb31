// Columns under a mask that is the same for all columns of a row.
#include "cuda/masked.cuh"
#include "cuda/packed_columns.cuh"

namespace reduceops::cuda {

void launch_columns_of_listed_rows(const Reduction& r, const Problem& problem, void* stream) {
  visit_masked(r, [&](auto element) {
    using Element = decltype(element);
    if constexpr (sizeof(typename Element::Key) <= 4) {
      const auto none = absent_bits(element);
      const Stored<Element> source{element};
      if (problem.plan.columns.realigned) {
        const Realigned<Element> anywhere{source, problem.end};
        launch_packed_columns_of<true, true>(problem, anywhere, stream, none);
      } else {
        launch_packed_columns_of<false, true>(problem, source, stream, none);
      }
    }
  });
}

}  // namespace reduceops::cuda
