// What a mask makes of groups: in which order walks go over them, and which it hides altogether.
#pragma once

#include <algorithm>

#include "cuda/policy.h"
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
// Whether the next groups are the same columns, with bytes of the mask between those of these.
REDUCEOPS_HD bool are_columns_repeated(const Dim* axes, int count) {
  return count > 1 && axes[1].stride == 0 && is_mask_dense(axes[1]) &&
         axes[1].mask_stride < axes[0].mask_stride;
}

// Puts the dim along which the mask's bytes are nearest, of those that are wanted from number
// `first` on, in that place. False if none is wanted.
template <class IsWanted>
bool put_nearest_mask(Dims& dims, int first, IsWanted&& is_wanted) {
  int nearest = -1;
  for (int d = first; d < dims.count; ++d) {
    if (is_wanted(dims.dim[d]) &&
        (nearest < 0 || dims.dim[d].mask_stride < dims.dim[nearest].mask_stride))
      nearest = d;
  }
  if (nearest < 0) return false;
  std::rotate(dims.dim + first, dims.dim + nearest, dims.dim + nearest + 1);
  return true;
}

// Puts a kept dim first of all, or of all but the columns: one along which nothing but the mask is
// read, or, where a mask lies across rows or columns, the one along which its bytes are nearest.
//
// Short groups are gathered. So of these it is no dim along which results are neighbours, for tiles
// go along both; none whose bytes are apart; and none at all in place of a dim of a few groups,
// which a warp goes over together with the next dim.
inline void order_by_mask(Groups& groups) {
  constexpr int64_t kFew = 8;
  if (groups.axes.count != groups.kept.count || groups.reduced.count == 0) return;
  const bool rows = is_rows(groups), is_short = walk_extent(groups.reduced) <= kGatherRows;
  const int first = rows ? 0 : 1;
  const bool across = is_mask_sparse(rows ? groups.reduced.dim[0] : groups.axes.dim[0]);
  const bool is_near = is_short && groups.kept.count > 0 && groups.kept.dim[0].size < kFew;
  const auto is_wanted = [&](const Dim& dim) {
    if (dim.mask_stride == 0 || (is_short && dim.step == 1)) return false;
    if (dim.stride == 0 && !is_short) return true;
    return (dim.stride == 0 || (across && !is_near)) && is_mask_dense(dim);
  };
  for (Dims* dims : {&groups.kept, &groups.axes}) put_nearest_mask(*dims, first, is_wanted);
}

// Stores the results of groups that a mask of groups hides over those found without it. `early`: it
// may begin before these are found, for which it then waits.
void launch_hide(const Reduction& r, bool early, void* stream);

}  // namespace reduceops::cuda
