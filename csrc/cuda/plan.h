// What a kernel is told of how a reduction is cut (make_plan.h decides), and the order of the dims
// that it goes over.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/box.h"
#include "cuda/gather.h"
#include "cuda/policy.h"
#include "cuda/sizes.h"
#include "cuda/tiles.h"
#include "make_groups.h"

namespace reduceops::cuda {

struct Limits {
  int64_t multiprocessors;
  bool bulk;  // bulk copies, clusters and kSharedBytes: compute capability 9.0 on, but not all
};

enum class Walk : int {
  kRows,          // the reduced dim is innermost
  kColumns,       // a kept dim is
  kBoxes,         // small groups, by tiles of many in shared memory
  kBulkColumns,   // a kept dim is innermost, by tiles of columns
  kWholeRows,     // the reduced dim is innermost: rows of which all loads are in flight at once
  kWholeColumns,  // a kept dim is innermost, and the reduced one of a few elements
  kSmall,         // few elements, whatever their order; of other tasks more (plan/small.h)
  kFill,          // every group is one element
  kTiles,         // small groups of any layout
  kGather,        // groups of a few elements, wherever they lie
};

// What is computed, as far as plans differ: all but kExtreme has kernels only of kRows and
// kColumns, which fit every layout, of kSmall, of kWholeRows (held_rows.cuh) and of kGather
// (gather_items.cuh).
enum class Task : int {
  kExtreme,  // of the input alone
  kMasked,   // of what a mask lets through
  kSoftmax,  // softmax_max
};

// What each walk decides for itself; those of boxes.cu, tiles.cu and gather.cu have headers of
// their own.
struct SmallCut {
  bool vector;  // 16-byte loads along the row, which begin anywhere
  int lanes;    // threads to an output
};

struct RowsCut {
  bool vector;     // 16-byte loads along the row
  bool spaced;     // of these 16 bytes every second element
  bool flat;       // positions over several reduced dims are found one by one, in 32 bits; else
                   // rows go run by run of the innermost
  bool realigned;  // flat: these 16 bytes begin anywhere
  int lanes;       // threads to a row
  int runs;        // of the innermost reduced dim, that the lanes take side by side
};

struct WholeRowsCut {
  bool vector;      // rows begin and end where 16-byte loads do
  bool mapped;      // the index does not follow the order of memory
  int lanes;        // threads to a row, or to a part
  int loads;        // in flight of a thread
  int64_t batches;  // of so many loads, in a part; 0: a row is held at once
};

struct ColumnsCut {
  bool vector;     // 16-byte loads over neighbouring columns
  bool realigned;  // these 16 bytes begin anywhere
  bool shifted;    // blocks of 16 bytes, which begin up to as many before the columns of a thread
  bool staged;     // warps have segments of rows (staged_columns.cuh)
  bool listed;     // of a mask that columns of a row have in common: rows are listed first
  bool flat;       // positions over several reduced dims are found one by one, in 32 bits
  bool pairs;      // key and position are one integer (packed_columns.cuh)
  int lanes;       // threads side by side over columns
  int shares;      // threads to a column
  int64_t tiles;   // of as many columns as there are lanes
  int64_t across;  // of these, side by side

  // Lanes whose loads the columns of a tile fill; if those begin before them, there is one more.
  REDUCEOPS_HD int full_lanes() const { return lanes - shifted; }
};

struct BulkColumnsCut {
  bool vector;      // readers take several slots each
  bool mapped;      // the index does not follow the order of memory
  bool contiguous;  // the rows of a tile follow each other in memory
  int lanes;        // readers side by side over columns
  int shares;       // readers to a column
  int64_t tile;     // columns
  int64_t tiles;    // of one part
  int64_t across;   // tiles side by side
  int64_t subtile;  // columns of a tile that are taken at once
  int stage_rows;   // reduced positions in a stage
  int stage_pitch;  // bytes from one position to the next
  int stage_bytes;
  int stages;
  int scratch_bytes;  // of shared memory behind the stages
};

struct Plan {
  int64_t parts;        // of the reduced extent
  int64_t part_extent;  // reduced positions in a part
  int candidate_bytes;  // of an output's state in a part: 8 if key and index fit, else 16; 24 if
                        // there is a sum; kHandInBytes where no second kernel combines them
  int cluster;          // blocks that combine their parts in shared memory
  union {               // by walk; of the others nothing is to be known
    SmallCut small;
    RowsCut rows;
    WholeRowsCut whole_rows;
    ColumnsCut columns;
    BulkColumnsCut bulk_columns;
    Box box;
    Tiles tiles;
    Gather gather;
  };
  int64_t blocks;  // of the whole grid, parts included
  Walk walk;
  int threads;  // per block

  // Whether candidates go through a workspace, and to a second kernel; how many of an output.
  bool split() const { return parts > cluster; }
  bool has_combine() const { return split() && candidate_bytes != kHandInBytes; }
  REDUCEOPS_HD int64_t candidates() const { return parts / cluster; }
};

// Calls `read` with what the plan's walk decides for itself, if there is something.
template <class Read>
void visit_cut(const Plan& plan, Read read) {
  switch (plan.walk) {
    case Walk::kSmall:
      return read(plan.small);
    case Walk::kRows:
      return read(plan.rows);
    case Walk::kWholeRows:
      return read(plan.whole_rows);
    case Walk::kColumns:
      return read(plan.columns);
    case Walk::kBulkColumns:
      return read(plan.bulk_columns);
    case Walk::kBoxes:
      return read(plan.box);
    case Walk::kTiles:
      return read(plan.tiles);
    case Walk::kGather:
      return read(plan.gather);
    case Walk::kWholeColumns:
    case Walk::kFill:
      return;
  }
}

// Shared memory of a block that reads a ring of stages, and of the ring alone.
REDUCEOPS_HD int64_t ring_bytes(const BulkColumnsCut& cut) {
  return int64_t(cut.stages) * (cut.stage_bytes + kStageBarriers);
}
inline int64_t shared_bytes(const BulkColumnsCut& cut) {
  return ring_bytes(cut) + cut.scratch_bytes;
}

// Whether columns may be pairs of key and position: those of types of up to 32 bits that threads
// take in packs, over one reduced dim, if there is room for positions beside a key.
inline bool has_room_for_pairs(const Plan& plan, int reduced_count, int64_t bytes) {
  const ColumnsCut& columns = plan.columns;
  const bool packs = columns.vector || columns.realigned || columns.shifted;
  if (bytes > 4 || !packs || reduced_count != 1) return false;
  const int64_t turns = ceil_div(plan.part_extent, columns.shares);
  return plan.blocks <= kMaxBlocks &&
         (bytes == 4 || (bytes == 2 ? plan.part_extent <= 1 << 16
                                    : plan.part_extent <= 1 << 24 && turns <= 1 << 8));
}

// Whether short rows, too, are taken in the order of their results. (Where plans know prices there
// are walks that exchange results instead.)
inline bool is_best_in_result_order(const Groups& groups, Task task) {
  const Dims& kept = groups.kept;
  const auto all = [&](auto holds) { return std::all_of(kept.dim, kept.dim + kept.count, holds); };
  const Dim& first = *std::min_element(kept.dim, kept.dim + kept.count,
                                       [](const Dim& a, const Dim& b) { return a.step < b.step; });
  // Those that only the mask tells apart, in its order, which would be read again and again.
  if (task == Task::kMasked)
    return first.stride == 0 &&
           all([&](const Dim& dim) { return dim.mask_stride >= first.mask_stride; });
  if (task != Task::kSoftmax) return false;
  // Neighbours in memory are to follow each other while what was read with the first is in cache.
  constexpr int64_t kCached = 16 << 20;
  int64_t between = 1;
  for (int d = 0; d < kept.count; ++d) {
    if (kept.dim[d].step < kept.dim[0].step) between *= kept.dim[d].size;
  }
  return between <= kCached / kBurstBytes;
}

// Puts dims in the order that the kernels go over them.
inline void arrange(Groups& groups, int64_t bytes, Task task) {
  // Where only the mask has a stride, memory is no reason for a dim to be the innermost.
  for (Dims* dims : {&groups.kept, &groups.axes, &groups.reduced}) {
    if (dims->count > 1 && dims->dim[0].stride == 0)
      std::stable_partition(dims->dim, dims->dim + dims->count,
                            [](const Dim& dim) { return dim.stride != 0; });
  }
  if (!is_rows(groups)) {
    order_by_index(groups.reduced);
  } else if (is_run(groups.reduced) && !in_order(groups) &&
             (walk_extent(groups.reduced) * bytes >= kBurstBytes ||
              is_best_in_result_order(groups, task))) {
    // Long rows are read as well in any order, and results written best in theirs.
    order_by_result(groups);
  }
}

}  // namespace reduceops::cuda
