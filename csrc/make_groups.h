// From sizes and strides to groups: dims of size 1, and reduced dims of stride 0 (every element
// there equals the first), are dropped, kept dims of stride 0 put aside as repeats; the rest are
// sorted by stride and merged where they are adjacent in memory. What is said of strides holds for
// those of the mask, too, where there is one.
#pragma once

#include "groups.h"

namespace reduceops {

// Sorts a dim into others by its stride, or by its step.
inline void insert(Dims& dims, Dim added, int64_t Dim::* by = &Dim::stride) {
  int at = dims.count++;
  for (; at > 0 && added.*by < dims.dim[at - 1].*by; --at) dims.dim[at] = dims.dim[at - 1];
  dims.dim[at] = added;
}

// Merges neighbours that are adjacent in memory and, unless `in_memory_alone`, in the results.
inline void merge(Dims& dims, bool in_memory_alone = false) {
  if (dims.count < 2) return;
  int last = 0;
  for (int d = 1; d < dims.count; ++d) {
    Dim& inner = dims.dim[last];
    const Dim& outer = dims.dim[d];
    if (outer.stride == inner.stride * inner.size &&
        outer.mask_stride == inner.mask_stride * inner.size &&
        (in_memory_alone || outer.step == inner.step * inner.size)) {
      inner.size *= outer.size;
    } else {
      dims.dim[++last] = outer;
    }
  }
  dims.count = last + 1;
}

// The dims in the order of their steps instead of their strides. A walk over reduced dims then
// meets the lowest index first.
inline Dims by_step(const Dims& dims) {
  Dims ordered;
  for (int d = 0; d < dims.count; ++d) insert(ordered, dims.dim[d], &Dim::step);
  return ordered;
}

// And the other way round.
inline Dims by_stride(const Dims& dims) {
  Dims ordered;
  for (int d = 0; d < dims.count; ++d) insert(ordered, dims.dim[d]);
  return ordered;
}

inline void order_by_index(Dims& reduced) { reduced = by_step(reduced); }

// All dims of the results, repeats among them, in the order of the results.
inline Dims result_dims(const Groups& groups) {
  Dims dims = by_step(groups.kept);
  for (int d = 0; d < groups.repeats.count; ++d) insert(dims, groups.repeats.dim[d], &Dim::step);
  return dims;
}

// Numbers the groups as their results follow each other instead of as they lie in memory.
inline void order_by_result(Groups& groups) {
  groups.kept = by_step(groups.kept);
  merge(groups.kept);
  groups.axes = groups.kept;
}

// Makes `axes` of the kept dims.
inline void merge_axes(Groups& groups) {
  groups.axes = groups.kept;
  merge(groups.axes, true);
  if (groups.axes.count > kMaxAxes) groups.axes = groups.kept;
}

// Merges the kept dims where they are adjacent in the results, too, and `axes` in memory alone.
inline void merge_kept(Groups& groups) {
  merge(groups.kept);
  merge_axes(groups);
}

// Whether the mask is the same for all elements of a group: it hides the group, or nothing of it.
inline bool is_mask_of_groups(const Groups& groups) {
  for (int d = 0; d < groups.reduced.count; ++d) {
    if (groups.reduced.dim[d].mask_stride != 0) return false;
  }
  return true;
}

// The groups as they are without such a mask.
inline Groups without_mask(const Groups& masked) {
  Groups groups = masked;
  groups.reduced = by_stride(masked.reduced);
  groups.kept.count = 0;
  for (int d = 0; d < masked.kept.count; ++d) {
    Dim dim = masked.kept.dim[d];
    dim.mask_stride = 0;
    if (dim.stride != 0) {
      insert(groups.kept, dim);
      continue;
    }
    insert(groups.repeats, dim, &Dim::step);
    groups.copies *= dim.size;
    groups.outputs /= dim.size;
  }
  merge(groups.repeats);
  merge_kept(groups);
  return groups;
}

// `reduced_mask` has bit d set where dim d is reduced. `mask_strides`: of a mask in the shape of
// the input, or null.
inline void make_groups(int64_t ndim, const int64_t* sizes, const int64_t* strides,
                        uint64_t reduced_mask, Groups& groups,
                        const int64_t* mask_strides = nullptr) {
  // From the last dim to the first: steps are those of a contiguous output and of a flattened
  // index.
  int64_t outputs = 1;
  for (int64_t d = ndim - 1; d >= 0; --d) {
    const bool reduced = reduced_mask >> d & 1;
    int64_t& step = reduced ? groups.extent : outputs;
    const Dim dim{sizes[d], strides[d], step, mask_strides ? mask_strides[d] : 0};
    step *= dim.size;
    const bool expanded = dim.stride == 0 && dim.mask_stride == 0;
    if (dim.size == 1) continue;
    if (reduced && expanded) {
      groups.weight *= dim.size;
    } else if (expanded && dim.size > 0) {
      insert(groups.repeats, dim, &Dim::step);
      groups.copies *= dim.size;
    } else {
      insert(reduced ? groups.reduced : groups.kept, dim);
      if (!reduced) groups.outputs *= dim.size;
    }
  }
  if (groups.outputs == 0 || groups.extent == 0) return;  // of no elements, strides may be anything
  merge(groups.reduced);
  merge(groups.repeats);
  merge_kept(groups);
}

}  // namespace reduceops
