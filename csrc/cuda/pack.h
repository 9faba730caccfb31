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

// The words of this rank, and where each rank receives those of all (one_shot.cu).
struct OneShot {
  const int64_t* words;
  void* const* buffers;  // of each rank, for [2][ranks][capacity] slots of kSlotBytes
  int64_t capacity;      // words
  int64_t rank;
  uint32_t* state;   // how many calls there were, and how many blocks of this one are done
  uint64_t timeout;  // in ns; after that a kernel that waits for a rank ends with an error
};
constexpr int64_t kSlotBytes = 16;

void launch_one_shot(const Unpacking& unpacking, const OneShot& one_shot, const Reduction& order,
                     void* stream);

}  // namespace reduceops::cuda
