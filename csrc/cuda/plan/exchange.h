// exchange.cu: small groups whose results lie in another order than memory.
#pragma once

#include "cuda/plan/boxes.h"

namespace reduceops::cuda {

// The tiles of groups over one reduced dim; none where results of a tile are not side by side. A
// column has at most `most` bytes, a tile some `tile_bytes`.
inline std::optional<Exchange> make_exchange(const Groups& groups, int64_t bytes, int64_t most,
                                             int64_t tile_bytes, int64_t copy_blocks) {
  using E = Exchange;
  if (groups.reduced.count != 1 || groups.kept.count < 2 || groups.kept.count > kBoxDims) return {};
  const Dim along = groups.reduced.dim[0], inner = groups.kept.dim[0];
  const int64_t rows = along.size, group_count = groups.outputs / inner.size;
  const int64_t row = along.stride * bytes, column = inner.stride * bytes;
  if (rows * bytes > most || inner.step == 1) return {};
  const Dims outer = outer_dims(groups);
  int64_t neighbours = 1;  // groups whose results follow each other
  for (int d = 0; d < outer.count && outer.dim[d].step == neighbours; ++d)
    neighbours *= outer.dim[d].size;

  Exchange plan{};
  plan.vector = inner.stride == 1;
  const bool is_rows = along.stride <= inner.stride;
  // Gaps are read with what is around them.
  if (column > 48 << 10 || !box::without_gaps(is_rows ? row : column, bytes)) return {};
  if (is_rows && !box::without_gaps(column, (rows - 1) * row + bytes)) return {};
  const auto run_of = [&](int64_t columns) { return (columns - 1) * column + bytes; };
  const auto cut = [&](int64_t columns) {
    plan.columns = columns;
    plan.by_row = !is_rows && (columns < inner.size || row > run_of(columns) + kSectorBytes);
    const int64_t piece = run_of(columns) + (plan.by_row ? 0 : (rows - 1) * row);
    int64_t pitch = row;
    if (plan.by_row) {  // blocks of 16 bytes that hold two rows are apart, and at their offsets
      pitch = piece + 2 * kLoadBytes;
      pitch += ((row - pitch) % kLoadBytes + kLoadBytes) % kLoadBytes;
    }
    const int64_t last = plan.by_row ? (rows - 1) * pitch : 0;
    int64_t room = round_up(kLoadBytes - 1 + last + piece, kLoadBytes);
    if (room % 32 == 0) room += kLoadBytes;  // neighbours begin in other banks
    if (room * std::min(group_count, E::kLeastNeighbours) > box::kMostBytes) return false;
    plan.piece_bytes = static_cast<int>(piece);
    plan.row_pitch = static_cast<int>(pitch);
    plan.column_pitch = static_cast<int>(column);
    plan.group_pitch = static_cast<int>(room);
    const int64_t fit =
        std::clamp(tile_bytes, std::min(32 * room, box::kMostBytes), box::kMostBytes) / room;
    plan.groups = std::min({fit, E::kMostGroups, group_count});
    if (plan.groups >= 32) {
      plan.groups -= plan.groups % 32;
    } else if (plan.groups < group_count) {
      plan.groups -= plan.groups % 8;
    }
    return true;
  };
  const int64_t wide = std::max<int64_t>(1, E::kPieceBytes / column);
  const int64_t enough = std::min<int64_t>(32, group_count);
  if (!cut(inner.size * column <= 2 * E::kPieceBytes ? inner.size : wide) || plan.groups < enough) {
    if (!cut(std::min(inner.size, ceil_div(wide, 2)))) return {};
  }
  // Where there are few groups, a tile is as large with more columns.
  const int64_t times = tile_bytes / (plan.groups * plan.group_pitch);
  if (plan.groups == group_count && times > 1) {
    const Exchange before = plan;
    if (!cut(std::min(inner.size, times * plan.columns))) plan = before;
  }
  if (plan.groups < std::min(group_count, E::kLeastNeighbours)) return {};
  // Neighbouring columns continue where groups end.
  const int64_t side_by_side = neighbours <= plan.groups && inner.step == neighbours
                                   ? neighbours * plan.columns
                                   : std::min(neighbours, plan.groups);
  if (side_by_side < E::kLeastNeighbours) return {};

  // The lanes of a group copy all of its pieces.
  plan.copy_lanes = box::lanes_to_copy(plan.piece_bytes / kLoadBytes + 1, plan.groups, copy_blocks);
  plan.lead_bytes = static_cast<int>(round_up(E::kLeadBytes * plan.groups, kLineBytes));
  plan.stage_bytes = static_cast<int>(
      round_up(plan.groups * plan.group_pitch + kLoadBytes + box::kSlack, kLineBytes));
  plan.chunks = ceil_div(inner.size, plan.columns);
  plan.tiles = ceil_div(group_count, plan.groups);
  if (plan.chunks >> 31 || plan.tiles >> 31 || plan.chunks * plan.tiles > kMaxBlocks) return {};
  return plan;
}

struct ExchangePlan {
  // Where results would be written in parts of sectors.
  static bool fits(const PlanInput& in) {
    const bool large = in.total + in.groups.outputs * 8 >= in.tuning.bulk_bytes;
    return in.task == Task::kExtreme && large && !in_order(in.groups);
  }
  static bool usual(const PlanInput&) { return false; }  // its price says so

  static bool make(const PlanInput& in, Plan& plan) {
    const auto found = make_exchange(in.groups, in.bytes, in.tuning.exchange_bytes,
                                     in.tuning.tile_bytes, in.tuning.copy_blocks);
    if (!found) return false;
    plan = in.empty_plan(Walk::kExchange);
    keep_whole(plan, in);
    plan.exchange = *found;
    plan.threads = kGroupThreads;
    plan.blocks = found->tiles * found->chunks;
    return true;
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const Exchange& e = plan.exchange;
    const auto rows = static_cast<double>(in.walk), columns = static_cast<double>(e.columns);
    const double pieces = (e.by_row ? rows : 1) / columns;  // of an output
    const int64_t row = in.along().stride * in.bytes;
    const bool aligned = e.by_row && e.piece_bytes % kSectorBytes == 0 && row % kSectorBytes == 0;
    const double of_element = in.inner().stride == 1 ? 18 : 36;
    const double of_output = 60 + 18 * static_cast<double>(in.stores) + of_element * rows +
                             pieces * (30 + 1.8 * e.piece_bytes);
    return {.read = traffic.read,
            .sectors = traffic.outputs * pieces * (e.piece_bytes + (aligned ? 0 : 24)),
            .instructions = of_output * traffic.outputs,
            .in_order = true,
            .extra = 1,
            // Few groups fit a tile; of wide types, as measured.
            .share = in.walk * in.bytes > 112 ? 1.5
                     : in.bytes >= 4          ? 1.3
                                              : 1};
  }
};

}  // namespace reduceops::cuda
