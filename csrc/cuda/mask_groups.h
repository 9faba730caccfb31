// What a mask makes of groups: in which order walks go over them, and which it hides altogether.
#pragma once

#include <algorithm>

#include "cuda/sizes.h"
#include "make_groups.h"
#include "reduction.h"

namespace reduceops::cuda {

// Whether the bytes of the mask lie so far apart along a dim that each is in a sector of its own.
REDUCEOPS_HD bool is_mask_sparse(const Dim& dim) { return dim.mask_stride >= kSectorBytes; }

// Whether they lie so near that several are in a sector.
REDUCEOPS_HD bool is_mask_dense(const Dim& dim) {
  constexpr int64_t kSeveral = 4;
  return 0 < dim.mask_stride && dim.mask_stride <= kSectorBytes / kSeveral;
}

// Whether the mask lies across a dim of the input, along another one: what lies along both is read
// together.
REDUCEOPS_HD bool is_mask_across(const Dim& dim, const Dim& other) {
  return is_mask_sparse(dim) && is_mask_dense(other);
}
// The same of columns, and of the next groups of them.
REDUCEOPS_HD bool is_mask_across(const Dim* axes, int count) {
  return count > 1 && is_mask_across(axes[0], axes[1]);
}

// Puts the kept dim along which the bytes of such a mask are neighbours first of all, or of all but
// the columns. (To do so for bytes that are only near was slower.)
inline void order_by_mask(Groups& groups) {
  if (groups.axes.count != groups.kept.count || groups.reduced.count == 0) return;
  const bool rows = is_rows(groups);
  if (!is_mask_sparse(rows ? groups.reduced.dim[0] : groups.axes.dim[0])) return;
  const int first = rows ? 0 : 1;
  for (Dims* dims : {&groups.kept, &groups.axes}) {
    for (int d = first + 1; d < dims->count; ++d) {
      if (dims->dim[d].mask_stride == 1)
        std::rotate(dims->dim + first, dims->dim + d, dims->dim + d + 1);
    }
  }
}

// Stores the results of groups that a mask of groups hides over those found without it.
void launch_hide(const Reduction& r, void* stream);

}  // namespace reduceops::cuda
