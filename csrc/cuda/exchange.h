// The plan of exchange.cu: tiles of memory of which the results, too, lie side by side.
#pragma once

#include <cstdint>

#include "cuda/sizes.h"
#include "make_groups.h"

namespace reduceops::cuda {

// Columns are positions of the innermost kept dim, groups those of all others together, numbered
// as their results follow each other.
struct Exchange {
  static constexpr int64_t kPieceBytes = 128;     // that are copied at once, where a dim is cut
  static constexpr int64_t kMostGroups = 512;     // of a tile
  static constexpr int64_t kLeastNeighbours = 8;  // results of a tile side by side
  static constexpr int64_t kLeadBytes = sizeof(int64_t) + sizeof(uint16_t);  // of a group

  bool vector;       // slots of neighbouring columns are read
  int64_t columns;   // of a tile
  int64_t chunks;    // tiles that are side by side over the columns
  int64_t groups;    // of a tile
  int64_t tiles;     // over the groups
  bool by_row;       // each reduced position of a group is copied by itself
  int piece_bytes;   // of what is copied at once
  int copy_lanes;    // to a piece
  int row_pitch;     // bytes between reduced positions,
  int column_pitch;  // columns,
  int group_pitch;   // and groups, in shared memory
  int lead_bytes;    // of shared memory before the groups: where each begins, and its results
  int stage_bytes;   // of shared memory for the groups
};

inline int64_t shared_bytes(const Exchange& plan) { return plan.lead_bytes + plan.stage_bytes; }

// All kept dims but the innermost, in the order of the results.
inline Dims outer_dims(const Groups& groups) {
  Dims outer;
  for (int d = 1; d < groups.kept.count; ++d) insert(outer, groups.kept.dim[d], &Dim::step);
  merge(outer);
  return outer;
}

}  // namespace reduceops::cuda
