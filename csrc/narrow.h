// Some positions of a kept dim, as torch.narrow: of groups, and of all memory of a reduction.
#pragma once

#include <algorithm>
#include <type_traits>

#include "make_groups.h"
#include "reduction.h"

namespace reduceops {

// Leaves `size` positions of kept dim d.
inline void shorten(Groups& groups, int d, int64_t size) {
  Dims& kept = groups.kept;
  groups.outputs = groups.outputs / kept.dim[d].size * size;
  kept.dim[d].size = size;
  if (size == 1) std::copy(kept.dim + d + 1, kept.dim + kept.count--, kept.dim + d);
  merge_axes(groups);
}

// Leaves positions [begin, begin + size) of kept dim d.
inline void narrow(Reduction& reduction, int d, int64_t begin, int64_t size) {
  const Dim dim = reduction.groups.kept.dim[d];
  const auto moved = [&](auto* data, int64_t bytes) {
    using Bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>,
                                     const char, char>;
    return data ? static_cast<Bytes*>(data) + begin * bytes : nullptr;
  };
  reduction.input = moved(reduction.input, dim.stride * reduction.dtype->bytes);
  reduction.mask = moved(reduction.mask, dim.mask_stride);
  reduction.indices = moved(reduction.indices, dim.step * reduction.index_bytes);
  reduction.values = moved(reduction.values, dim.step * reduction.dtype->bytes);
  shorten(reduction.groups, d, size);
}

}  // namespace reduceops
