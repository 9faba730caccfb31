// A tensor seen as groups: every output element is the reduction of one group of input elements.
//
// Dims of size 1, and reduced dims of stride 0 (every element there equals the first), are dropped; the rest are
// sorted by stride and merged where they are adjacent in memory. Most calls end as one or two kept and one reduced
// dim, whatever the rank, permutation or memory format they came with.
#pragma once

#include <cstdint>

#include "order.h"

namespace reduceops {

constexpr int kMaxDims = 64;  // torch's own limit on the dims of a tensor that is reduced

struct Dim {
  int64_t size;
  int64_t stride;  // in input elements
  int64_t step;    // kept dims: in output elements; reduced dims: in the result index
};

// Innermost dim (smallest stride) first.
template <int kCapacity>
struct DimList {
  int count = 0;
  Dim dim[kCapacity];
};
using Dims = DimList<kMaxDims>;

struct Groups {
  Dims kept, reduced;
  int64_t outputs = 1;  // number of groups
  int64_t extent = 1;   // elements in each
};

// Where a position of a walk over `dims` lies: its input offset and its output offset or result index.
struct Place {
  int64_t offset;
  int64_t step;
};

template <int kCapacity>
REDUCEOPS_HD Place place(const DimList<kCapacity>& dims, int64_t position) {
  if (dims.count == 1) return {position * dims.dim[0].stride, position * dims.dim[0].step};
  Place at{0, 0};
  for (int d = 0; d < dims.count; ++d) {
    const int64_t rest = position / dims.dim[d].size;
    const int64_t digit = position - rest * dims.dim[d].size;
    at.offset += digit * dims.dim[d].stride;
    at.step += digit * dims.dim[d].step;
    position = rest;
  }
  return at;
}

// Positions that a walk over `dims` visits.
inline int64_t walk_extent(const Dims& dims) {
  int64_t extent = 1;
  for (int d = 0; d < dims.count; ++d) extent *= dims.dim[d].size;
  return extent;
}

// The input offset of a result index; the inverse of what `place` does for reduced dims.
template <int kCapacity>
REDUCEOPS_HD int64_t offset_of(const DimList<kCapacity>& reduced, int64_t index) {
  int64_t offset = 0;
  for (int d = 0; d < reduced.count; ++d) {
    const Dim& dim = reduced.dim[d];
    offset += index / dim.step % dim.size * dim.stride;
  }
  return offset;
}

// Orders reduced dims by result index instead of by stride: a walk then meets the lowest index first.
void order_by_index(Dims& reduced);

// `reduced_mask` has bit d set where dim d is reduced.
void make_groups(int64_t ndim, const int64_t* sizes, const int64_t* strides, uint64_t reduced_mask, Groups& groups);

// Whether the innermost dim of all is a reduced one (the walk goes along rows) or a kept one (it goes over columns).
inline bool is_rows(const Groups& groups) {
  if (groups.reduced.count == 0 || groups.kept.count == 0) return true;
  return groups.reduced.dim[0].stride <= groups.kept.dim[0].stride || groups.kept.dim[0].stride == 0;
}

}  // namespace reduceops
