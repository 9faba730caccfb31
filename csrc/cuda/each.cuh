// Kernels over results in their order: where these are many, a thread reads a few before it stores
// any.
#pragma once

#include <algorithm>

#include "cuda/device.cuh"

namespace reduceops::cuda {

constexpr int kAtOnce = 4;  // most results of a thread that it reads before it stores any
constexpr int64_t kManyBlocks = 2048;  // that keep memory busy with one result to a thread

// How many they are of n results: one, until there are many blocks with more; at most `most`.
REDUCEOPS_HD int at_once(int64_t n, int most) {
  constexpr int64_t kMany = kManyBlocks * kThreads;
  return n < 2 * kMany ? 1 : n < 4 * kMany ? std::min(2, most) : most;
}

// Calls read(i) for a few positions below n at once, then write(i, what was read). Those of a block
// lie together, for blocks begin in order: what all of them go over at a time is one piece then.
template <int kMost = kAtOnce, class Read, class Write>
__device__ void each(int64_t n, Read read, Write write) {
  const int some = at_once(n, kMost);
  const int64_t of_block = some * kThreads;
  for (int64_t i = blockIdx.x * of_block + threadIdx.x; i < n; i += gridDim.x * of_block) {
    decltype(read(i)) held[kMost];
#pragma unroll
    for (int u = 0; u < kMost; ++u) {
      if (u < some) held[u] = read(std::min(i + u * kThreads, n - 1));
    }
#pragma unroll
    for (int u = 0; u < kMost; ++u) {
      if (u < some && i + u * kThreads < n) write(i + u * kThreads, held[u]);
    }
  }
}

// Blocks for which that is a single turn.
template <int kMost = kAtOnce>
int64_t blocks_over(int64_t n) {
  return ceil_div(n, int64_t(at_once(n, kMost)) * kThreads);
}

// For kernels that go over n positions with `each`.
template <int kMost = kAtOnce, class... Parameters, class... Arguments>
void launch_over(int64_t n, void* stream, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  const auto config = launch_config(std::min(blocks_over<kMost>(n), kMaxBlocks), kThreads, stream);
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

}  // namespace reduceops::cuda
