// The plan of boxes.cu: which groups of a reduction a block copies to shared memory, how they lie
// there, and how they are read.
#pragma once

#include <cstdint>

#include "cuda/sizes.h"

namespace reduceops::cuda {

struct Box {
  // How outputs are read; else the vectors of a row in a span that a thread holds, 0 for any
  // number.
  static constexpr int kColumns = -1;   // a thread to a slot of neighbouring columns
  static constexpr int kElements = -2;  // some lanes to an output, element by element
  int reading;
  bool of_columns;   // the innermost axis is a kept one
  int64_t columns;   // its size, else 1
  int64_t tile;      // groups of a block
  int64_t tiles;     // blocks
  int lanes;         // to an output
  bool pieces;       // each group is copied by itself; else a tile is one span of memory
  int copy_lanes;    // to a piece
  int group_bytes;   // from the first byte of a group to its last
  int row_pitch;     // bytes between reduced positions,
  int column_pitch;  // columns,
  int group_pitch;   // and groups, in shared memory
  int lead_bytes;    // of shared memory before the groups: where each begins, if they are pieces
  int stage_bytes;   // of shared memory for the groups
};

// Bytes of shared memory; a span has a barrier behind it.
inline int64_t shared_bytes(const Box& box) { return box.lead_bytes + box.stage_bytes + 16; }

}  // namespace reduceops::cuda
