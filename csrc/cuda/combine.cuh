// Combining what threads found: lanes of a warp, warps of a block, blocks of a cluster, and by way
// of a workspace the blocks of a grid. Each level is written here once, for all walks.
//
// What is combined is a State of a Reducer (reducer.cuh): `State()` is that of no element, and
// `merge(a, b)` makes `a` that of the elements of both. Merging is associative and commutative, so
// how a walk cuts a group does not matter (where a state has a sum, but for its rounding).
//
// One protocol on every level: each member writes its slot at the leader; a barrier; the leader
// merges; a barrier before a slot is written again.
#pragma once

#include "cuda/device.cuh"
#include "cuda/fold.h"

namespace reduceops::cuda {

template <class Key, class Index>
__device__ void merge(Found<Key, Index>& found, Found<Key, Index> other) {
  found.take(other.key, other.index);
}

// The state of each group of `lanes` neighbouring lanes, in all of them; `lanes` is a power of two,
// and every lane of the warp takes part.
template <class Key, class Index>
__device__ Found<Key, Index> warp_combine(Found<Key, Index> found, uint32_t lanes = 32) {
  if (lanes == 32) {
    const Key key = warp_min(found.key);
    return {key, warp_min(found.key == key ? found.index : std::numeric_limits<Index>::max())};
  }
  for (uint32_t d = lanes / 2; d > 0; d /= 2) {
    const auto key = static_cast<Key>(__shfl_xor_sync(~0u, found.key, d));
    found.take(key, __shfl_xor_sync(~0u, found.index, d));
  }
  return found;
}

// Merges `count` slots that are `pitch` apart: `lanes` neighbouring lanes do it, of which the
// calling one is number `lane`.
template <class State>
__device__ State merge_slots(const State* slots, uint32_t count, uint32_t pitch, uint32_t lane,
                             uint32_t lanes) {
  State state;
  for (uint32_t i = lane; i < count; i += lanes) merge(state, slots[i * pitch]);
  return warp_combine(state, lanes);
}

// Calls put(item, state) once for each of so many items, with what merge_slots makes of the `count`
// slots that lie `pitch` apart from slots(item) on. `takers` neighbouring lanes, a power of two, do
// it for an item; all of the first `threads` threads of the block, whole warps, call it.
template <class State, class Slots, class Put>
__device__ void merge_items(uint32_t items, uint32_t takers, uint32_t threads, uint32_t count,
                            uint32_t pitch, Slots slots, Put put) {
  const int takers_log2 = log2_of(takers);
  REDUCEOPS_ROLLED
  for (uint32_t first = 0; first < items * takers; first += threads) {
    const uint32_t number = first + threadIdx.x, taker = number & (takers - 1);
    const uint32_t item = number >> takers_log2;
    const State* const of_item = slots(item);
    const State state = merge_slots(of_item, item < items ? count : 0, pitch, taker, takers);
    if (taker == 0 && item < items) put(item, state);
  }
}

// Of each group of `threads` neighbouring threads, whole warps of a block or a power of two of
// lanes, where the lanes of a warp have combined theirs; `thread` is the number in the group. The
// first warp of a group gets its state, or all of its lanes. `slots`: one to a warp, in shared
// memory.
template <class State>
__device__ State combine_warps(State state, uint32_t thread, uint32_t threads, State* slots) {
  if (threads <= 32) return state;
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) slots[warp] = state;
  __syncthreads();
  if (thread < 32) state = merge_slots(slots + warp, threads / 32, 1, thread, 32);
  return state;
}

// The same, lanes included.
template <class State>
__device__ State block_combine(State state, uint32_t thread, uint32_t threads, State* slots) {
  return combine_warps(warp_combine(state, std::min(threads, 32u)), thread, threads, slots);
}

// Of the blocks of a cluster, of which each has arrived at the cluster's barrier once since its
// slot was read. True in the first warp of block 0, which gets the state. `slots`: one to a block.
template <class State>
__device__ bool cluster_combine(State& state, uint32_t block, uint32_t blocks, State* slots) {
  cluster_wait();  // every block is there to be written to
  if (threadIdx.x == 0) *in_block(&slots[block], 0) = state;
  cluster_arrive();
  cluster_wait();
  if (block > 0 || threadIdx.x >= 32) return false;
  state = merge_slots(slots, blocks, 1, threadIdx.x, 32);
  return true;
}

// States of the parts of an output, which a second kernel merges (combine_parts below).
template <class Key>
__device__ void put(const Candidates& candidates, int64_t at, Far<Key> found) {
  candidates.put(at, {found.key, found.index});
}
__device__ inline void get(const Candidates& candidates, int64_t at, Far<int64_t>& found) {
  const Best<int64_t> best = candidates.get(at);
  found = {best.key, best.index};
}

// The value that a state of the group at `group` stands for.
template <class Source, class Reducer, class State>
__device__ auto value_of(const Problem& p, const Source& source, const Reducer& reducer,
                         const typename Source::Key* group, const State& state) {
  return reducer.value(source, state, [&](int64_t index) {
    return group[offset_of(p.reduced(), p.reduced_count, index)];
  });
}

// Writes the result of output number `output` in the order of memory, whose group begins at `group`
// of the input, or puts down its state of a part for the second kernel.
template <class Source, class Reducer, class State>
__device__ void emit(const Problem& p, const Source& source, const Reducer& reducer, int64_t output,
                     const typename Source::Key* group, int64_t part, const State& state) {
  if (p.candidates) {
    put(p.candidates, output * p.plan.candidates() + part, state);
  } else {
    p.out.put(p.result(output), reducer.index(state),
              [&] { return value_of(p, source, reducer, group, state); });
  }
}

constexpr int64_t kManyCombiners = 1 << 16;  // threads that are enough for all candidates

// The second kernel: as many lanes per output as it has candidates, at most a block, for what takes
// time is to wait for one load after the other. At most 1 MiB is read; bound by launch latency.
template <class Source, class Reducer>
__global__ void combine_parts(const Source source, const Reducer reducer, int lanes,
                              const __grid_constant__ FoldedColumns columns,
                              const __grid_constant__ Problem p) {
  using State = typename Reducer::template Stored<typename Source::Key>;
  constexpr int kAtOnce = 4;  // loads in flight
  __shared__ State warps[kCombiners / 32];
  const int64_t parts = p.plan.candidates();
  const int64_t number = (blockIdx.x * int64_t(kCombiners) + threadIdx.x) >> log2_of(lanes);
  const int lane = threadIdx.x & (lanes - 1);
  const bool inside = number < p.outputs;
  // What takes divisions is found while the parts are not there yet.
  const int64_t output = inside ? number : 0;
  const int64_t offset = place(p.axes(), p.axis_count, output).offset, to = p.result(output);
  const int64_t first = columns.first(output) * parts, count = columns.of_output * parts;
  const auto candidate = [&](int64_t i) {
    State found;
    if (columns.count == 0) {
      get(p.candidates, first + i, found);
    } else {
      const auto [number, part] = split(i, parts);
      const Place column = place(columns.dims, columns.count, number);
      get(p.candidates, first + column.offset * parts + part, found);
      if (!found.none()) found.index += column.step;
    }
    return found;
  };
  State state;
  // The first round has no candidates yet: it brings the code of the second from memory.
  REDUCEOPS_ROLLED
  for (int round = 0; round < 2; ++round) {
    if (round == 1) {
      wait_for_previous();
      __syncthreads();  // the slots of the first are read
    }
    const int64_t ready = round == 1 && inside ? count : 0;
    int64_t i = lane;
    do {
      State found[kAtOnce];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (i + r * lanes < ready) found[r] = candidate(i + r * lanes);
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) merge(state, found[r]);
      i += kAtOnce * lanes;
    } while (i < ready);
    state = block_combine(state, lane, lanes, warps);
  }
  if (lane > 0 || !inside) return;
  const auto* input = reinterpret_cast<const typename Source::Key*>(p.input) + offset;
  p.out.put(to, reducer.index(state), [&] { return value_of(p, source, reducer, input, state); });
}

// `early`: it may begin before what the stream does before it has ended, for which it then waits.
template <class Source, class Reducer>
void launch_combine_of(const Problem& problem, const FoldedColumns& columns, const Source& source,
                       const Reducer& reducer, bool early, void* stream) {
  const int64_t count = columns.of_output * problem.plan.candidates();
  int64_t lanes = std::min<int64_t>(kCombiners, ceil_pow2(count));
  // Where there are threads enough, neighbours better have neighbouring outputs.
  while (lanes > 1 && problem.outputs * lanes > kManyCombiners) lanes /= 2;
  auto config = launch_config(ceil_div(problem.outputs * lanes, kCombiners), kCombiners, stream);
  const EarlyLaunch begins_early(config, early);
  check(cudaLaunchKernelEx(&config, combine_parts<Source, Reducer>, source, reducer,
                           static_cast<int>(lanes), columns, problem));
}

}  // namespace reduceops::cuda
