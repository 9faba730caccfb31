// From sizes and strides to groups: dims of size 1, and reduced dims of stride 0 (every element
// there equals the first), are dropped; the rest are sorted by stride and merged where they are
// adjacent in memory.
#pragma once

#include "groups.h"

namespace reduceops {

// Stride 0 sorts as the outermost: such a dim repeats whole groups.
inline bool inside(const Dim& a, const Dim& b) {
  if (a.stride == 0 || b.stride == 0) return a.stride != 0;
  return a.stride < b.stride;
}

inline void insert(Dims& dims, Dim added) {
  int at = dims.count++;
  for (; at > 0 && inside(added, dims.dim[at - 1]); --at) dims.dim[at] = dims.dim[at - 1];
  dims.dim[at] = added;
}

inline void merge(Dims& dims) {
  if (dims.count < 2) return;
  int last = 0;
  for (int d = 1; d < dims.count; ++d) {
    Dim& inner = dims.dim[last];
    const Dim& outer = dims.dim[d];
    if (outer.stride == inner.stride * inner.size && outer.step == inner.step * inner.size) {
      inner.size *= outer.size;
    } else {
      dims.dim[++last] = outer;
    }
  }
  dims.count = last + 1;
}

// Orders reduced dims by result index instead of by stride: a walk then meets the lowest index
// first.
inline void order_by_index(Dims& reduced) {
  for (int d = 1; d < reduced.count; ++d) {
    const Dim moved = reduced.dim[d];
    int at = d;
    for (; at > 0 && moved.step < reduced.dim[at - 1].step; --at)
      reduced.dim[at] = reduced.dim[at - 1];
    reduced.dim[at] = moved;
  }
}

// `reduced_mask` has bit d set where dim d is reduced.
inline void make_groups(int64_t ndim, const int64_t* sizes, const int64_t* strides,
                        uint64_t reduced_mask, Groups& groups) {
  // From the last dim to the first: steps are those of a contiguous output and of a flattened
  // index.
  for (int64_t d = ndim - 1; d >= 0; --d) {
    const bool reduced = reduced_mask >> d & 1;
    int64_t& total = reduced ? groups.extent : groups.outputs;
    if (sizes[d] != 1 && !(reduced && strides[d] == 0)) {
      insert(reduced ? groups.reduced : groups.kept, {sizes[d], strides[d], total});
    }
    total *= sizes[d];
  }
  merge(groups.kept);
  merge(groups.reduced);
}

}  // namespace reduceops
