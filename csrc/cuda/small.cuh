// Small inputs, and short rows of any: a power of two of lanes to an output, up to a block, an
// element at a time to each of them, or 16 bytes of a row.
//
// Bound by the latency of a launch and by the chain of instructions from a thread's number to its
// result. So positions have 32 bits, there is one reduced dim and at most three kept ones, and the
// parameters are few. Large inputs, of which short rows come here, are bound by instructions.
#pragma once

#include "cuda/reducer.cuh"

namespace reduceops::cuda {

struct SmallDim {
  uint32_t size, stride, step, mask_stride;
};

inline SmallDim small_dim(const Problem& p, int d, int end) {
  if (d >= end) return {1, 0, 0, 0};
  const Dim dim = p.dims[d];
  return {static_cast<uint32_t>(dim.size), static_cast<uint32_t>(dim.stride),
          static_cast<uint32_t>(dim.step), static_cast<uint32_t>(dim.mask_stride)};
}

struct SmallProblem {
  const char* input;
  const uint8_t* mask;
  Outputs out;
  SmallDim inner, outer, outermost, reduced;
  uint32_t outputs, lanes;

  explicit SmallProblem(const Problem& p)
      : input(p.input),
        mask(p.mask),
        out(p.out),
        inner(small_dim(p, 0, p.kept_count)),
        outer(small_dim(p, 1, p.kept_count)),
        outermost(small_dim(p, 2, p.kept_count)),
        reduced(small_dim(p, p.kept_count, p.kept_count + p.reduced_count)),
        outputs(static_cast<uint32_t>(p.outputs)),
        lanes(p.plan.small.lanes) {}
};

// The state of a lane: of every so many elements.
template <class Source, class Reducer>
__device__ auto scan_items(const SmallProblem& p, const Source& source, const Reducer& reducer,
                           typename Source::At base, uint32_t lane) {
  constexpr int kAtOnce = kSmallLoads;
  typename Reducer::template Items<Source> items;
  for (uint32_t j = lane; j < p.reduced.size; j += kAtOnce * p.lanes) {
    // Past the end there is the last element again, which must not count twice.
    const auto at = [&](int u) { return std::min(j + u * p.lanes, p.reduced.size - 1); };
    typename Source::Item some[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) some[u] = source.item(source.along(base, p.reduced, at(u)));
    fill_past_end(source, reducer, some, [&](int u) { return j + u * p.lanes >= p.reduced.size; });
    items.take(source, some, at);
  }
  return items.state();
}

// The same of every so many packs, of which the row's last one may have elements behind its end.
template <class Source, class Reducer>
__device__ auto scan_row_packs(const SmallProblem& p, const Source& source,
                               typename Source::At base, uint32_t lane) {
  constexpr uint32_t kWidth = Vector<typename Source::Key>::kWidth;
  const uint32_t packs = (p.reduced.size + kWidth - 1) / kWidth;
  const auto load = [&](uint32_t number) { return source.pack(base, p.reduced, number); };
  typename Reducer::template State<typename Source::Key, uint32_t> state;
  if (lane >= packs) return state;
  typename Reducer::template Row<Source> row(source, lane);
  for (uint32_t number = lane; number < packs; number += p.lanes) {
    const typename Source::Pack pack[1]{load(number)};
    row.take(source, pack, [&](int) { return number; });
  }
  state = row.state(source, load);
  // Should somebody have written to the last pack meanwhile, it is an element of the row even so.
  if (!state.none()) state.index = std::min(state.index, p.reduced.size - 1);
  return state;
}

// kWarps: several to an output. kPacks: 16 bytes at a time.
template <bool kWarps, bool kPacks, class Source, class Reducer>
__global__ void __launch_bounds__(kSmallThreads)
    small(const Source source, const Reducer reducer, const __grid_constant__ SmallProblem p) {
  using Key = typename Source::Key;
  using State = typename Reducer::template State<Key, uint32_t>;
  const uint32_t thread = blockIdx.x * kSmallThreads + threadIdx.x;
  const uint32_t output = thread >> log2_of(p.lanes), lane = thread & (p.lanes - 1);
  uint32_t inner = output, outer = 0, outermost = 0;
  if (p.outer.size > 1) {
    outer = output / p.inner.size;
    inner = output - outer * p.inner.size;
  }
  if (p.outermost.size > 1) {
    outermost = outer / p.outer.size;
    outer -= outermost * p.outer.size;
  }
  auto base = source.along(source.along(source.begin(p), p.outer, outer), p.inner, inner);
  if (p.outermost.size > 1) base = source.along(base, p.outermost, outermost);
  State found;
  if (output < p.outputs && lane < p.reduced.size) {
    if constexpr (kPacks) {
      found = scan_row_packs<Source, Reducer>(p, source, base, lane);
    } else {
      found = scan_items(p, source, reducer, base, lane);
    }
  }
  __shared__ State warps[kSmallThreads / 32];
  const auto state = block_combine(found, lane, kWarps ? p.lanes : std::min(p.lanes, 32u), warps);
  if (lane > 0 || output >= p.outputs) return;
  const uint32_t to = outermost * p.outermost.step + outer * p.outer.step + inner * p.inner.step;
  const auto index = static_cast<uint32_t>(reducer.index(state));
  p.out.put(to, index * p.reduced.step, [&] {
    return reducer.value(source, state,
                         [&](uint32_t i) { return base.input[i * p.reduced.stride]; });
  });
}

// Of plans with 16-byte loads.
template <class Source, class Reducer>
void launch_small_packs_of(const Problem& problem, const Source& source, const Reducer& reducer,
                           void* stream) {
  enqueue(small<false, true, Source, Reducer>, problem.plan, stream, 0, source, reducer,
          SmallProblem(problem));
}

template <class Source, class Reducer>
void launch_small_of(const Problem& problem, const Source& source, const Reducer& reducer,
                     void* stream) {
  const Plan& plan = problem.plan;
  const auto kernel = plan.small.lanes > 32 ? small<true, false, Source, Reducer>
                                            : small<false, false, Source, Reducer>;
  enqueue(kernel, plan, stream, 0, source, reducer, SmallProblem(problem));
}

}  // namespace reduceops::cuda
