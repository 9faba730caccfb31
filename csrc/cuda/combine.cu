// Combines the candidates of the parts: a warp per output. At most 1 MiB is read; bound by launch
// latency.
#include "cuda/device.cuh"

namespace reduceops::cuda {
namespace {

constexpr int kWarps = 4;  // per block

template <class Element>
__global__ void combine(const __grid_constant__ Problem p, Element element) {
  wait_for_previous();
  const int64_t output = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  if (output >= p.outputs) return;
  const int lane = threadIdx.x % 32;
  Best<int64_t> best = no_best<int64_t>();
  for (int part = lane; part < p.plan.candidates(); part += 32) {
    const Candidate candidate = p.candidates[output * p.plan.candidates() + part];
    take(best, {candidate.key, candidate.index});
  }
  best = warp_best(best);
  if (lane == 0) finish(p, element, place(p.kept(), p.kept_count, output), best.index);
}

}  // namespace

void launch_combine(const Reduction& r, const Problem& problem, void* stream) {
  visit_element(r, [&](auto element) {
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(ceil_div(problem.outputs, kWarps));
    config.blockDim = 32 * kWarps;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &early;
    config.numAttrs = 1;
    check(cudaLaunchKernelEx(&config, combine<decltype(element)>, problem, element));
  });
}

}  // namespace reduceops::cuda
