// boxes.cu: small groups, by tiles of many in shared memory, whatever lies between them.
#pragma once

#include <optional>

#include "cuda/plan/price.h"

namespace reduceops::cuda {

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

struct BoxesPlan {
  static bool fits(const PlanInput& in) { return in.groups.reduced.count == 1; }
  static bool usual(const PlanInput& in) { return in.large(); }

  static bool make(const PlanInput& in, Plan& plan) {
    const int64_t most = in.rows ? in.tuning.short_row_bytes : in.tuning.small_group_bytes;
    const auto box = make_box(in.groups, in.bytes, in.rows, most, in.tuning.tile_bytes);
    if (!box) return false;
    plan = in.empty_plan(Walk::kBoxes);
    keep_whole(plan, in);
    plan.box = *box;
    plan.threads = kGroupThreads;
    plan.lanes = box->lanes;
    plan.tile = box->tile;
    plan.tiles = plan.blocks = box->tiles;
    return true;
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const Box& box = plan.box;
    // A span is copied with its gaps.
    const double copied =
        traffic.outputs / static_cast<double>(box.columns) *
        (box.pieces ? box.group_bytes + kLoadBytes : std::max(box.group_pitch, box.group_bytes));
    const PerBytes of_element = in.rows ? PerBytes{4.5, 5.5, 7, 10} : PerBytes{4.5, 4.5, 6, 9};
    return {.read = std::max(traffic.read, box.pieces ? 0 : copied),
            .sectors = copied,
            .instructions = of_bytes(of_element, in.bytes) * traffic.elements +
                            75 * traffic.outputs + 12 * copied / kLoadBytes,
            .extra = 0.8};
  }
};

}  // namespace reduceops::cuda
