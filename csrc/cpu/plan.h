// How a reduction is cut into work items for the CPU: which walk, and how many parts of the reduced
// extent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "groups.h"

namespace reduceops::cpu {

// A tile's segment of one reduced position: wide enough to stream, and columns that fit a stack.
constexpr int64_t kTileBytes = 32768, kTileColumns = 16384;
constexpr int64_t kMinTileBytes =
    512;  // narrower tiles lose more to DRAM than they gain in balance
constexpr int64_t kGrainBytes = 128 << 10;    // worth waking a thread for
constexpr int64_t kWorkspaceBytes = 1 << 20;  // for the candidates of the parts
constexpr int64_t kCandidateBytes = 2 * sizeof(int64_t);

struct Plan {
  bool rows;            // else columns
  int64_t tile;         // columns per unit; 1 for rows
  int64_t tiles;        // units along the inner kept dim
  int64_t units;        // outputs (rows) or tiles (columns)
  int64_t parts;        // of the reduced extent; their candidates are combined afterwards
  int64_t part_extent;  // reduced positions in a part
  int64_t grain;        // items (units x parts) per thread at least
};

// `walk` is the number of positions a walk over the reduced dims visits.
inline Plan make_plan(const Groups& groups, int64_t walk, int64_t bytes, int64_t threads) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  Plan plan{};
  plan.rows = is_rows(groups);
  const int64_t elements = groups.outputs * walk;
  const int64_t grain = kGrainBytes / bytes;
  const int64_t useful = std::clamp<int64_t>(elements / grain, 1, threads);
  plan.tile = plan.tiles = 1;
  plan.units = groups.outputs;
  if (!plan.rows) {
    const int64_t inner = groups.kept.dim[0].size, outer = groups.outputs / inner;
    plan.tile = std::min(kTileBytes / bytes, kTileColumns);
    for (; plan.tile * bytes > kMinTileBytes; plan.tile /= 2) {
      if (outer * ceil_div(inner, plan.tile) >= useful) break;
    }
    plan.tiles = ceil_div(inner, plan.tile);
    plan.units = outer * plan.tiles;
  }
  plan.parts = 1;
  if (plan.units < useful) {
    const int64_t fits = kWorkspaceBytes / (kCandidateBytes * groups.outputs);
    plan.parts = std::max<int64_t>(1, std::min({ceil_div(useful, plan.units), walk, fits}));
  }
  plan.part_extent = ceil_div(walk, plan.parts);
  plan.parts = ceil_div(walk, plan.part_extent);
  const int64_t item_elements = std::max<int64_t>(1, elements / (plan.units * plan.parts));
  plan.grain = std::max<int64_t>(1, grain / item_elements);
  return plan;
}

}  // namespace reduceops::cpu
