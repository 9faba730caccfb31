// Combines the candidates of the parts: a warp per output. At most 1 MiB is read; bound by launch
// latency.
#include "cuda/device.cuh"

namespace reduceops::cuda {
namespace {

constexpr int kWarps = 4;  // per block

template <class Element>
__global__ void combine(const __grid_constant__ Problem p, Element element) {
  const int64_t output = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  if (output >= p.outputs) return;
  const int lane = threadIdx.x % 32;
  Best<int64_t> best = no_best<int64_t>();
  for (int part = lane; part < p.parts; part += 32) {
    const Candidate candidate = p.candidates[output * p.parts + part];
    take(best, {candidate.key, candidate.index});
  }
  best = warp_best(best, 32);
  if (lane == 0) finish(p, element, place(p.kept(), p.kept_count, output), best.index);
}

}  // namespace

void launch_combine(const Reduction& r, const Problem& problem, void* stream) {
  visit_element(r, [&](auto element) {
    const unsigned blocks = grid_of(ceil_div(problem.outputs, kWarps));
    combine<<<blocks, 32 * kWarps, 0, static_cast<cudaStream_t>(stream)>>>(problem, element);
  });
  check(cudaGetLastError());
}

}  // namespace reduceops::cuda
