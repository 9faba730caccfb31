// boxes.cu: small groups, by tiles of many in shared memory, whatever lies between them.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "cuda/box.h"
#include "cuda/plan/price.h"

namespace reduceops::cuda {

namespace box {

constexpr int64_t kSlack = 32;        // bytes that reading a slot or vector may go past a group
constexpr int64_t kLeastSpan = 4096;  // bytes; smaller spans are not worth a block
constexpr int64_t kMostLanes = 32;    // to an output
constexpr int64_t kRound = 4;         // of outputs that lanes share, in batches of four elements
constexpr int64_t kHeldVectors = 4;   // of a row that a thread holds, at most
constexpr int64_t kMostBytes = 40 << 10;  // of a tile

// Whether memory of which `bytes` every `pitch` bytes are wanted is read with the gaps.
inline bool without_gaps(int64_t pitch, int64_t bytes) {
  return pitch <= bytes + std::max<int64_t>(32, bytes / 4);
}

// Lanes that copy each of so many pieces: each copies some blocks of 16 bytes. But no thread of the
// block shall be without a piece, and neighbours ask for whole sectors, and several, at a time.
inline int lanes_to_copy(int64_t blocks, int64_t pieces, int64_t blocks_of_lane) {
  const int64_t wanted =
      std::max({ceil_div(blocks, blocks_of_lane), kGroupThreads / pieces, int64_t(4)});
  return static_cast<int>(ceil_pow2(std::min({wanted, blocks, int64_t(32)})));
}

// Lanes to each of so many outputs, or slots of them: those with which a block is done first. A
// round of outputs takes each lane some time besides its elements.
inline int lanes_for(int64_t items, int64_t walk) {
  int64_t best = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t lanes = 1; lanes <= kMostLanes && lanes < 2 * walk; lanes *= 2) {
    const int64_t rounds = ceil_div(items * lanes, kGroupThreads);
    const int64_t effort = rounds * (ceil_div(walk, 4 * lanes) + (lanes > 1 ? kRound : 1));
    if (effort < least) {
      best = lanes;
      least = effort;
    }
  }
  return static_cast<int>(best);
}

}  // namespace box

// Bytes from the first element of a group to its last, if each dim begins about where the ones
// inside it end, else more than `most`. `run`: bytes of one reduced position.
inline int64_t bytes_of_group(const Dims& reduced, int64_t bytes, int64_t run, int64_t most) {
  const Dims dims = by_stride(reduced);
  for (int d = 0; d < dims.count; ++d) {
    const Dim& dim = dims.dim[d];
    if (dim.size > most || dim.stride > most || !box::without_gaps(dim.stride * bytes, run))
      return most + 1;
    run += (dim.size - 1) * dim.stride * bytes;
    if (run > most) return most + 1;
  }
  return run;
}

// The box of groups, `bytes` per element; none where a group is larger than `most` bytes. A block
// copies some `tile_bytes`.
inline std::optional<Box> make_box(const Groups& groups, int64_t bytes, bool rows, int64_t most,
                                   int64_t tile_bytes, int64_t copy_blocks) {
  using namespace box;
  most = std::min(most, kMostBytes);
  tile_bytes = std::clamp(tile_bytes, most, kMostBytes);
  if (groups.reduced.count > kBoxReduced || groups.axes.count == 0 || groups.kept.count > kBoxDims)
    return {};
  const Dim along = groups.reduced.dim[0];
  const bool scattered = groups.reduced.count > 1;
  const int64_t walk = walk_extent(groups.reduced);
  if (scattered && walk > kBoxTable) return {};
  const Dims& axes = groups.axes;
  Box plan{};
  plan.of_columns = !rows;
  plan.columns = rows ? 1 : axes.dim[0].size;
  const int64_t column_stride = rows ? 1 : axes.dim[0].stride;
  if (plan.columns > most || column_stride > most) return {};
  // Gaps in a group are read with it: those that leave few sectors out.
  if (!without_gaps(column_stride * bytes, bytes)) return {};
  const int64_t run = ((plan.columns - 1) * column_stride + 1) * bytes;  // of one reduced position
  const int64_t group = bytes_of_group(groups.reduced, bytes, run, most);
  if (group > most) return {};
  plan.row_pitch = scattered ? 0 : static_cast<int>(along.stride * bytes);
  plan.column_pitch = static_cast<int>(column_stride * bytes);
  const int first = plan.of_columns;
  const Dim axis = first < axes.count ? axes.dim[first] : Dim{1, 0, 1};
  const int64_t count = groups.outputs / plan.columns, pitch = axis.stride * bytes;
  const bool one_axis = axes.count <= first + 1;
  const int64_t in_tile = std::min(axis.size, tile_bytes / std::max<int64_t>(1, pitch));
  const bool span = count == 1 || (without_gaps(pitch, group) &&
                                   (one_axis || (in_tile + 1) * pitch > kLeastSpan));
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
    plan.copy_lanes = lanes_to_copy(group / kLoadBytes + 1, plan.tile, copy_blocks);
  }
  const int64_t slot = std::max<int64_t>(4, bytes), slots = ceil_div(plan.columns * bytes, slot);
  plan.lanes = 1;
  if (scattered) {
    plan.reading = Box::kScattered;
    plan.lanes = lanes_for(plan.tile * plan.columns, walk);
    plan.table_bytes = static_cast<int>(2 * walk);
  } else if (!rows && column_stride == 1) {
    plan.reading = Box::kColumns;
    plan.lanes = lanes_for(plan.tile * slots, walk);
  } else if (rows && along.stride == 1) {
    plan.lanes = static_cast<int>(
        std::min({kMostLanes, ceil_pow2(walk), ceil_pow2(ceil_div(kGroupThreads, plan.tile))}));
    const int64_t vectors = ceil_div(group, kLoadBytes);
    if (span && plan.lanes == 1 && vectors <= kHeldVectors)
      plan.reading = static_cast<int>(vectors);
    const int64_t at_once = kGroupThreads / plan.lanes;  // groups
    if (plan.tile > at_once) plan.tile = plan.tile / at_once * at_once;
  } else {
    plan.reading = Box::kElements;
    plan.lanes = lanes_for(plan.tile * plan.columns, walk);
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
  if (plan.tiles > kMaxBlocks || shared_bytes(plan) > kStaticSharedBytes) return {};
  return plan;
}

struct BoxesPlan {
  static bool fits(const PlanInput& in) {
    return in.task == Task::kExtreme && in.groups.reduced.count > 0;
  }
  // Columns over several dims are read by vectors where they are aligned.
  static bool usual(const PlanInput& in) {
    return in.large() &&
           (in.rows || in.groups.reduced.count == 1 || !in.columns_aligned(kLoadBytes));
  }

  static bool make(const PlanInput& in, Plan& plan) {
    const bool is_row = in.rows && in.groups.reduced.count == 1;
    const int64_t most = is_row ? in.tuning.short_row_bytes : in.tuning.small_group_bytes;
    const auto box =
        make_box(in.groups, in.bytes, in.rows, most, in.tile_bytes(), in.tuning.copy_blocks);
    if (!box) return false;
    plan = in.empty_plan(Walk::kBoxes);
    keep_whole(plan, in);
    plan.box = *box;
    plan.threads = kGroupThreads;
    plan.blocks = box->tiles;
    return true;
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const Box& box = plan.box;
    // A span is copied with its gaps.
    const double copied =
        traffic.outputs / static_cast<double>(box.columns) *
        (box.pieces ? box.group_bytes + kLoadBytes : std::max(box.group_pitch, box.group_bytes));
    const PerBytes of_element = in.rows ? price::kBoxRow : price::kBoxColumn;
    // What copies a piece finds it first.
    const auto lanes =
        static_cast<double>(std::min<int64_t>(32, ceil_pow2(box.group_bytes / kLoadBytes + 1)));
    const double copies =
        box.pieces ? 80 * lanes * traffic.outputs / static_cast<double>(box.columns) : 0;
    // Where a block is alone in its multiprocessor, nothing else is done while it waits.
    const int64_t together = box.reading == Box::kColumns ? in.slot_bytes() / in.bytes : 1;
    const auto of_thread =
        static_cast<double>(box.tile * ceil_div(box.columns, together) * box.lanes) / kGroupThreads;
    const double waiting = plan.blocks < in.multiprocessors ? kWait * of_thread : 0;
    const double slots = traffic.bytes / static_cast<double>(in.slot_bytes());
    return {.read = std::max(traffic.read, box.pieces ? 0 : copied),
            .sectors = copied,
            .instructions = of_bytes(of_element, in.bytes) * traffic.elements +
                            75 * traffic.outputs + 12 * copied / kLoadBytes + copies +
                            price::kConflict * ((conflicts(in, box) - 1) * slots +
                                                (run_conflicts(in, box) - 1) * traffic.elements),
            .extra = 0.8 + waiting,
            // As measured, of pieces that are less than a load.
            .share = box.pieces && box.group_bytes < int(kLoadBytes) ? 1.3 : 1};
  }

 private:
  static constexpr double kWait = 0.35;  // microseconds, from an output of a thread to its next

  // Lanes of an output that read neighbouring indices of several dims from the same bank.
  static double run_conflicts(const PlanInput& in, const Box& box) {
    if (box.reading != Box::kScattered) return 1;
    const Dim run = by_step(in.groups.reduced).dim[0];
    const int64_t apart = run.stride * in.bytes, banks = kLineBytes / 4;
    if (apart % 4 != 0) return 1;
    const int64_t lanes = std::min<int64_t>(run.size, box.lanes);
    const int64_t met = std::min(lanes, banks / std::gcd(apart / 4, banks));
    return static_cast<double>(lanes) / static_cast<double>(met);
  }
  // Lanes of a warp that read from the same bank of shared memory at a time.
  static double conflicts(const PlanInput& in, const Box& box) {
    const int64_t pitch = in.rows || box.columns * in.bytes <= 4 ? box.group_pitch : 0;
    const int64_t slot = in.slot_bytes(), lanes = kLineBytes / slot;
    if (pitch == 0 || (pitch % slot != 0 && box.reading > 0)) return 1;
    if (pitch % slot != 0) {
      // Rows that begin nearly where all banks do once more share few of them.
      const int64_t past = std::min(pitch % kLineBytes, kLineBytes - pitch % kLineBytes);
      const int64_t banks = box.lanes * slot + (lanes / box.lanes - 1) * past;  // bytes of them
      return static_cast<double>(kLineBytes) /
             static_cast<double>(std::clamp(banks, slot, kLineBytes));
    }
    const int64_t apart = std::gcd(pitch / slot, lanes);
    return static_cast<double>(std::max<int64_t>(1, apart / box.lanes));
  }
};

}  // namespace reduceops::cuda
