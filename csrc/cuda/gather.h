// The plan of gather.cu, and the dims that its threads go over.
#pragma once

#include <algorithm>

#include "cuda/policy.h"
#include "make_groups.h"

namespace reduceops::cuda {

// A unit is an output, or the neighbouring outputs whose elements share 4 bytes.
struct Gather {
  bool packed;     // whether units are of several outputs
  int units;       // of a thread, a block's threads apart
  bool row_loads;  // whether the elements of a group come in one load
  int shares;      // threads to a unit, each of which has every so many elements of its groups
  // Where results follow each other in another order than memory, a block has a tile of both: so
  // many units along the innermost dim of the results, and along all others, of which so many lie
  // before it in memory. Else 0.
  int cross_side, inner_side, before_cross;

  bool tiled() const { return cross_side > 0; }
  bool shared() const { return shares > 1; }
  int64_t width(int64_t bytes) const { return packed ? 4 / bytes : 1; }
  // Of a tile's results, with a column more than it has, for the banks.
  int64_t results_of_tile(int64_t bytes) const {
    return inner_side * width(bytes) * (cross_side + 1);
  }
  // Where units lie, and of each result the value and a position of a byte.
  int64_t shared_bytes(int64_t bytes) const {
    return inner_side * 2 * int64_t(sizeof(uint32_t)) + results_of_tile(bytes) * (bytes + 1);
  }
};

// The number of the kept dim that is innermost in the results.
inline int cross_dim(const Groups& groups) {
  const Dims& kept = groups.kept;
  int cross = 0;
  for (int d = 1; d < kept.count; ++d) {
    if (kept.dim[d].step < kept.dim[cross].step) cross = d;
  }
  return cross;
}

// The kept dims in the order of the results; of longer groups, of which there are few results, in
// that of memory; of tiles, too, but the innermost of the results at the end.
inline Dims dims_of(const Gather& plan, const Groups& groups) {
  if (plan.shared()) return groups.kept;
  if (!plan.tiled()) {
    Dims dims = by_step(groups.kept);
    merge(dims);
    return dims;
  }
  Dims dims = groups.kept;
  Dim* cross = dims.dim + cross_dim(groups);
  std::rotate(cross, cross + 1, dims.dim + dims.count);
  return dims;
}

}  // namespace reduceops::cuda
