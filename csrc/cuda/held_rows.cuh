// Contiguous rows for any Source and Reducer: as whole_rows.cu has them for the input alone. The
// threads of a row, a power of two or a block, hold it whole, all of their 16-byte loads in flight
// at once; of a longer row, or a part of one, a block holds batches of as many loads, one after the
// other, and the winning one once more. Lanes of a warp agree on the smallest key before one of
// them looks for its place.
//
// Bound by reading memory and the mask, in rows of 32-bit types; shorter types, and softmax_max of
// rows of 1000, by instructions. Without it such rows are read by rows.cuh, whose lanes each look
// for a place of their own and read single elements up to a line of memory: 1.3 to 2.1 times the
// time in rows of 1000.
#pragma once

#include <cassert>

#include "cuda/option_policy.h"
#include "cuda/reducer.cuh"

namespace reduceops::cuda {

// kBatches: a block to a part of a row, which may have more loads than the block at once.
template <int kLoads, bool kBatches, int kBlocks, class Source, class Reducer>
__global__ void __launch_bounds__(kBatches ? kWholeThreads : kThreads,
                                  kBatches ? std::max<int>(1, kBlocks* kThreads / kWholeThreads)
                                           : kBlocks)
    held_rows(const Source source, const Reducer reducer, const __grid_constant__ Problem p) {
  using Key = typename Source::Key;
  using Pack = typename Source::Pack;
  using Item = typename Source::Item;
  using State = typename Reducer::template State<Key, uint32_t>;
  constexpr uint32_t kWidth = Vector<Key>::kWidth;
  if (kBatches && p.candidates) let_next_launch();
  if (kBatches && p.plan.cluster > 1) cluster_arrive();
  const uint32_t threads = p.plan.whole_rows.lanes;  // to a row
  uint32_t thread = threadIdx.x, row = blockIdx.x, part = 0;
  auto extent = static_cast<uint32_t>(p.plan.part_extent);
  int64_t begin = 0;  // of the part
  if (kBatches) {
    const auto parts = static_cast<uint32_t>(p.plan.parts);
    row = blockIdx.x / parts;
    part = blockIdx.x - row * parts;
    begin = part * p.plan.part_extent;
    extent = static_cast<uint32_t>(std::min<int64_t>(extent, p.walk - begin));
  } else if (threads < blockDim.x) {
    thread &= threads - 1;
    row = (blockIdx.x * blockDim.x + threadIdx.x) >> log2_of(threads);
  }
  Dim along = p.reduced()[0];
  along.stride = 1;  // as the compiler does not know
  const uint32_t last_row = static_cast<uint32_t>(p.outputs) - 1;
  const auto base =
      source.move(source.begin(p), p.axes(), p.axis_count, std::min(row, last_row)).at;
  const auto first = source.along(base, along, begin);
  // Before and after whole packs there are fewer elements than two of them hold, or three.
  uint32_t head = -(reinterpret_cast<uintptr_t>(first.input) / sizeof(Key)) % kWidth;
  if (kBatches) head = std::min(head, extent);  // the last part may be that short
  const auto body = source.for_packs(source.along(first, along, head), along);
  const uint32_t rest = extent - head;
  const uint32_t packs = (rest - std::min(rest, source.behind_pack(body))) / kWidth;
  const uint32_t edges = extent - packs * kWidth;
  const auto edge = [&](uint32_t i) { return i < head ? i : i + packs * kWidth; };
  Item at_edge[1]{};
  if (thread < edges) at_edge[0] = source.item(source.along(first, along, edge(thread)));

  // Past the end there is the last pack again, which must not count twice.
  constexpr int kFull = kBatches ? 0 : held_full(kLoads, Source::kJoined);
  const auto number = [&](uint32_t v) { return std::min(thread + v * threads, packs - 1); };
  Pack held[kLoads];
  const auto hold = [&](uint32_t from) {
#pragma unroll
    for (int v = 0; v < kLoads; ++v) {
      const uint32_t here = v < kFull ? thread + v * threads : number(from + v);
      held[v] = source.pack(body, along, here);
    }
    if (kBatches && (from + kLoads) * threads <= packs) return;
    fill_past_end(source, reducer, held,
                  [&](int v) { return v >= kFull && thread + (from + v) * threads >= packs; });
  };
  typename Reducer::template Batches<Source> batches(source);
  if constexpr (kBatches) {
#pragma unroll 1
    for (uint32_t v = 0; v * threads < packs; v += kLoads) {
      hold(v);
      batches.take(source, held, v);
    }
  } else {
    hold(0);
  }

  typename Reducer::template Items<Source> items;
  if (thread < edges) items.take(source, at_edge, [&](int) { return edge(thread); });
  REDUCEOPS_ROLLED
  for (uint32_t i = thread + threads; i < edges; i += threads) {
    const Item item[1] = {source.item(source.along(first, along, edge(i)))};
    items.take(source, item, [&](int) { return edge(i); });
  }
  const uint32_t lanes = std::min(threads, 32u);
  // Of the place that `find` tells in a batch, that in the row.
  const auto place = [&](uint32_t from, auto&& find) {
    if (kBatches) hold(from);
    const uint32_t at = find(held);
    return head + number(from + at / kWidth) * kWidth + at % kWidth;
  };
  State state;
  if constexpr (kBatches) {
    // A last part may be too short for a pack.
    state = packs > 0 ? batches.state(source, items.state(), lanes, place)
                      : warp_combine(items.state(), lanes);
  } else {
    state = reducer.of_held(source, held, items.state(), lanes, place);
  }
  __shared__ State warps[kWholeThreads / 32];
  state = combine_warps(state, thread, threads, warps);
  typename Reducer::template State<Key, int64_t> result;  // with a position as its index
  if (!state.none()) result = widen(state, begin + state.index);
  if constexpr (kBatches) {
    __shared__ decltype(result) parts[kCluster];
    if (p.plan.cluster > 1 && !cluster_combine(result, part, p.plan.cluster, parts)) return;
  }
  if (thread > 0 || row > last_row) return;
  const int64_t position = result.index;
  if (!result.none()) result.index *= along.step;
  if (kBatches && p.candidates) {
    put(p.candidates, row * p.plan.candidates() + part, result);
  } else {
    p.out.put(p.result(row), reducer.index(result), [&] {
      return reducer.value(source, result, [&](int64_t) { return base.input[position]; });
    });
  }
}

template <class Source, class Reducer>
void launch_held_rows_of(const Problem& p, const Source& source, const Reducer& reducer,
                         void* stream) {
  constexpr int64_t kBytes = sizeof(typename Source::Key);
  const auto run = [&]<int kLoads, bool kBatches>() {
    constexpr int kBlocks = Reducer::template held_blocks<Source>(kLoads);
    enqueue(held_rows<kLoads, kBatches, kBlocks, Source, Reducer>, p.plan, stream, 0, source,
            reducer, p);
  };
  if (p.plan.whole_rows.batches > 0) return run.template operator()<held_loads(kBytes), true>();
  const int64_t kernel = held_kernel(p.plan.whole_rows.loads);
  if constexpr (Source::kMostHeldLoads == 8) {
    if (kernel > 4 || held_loads(kBytes) == 8)
      return kernel > 6 ? run.template operator()<8, false>() : run.template operator()<6, false>();
  }
  assert(kernel <= 4);
  if constexpr (held_loads(kBytes) == 4)
    kernel == 4 ? run.template operator()<4, false>() : run.template operator()<3, false>();
}

}  // namespace reduceops::cuda
