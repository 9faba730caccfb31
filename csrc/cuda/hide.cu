// Results of groups that a mask hides altogether. Where it is the same for all elements of a group,
// the groups are reduced without it, on the walks for the input alone, unless they are gathered
// with it (steps.h); what is hidden is stored over the results afterwards.
//
// Bound by reading the mask, of which there is a byte to a result; of few results by the launch,
// for which what is stored over need not have ended.
#include "cuda/each.cuh"
#include "cuda/mask_groups.h"
#include "cuda/offsets.cuh"
#include "cuda/outputs.h"

namespace reduceops::cuda {
namespace {

// Indices or values; null if they are not wanted.
struct Hidden {
  char* results;
  int bytes;
  int64_t bits;

  __device__ void put(int64_t i) const {
    if (!results) return;
    with_bits(bytes, [&]<class Bits>(Bits) {
      reinterpret_cast<Bits*>(results)[i] = static_cast<Bits>(bits);
    });
  }
};

// Of bytes one by one: results of a thread that lie in the same run of the innermost dim as the
// last one are found from it, without a division.
template <bool kShort>
__global__ void __launch_bounds__(kThreads)
    hide(const uint8_t* mask, int64_t results, const Hidden index, const Hidden value,
         const __grid_constant__ Offsets<kShort> offset) {
  const int64_t step = kThreads * offset.dims[0].stride;
  int64_t last = 0, left = 0, at = 0;  // of the last one: its number, run and byte
  each(
      results,
      [&](int64_t i) {
        const bool is_next = i == last + kThreads && left > kThreads;
        left = is_next ? left - kThreads : offset.run(i);
        at = is_next ? at + step : offset(i);
        last = i;
        return mask[at];
      },
      [&](int64_t i, uint8_t present) {
        wait_for_previous();
        if (present) return;
        index.put(i);
        value.put(i);
      });
}

// Of one byte for all.
__global__ void __launch_bounds__(kThreads)
    hide_all(const uint8_t* mask, int64_t results, const Hidden index, const Hidden value) {
  const bool present = *mask;
  wait_for_previous();
  if (present) return;
  each(
      results, [&](int64_t) { return 0; },
      [&](int64_t i, int) {
        index.put(i);
        value.put(i);
      });
}

}  // namespace

void launch_hide(const Reduction& r, bool early, void* stream) {
  const bool indices = r.indices && !is_single(r.groups);  // else they are 0 already
  if (!indices && !r.values) return;
  Dims dims = result_dims(r.groups);
  for (int d = 0; d < dims.count; ++d) dims.dim[d].stride = dims.dim[d].mask_stride;
  merge(dims);
  Hidden value{static_cast<char*>(r.values), r.dtype->bytes, 0};
  visit_element(r, [&](auto element) {
    typename decltype(element)::Key bits;
    element.value_of_key(std::numeric_limits<decltype(bits)>::max(), bits);
    value.bits = bits;
  });
  const Hidden index{indices ? static_cast<char*>(r.indices) : nullptr, r.index_bytes, 0};
  const int64_t results = r.groups.outputs * r.groups.copies;
  const auto* mask = static_cast<const uint8_t*>(r.mask);
  if (reach(dims) == 0) {  // a single byte, which mostly hides nothing: few blocks are enough
    auto config = launch_config(std::min(blocks_over(results), kManyBlocks), kThreads, stream);
    const EarlyLaunch begins_early(config, early);
    check(cudaLaunchKernelEx(&config, hide_all, mask, results, index, value));
    return;
  }
  const auto launch = [&]<bool kShort>(const Offsets<kShort>& offsets) {
    auto config = launch_config(std::min(blocks_over(results), kMaxBlocks), kThreads, stream);
    const EarlyLaunch begins_early(config, early);
    check(cudaLaunchKernelEx(&config, hide<kShort>, mask, results, index, value, offsets));
  };
  results >> 32 == 0 ? launch(Offsets<true>(dims)) : launch(Offsets<false>(dims));
}

}  // namespace reduceops::cuda
