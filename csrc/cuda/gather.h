// The plan of gather.cu, and the dims that its threads go over.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>

#include "cuda/mask_groups.h"
#include "cuda/policy.h"
#include "make_groups.h"

namespace reduceops::cuda {

// Of shared memory for where units and positions across lie, in the mask, too, and where their
// results go; values of 8 bytes follow.
REDUCEOPS_HD uint32_t places_bytes(uint32_t sides, bool masked) {
  return (sides * (2 + masked) + 1) / 2 * 2 * uint32_t(sizeof(uint32_t));
}

// A unit is an output, or a pack: neighbouring outputs whose elements have 4 bytes.
struct Gather {
  bool packed;     // whether units are of several outputs
  bool realigned;  // packs of bytes: these begin anywhere, and the last of a row of neighbours may
                   // overlap the one before: some outputs are computed twice
  int units;       // of a thread, a block's threads apart (of tiles, see inner_lanes)
  bool row_loads;  // whether the elements of a group come in one load
  int shares;      // threads to a unit, each of which has every so many elements of its groups
  // Where results follow each other in another order than memory, a block may have a tile of both:
  // so many positions over the first dims of the results, and units over all others. Else 0.
  int cross_side, inner_side;
  // Threads of a tile lie over so many units, then over positions across, then over more units. The
  // next unit of each is behind those of all of them, across if the tile is longer there.
  int inner_lanes, cross_lanes;
  bool copied;  // the results across a tile are copies of one
  bool masked;  // places in a mask are kept beside those in the input

  bool tiled() const { return cross_side > 0; }
  bool shared() const { return shares > 1; }
  int64_t width(int64_t bytes) const { return packed ? 4 / bytes : 1; }
  // Units of a row of neighbours.
  int64_t units_of(const Dim& inner, int64_t bytes) const {
    return ceil_div(inner.size, width(bytes));
  }
  bool along_cross() const { return !copied && cross_side > cross_lanes; }
  // Positions across that threads go over, and threads that have units.
  int computed_cross() const { return copied ? 1 : cross_side; }
  int tile_threads() const { return inner_side * computed_cross() / units; }
  // In shared memory, from the results of an element of a unit to those of the next: for the banks,
  // those of a unit are an odd number of words, or of elements of 8 bytes.
  int64_t pitch(int64_t bytes) const {
    if (copied) return 1;
    const int64_t of_word = packed ? 1 : std::max<int64_t>(4 / bytes, 1);
    return (ceil_div(cross_side, of_word) | 1) * of_word;
  }
  // Where units and positions across lie and where their results go; of each result, the value and
  // a position of a byte.
  int64_t shared_bytes(int64_t bytes) const {
    return places_bytes(inner_side + cross_side, masked) +
           inner_side * width(bytes) * pitch(bytes) * (bytes + 1);
  }
};

// How many dims of the results, the first of them, a tile goes across: of those before the
// innermost of memory, as many as it takes for some results side by side; more where these are no
// multiple of a tile's side, for the runs of tiles would end within sectors. It goes along all
// others in the order of memory; where little lies side by side there, those across follow each
// other in memory.
inline int dims_across(const Groups& groups) {
  constexpr int64_t kSide = 32, kMostSide = 1024;
  const Dims dims = by_step(groups.kept);
  const Dim inner = groups.kept.dim[0];
  int across = 0;
  for (int64_t side = 1; dims.dim[across].step < inner.step; ++across) {
    if (side >= kSide && (side % kSide == 0 || side >= kMostSide)) break;
    const Dim& dim = dims.dim[across];
    const int64_t before = across > 0 ? dims.dim[across - 1].stride : -1;
    const bool joins = dim.stride > before || (dim.stride > 0 && inner.size >= kSide);
    if (before == 0 || !joins) break;
    side *= dim.size;
  }
  return across;
}

// Where neighbouring elements have no neighbouring bytes of the mask, puts the dim along which
// those lie behind as many elements as fill a sector, or nearly, for warps to use most of the
// sectors of both. Packs of `width` elements stay whole.
inline void cross_mask(Dims& dims, int64_t bytes, int64_t width) {
  constexpr int64_t kLeast = 4;
  const Dim first = dims.dim[0];
  int64_t side = kSectorBytes / bytes;
  if (first.stride != 1 || first.size < side || !is_mask_sparse(first)) return;
  const auto is_even = [&] { return first.size % side == 0 && side % width == 0; };
  while (side > kLeast && !is_even()) --side;
  if (!put_nearest_mask(dims, 1, [](const Dim& dim) { return is_mask_dense(dim); })) return;
  if (!is_even() || first.size == side || dims.count == kGatherDims) return;
  dims.dim[0].size = side;
  const Dim rest{first.size / side, side, first.step * side, first.mask_stride * side};
  std::copy_backward(dims.dim + 2, dims.dim + dims.count, dims.dim + dims.count + 1);
  dims.dim[2] = rest;
  ++dims.count;
}

// The kept dims in the order of the results; of groups that threads share in that of memory; of
// tiles, too, but at the end those across in the order of the results.
inline Dims dims_of(const Gather& plan, const Groups& groups, int64_t bytes) {
  if (plan.shared()) return groups.kept;
  Dims dims = by_step(groups.kept);
  if (!plan.tiled()) {
    merge(dims);
    if (plan.masked) cross_mask(dims, bytes, plan.width(bytes));
    return dims;
  }
  const int across = dims_across(groups);
  Dims ordered;
  for (int d = 0; d < dims.count; ++d) {
    const Dim& dim = groups.kept.dim[d];
    if (dim.step > dims.dim[across - 1].step) ordered.dim[ordered.count++] = dim;
  }
  std::copy_n(dims.dim, across, ordered.dim + ordered.count);
  ordered.count = dims.count;
  return ordered;
}

// Units of all outputs.
inline int64_t units_of(const Gather& plan, const Groups& groups, int64_t bytes) {
  const Dim inner = dims_of(plan, groups, bytes).dim[0];
  return groups.outputs / inner.size * plan.units_of(inner, bytes);
}

// How the units of threads that have several lie: along one of dims_of, `spacing` units from each
// to the next, a power of two, which so many threads have. Those of a block are runs side by side.
struct UnitsAlong {
  int dim;
  int64_t spacing, threads;
};

inline UnitsAlong units_along_of(const Gather& plan, const Groups& groups, int64_t bytes) {
  constexpr double kFewIdle = 1.1;
  const Dims dims = dims_of(plan, groups, bytes);
  UnitsAlong best{0, 1, plan.units_of(dims.dim[0], bytes)};
  double idle = std::numeric_limits<double>::infinity();
  int64_t before = 1;
  for (int d = 0; d < dims.count && plan.units > 1 && idle > kFewIdle; ++d) {
    const int64_t size = d > 0 ? dims.dim[d].size : plan.units_of(dims.dim[d], bytes);
    const auto spacing =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(ceil_div(kThreads, before))));
    const int64_t threads = ceil_div(size, spacing * plan.units) * spacing;
    const double idle_here = static_cast<double>(threads * plan.units) / static_cast<double>(size);
    if (idle_here < idle) {
      best = {d, spacing, threads};
      idle = idle_here;
    }
    before *= size;
  }
  return best;
}

// Threads of all.
inline int64_t threads_of(const Gather& plan, const Groups& groups, int64_t bytes) {
  const UnitsAlong along = units_along_of(plan, groups, bytes);
  const Dims dims = dims_of(plan, groups, bytes);
  const int64_t size = along.dim > 0 ? dims.dim[along.dim].size : plan.units_of(dims.dim[0], bytes);
  return units_of(plan, groups, bytes) / size * along.threads;
}

}  // namespace reduceops::cuda
