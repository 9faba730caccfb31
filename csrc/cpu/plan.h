// How a reduction is cut into work items for the CPU: which walk, and how many parts of the reduced
// extent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "make_groups.h"

namespace reduceops::cpu {

// A tile's segment of one reduced position: wide enough to stream, and columns that fit a stack.
constexpr int64_t kTileBytes = 32768, kTileColumns = 16384;
constexpr int64_t kMinTileBytes =
    512;  // narrower tiles lose more to DRAM than they gain in balance
// Columns that are gathered: as many as make a block of so many bytes with their rows.
constexpr int64_t kGatherBytes = 16384, kGatherRowBytes = 512, kGatherColumns = 1024;
constexpr int64_t kResultsTogether = 8;  // a line of indices
constexpr int64_t kScatterWalk = 8;      // elements of a group, of which results count more
constexpr int64_t kGatherAlong = 64;     // groups in memory to a tile, where results lie across
constexpr int64_t kJoinedBytes = 512;  // of a run: longer ones are worth being read where they are
constexpr int64_t kCrossedWalk = 8;    // positions behind each crossed column, at least
constexpr int64_t kCacheBytes = 1 << 20;      // of a core, at least
constexpr int64_t kCopyBytes = 64;            // a vector's, at most
constexpr int64_t kGrainBytes = 128 << 10;    // worth waking a thread for
constexpr int64_t kWorkspaceBytes = 1 << 20;  // for the candidates of the parts
constexpr int64_t kCandidateBytes = 2 * sizeof(int64_t);
constexpr int64_t kSoftmaxBytes = kCandidateBytes + sizeof(double);  // of its candidates

struct Plan {
  bool rows;            // else columns
  bool gathers;         // columns are all outputs, in the order of memory; else the innermost axis
  bool copies;          // rows are copied, run behind run, in the order of the index
  int64_t tile;         // columns per unit; 1 for rows
  int64_t tiles;        // units along the columns
  int64_t units;        // outputs (rows) or tiles (columns)
  int64_t parts;        // of the reduced extent; their candidates are combined afterwards
  int64_t part_extent;  // reduced positions in a part
  int64_t grain;        // items (units x parts) per thread at least
  int64_t columns = 1;  // that each output is first; more where reduced dims are crossed
};

enum class Walks { kRows, kColumns, kGather };

// Whether memory's order of the reduced dims is the index's: what comes first in it wins a tie.
inline bool is_ordered(const Dims& reduced) {
  for (int d = 1; d < reduced.count; ++d)
    if (reduced.dim[d].step < reduced.dim[d - 1].step) return false;
  return true;
}

// Whether the innermost runs of rows are long enough to be reduced one by one, in whatever order.
inline bool is_read_in_runs(const Groups& groups, int64_t bytes) {
  const Dims& reduced = groups.reduced;
  const Dim inner = reduced.dim[0];
  if (inner.stride == 1) return reduced.count == 1 || inner.size * bytes >= kJoinedBytes;
  return !is_ordered(reduced) && inner.size * bytes >= kJoinedBytes;
}

// The groups where the innermost `count` reduced dims are crossed: each position along them is a
// column of its own, reduced over the other dims, and these columns are combined afterwards. So
// memory is read in its order where that is not the index's. The steps of kept dims count
// candidates: of each output, all columns one after the other.
inline Groups crossed_groups(const Groups& groups, int count) {
  Groups crossed;
  int64_t columns = 1;
  for (int d = 0; d < groups.reduced.count; ++d) {
    Dim dim = groups.reduced.dim[d];
    if (d >= count) {
      insert(crossed.reduced, dim, &Dim::step);
      continue;
    }
    dim.step = columns;
    columns *= dim.size;
    insert(crossed.kept, dim);
  }
  int64_t step = columns;
  for (int d = 0; d < groups.kept.count; ++d) {
    Dim dim = groups.kept.dim[d];
    dim.step = step;
    step *= dim.size;
    insert(crossed.kept, dim);
  }
  crossed.outputs = step;
  crossed.extent = groups.extent;
  merge(crossed.kept);
  crossed.axes = crossed.kept;
  merge(crossed.axes, true);
  if (crossed.axes.count > kMaxAxes) crossed.axes = crossed.kept;
  return crossed;
}

// Which walk is the cheapest. Gathering costs a few instructions for each run of neighbours, or for
// a square of 16 bytes of rows; rows by themselves cost combining their lanes, and a tile of
// columns its bookkeeping, however short they are.
inline Walks choose_walk(const Groups& groups, int64_t walk, int64_t bytes) {
  const bool fills_lanes = groups.outputs * bytes * 2 >= kCopyBytes;  // half of them at least
  if (is_rows(groups)) {
    if (!fills_lanes || groups.reduced.count == 0) return Walks::kRows;
    const Dim inner = groups.reduced.dim[0];
    const bool whole = groups.reduced.count == 1 && inner.stride == 1;
    int64_t few = bytes == 1 ? 32 : bytes == 2 ? 17 : bytes == 4 ? 11 : 4;
    if (!in_order(groups)) few *= 2;
    const bool apart =
        groups.reduced.dim[groups.reduced.count - 1].stride < groups.axes.dim[0].stride;
    if (!whole) few = groups.reduced.count > 1 && !apart ? 128 : walk < 128 ? 40 : 0;
    // Marks that lie along the outputs instead would each cost a line.
    if (inner.mask_stride > kCopyBytes) return Walks::kGather;
    return inner.size < few ? Walks::kGather : Walks::kRows;
  }
  const Dim inner = groups.axes.dim[0];
  // Results that lie apart are as much to write as the elements are to read.
  const bool scatters = !in_order(groups) && groups.kept.dim[0].step != 1 && walk <= kScatterWalk;
  if (inner.stride == 1 && inner.mask_stride <= 1 && !scatters) {
    const int64_t vectors = inner.size * bytes / kCopyBytes;
    const bool dense = groups.reduced.count == 1 && groups.reduced.dim[0].stride == inner.size;
    if (vectors * walk >= 128 || (dense && inner.size * walk * bytes >= 8192))
      return Walks::kColumns;
  }
  // Few outputs are read one after the other where what they share stays in cache.
  const bool in_cache = groups.outputs * bytes < 2 * kCopyBytes && walk * kCopyBytes <= kCacheBytes;
  return fills_lanes && !in_cache ? Walks::kGather : Walks::kRows;
}

// How many of the reduced dims are crossed, the innermost first.
inline int crossed_dims(const Groups& groups, int64_t bytes) {
  const Dims& reduced = groups.reduced;
  if (is_ordered(reduced)) return 0;
  const bool rows = is_rows(groups);
  if (rows && is_read_in_runs(groups, bytes)) return 0;
  const Dim inner = rows ? reduced.dim[0] : groups.axes.dim[0];
  if (!rows && inner.stride == 1 && inner.size * bytes >= kJoinedBytes) return 0;
  int64_t columns = rows ? 1 : inner.size, walk = walk_extent(reduced);
  int count = 0;
  do {
    columns *= reduced.dim[count].size;
    walk /= reduced.dim[count].size;
    ++count;
  } while (columns * bytes < kJoinedBytes && count + 1 < reduced.count);
  if (columns > kWorkspaceBytes / kCandidateBytes || walk < kCrossedWalk) return 0;
  return choose_walk(crossed_groups(groups, count), walk, bytes) == Walks::kRows ? 0 : count;
}

// The order in which a gather goes over the outputs, where results do not follow each other as the
// groups do: the dim along which results are neighbours comes second, so that a tile has some of
// these as well as neighbours in memory.
inline void order_for_gather(Groups& groups) {
  Dims& kept = groups.kept;
  if (in_order(groups) || kept.dim[0].size * kResultsTogether > kGatherColumns) return;
  int d = 0;
  while (d < kept.count && kept.dim[d].step != 1) ++d;
  if (d < 2 || d == kept.count) return;
  std::rotate(kept.dim + 1, kept.dim + d, kept.dim + d + 1);
  groups.axes = kept;
}

// How many of the innermost kept dim a gather takes at a time, so that tiles have neighbours among
// the results too; all of them where these are neighbours anyway.
inline int64_t gathered_along(const Groups& groups) {
  const Dims& kept = groups.kept;
  if (in_order(groups) || kept.dim[0].step == 1) return kept.dim[0].size;
  int64_t across = 1;
  for (int d = 1; d < kept.count; ++d)
    if (kept.dim[d].step == 1) across = kept.dim[d].size;
  const int64_t along = kGatherColumns / std::min(across, 2 * kResultsTogether);
  const bool pays = groups.outputs / kept.dim[0].size * along >= kGatherColumns;
  return pays ? std::max(kGatherAlong, along) : kept.dim[0].size;
}

// `walk` is the number of positions a walk over the reduced dims visits. `crossed`: the groups are
// those of crossed dims, or a slice of them. Only walks over columns count the candidates of these,
// so they are never rows, however few there are.
inline Plan make_plan(const Groups& groups, int64_t walk, int64_t bytes, int64_t threads,
                      int64_t candidate_bytes = kCandidateBytes, bool crossed = false) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  Plan plan{};
  Walks chosen = choose_walk(groups, walk, bytes);
  if (crossed && chosen == Walks::kRows) chosen = Walks::kGather;
  plan.rows = chosen == Walks::kRows;
  plan.gathers = chosen == Walks::kGather;
  plan.copies = plan.rows && groups.reduced.count > 0 && !is_read_in_runs(groups, bytes);
  const int64_t elements = groups.outputs * walk;
  const int64_t grain = kGrainBytes / bytes;
  const int64_t useful = std::clamp<int64_t>(elements / grain, 1, threads);
  plan.tile = plan.tiles = 1;
  plan.units = groups.outputs;
  if (!plan.rows) {
    const int64_t inner = plan.gathers ? groups.outputs : groups.axes.dim[0].size;
    const int64_t outer = groups.outputs / inner;
    plan.tile = std::min(kTileBytes / bytes, kTileColumns);
    if (plan.gathers) {
      constexpr int64_t kWhole = kCopyBytes;  // so that a tile has whole vectors of any type
      plan.tile = std::clamp(kGatherBytes / bytes / walk, kGatherRowBytes / bytes, kGatherColumns) /
                  kWhole * kWhole;
    }
    for (; plan.tile * bytes > kMinTileBytes; plan.tile /= 2) {
      if (outer * ceil_div(inner, plan.tile) >= useful) break;
    }
    plan.tiles = ceil_div(inner, plan.tile);
    plan.units = outer * plan.tiles;
  }
  plan.parts = 1;
  if (plan.units < useful) {
    const int64_t fits = kWorkspaceBytes / (candidate_bytes * groups.outputs);
    plan.parts = std::max<int64_t>(1, std::min({ceil_div(useful, plan.units), walk, fits}));
  }
  plan.part_extent = ceil_div(walk, plan.parts);
  plan.parts = ceil_div(walk, plan.part_extent);
  const int64_t item_elements = std::max<int64_t>(1, elements / (plan.units * plan.parts));
  plan.grain = std::max<int64_t>(1, grain / item_elements);
  return plan;
}

// The plan of a call; where many columns are crossed, it is carried out in slices of the outputs.
inline Plan plan_of(const Groups& groups, int64_t bytes, int64_t threads, int64_t candidate_bytes) {
  const int crossed = crossed_dims(groups, bytes);
  if (crossed == 0)
    return make_plan(groups, walk_extent(groups.reduced), bytes, threads, candidate_bytes);
  const Groups columns = crossed_groups(groups, crossed);
  Plan plan =
      make_plan(columns, walk_extent(columns.reduced), bytes, threads, candidate_bytes, true);
  plan.columns = columns.outputs / groups.outputs;
  return plan;
}

// How the values of groups of one element are copied.
struct Filling {
  Dims dims;       // of the results
  bool across;     // by blocks: the innermost dim of memory is dim 1
  int64_t block;   // positions along that
  int64_t blocks;  // along that
  int64_t units;   // results, or blocks of all outer positions
  int64_t grain;   // of them per thread
};
constexpr int64_t kFillBlock = 64;

// `plain`: the values are the elements, or follow from each of them.
inline Filling make_filling(const Groups& groups, bool plain, int64_t bytes) {
  const int64_t results = groups.outputs * groups.copies;
  Filling filling{result_dims(groups), false, 1, 1, results, kGrainBytes / bytes};
  Dims& dims = filling.dims;
  int innermost = 0;
  for (int d = 0; d < dims.count; ++d)
    if (dims.dim[d].stride && dims.dim[d].stride < dims.dim[innermost].stride) innermost = d;
  if (!plain || innermost == 0) return filling;
  std::rotate(dims.dim + 1, dims.dim + innermost, dims.dim + innermost + 1);
  filling.across = true;
  filling.block = kFillBlock * kFillBlock / std::min(dims.dim[0].size, kFillBlock);
  filling.blocks = (dims.dim[1].size + filling.block - 1) / filling.block;
  filling.units = results / dims.dim[0].size / dims.dim[1].size * filling.blocks;
  filling.grain = std::max<int64_t>(1, filling.grain * filling.units / results);
  return filling;
}

}  // namespace reduceops::cpu
