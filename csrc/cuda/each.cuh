// Kernels over results in their order: a thread reads a few before it stores any.
#pragma once

#include <algorithm>

#include "cuda/device.cuh"

namespace reduceops::cuda {

constexpr int kAtOnce = 4;  // results of a thread that are read before any is stored
constexpr int64_t kOfBlock = kThreads * kAtOnce;

// Calls read(i) for a few positions below n at once, then write(i, what was read). Those of a block
// lie together, for blocks begin in order: what all of them go over at a time is one piece then.
template <class Read, class Write>
__device__ void each(int64_t n, Read read, Write write) {
  for (int64_t i = blockIdx.x * kOfBlock + threadIdx.x; i < n; i += gridDim.x * kOfBlock) {
    decltype(read(i)) held[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) held[u] = read(std::min(i + u * kThreads, n - 1));
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i + u * kThreads < n) write(i + u * kThreads, held[u]);
    }
  }
}

// For kernels that go over n positions with `each`.
template <class... Parameters, class... Arguments>
void launch_over(int64_t n, void* stream, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min(ceil_div(n, kOfBlock), kMaxBlocks));
  config.blockDim = kThreads;
  config.stream = static_cast<cudaStream_t>(stream);
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

}  // namespace reduceops::cuda
