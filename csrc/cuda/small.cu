// Small inputs: a power of two of lanes to an output, up to a block, an element at a time to each
// of them.
//
// Bound by the latency of a launch and by the chain of instructions from a thread's number to its
// result. So positions have 32 bits, there is one reduced dim and at most two kept ones, and the
// parameters are few.
#include "cuda/keys.cuh"

namespace reduceops::cuda {
namespace {

constexpr int kAtOnce = 4;  // elements that a lane loads before it looks at them

struct SmallDim {
  uint32_t size, stride, step;
};

SmallDim small_dim(const Problem& p, int d, int end) {
  if (d >= end) return {1, 0, 0};
  const Dim dim = p.dims[d];
  return {static_cast<uint32_t>(dim.size), static_cast<uint32_t>(dim.stride),
          static_cast<uint32_t>(dim.step)};
}

struct SmallProblem {
  const char* input;
  Outputs out;
  SmallDim inner, outer, reduced;
  uint32_t outputs, lanes;

  explicit SmallProblem(const Problem& p)
      : input(p.input),
        out(p.out),
        inner(small_dim(p, 0, p.kept_count)),
        outer(small_dim(p, 1, p.kept_count)),
        reduced(small_dim(p, p.kept_count, p.kept_count + p.reduced_count)),
        outputs(static_cast<uint32_t>(p.outputs)),
        lanes(p.plan.lanes) {}
};

// kWarps: several to an output.
template <bool kWarps, class Element>
__global__ void __launch_bounds__(kSmallThreads)
    small(const __grid_constant__ SmallProblem p, const Element element) {
  using Key = typename Element::Key;
  const uint32_t thread = blockIdx.x * kSmallThreads + threadIdx.x;
  const uint32_t output = thread >> log2_of(p.lanes), lane = thread & (p.lanes - 1);
  uint32_t inner = output, outer = 0;
  if (p.outer.size > 1) {
    outer = output / p.inner.size;
    inner = output - outer * p.inner.size;
  }
  const Key* base =
      reinterpret_cast<const Key*>(p.input) + outer * p.outer.stride + inner * p.inner.stride;
  Near<Key> best;
  if (output < p.outputs && lane < p.reduced.size) {
    for (uint32_t j = lane; j < p.reduced.size; j += kAtOnce * p.lanes) {
      // Past the end there is the last element again, which changes nothing.
      const auto at = [&](int u) { return std::min(j + u * p.lanes, p.reduced.size - 1); };
      Key x[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) x[u] = base[at(u) * p.reduced.stride];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) best.take(element.key(x[u]), at(u));
    }
  }
  best = warp_best(best, kWarps ? 32 : p.lanes);
  if constexpr (kWarps) {
    __shared__ Near<Key> warps[kSmallThreads / 32];
    const uint32_t warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) warps[warp] = best;
    __syncthreads();
    for (uint32_t w = 1; lane == 0 && w < p.lanes / 32; ++w)
      best.take(warps[warp + w].key, warps[warp + w].index);
  }
  if (lane > 0 || output >= p.outputs) return;
  const uint32_t to = outer * p.outer.step + inner * p.inner.step;
  p.out.put(to, best.index * p.reduced.step,
            [&] { return element.value(base[best.index * p.reduced.stride]); });
}

}  // namespace

void launch_small(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    const auto kernel = problem.plan.lanes > 32 ? small<true, Element> : small<false, Element>;
    launch(kernel, problem.plan, SmallProblem(problem), element, stream);
  });
}

}  // namespace reduceops::cuda
