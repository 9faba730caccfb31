// The kernels for the pairs that ranks exchange (pairs.h); each enqueues on `stream`.
#pragma once

#include "pairs.h"
#include "reduction.h"

namespace reduceops::cuda {

void launch_pack(const Packing& packing, const DType& dtype, void* stream);
// `order` has the dtype and whether the largest is looked for.
void launch_unpack(const Unpacking& unpacking, const Reduction& order, void* stream);

}  // namespace reduceops::cuda
