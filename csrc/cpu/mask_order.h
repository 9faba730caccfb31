// Masks whose order in memory is another than the input's: copied into that order, for elements and
// marks are read together.
//
// Bound by transposing squares of bytes (fill.h), a fraction of what marks far apart take one by
// one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/limits.h"
#include "make_groups.h"

namespace reduceops::cpu {

// That are copied, a byte each; what is left of the workspace is for candidates.
constexpr int64_t kLeastMarks = 1 << 12, kMostMarks = kWorkspaceBytes / 8 * 7;
constexpr int64_t kOrderedBytes = 4;   // of an element that is reduced, at least
constexpr int64_t kOrderedRun = 32;    // of marks in a group, at least
constexpr int64_t kMarksTogether = 8;  // along each of the dims that change places, at least

// The dims along which the mask varies, the innermost of the input first; those along which it has
// nothing to read are the outermost.
struct MarkedDims {
  int count = 0;
  Dim* dim[kMaxDims];

  explicit MarkedDims(Groups& groups) {
    for (Dims* dims : {&groups.kept, &groups.reduced})
      for (int d = 0; d < dims->count; ++d)
        if (dims->dim[d].mask_stride) insert(&dims->dim[d]);
  }

 private:
  static uint64_t distance(const Dim* dim) { return static_cast<uint64_t>(dim->stride) - 1; }
  void insert(Dim* added) {
    int at = count++;
    for (; at > 0 && distance(added) < distance(dim[at - 1]); --at) dim[at] = dim[at - 1];
    dim[at] = added;
  }
};

// Whether neighbours in the input have marks far apart, which others lie between.
inline bool are_marks_apart(Groups& groups) {
  const MarkedDims marked(groups);
  if (marked.count < 2) return false;
  const Dim *inner = marked.dim[0], *nearest = inner;
  int64_t marks = 1;
  for (int d = 0; d < marked.count; ++d) {
    marks *= marked.dim[d]->size;
    if (marked.dim[d]->mask_stride < nearest->mask_stride) nearest = marked.dim[d];
  }
  for (const Dims* dims : {&groups.kept, &groups.reduced})
    for (int d = 0; d < dims->count; ++d)
      if (dims->dim[d].stride && dims->dim[d].stride < inner->stride) return false;
  return nearest != inner && inner->stride != 0 && nearest->mask_stride == 1 &&
         std::min(nearest->size, inner->size) >= kMarksTogether && marks >= kLeastMarks &&
         marks <= kMostMarks;
}

// Whether a reduction has such a mask copied: a gather of narrow elements, or of few neighbouring
// marks in each group, transposes them as fast.
inline bool orders_mask(Groups& groups, int64_t bytes) {
  if (bytes < kOrderedBytes || !are_marks_apart(groups)) return false;
  for (int d = 0; d < groups.reduced.count; ++d) {
    const Dim& dim = groups.reduced.dim[d];
    if (dim.mask_stride == 1 && dim.size < kOrderedRun) return false;
  }
  return true;
}

// Makes the mask of `groups` one in their order; returns the marks that it is copied from, as
// groups of one element each.
inline Groups order_marks(Groups& groups) {
  Groups marks;
  const MarkedDims marked(groups);
  for (int d = 0; d < marked.count; ++d) {
    Dim& dim = *marked.dim[d];
    insert(marks.kept, {dim.size, dim.mask_stride, marks.outputs});
    dim.mask_stride = marks.outputs;
    marks.outputs *= dim.size;
  }
  merge_kept(marks);
  merge(groups.reduced);
  merge_kept(groups);
  return marks;
}

}  // namespace reduceops::cpu
