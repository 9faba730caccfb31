// Kernels over results in their order: a thread reads a few before it stores any.
#pragma once

#include <algorithm>

#include "cuda/device.cuh"

namespace reduceops::cuda {

constexpr int kAtOnce = 4;             // results of a thread that are read before any is stored
constexpr int64_t kMostBlocks = 8192;  // enough to fill any GPU a few times

// Calls read(i) for a few positions below n at once, then write(i, what was read).
template <class Read, class Write>
__device__ void each(int64_t n, Read read, Write write) {
  const int64_t threads = int64_t(gridDim.x) * kThreads;
  const int64_t first = blockIdx.x * kThreads + threadIdx.x;
  for (int64_t i = first; i < n; i += threads * kAtOnce) {
    decltype(read(i)) held[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) held[u] = read(std::min(i + u * threads, n - 1));
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i + u * threads < n) write(i + u * threads, held[u]);
    }
  }
}

// For kernels that go over n positions with `each`.
template <class... Parameters, class... Arguments>
void launch_over(int64_t n, void* stream, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min(ceil_div(n, kThreads * kAtOnce), kMostBlocks));
  config.blockDim = kThreads;
  config.stream = static_cast<cudaStream_t>(stream);
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

}  // namespace reduceops::cuda
