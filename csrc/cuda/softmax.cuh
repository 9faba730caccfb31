// What the launches of softmax_max share.
#pragma once

#include "cuda/reducer.cuh"

namespace reduceops::cuda {

// Calls f with the Source and the Reducer of one.
template <class F>
void visit_softmax(const Reduction& r, F&& f) {
  const auto visit = [&]<class Format>(auto element, Format) {
    f(Stored<decltype(element)>{element},
      SoftmaxMax<Format>{static_cast<typename Format::Compute>(r.groups.weight)});
  };
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    if constexpr (requires { typename Element::Format; } && kIsPlain<Element>) {
      visit(element, typename Element::Format());
    } else if constexpr (std::is_same_v<Element, Plain<int32_t, true>>) {
      visit(element, Float32());
    } else if constexpr (std::is_same_v<Element, Plain<int64_t, true>>) {
      visit(element, Float64());
    }
  });
}

// A part of launch_softmax, which takes long to compile.
void gather_softmax(const Reduction& r, const Problem& problem, void* stream);

}  // namespace reduceops::cuda
