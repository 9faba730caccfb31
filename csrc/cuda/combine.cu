// Combines the candidates of the parts: as many lanes per output as it has candidates, at most a
// block. At most 1 MiB is read; bound by launch latency.
#include "cuda/device.cuh"

namespace reduceops::cuda {
namespace {

constexpr int kCombiners = 256;  // threads per block

template <class Element>
__global__ void combine(const __grid_constant__ Problem p, Element element, int lanes) {
  wait_for_previous();
  const int64_t parts = p.plan.candidates();
  const int64_t output = (blockIdx.x * int64_t(kCombiners) + threadIdx.x) >> log2_of(lanes);
  const int lane = threadIdx.x & (lanes - 1);
  Best<int64_t> best = no_best<int64_t>();
  for (int64_t part = lane; part < parts && output < p.outputs; part += lanes)
    take(best, p.candidates.get(output * parts + part));
  best = warp_best(best, std::min(lanes, 32));
  if (lanes > 32) {
    __shared__ Best<int64_t> warps[kCombiners / 32];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    for (int w = 1; lane == 0 && w < kCombiners / 32; ++w) take(best, warps[w]);
  }
  if (lane == 0 && output < p.outputs)
    finish(p, element, output, place(p.axes(), p.axis_count, output).offset, best.index);
}

}  // namespace

void launch_combine(const Reduction& r, const Problem& problem, bool early, void* stream) {
  visit_element(r, [&](auto element) {
    cudaLaunchAttribute serialization;
    serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    serialization.val.programmaticStreamSerializationAllowed = 1;
    const int64_t candidates = problem.plan.candidates();
    const int64_t lanes =
        candidates > 128 ? kCombiners : std::min<int64_t>(32, ceil_pow2(candidates));
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(ceil_div(problem.outputs * lanes, kCombiners));
    config.blockDim = kCombiners;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &serialization;
    config.numAttrs = early;
    check(cudaLaunchKernelEx(&config, combine<decltype(element)>, problem, element,
                             static_cast<int>(lanes)));
  });
}

}  // namespace reduceops::cuda
