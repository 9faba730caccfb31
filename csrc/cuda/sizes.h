// Sizes that every plan counts in.
#pragma once

#include <bit>
#include <cstdint>

namespace reduceops::cuda {

constexpr int64_t kLoadBytes = 16;    // of the widest load or asynchronous copy of a thread
constexpr int64_t kSectorBytes = 32;  // in which memory is read
constexpr int64_t kBurstBytes = 64;   // that DRAM delivers at once
constexpr int64_t kLineBytes = 128;   // a line of memory
constexpr int kDevices = 256;         // more than a process has
// Blocks of a grid at most: a multiple of every cluster of 1 to 8 blocks.
constexpr int64_t kMaxBlocks = ((int64_t(1) << 31) - 1) / 840 * 840;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
inline int64_t ceil_pow2(int64_t x) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x)));
}

}  // namespace reduceops::cuda
