// Where results lie in memory, by their numbers: for kernels over results in their order.
#pragma once

#include <algorithm>

#include "cuda/divisor.h"
#include "groups.h"

namespace reduceops::cuda {

// By the strides of dims in the order of the results. kShort: all numbers have 32 bits.
template <bool kShort>
struct Offsets {
  int count;
  Dim dims[kMaxDims];  // in the order of the results
  Divisor by_size[kMaxDims];

  explicit Offsets(const Dims& from) : count(from.count) {
    for (int d = 0; d < count; ++d) {
      dims[d] = from.dim[d];
      if constexpr (kShort) by_size[d] = Divisor(dims[d].size);
    }
  }
  __device__ int64_t operator()(int64_t i) const {
    if constexpr (!kShort) return count ? place(dims, count, i).offset : 0;
    int64_t offset = 0;
    auto rest = static_cast<uint32_t>(i);
    REDUCEOPS_ROLLED
    for (int d = 0; d < count; ++d) {
      const uint32_t over = by_size[d].quotient(rest);
      offset += (rest - over * static_cast<uint32_t>(dims[d].size)) * dims[d].stride;
      rest = over;
    }
    return offset;
  }
  // How many results from a position on lie side by side, as those of the first dim do.
  __device__ int64_t run(int64_t i) const {
    if (count == 0) return 1;
    const int64_t size = dims[0].size;
    if constexpr (!kShort) return size - split(i, size).remainder;
    const auto short_i = static_cast<uint32_t>(i), short_size = static_cast<uint32_t>(size);
    return short_size - (short_i - by_size[0].quotient(short_i) * short_size);
  }
};

}  // namespace reduceops::cuda
