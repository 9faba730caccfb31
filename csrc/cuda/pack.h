// The kernels for the pairs that ranks exchange (pairs.h); each enqueues on `stream`.
#pragma once

#include "cuda/plan.h"
#include "pairs.h"
#include "reduction.h"

namespace reduceops::cuda {

// Whether a walk stores its results one by one, and so can store pairs in their place.
inline bool stores_pairs(Walk walk) { return walk != Walk::kFill && walk != Walk::kWholeColumns; }

void launch_pack(const Packing& packing, const DType& dtype, void* stream);
// `order` has the dtype and whether the largest is looked for.
void launch_unpack(const Unpacking& unpacking, const Gathered& words, const Reduction& order,
                   void* stream);

}  // namespace reduceops::cuda
