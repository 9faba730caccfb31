// A tensor seen as groups: every output element is the reduction of one group of input elements.
//
// Most calls end as one or two kept and one reduced dim, whatever the rank, permutation or memory
// format they came with (make_groups.h).
#pragma once

#include <cstdint>

#include "order.h"

namespace reduceops {

constexpr int kMaxDims = 64;  // torch's own limit on the dims of a tensor that is reduced
constexpr int kMaxAxes = 8;  // of kept dims merged by memory alone; with more they stay as they are

struct Dim {
  int64_t size;
  int64_t stride;           // in input elements
  int64_t step;             // kept dims: in output elements; reduced dims: in the result index
  int64_t mask_stride = 0;  // in elements of the mask, where there is one
};

// Innermost dim first: that of the smallest stride, unless a walk has put them in another order.
struct Dims {
  int count = 0;
  union {  // so that those beyond `count` are neither initialised nor copied
    Dim dim[kMaxDims];
  };

  Dims() {}
  Dims(const Dims& other) { *this = other; }
  Dims& operator=(const Dims& other) {
    count = other.count;
    for (int d = 0; d < count; ++d) dim[d] = other.dim[d];
    return *this;
  }
};

struct Groups {
  Dims kept, reduced;
  Dims axes;            // the kept dims, merged where they are adjacent in memory alone
  Dims repeats;         // kept dims of stride 0: the results along them are all the same
  int64_t outputs = 1;  // number of groups, repeats apart
  int64_t copies = 1;   // of each result, the first included
  int64_t extent = 1;   // elements in each group
  int64_t weight = 1;   // of them that are one element of memory: sizes of reduced dims of stride 0
};

struct Split {
  int64_t quotient, remainder;
};

// Division of a position by a count; a 64-bit one costs a GPU about a hundred instructions.
REDUCEOPS_HD Split split(int64_t position, int64_t count) {
  if (count == 1) return {position, 0};
  if ((position | count) >> 32 == 0) {
    const uint32_t quotient = static_cast<uint32_t>(position) / static_cast<uint32_t>(count);
    return {quotient, static_cast<uint32_t>(position) - quotient * static_cast<uint32_t>(count)};
  }
  const int64_t quotient = position / count;
  return {quotient, position - quotient * count};
}

// Where a position of a walk over `dims` lies: its input offset and its output offset or result
// index.
struct Place {
  int64_t offset;
  int64_t step;
};

REDUCEOPS_HD Place place(const Dim* dims, int count, int64_t position) {
  if (count == 1) return {position * dims[0].stride, position * dims[0].step};
  Place at{0, 0};
  REDUCEOPS_ROLLED
  for (int d = 0; d < count; ++d) {
    const auto [rest, digit] = d + 1 < count ? split(position, dims[d].size) : Split{0, position};
    at.offset += digit * dims[d].stride;
    at.step += digit * dims[d].step;
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

// From the first position of a walk over `dims` to the last: elements of the input, or the mask.
inline int64_t reach(const Dims& dims, int64_t Dim::* stride = &Dim::stride) {
  int64_t last = 0;
  for (int d = 0; d < dims.count; ++d) last += (dims.dim[d].size - 1) * dims.dim[d].*stride;
  return last;
}

// The input offset of a result index; the inverse of what `place` does for reduced dims.
REDUCEOPS_HD int64_t offset_of(const Dim* reduced, int count, int64_t index) {
  int64_t offset = 0;
  REDUCEOPS_ROLLED
  for (int d = 0; d < count; ++d) {
    const int64_t turns = split(index, reduced[d].step).quotient;
    offset += (count == 1 ? turns : split(turns, reduced[d].size).remainder) * reduced[d].stride;
  }
  return offset;
}

// Whether the innermost dim of all is a reduced one (the walk goes along rows) or a kept one (it
// goes over columns). Along a kept dim of stride 0, which a mask makes differ, nothing is read.
inline bool is_rows(const Groups& groups) {
  if (groups.reduced.count == 0 || groups.kept.count == 0) return true;
  if (groups.axes.dim[0].stride == 0) return true;
  for (int d = 0; d < groups.reduced.count; ++d) {
    const int64_t stride = groups.reduced.dim[d].stride;
    if (stride != 0) return stride <= groups.axes.dim[0].stride;
  }
  return true;
}

// Whether dims in the order of memory are one dim in it, in whatever order the index counts them.
// `place` takes a position along that to its index.
inline bool is_one_in_memory(const Dims& dims) {
  for (int d = 1; d < dims.count; ++d) {
    const Dim &inner = dims.dim[d - 1], &outer = dims.dim[d];
    if (outer.stride != inner.stride * inner.size ||
        outer.mask_stride != inner.mask_stride * inner.size)
      return false;
  }
  return dims.count > 0;
}

// Whether they are one run of memory without gaps.
inline bool is_run(const Dims& dims) { return is_one_in_memory(dims) && dims.dim[0].stride == 1; }

// Whether the results follow each other as their groups do in memory.
inline bool in_order(const Groups& groups) {
  int64_t step = 1;
  for (int d = 0; d < groups.kept.count; ++d) {
    if (groups.kept.dim[d].step != step) return false;
    step *= groups.kept.dim[d].size;
  }
  return true;
}

// Whether every group is one element, or the same one over and over: index 0 is the answer.
inline bool is_single(const Groups& groups) { return groups.reduced.count == 0; }

}  // namespace reduceops
