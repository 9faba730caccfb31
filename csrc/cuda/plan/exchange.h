// exchange.cu: small groups whose results lie in another order than memory.
#pragma once

#include "cuda/plan/boxes.h"

namespace reduceops::cuda {

// The tiles of groups over one reduced dim; none where what is there is as good. A column has at
// most `most` bytes, a tile some `tile_bytes`.
inline std::optional<Exchange> make_exchange(const Groups& groups, int64_t bytes, int64_t most,
                                             int64_t tile_bytes) {
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
    if (room * E::kLeastNeighbours > box::kMostBytes) return false;
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
  if (!cut(inner.size * column <= 2 * E::kPieceBytes ? inner.size : wide) || plan.groups < 32) {
    if (!cut(std::min(inner.size, ceil_div(wide, 2)))) return {};
  }
  if (plan.groups < std::min(group_count, E::kLeastNeighbours)) return {};
  // Neighbouring columns continue where groups end.
  const int64_t side_by_side = neighbours <= plan.groups && inner.step == neighbours
                                   ? neighbours * plan.columns
                                   : std::min(neighbours, plan.groups);
  if (side_by_side < E::kLeastNeighbours) return {};

  // Microseconds for a million outputs: DRAM, L2 and instructions (docs/gpu.md). A store that fills
  // no sector takes one of L2, and of DRAM, too, where the next to the same comes too late.
  constexpr double kDram = 4.55, kL2 = 6.5, kInstructions = 23.4;
  constexpr double kOpenBytes = 8 << 20;
  const int64_t column_bytes = rows * bytes, store = std::min(kSectorBytes, 8 * inner.step);
  auto between = static_cast<double>(column_bytes + 8);  // two neighbours: what moves
  for (int d = 0; d < groups.kept.count; ++d) {
    if (groups.kept.dim[d].stride < outer.dim[0].stride)
      between *= static_cast<double>(groups.kept.dim[d].size);
  }
  const bool too_late = between > kOpenBytes;
  const double now = std::max(static_cast<double>(column_bytes + (too_late ? store : 8)) / kDram,
                              static_cast<double>(column_bytes + store) / kL2);
  const double pieces = static_cast<double>(plan.by_row ? rows : 1) / double(plan.columns);
  const bool aligned =
      plan.by_row && plan.piece_bytes % kSectorBytes == 0 && row % kSectorBytes == 0;
  const double read = pieces * (plan.piece_bytes + (aligned ? 0 : 24));
  const double instructions = 45 + 5.0 * double(rows) + pieces * (12 + 0.75 * plan.piece_bytes);
  const double then = std::max({static_cast<double>(column_bytes + 8) / kDram, (read + 12) / kL2,
                                instructions / kInstructions});
  if (then * 1.1 > now) return {};

  plan.copy_lanes =
      static_cast<int>(std::min<int64_t>(32, ceil_pow2(plan.piece_bytes / kLoadBytes + 1)));
  plan.lead_bytes = static_cast<int>(round_up(E::kLeadBytes * plan.groups, kLineBytes));
  plan.stage_bytes = static_cast<int>(
      round_up(plan.groups * plan.group_pitch + kLoadBytes + box::kSlack, kLineBytes));
  plan.chunks = ceil_div(inner.size, plan.columns);
  plan.tiles = ceil_div(group_count, plan.groups);
  if (plan.chunks >> 31 || plan.tiles >> 31 || plan.chunks * plan.tiles > kMaxBlocks) return {};
  return plan;
}

struct ExchangePlan {
  // Where results would be written in parts of sectors; make_exchange weighs that.
  static bool fits(const PlanInput& in) {
    const bool large = in.total + in.groups.outputs * 8 >= in.tuning.bulk_bytes;
    return large && !in_order(in.groups);
  }
  static bool usual(const PlanInput&) { return true; }

  static bool make(const PlanInput& in, Plan& plan) {
    const auto found =
        make_exchange(in.groups, in.bytes, in.tuning.exchange_bytes, in.tuning.tile_bytes);
    if (!found) return false;
    plan = in.empty_plan(Walk::kExchange);
    keep_whole(plan, in);
    plan.exchange = *found;
    plan.threads = kGroupThreads;
    plan.vector = in.inner().stride == 1;
    plan.contiguous = !found->by_row;
    plan.tile = found->groups;
    plan.across = found->chunks;
    plan.tiles = plan.blocks = found->tiles * found->chunks;
    return true;
  }

  // What its results cost less than those of others is weighed by make_exchange.
  static Work work(const PlanInput&, const Plan&, const Traffic& traffic) {
    return {.read = traffic.read, .sectors = traffic.read};
  }
};

}  // namespace reduceops::cuda
