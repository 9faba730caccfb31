// Which kernel a reduction runs on a GPU, and how it is cut: host code without CUDA calls, so that
// it is tested without a GPU (tests/test_plan.py).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "groups.h"

namespace reduceops::cuda {

struct Limits {
  int64_t multiprocessors;
};

// The numbers a tuning run would change.
struct Tuning {
  int64_t blocks_per_multiprocessor = 8;
  int64_t warp_row_loads =
      512;                   // a row of more loads gets a block where warps would not fill the GPU
  int64_t lane_loads = 4;    // loads of a lane that shares a short row
  int64_t column_loads = 4;  // fewest loads of a thread worth sharing a column for
  int64_t part_loads = 4;    // fewest loads of a thread worth splitting off
  int64_t min_vector_run =
      64;  // shortest contiguous run read in 16-byte loads when there are several
  int64_t workspace_bytes = 1 << 20;  // for the candidates of the parts
};

constexpr int64_t kThreads = 256;  // per block; the kernels are compiled for it
constexpr int64_t kLoadBytes = 16;
constexpr int64_t kCandidateBytes = 16;

struct Plan {
  bool rows;            // the reduced dim is innermost; else columns: a kept dim is
  bool vector;          // 16-byte loads: along the row, or over neighbouring columns
  int64_t lanes;        // rows: threads per row; columns: threads side by side over columns
  int64_t shares;       // columns: threads that share a column (a power of 2)
  int64_t threads;      // per block
  int64_t blocks;       // of the whole grid, parts included
  int64_t parts;        // of the reduced extent; a second kernel combines their candidates
  int64_t part_extent;  // reduced positions in a part
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t ceil_pow2(int64_t x) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x)));
}

// Whether whole 16-byte loads over neighbouring columns stay aligned wherever the walk goes.
inline bool columns_aligned(const Groups& groups, int64_t bytes, int64_t address) {
  const Dim& inner = groups.kept.dim[0];
  if (inner.stride != 1 || address % kLoadBytes != 0 || inner.size * bytes % kLoadBytes != 0)
    return false;
  const auto aligned = [&](const Dims& dims, int first) {
    for (int d = first; d < dims.count; ++d) {
      if (dims.dim[d].stride * bytes % kLoadBytes != 0) return false;
    }
    return true;
  };
  return aligned(groups.kept, 1) && aligned(groups.reduced, 0);
}

// `bytes` per element; `address` of the input (its alignment is what counts).
inline Plan make_plan(const Groups& groups, int64_t bytes, int64_t address, Limits limits,
                      Tuning tuning = {}) {
  Plan plan{};
  plan.threads = kThreads;
  plan.rows = is_rows(groups);
  const int64_t walk = walk_extent(groups.reduced);
  const int64_t width = kLoadBytes / bytes;
  const int64_t full = limits.multiprocessors * tuning.blocks_per_multiprocessor;
  int64_t units;         // blocks for one part of the reduced extent
  int64_t thread_loads;  // loads of each of their threads
  if (plan.rows) {
    const bool contiguous = groups.reduced.count > 0 && groups.reduced.dim[0].stride == 1;
    plan.vector = contiguous && (groups.reduced.count == 1 ||
                                 groups.reduced.dim[0].size >= tuning.min_vector_run);
    const int64_t loads = plan.vector ? ceil_div(walk, width) : walk;
    const bool long_row =
        loads > tuning.warp_row_loads && groups.outputs * 32 < full * plan.threads;
    plan.lanes = long_row ? plan.threads
                          : std::min<int64_t>(32, ceil_pow2(ceil_div(loads, tuning.lane_loads)));
    plan.shares = 1;
    units = ceil_div(groups.outputs, plan.threads / plan.lanes);
    thread_loads = ceil_div(loads, plan.lanes);
  } else {
    plan.vector = columns_aligned(groups, bytes, address);
    const int64_t inner = groups.kept.dim[0].size, outer = groups.outputs / inner;
    const int64_t columns = plan.vector ? inner / width : inner;
    // Whole warps of neighbouring columns, evenly cut.
    plan.lanes = columns;
    if (columns > plan.threads) {
      plan.lanes = ceil_div(ceil_div(columns, ceil_div(columns, plan.threads)), 32) * 32;
    }
    // Too few columns to fill the GPU: threads share a column, if need be fewer columns side by
    // side.
    const auto tiles = [&] { return outer * ceil_div(columns, plan.lanes); };
    for (plan.shares = 1; tiles() * plan.lanes * plan.shares < full * plan.threads;
         plan.shares *= 2) {
      if (walk < tuning.column_loads * plan.shares * 2) break;
      if (plan.lanes * plan.shares * 2 > plan.threads) {
        if (plan.lanes <= 32) break;
        plan.lanes = ceil_div(plan.lanes / 2, 32) * 32;
        if (plan.lanes * plan.shares * 2 > plan.threads) break;
      }
    }
    units = ceil_div(tiles(), plan.threads / (plan.lanes * plan.shares));
    thread_loads = ceil_div(walk, plan.shares);
  }
  plan.parts = 1;
  // A second launch pays only where one leaves multiprocessors without a block.
  if (units < limits.multiprocessors && (!plan.rows || plan.lanes == plan.threads)) {
    const int64_t worth = thread_loads / tuning.part_loads;
    const int64_t fits = tuning.workspace_bytes / (kCandidateBytes * groups.outputs);
    plan.parts = std::max<int64_t>(1, std::min({ceil_div(full, units), worth, fits, walk}));
  }
  // Parts start on whole cache lines where rows do.
  plan.part_extent = ceil_div(walk, plan.parts);
  if (plan.parts > 1 && plan.vector && plan.rows)
    plan.part_extent = ceil_div(plan.part_extent, 128) * 128;
  plan.parts = ceil_div(walk, plan.part_extent);
  plan.blocks = units * plan.parts;
  return plan;
}

}  // namespace reduceops::cuda
