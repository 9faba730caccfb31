// Constants that the plan and the kernels of masked reductions and softmax_max agree on.
#pragma once

#include "cuda/policy.h"

namespace reduceops::cuda {

// held_rows.cuh: 16-byte loads of a thread at once: in batches, and of a whole row at most. Of 16
// bits, what is done once for a row takes longer than its elements: so there are kernels for more
// loads, and fewer lanes.
constexpr int64_t held_loads(int64_t bytes) { return bytes == 4 ? 8 : 4; }
constexpr int64_t most_held_loads(int64_t bytes) { return bytes == 2 ? 8 : held_loads(bytes); }

// The kernel for so many loads of a thread, which has room for 3, 4, 6 or 8.
constexpr int64_t held_kernel(int64_t loads) {
  return loads <= 3 ? 3 : loads <= 4 ? 4 : loads <= 6 ? 6 : 8;
}
// Of its loads, those that no lane has past the end of a row, wherever the row begins: for fewer
// loads there is another kernel, and what is before and after whole packs may make two packs fewer,
// or three where packs are `joined`.
constexpr int64_t held_full(int64_t kernel, bool joined) {
  return kernel - (kernel > 4 ? 2 : 1) - 1 - joined;
}

// gather_items.cuh: units of a thread where there are many, of groups of at most so many elements.
constexpr int item_units(bool packed, int64_t bytes, bool masked) {
  return packed || (bytes == 8 && !masked) ? 2 : 4;
}
constexpr int64_t item_unit_rows(bool masked) { return masked ? 8 : 4; }

// rows.cuh: lanes of a row, at most, where the mask lies across many rows: two read a sector of it.
constexpr int kLanesAcross = 2;

// staged_columns.cuh: bytes of a row that a warp takes.
constexpr int64_t kSegmentBytes = 512;

// Rows of a stage, stages of a warp, and blocks that shall find room in a multiprocessor.
struct StagedRoom {
  int rows, stages, blocks;
};
constexpr StagedRoom kStagedRoom{4, 3, 3};

}  // namespace reduceops::cuda
