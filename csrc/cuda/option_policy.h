// Constants that the plan and the kernels of masked reductions and softmax_max agree on.
#pragma once

#include "cuda/policy.h"

namespace reduceops::cuda {

// held_rows.cuh: 16-byte loads of a thread at once.
constexpr int64_t held_loads(int64_t bytes) { return bytes == 4 ? 8 : 4; }

// Of the loads that a kernel holds of a row, those that no lane has past its end, wherever the row
// begins. Only rows come to it that need more than 3/4 of them (1/2 of fewer), each of a lane; what
// is before and after whole packs may make two packs fewer, or three where packs are `joined`.
constexpr int64_t held_full(int64_t loads, int64_t bytes, bool joined) {
  return loads - held_loads(bytes) / 4 - 1 - joined;
}

// gather_items.cuh: units of a thread where there are many, of groups of at most so many elements.
constexpr int item_units(bool packed, int64_t bytes, bool masked) {
  return packed || (bytes == 8 && !masked) ? 2 : 4;
}
constexpr int64_t item_unit_rows(bool masked) { return masked ? 8 : 4; }

// rows.cuh: lanes of a row, at most, where the mask lies across the rows: two read a sector of it.
constexpr int kLanesAcross = 2;

// staged_columns.cuh: bytes of a row that a warp takes.
constexpr int64_t kSegmentBytes = 512;

// Rows of a stage, stages of a warp, and blocks that shall find room in a multiprocessor.
struct StagedRoom {
  int rows, stages, blocks;
};
constexpr StagedRoom kStagedRoom{4, 3, 3};

}  // namespace reduceops::cuda
