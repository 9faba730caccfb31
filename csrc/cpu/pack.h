// The pairs that ranks exchange (pairs.h), on the CPU.
#pragma once

#include "pairs.h"
#include "reduction.h"

namespace reduceops::cpu {

void pack_pairs(const Packing& p, const DType& dtype);
void unpack_pairs(const Unpacking& u, const Gathered& words, const Reduction& order);

}  // namespace reduceops::cpu
