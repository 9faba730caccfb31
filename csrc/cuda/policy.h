// Constants that the plan and the kernels agree on: the kernels are compiled for them. What may
// change from run to run is in tuning.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/sizes.h"

namespace reduceops::cuda {

constexpr int kSharedBytes = 227 << 10;       // of a block at most, where there are rings
constexpr int kStaticSharedBytes = 48 << 10;  // that a block has without asking for more
constexpr int64_t kWorkspaceBytes = 1 << 20;  // for the candidates of the parts
constexpr int64_t kCluster = 8;               // blocks: the most that every GPU with clusters takes
constexpr int64_t kMaxPartExtent = int64_t(1) << 30;  // positions in a part fit 32 bits

// Threads of a block of plain loads, where a walk has no number of its own.
constexpr int64_t kThreads = 256;

// rows.cu: 16-byte loads that a multiprocessor has in flight, and a thread among them.
constexpr int64_t kRowLoads = 8192;
constexpr int64_t kLaneLoads = 8;
constexpr int kFlatDims = 8;  // reduced ones whose positions are found one by one

// columns.cu: loads in flight of a thread, of 16 bytes (`vector`) or of an element; blocks that
// shall find room in a multiprocessor beside them.
constexpr int column_loads(int64_t bytes, bool vector) {
  return vector ? bytes == 1 ? 8 : 4 : bytes == 8 ? 8 : 16;
}
constexpr int column_blocks(int64_t bytes, bool vector) { return vector && bytes == 1 ? 2 : 4; }

// packed_columns.cuh: the same.
constexpr int64_t kPackedLoads = 4;
constexpr int packed_blocks(bool realigned) { return realigned ? 3 : 4; }

// small.cu
constexpr int64_t kSmallThreads = 128;
constexpr int kSmallDims = 3;       // kept ones of small.cu, at most
constexpr int64_t kSmallLoads = 4;  // elements that a lane loads before it looks at them

// gather.cu
constexpr int kGatherDims = 6;  // kept ones
// Elements of a group that a thread has by itself, at most: wherever they lie, and at even
// distances.
constexpr int64_t kGatherRows = 32, kEvenGatherRows = 96;
// Where threads share groups: of a block, at most; of them to a unit, at most; blocks that shall
// find room in a multiprocessor; units of a block, if its threads are enough; elements of a thread,
// at most.
constexpr int64_t kSharedGatherThreads = 512;
constexpr int64_t kGatherShares = 64;
constexpr int kSharedGatherBlocks = 4;
constexpr int64_t kSharedGatherLanes = 16;
constexpr int64_t kSharedGatherRows = 64;
// The same of gather_items.cuh, where an element takes more registers.
constexpr int kSharedItemBlocks = 2;
constexpr int64_t kSharedItemRows = 256;
constexpr int kTileUnits = 4, kMostTileUnits = 16;  // of a thread of a tile at once, and in all
// Tiles side by side in memory that come before the next ones across: what these load and store of
// the same sectors is still in L2 then.
constexpr int64_t kGatherBand = 16;
constexpr int64_t kRealignedSide = 8;  // outputs in a row of packs that begin anywhere, at least
constexpr int64_t kGatherCopies = 64;  // of a result that a tile stores, at most
constexpr int kAnyRows = 0;
// Elements of groups that kernels are compiled for, at most; without tiles, of some types more.
constexpr int kKnownRows = 4;
constexpr int known_rows_of_units(int64_t bytes) { return bytes >= 4 ? 8 : kKnownRows; }
// Loads of a thread at once, of groups of any number of elements.
constexpr int loads_at_once(int64_t bytes) { return bytes == 8 ? 4 : 8; }
// Whether the elements of a group come in one load where they lie side by side and aligned.
constexpr bool may_load_rows(int64_t rows, int64_t bytes) {
  return (rows == 2 || rows == 4) && rows * bytes <= kLoadBytes;
}
// Units of a thread, by the elements of a group and their bytes, where there are many outputs: what
// it does besides is done once for all of them. Small elements are compared as words of several.
constexpr int gather_units(int64_t rows, bool packed, int64_t bytes) {
  if (rows == 1) return packed ? 2 : 4;
  if (rows == kAnyRows || rows > known_rows_of_units(bytes)) return packed || bytes >= 4 ? 1 : 4;
  if (rows > kKnownRows) return bytes == 4 ? 2 : 1;
  const int outputs = bytes < 4 ? 8 : bytes == 4 || rows == 2 ? 4 : 2;
  return packed ? outputs / static_cast<int>(4 / bytes) : outputs;
}
// Where there are few.
constexpr int few_gather_units(int64_t rows, bool packed, int64_t bytes) {
  if (rows == kAnyRows || rows > known_rows_of_units(bytes)) return 1;
  if (rows > kKnownRows) return gather_units(rows, packed, bytes);
  const int units = rows > 2 ? 2 : 4;
  return packed ? units / 2 : units;
}
// Blocks that shall find room in a multiprocessor, by the loads of a thread.
constexpr int blocks_of_known_rows(int rows, int units) {
  const int loads = rows * units;
  return loads <= 8 ? 8 : loads <= 12 ? 5 : 4;
}

// packed_columns.cuh: rows that a block lists, of all its groups, at most.
constexpr int64_t kMostListed = 8192;

// whole_rows.cu and whole_columns.cu: what is held as a whole.
constexpr int64_t kWholeThreads = 512;  // of a block of rows, at most
constexpr int64_t kWholeLoads = 4;      // of a thread, at once
constexpr int kWholeDims = 5;           // kept ones
constexpr int kMappedDims = 32;         // reduced ones of mapped rows
constexpr int kHandInBytes =
    32;  // of a part in the workspace: two words with a number (hand_in.cuh)
constexpr int64_t kBatch = kWholeThreads * kWholeLoads;  // loads of a block at once, at most
// Columns of a thread, and elements of each at most.
constexpr int64_t whole_columns_of_thread(int64_t bytes) { return bytes == 8 ? 2 : 4; }
constexpr int64_t whole_column_rows(int64_t bytes) { return bytes < 4 ? 16 : 8; }

// boxes.cu
constexpr int kBoxDims = 6;             // kept ones, at most
constexpr int kBoxReduced = 4;          // reduced ones, at most
constexpr int64_t kBoxTable = 4096;     // reduced positions of which a table says where they lie
constexpr int64_t kGroupThreads = 128;  // of a block
constexpr int64_t kGroupBlocks = 8;     // that shall find room in a multiprocessor

// bulk_columns.cu: threads of a block that read its ring, slots that each of them takes at most,
// and reduced positions that it takes at once.
constexpr int64_t kReaders = 256;
constexpr int64_t slots_per_reader(int64_t bytes) { return bytes == 4 ? 8 : bytes == 1 ? 2 : 4; }
constexpr int64_t rows_at_once(int64_t bytes) { return bytes < 4 ? 8 : 4; }
constexpr int kStageBarriers = 16;  // bytes behind a ring for each of its stages

}  // namespace reduceops::cuda
