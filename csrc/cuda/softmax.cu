// The largest element and its softmax, on the walks that fit every layout, and on whole rows.
#include "cuda/columns.cuh"
#include "cuda/held_rows.cuh"
#include "cuda/rows.cuh"
#include "cuda/small.cuh"

namespace reduceops::cuda {

void launch_softmax(const Reduction& r, const Problem& problem, bool early, void* stream) {
  const Plan& plan = problem.plan;
  const auto launch_for = [&]<class Format>(auto element, Format) {
    const Stored<decltype(element)> source{element};
    const SoftmaxMax<Format> reducer{static_cast<typename Format::Compute>(r.groups.weight)};
    switch (plan.walk) {
      case Walk::kSmall:
        if (plan.small.vector) {
          const RowPacks<decltype(element)> packs{
              source, problem.end, static_cast<uint32_t>(problem.walk), reducer.absent()};
          launch_small_packs_of(problem, packs, reducer, stream);
        } else {
          launch_small_of(problem, source, reducer, stream);
        }
        break;
      case Walk::kColumns:
        if constexpr (sizeof(typename Format::Key) <= 4) {
          if (plan.columns.realigned) {
            const Realigned<decltype(element)> anywhere{source, problem.end};
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
  };
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    if constexpr (requires { typename Element::Format; } && kIsPlain<Element>) {
      launch_for(element, typename Element::Format());
    } else if constexpr (std::is_same_v<Element, Plain<int32_t, true>>) {
      launch_for(element, Float32());
    } else if constexpr (std::is_same_v<Element, Plain<int64_t, true>>) {
      launch_for(element, Float64());
    }
  });
}

}  // namespace reduceops::cuda
