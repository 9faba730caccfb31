// Constants that the plan and the kernels of masked reductions and softmax_max agree on.
#pragma once

#include "cuda/policy.h"

namespace reduceops::cuda {

// held_rows.cuh: 16-byte loads of a thread at once.
constexpr int64_t held_loads(int64_t bytes) { return bytes == 4 ? 8 : 4; }

// columns.cuh: rounds of blocks that large inputs are cut into, and the fewest loads of a thread
// worth more of them.
constexpr int64_t kColumnRounds = 4, kColumnRoundLoads = 64;

}  // namespace reduceops::cuda
