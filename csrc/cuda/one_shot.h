// One kernel with which ranks on GPUs of one host exchange their pairs and combine them.
#pragma once

#include "pairs.h"
#include "reduction.h"

namespace reduceops::cuda {

// The words of this rank, and where each rank receives those of all.
struct OneShot {
  const int64_t* words;
  void* const* buffers;  // of each rank, for [2][ranks][capacity] slots
  int64_t capacity;      // words
  int64_t rank;
  uint32_t* state;   // how many calls there were, and how many blocks of this one are done
  uint64_t timeout;  // in ns; after that a kernel that waits for a rank ends with an error
};
constexpr size_t kSlotBytes = 16;  // of two int64

// Outputs that a call may have: that any GPU runs all blocks at once, as they wait for others.
constexpr int64_t kMostOneShot = 4096;

// `order` has the dtype and whether the largest is looked for; enqueues on `stream`.
void launch_one_shot(const Unpacking& unpacking, const OneShot& one_shot, const Reduction& order,
                     void* stream);

}  // namespace reduceops::cuda
