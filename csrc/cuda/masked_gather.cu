// Groups of a few elements that a mask lets through (gather_items.cuh).
#include "cuda/gather_items.cuh"
#include "cuda/masked.cuh"

namespace reduceops::cuda {

void gather_masked(const Reduction& r, const Problem& problem, void* stream) {
  visit_masked(r, [&](auto element) {
    launch_gather_of(r, problem, masked<MaskOf::kApart>(r, element), Extreme(), stream);
  });
}

}  // namespace reduceops::cuda
