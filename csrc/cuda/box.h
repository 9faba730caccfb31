// The plan of boxes.cu: which groups of a reduction a block copies to shared memory, how they lie
// there, and how they are read.
#pragma once

#include <cstdint>

#include "cuda/sizes.h"
#include "order.h"

namespace reduceops::cuda {

struct Box {
  // How outputs are read; else the vectors of a row in a span that a thread holds, 0 for any
  // number.
  static constexpr int kColumns = -1;    // some lanes to a slot of neighbouring columns
  static constexpr int kElements = -2;   // some lanes to an output, element by element
  static constexpr int kScattered = -3;  // the same, where a table says where elements are
  int reading;
  bool of_columns;   // the innermost axis is a kept one
  int64_t columns;   // its size, else 1
  int64_t tile;      // groups of a block
  int64_t tiles;     // blocks
  int lanes;         // to an output, or a slot of them
  bool pieces;       // each group is copied by itself; else a tile is one span of memory
  int copy_lanes;    // to a piece
  int group_bytes;   // from the first byte of a group to its last
  int row_pitch;     // bytes between reduced positions of one dim,
  int column_pitch;  // columns,
  int group_pitch;   // and groups, in shared memory
  int lead_bytes;    // of shared memory before the groups: where each begins, if they are pieces
  int stage_bytes;   // of shared memory for the groups
  int table_bytes;   // of shared memory for the table
};

// Bytes of shared memory; a span has a barrier behind it, before the table.
REDUCEOPS_HD int table_begin(const Box& box) { return box.lead_bytes + box.stage_bytes + 16; }
inline int64_t shared_bytes(const Box& box) { return table_begin(box) + box.table_bytes; }

}  // namespace reduceops::cuda
