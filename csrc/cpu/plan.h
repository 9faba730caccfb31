// How a reduction is cut into work items for the CPU: which walk, and how many parts of the reduced
// extent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "make_groups.h"

namespace reduceops::cpu {

constexpr int64_t kCombinedOfThread = 1 << 14;  // candidates worth waking a thread for
constexpr int64_t kWorkspaceBytes = 1 << 20;    // for candidates of parts and of crossed columns
constexpr int64_t kCandidateBytes = 2 * sizeof(int64_t);
constexpr int64_t kSoftmaxBytes = kCandidateBytes + sizeof(double);  // of its candidates

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
constexpr int64_t kUnorderedRun = 16;  // elements of a run that is cheaper to reduce than to copy
constexpr int64_t kCrossedWalk = 8;    // positions behind each crossed column, at least
constexpr int64_t kMostCrossed = kWorkspaceBytes / kCandidateBytes;  // columns at once
constexpr int64_t kCacheBytes = 1 << 20;                             // of a core, at least
constexpr int64_t kPartBytes = kCacheBytes / 4;
constexpr int64_t kCopyBytes = 64;          // a vector's, at most
constexpr int64_t kItemsOfThread = 8;       // to balance threads by, at most
constexpr int64_t kGrainBytes = 128 << 10;  // worth waking a thread for

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum class Walks { kRows, kColumns, kGather };  // of a gather, all outputs are columns

struct Plan {
  Walks walk;
  bool copies;          // rows are copied, run behind run, in the order of the index
  int64_t tile;         // columns per unit; 1 for rows
  int64_t tiles;        // units along the columns
  int64_t units;        // outputs (rows) or tiles (columns)
  int64_t parts;        // of the reduced extent; their candidates are combined afterwards
  int64_t part_extent;  // reduced positions in a part
  int64_t grain;        // items (units x parts) per thread at least
  bool by_parts;        // items are all units of a part, then those of the next, not the other way
  // Where reduced dims are crossed (crossed_groups): columns that each output is first, and slices
  // of the outputs, of which this is the plan of the first.
  int64_t columns = 1, slices = 1;
};

// Whether memory's order of the reduced dims is the index's: what comes first in it wins a tie.
inline bool is_ordered(const Dims& reduced) {
  for (int d = 1; d < reduced.count; ++d)
    if (reduced.dim[d].step < reduced.dim[d - 1].step) return false;
  return true;
}

// Whether the innermost runs of rows are long enough to be reduced one by one, in whatever order:
// those of at least so many elements that are not in the order of the index, for which copying is
// the other way.
inline bool is_read_in_runs(const Groups& groups, int64_t bytes, int64_t unordered) {
  const Dims& reduced = groups.reduced;
  const Dim inner = reduced.dim[0];
  if (inner.stride == 1 && (reduced.count == 1 || inner.size * bytes >= kJoinedBytes)) return true;
  return !is_ordered(reduced) && inner.size >= unordered;
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

// The walk of crossed columns, or of a slice of them: never rows, which count no candidates of
// theirs, however few there are.
inline Walks choose_crossed_walk(const Groups& groups, int64_t walk, int64_t bytes) {
  const Walks chosen = choose_walk(groups, walk, bytes);
  return chosen == Walks::kRows ? Walks::kGather : chosen;
}

// How many of the reduced dims are crossed, the innermost first, where memory's order is not the
// index's.
inline int crossed_dims(const Groups& groups, int64_t bytes) {
  const Dims& reduced = groups.reduced;
  const bool rows = is_rows(groups);
  if (is_ordered(reduced)) return 0;
  if (rows && is_read_in_runs(groups, bytes, kJoinedBytes / bytes)) return 0;
  const Dim inner = rows ? reduced.dim[0] : groups.axes.dim[0];
  if (!rows && inner.stride == 1 && inner.size * bytes >= kJoinedBytes) return 0;
  int64_t columns = rows ? 1 : inner.size, walk = walk_extent(reduced);
  int count = 0;
  do {
    columns *= reduced.dim[count].size;
    walk /= reduced.dim[count].size;
    ++count;
  } while (columns * bytes < kJoinedBytes && count + 1 < reduced.count);
  if (columns > kMostCrossed || walk < kCrossedWalk) return 0;
  const Groups crossed = crossed_groups(groups, count);
  return choose_walk(crossed, walk, bytes) == Walks::kRows ? 0 : count;
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

// The groups of a gather in blocks of `along` positions of the innermost kept dim, which that
// divides: these come first, then the other dims, then the blocks.
inline void order_in_blocks(Groups& groups, int64_t along) {
  Dims& kept = groups.kept;
  Dim& inner = kept.dim[0];
  if (inner.size > along && kept.count < kMaxDims) {
    kept.dim[kept.count++] = {inner.size / along, inner.stride * along, inner.step * along,
                              inner.mask_stride * along};
    inner.size = along;
    groups.axes = kept;
  }
  order_for_gather(groups);
}

// Into how many parts the extent of each of `units` is cut, at most: for each of the threads to
// have work, and all of them about as much.
inline int64_t useful_parts(int64_t units, int64_t threads) {
  int64_t parts = ceil_div(threads, units);
  const auto idle = [&] { return ceil_div(units * parts, threads) * threads - units * parts; };
  while (units * parts < kItemsOfThread * threads && idle() * kItemsOfThread > units * parts)
    ++parts;
  return parts;
}

// `walk` is the number of positions a walk over the reduced dims visits.
inline Plan make_plan(const Groups& groups, Walks chosen, int64_t walk, int64_t bytes,
                      int64_t threads, int64_t candidate_bytes = kCandidateBytes) {
  Plan plan{};
  plan.walk = chosen;
  plan.copies = chosen == Walks::kRows && groups.reduced.count > 0 &&
                !is_read_in_runs(groups, bytes, kUnorderedRun);
  const int64_t elements = groups.outputs * walk;
  const int64_t grain = kGrainBytes / bytes;
  const int64_t useful = std::clamp<int64_t>(elements / grain, 1, threads);
  plan.tile = plan.tiles = 1;
  plan.units = groups.outputs;
  if (chosen != Walks::kRows) {
    const bool gathers = chosen == Walks::kGather;
    const int64_t inner = gathers ? groups.outputs : groups.axes.dim[0].size;
    const int64_t outer = groups.outputs / inner;
    constexpr int64_t kWhole = kCopyBytes;  // so that a tile has whole vectors of any type
    plan.tile = std::min(kTileBytes / bytes, kTileColumns);
    if (gathers) {
      plan.tile = std::clamp(kGatherBytes / bytes / walk, kGatherRowBytes / bytes, kGatherColumns) /
                  kWhole * kWhole;
    }
    for (; plan.tile * bytes > kMinTileBytes; plan.tile /= 2) {
      if (outer * ceil_div(inner, plan.tile) >= useful) break;
    }
    plan.tiles = ceil_div(inner, plan.tile);
    plan.units = outer * plan.tiles;
  }
  const int64_t fits = kWorkspaceBytes / (candidate_bytes * groups.outputs);
  const int64_t worth = ceil_div(elements, plan.units * grain);
  plan.parts = std::clamp<int64_t>(useful_parts(plan.units, useful), 1,
                                   std::max<int64_t>(1, std::min({walk, fits, worth})));
  // Outputs that share their lines, and are too few to be columns, are read together part by part,
  // of which each stays in cache.
  if (chosen == Walks::kRows && groups.outputs > 1 && !is_rows(groups)) {
    const int64_t span = walk * std::min(groups.reduced.dim[0].stride * bytes, kCopyBytes);
    plan.by_parts = span > kCacheBytes;
    if (plan.by_parts)
      plan.parts = std::max(plan.parts, std::min({ceil_div(span, kPartBytes), walk, fits}));
  }
  plan.part_extent = ceil_div(walk, plan.parts);
  plan.parts = ceil_div(walk, plan.part_extent);
  const int64_t item_elements = std::max<int64_t>(1, elements / (plan.units * plan.parts));
  plan.grain = std::max<int64_t>(1, grain / item_elements);
  return plan;
}

// Leaves `size` positions of kept dim d.
inline void shorten(Groups& groups, int d, int64_t size) {
  Dims& kept = groups.kept;
  groups.outputs = groups.outputs / kept.dim[d].size * size;
  kept.dim[d].size = size;
  if (size == 1) std::copy(kept.dim + d + 1, kept.dim + kept.count--, kept.dim + d);
  groups.axes = kept;
  merge(groups.axes, true);
}

// Of how many positions of the outermost kept dim, at least one, all candidates have room at once,
// where the innermost `crossed` reduced dims are crossed.
inline int64_t crossed_slice(const Groups& groups, int crossed) {
  const int64_t size = groups.kept.dim[groups.kept.count - 1].size;
  int64_t candidates = groups.outputs / size;
  for (int d = 0; d < crossed; ++d) candidates *= groups.reduced.dim[d].size;
  return std::clamp<int64_t>(kMostCrossed / candidates, 1, size);
}

// The plan of a call, or of the first of the slices in which it is carried out.
inline Plan plan_of(const Groups& groups, int64_t bytes, int64_t threads, int64_t candidate_bytes) {
  const int crossed = crossed_dims(groups, bytes);
  Groups planned = groups;
  int64_t slices = 1, columns = 1;
  if (crossed) {
    while (planned.kept.count > 0) {
      const int outer = planned.kept.count - 1;
      const int64_t size = planned.kept.dim[outer].size, most = crossed_slice(planned, crossed);
      if (most == size) break;
      slices *= ceil_div(size, most);
      shorten(planned, outer, most);
    }
    const int64_t outputs = planned.outputs;
    planned = crossed_groups(planned, crossed);
    columns = planned.outputs / outputs;
  }
  const int64_t walk = walk_extent(planned.reduced);
  const Walks chosen =
      crossed ? choose_crossed_walk(planned, walk, bytes) : choose_walk(planned, walk, bytes);
  Plan plan = make_plan(planned, chosen, walk, bytes, threads, candidate_bytes);
  plan.columns = columns;
  plan.slices = slices;
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
