// Contiguous rows of the elements that a mask lets through.
#include "cuda/held_rows.cuh"
#include "cuda/masked.cuh"

namespace reduceops::cuda {

void launch_masked_whole_rows(const Reduction& r, const Problem& problem, void* stream) {
  const Dim& along = r.groups.reduced.dim[0];
  visit_masked(r, [&](auto element) {
    if (along.mask_stride == 0 || lies_in_blocks(r, along, kLoadBytes / r.dtype->bytes)) {
      launch_held_rows_of(problem, masked<MaskOf::kBlocks>(r, element), Extreme(), stream);
    } else if (along.mask_stride == 1) {
      launch_held_rows_of(problem, masked<MaskOf::kNeighbors>(r, element), Extreme(), stream);
    } else {
      launch_held_rows_of(problem, masked<MaskOf::kApart>(r, element), Extreme(), stream);
    }
  });
}

}  // namespace reduceops::cuda
