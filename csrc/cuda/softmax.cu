// The largest element and its softmax, on the walks that fit every layout, on whole rows, of
// groups of a few elements, and of small inputs.
#include "cuda/columns.cuh"
#include "cuda/held_rows.cuh"
#include "cuda/rows.cuh"
#include "cuda/small.cuh"
#include "cuda/softmax.cuh"

namespace reduceops::cuda {

void launch_softmax(const Reduction& r, const Problem& problem, bool early, void* stream) {
  const Plan& plan = problem.plan;
  if (plan.walk == Walk::kGather) return gather_softmax(r, problem, stream);
  visit_softmax(r, [&](auto source, auto reducer) {
    using Element = typename decltype(source)::Element;
    switch (plan.walk) {
      case Walk::kSmall:
        if (plan.small.vector) {
          const RowPacks<Element> packs{source, problem.end, static_cast<uint32_t>(problem.walk),
                                        reducer.absent()};
          launch_small_packs_of(problem, packs, reducer, stream);
        } else {
          launch_small_of(problem, source, reducer, stream);
        }
        break;
      case Walk::kColumns:
        if constexpr (sizeof(typename Element::Key) <= 4) {
          if (plan.columns.realigned) {
            const Realigned<Element> anywhere{source, problem.end};
            launch_columns_of<true>(problem, anywhere, reducer, stream);
            break;
          }
        }
        plan.columns.vector ? launch_columns_of<true>(problem, source, reducer, stream)
                            : launch_columns_of<false>(problem, source, reducer, stream);
        break;
      case Walk::kWholeRows:
        launch_held_rows_of(problem, source, reducer, stream);
        break;
      default:
        plan.rows.vector ? launch_rows_of<true>(problem, source, reducer, stream)
                         : launch_rows_of<false>(problem, source, reducer, stream);
    }
    if (plan.split()) launch_combine_of(problem, {}, source, reducer, early, stream);
  });
}

}  // namespace reduceops::cuda
