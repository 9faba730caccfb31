// The plan of boxes.cu: which groups of a reduction a block copies to shared memory, how they lie
// there, and how they are read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/policy.h"
#include "cuda/sizes.h"
#include "groups.h"

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

namespace box {

constexpr int64_t kSlack = 32;            // bytes that reading a slot or vector may go past a group
constexpr int64_t kLeastSpan = 4096;      // bytes; smaller spans are not worth a block
constexpr int64_t kMostLanes = 32;        // to an output
constexpr int64_t kHeldVectors = 4;       // of a row that a thread holds, at most
constexpr int64_t kMostBytes = 40 << 10;  // of a tile: a block has 48 KiB without asking for more

// Whether memory of which `bytes` every `pitch` bytes are wanted is read with the gaps.
inline bool without_gaps(int64_t pitch, int64_t bytes) {
  return pitch <= bytes + std::max<int64_t>(32, bytes / 4);
}

}  // namespace box

// Bytes of shared memory; a span has a barrier behind it.
inline int64_t shared_bytes(const Box& box) { return box.lead_bytes + box.stage_bytes + 16; }

// The box of groups over one reduced dim, `bytes` per element; none where a group is larger than
// `most` bytes. A block copies some `tile_bytes`.
inline std::optional<Box> make_box(const Groups& groups, int64_t bytes, bool rows, int64_t most,
                                   int64_t tile_bytes) {
  using namespace box;
  most = std::min(most, kMostBytes);
  tile_bytes = std::clamp(tile_bytes, most, kMostBytes);
  if (groups.reduced.count != 1 || groups.axes.count == 0 || groups.kept.count > kBoxDims)
    return {};
  const Dim along = groups.reduced.dim[0];
  const Dims& axes = groups.axes;
  Box plan{};
  plan.of_columns = !rows;
  plan.columns = rows ? 1 : axes.dim[0].size;
  const int64_t column_stride = rows ? 1 : axes.dim[0].stride;
  if (along.size > most || plan.columns > most || along.stride > most || column_stride > most)
    return {};
  const int64_t run = ((plan.columns - 1) * column_stride + 1) * bytes;  // of one reduced position
  const int64_t group = (along.size - 1) * along.stride * bytes + run;
  plan.row_pitch = static_cast<int>(along.stride * bytes);
  plan.column_pitch = static_cast<int>(column_stride * bytes);
  const int first = plan.of_columns;
  const Dim axis = first < axes.count ? axes.dim[first] : Dim{1, 0, 1};
  const int64_t count = groups.outputs / plan.columns, pitch = axis.stride * bytes;
  const bool one_axis = axes.count <= first + 1;
  // Gaps in a group are read with it: those that leave few sectors out.
  const int64_t element_pitch = rows ? plan.row_pitch : plan.column_pitch;
  if (group > most || !without_gaps(element_pitch, bytes)) return {};
  if (!rows && !without_gaps(plan.row_pitch, run)) return {};
  const int64_t in_tile = std::min(axis.size, tile_bytes / std::max<int64_t>(1, pitch));
  const bool span =
      count == 1 || (without_gaps(pitch, group) && (one_axis || in_tile * pitch >= kLeastSpan));
  plan.pieces = !span;
  plan.group_bytes = static_cast<int>(group);
  if (span) {
    plan.group_pitch = static_cast<int>(pitch);
    plan.tile =
        count == 1 ? 1 : std::clamp<int64_t>((tile_bytes - group) / pitch + 1, 1, axis.size);
  } else {
    // Room for a group wherever in a block of 16 bytes it begins; neighbours begin in other banks.
    int64_t room = round_up(group + kLoadBytes - 1, kLoadBytes);
    if (room % 32 == 0) room += kLoadBytes;
    plan.group_pitch = static_cast<int>(room);
    plan.tile = std::clamp<int64_t>(tile_bytes / room, 1, count);
    plan.copy_lanes = static_cast<int>(std::min<int64_t>(32, ceil_pow2(group / kLoadBytes + 1)));
  }
  // As many lanes to an output as there are threads to spare.
  const int64_t outputs = plan.tile * plan.columns;
  const auto lanes_for = [&](int64_t items) {
    const int64_t most_lanes = std::min(kMostLanes, ceil_pow2(along.size));
    return static_cast<int>(std::min(most_lanes, ceil_pow2(ceil_div(kGroupThreads, items))));
  };
  const int64_t slot = std::max<int64_t>(4, bytes), slots = ceil_div(plan.columns * bytes, slot);
  plan.lanes = 1;
  if (!rows && column_stride == 1 && plan.tile * slots * 4 >= 3 * kGroupThreads) {
    plan.reading = Box::kColumns;
  } else if (rows && along.stride == 1) {
    plan.lanes = lanes_for(plan.tile);
    const int64_t vectors = ceil_div(group, kLoadBytes);
    if (span && plan.lanes == 1 && vectors <= kHeldVectors)
      plan.reading = static_cast<int>(vectors);
    const int64_t at_once = kGroupThreads / plan.lanes;  // groups
    if (plan.tile > at_once) plan.tile = plan.tile / at_once * at_once;
  } else {
    plan.reading = Box::kElements;
    plan.lanes = lanes_for(outputs);
  }
  if (span) {
    const int64_t copied = (plan.tile - 1) * plan.group_pitch + group;
    plan.stage_bytes = static_cast<int>(round_up(copied + kLineBytes + kSlack, kLineBytes));
    plan.tiles = count / axis.size * ceil_div(axis.size, plan.tile);
  } else {
    plan.lead_bytes = static_cast<int>(round_up(2 * plan.tile, kLineBytes));
    plan.stage_bytes =
        static_cast<int>(round_up(plan.tile * plan.group_pitch + kLoadBytes + kSlack, kLineBytes));
    plan.tiles = ceil_div(count, plan.tile);
  }
  if (plan.tiles > kMaxBlocks) return {};
  return plan;
}

}  // namespace reduceops::cuda
