// The plan of tiles.cu: which tiles of an input a block copies to shared memory, how they lie
// there, and how their results are taken.
#pragma once

#include <cstdint>

#include "cuda/policy.h"
#include "cuda/sizes.h"
#include "make_groups.h"

namespace reduceops::cuda {

// A tile is some groups times some columns. Columns are positions of the innermost kept dims, whose
// elements lie together in memory; groups are positions of all other kept dims, numbered as their
// results follow each other. Reduced dims that lie among the columns, or right beside them, come
// with them in one piece; each position of the others ("outer rows") is a piece of its own.
struct Tiles {
  static constexpr int64_t kPieceBytes = 128;     // that are copied at once, where a dim is cut
  static constexpr int64_t kMostGroups = 512;     // of a tile
  static constexpr int64_t kMostColumns = 1024;   // of a tile
  static constexpr int64_t kLeastNeighbours = 8;  // results of a tile side by side

  // How outputs are read; else the vectors of a row of 8- or 16-bit elements that a thread holds.
  static constexpr int kSlots = -1;      // of one reduced dim: a slot of neighbouring columns
  static constexpr int kScattered = -2;  // a column, where a table says where its elements are
  int reading;
  int column_dims;             // kept dims, the innermost in memory, of which columns are
  int64_t inner_columns;       // positions of all of these but the last
  int64_t columns;             // of a tile
  int64_t chunks;              // tiles that are side by side over the columns
  int64_t groups;              // of a tile
  int64_t tiles;               // over the groups
  int inner_rows;              // reduced dims that come with the columns, the innermost in memory
  int64_t outer_rows;          // positions of the other reduced dims
  int piece_bytes;             // of what is copied at once
  int copy_lanes;              // to a piece
  int row_pitch[kBoxReduced];  // bytes between positions of each reduced dim in shared memory,
  int group_pitch;             // and between groups
  int lanes;                   // to an output, or a slot of them
  int side;                    // groups that neighbouring threads take, before the next column
  int table_bytes;             // of shared memory before the groups
  int stage_bytes;             // of shared memory for the groups
  bool in_result_order;        // results of a tile lie side by side
};

// What is written down before the groups: of each group where it begins, where its first result
// goes and where it lies in shared memory; of each column where it lies and where its result goes;
// the same of outer rows, but for a result; where the elements of a scattered column lie.
struct TileTables {
  int group_from, group_result, column_result, row_from;  // 8 bytes each
  int group_at, column_at, row_at;                        // 4 bytes each
  int element_at;                                         // 2 bytes each
  int end;

  REDUCEOPS_HD TileTables(const Tiles& e, int64_t walk) {
    const int groups = static_cast<int>(e.groups), columns = static_cast<int>(e.columns);
    const int rows = static_cast<int>(e.outer_rows);
    group_from = 0;
    group_result = group_from + 8 * groups;
    column_result = group_result + 8 * groups;
    row_from = column_result + 8 * columns;
    group_at = row_from + 8 * rows;
    column_at = group_at + 4 * groups;
    row_at = column_at + 4 * columns;
    element_at = row_at + 4 * rows;
    end = element_at + (e.reading == Tiles::kScattered ? 2 * static_cast<int>(walk) : 0);
  }
};

inline int64_t shared_bytes(const Tiles& plan) { return plan.table_bytes + plan.stage_bytes; }

// All kept dims but the columns', in the order of the results.
inline Dims other_dims(const Groups& groups, int column_dims) {
  const Dims kept = by_stride(groups.kept);
  Dims outer;
  for (int d = column_dims; d < kept.count; ++d) insert(outer, kept.dim[d], &Dim::step);
  merge(outer);
  return outer;
}

}  // namespace reduceops::cuda
