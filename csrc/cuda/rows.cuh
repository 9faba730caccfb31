// Rows: the reduced dim is innermost. `lanes` threads share a row: a few lanes of a warp for short
// rows (their loads lie side by side in memory), a warp, or a block; few long rows are cut into
// parts, which a cluster of blocks combines if there are not more than it has blocks.
//
// Bound by reading memory: 8 loads in flight of 1024 threads to a multiprocessor reach 0.88 of its
// bandwidth. (16 of 512 threads reach all of it in rows of 16 KiB and more, and less in shorter
// ones. Most such rows are read by whole_rows.cu; those of every second element take as long.)
#pragma once

#include "cuda/reducer.cuh"

namespace reduceops::cuda {

// This lane's state of n contiguous elements; the index is the position. `lanes` is a power of two.
template <uint32_t kLoads, class Source, class Reducer>
__device__ auto scan_run(const Source& source, const Reducer& reducer, typename Source::At from,
                         const Dim& dim, uint32_t n, uint32_t lane, uint32_t lanes) {
  using Key = typename Source::Key;
  using Pack = typename Source::Pack;
  using Item = typename Source::Item;
  constexpr uint32_t kWidth = Vector<Key>::kWidth;
  // Loads of a whole warp begin at a line of memory, if its lanes are enough for what is before it.
  const uint32_t line = lanes < 32 ? kWidth : std::min<uint32_t>(lanes, kLineBytes / sizeof(Key));
  const uint32_t head = std::min(-source.past_block(from) & (line - 1), n);
  const auto body = source.for_packs(source.along(from, dim, head), dim);
  const uint32_t last = n - std::min(n - head, source.behind_pack(body));
  const uint32_t loads = (last - head) / kWidth, body_end = head + loads * kWidth;
  // The elements before and after whole packs: the first of a lane is asked for beforehand.
  const uint32_t edges = n - loads * kWidth;
  const auto edge = [&](uint32_t i) { return i < head ? i : i - head + body_end; };
  Item first[1]{};
  if (lane < edges) first[0] = source.item(source.along(from, dim, edge(lane)));

  typename Reducer::template Row<Source> row(source, lane);
  // Whether a batch is whole is the same for all lanes.
  uint32_t v = lane;
  // Past the end there is the last pack again, which must not count twice.
  const auto rest = [&]<uint32_t kRest>(std::integral_constant<uint32_t, kRest>) {
    const auto number = [&](uint32_t u) { return std::min(v + u * lanes, loads - 1); };
    Pack packs[kRest];
#pragma unroll
    for (uint32_t u = 0; u < kRest; ++u) packs[u] = source.pack(body, dim, number(u));
    fill_past_end(source, reducer, packs, [&](uint32_t u) { return v + u * lanes >= loads; });
    row.take(source, packs, number);
  };
  for (; v - lane + lanes * kLoads <= loads; v += lanes * kLoads) {
    Pack packs[kLoads];
#pragma unroll
    for (uint32_t u = 0; u < kLoads; ++u) packs[u] = source.pack(body, dim, v + u * lanes);
    row.take(source, packs, [&](uint32_t u) { return v + u * lanes; });
  }
  constexpr uint32_t kHalf = kLoads / 2, kQuarter = std::max<uint32_t>(kLoads / 4, 1);
  if (v - lane + lanes * kHalf < loads) {
    rest(std::integral_constant<uint32_t, kLoads>());
  } else if (v - lane + lanes * kQuarter < loads) {
    rest(std::integral_constant<uint32_t, kHalf>());
  } else if (v - lane + lanes < loads) {
    rest(std::integral_constant<uint32_t, kQuarter>());
  } else if (v - lane < loads) {
    rest(std::integral_constant<uint32_t, 1>());
  }

  typename Reducer::template Items<Source> items;
  if (lane < edges) items.take(source, first, [&](int) { return edge(lane); });
  // Of small types, where there is more to an element than its load, some are loaded before any is
  // looked at.
  constexpr uint32_t kEdges = sizeof(Key) <= 2 && !Reducer::kRepeats ? 4 : 1;
  for (uint32_t i = lane + lanes; i < edges; i += kEdges * lanes) {
    // Past the end there is the last element again, which must not count twice.
    const auto at = [&](int u) { return edge(std::min(i + u * lanes, edges - 1)); };
    Item some[kEdges];
#pragma unroll
    for (uint32_t u = 0; u < kEdges; ++u) some[u] = source.item(source.along(from, dim, at(u)));
    fill_past_end(source, reducer, some, [&](uint32_t u) { return i + u * lanes >= edges; });
    items.take(source, some, at);
  }
  auto state = items.state();
  if (lane < loads) {
    auto of_row =
        row.state(source, [&](uint32_t number) { return source.pack(body, dim, number); });
    if (!of_row.none()) of_row.index += head;
    merge(state, of_row);
  }
  return state;
}

// The same of elements that lie apart.
template <class Source, class Reducer>
__device__ auto scan_apart(const Source& source, const Reducer& reducer, typename Source::At from,
                           const Dim& dim, uint32_t n, uint32_t lane, uint32_t lanes) {
  typename Reducer::template Items<Source> items;
  for (uint32_t i = lane; i < n; i += kLaneLoads * lanes) {
    // Past the end there is the last element again, which must not count twice.
    const auto at = [&](int u) { return std::min(i + u * lanes, n - 1); };
    typename Source::Item some[kLaneLoads];
#pragma unroll
    for (int u = 0; u < kLaneLoads; ++u) some[u] = source.item(source.along(from, dim, at(u)));
    fill_past_end(source, reducer, some, [&](int u) { return i + u * lanes >= n; });
    items.take(source, some, at);
  }
  return items.state();
}

// The same of reduced positions [begin, begin + n) of several dims, counted as they lie in memory:
// runs of the innermost one may be so short that lanes would wait for each. The index is the
// result's.
template <class Source, class Reducer>
__device__ auto scan_flat(const Problem& p, const Source& source, const Reducer& reducer,
                          typename Source::At base, uint32_t begin, uint32_t n, uint32_t lane,
                          uint32_t lanes) {
  typename Reducer::template Items<Source> items;
  for (uint32_t i = lane; i < n; i += kLaneLoads * lanes) {
    typename Source::At at[kLaneLoads];
    uint32_t rest[kLaneLoads], index[kLaneLoads];
#pragma unroll
    for (int u = 0; u < kLaneLoads; ++u) {
      at[u] = base;
      index[u] = 0;
      rest[u] = begin + std::min<uint32_t>(i + u * lanes, n - 1);
    }
    REDUCEOPS_ROLLED
    for (int d = 0; d < p.reduced_count; ++d) {
      const Dim dim = p.reduced()[d];
      const auto size = static_cast<uint32_t>(dim.size), step = static_cast<uint32_t>(dim.step);
#pragma unroll
      for (int u = 0; u < kLaneLoads; ++u) {
        const uint32_t over = p.by_size[d].quotient(rest[u]), digit = rest[u] - over * size;
        at[u] = source.along(at[u], dim, digit);
        index[u] += digit * step;
        rest[u] = over;
      }
    }
    typename Source::Item some[kLaneLoads];
#pragma unroll
    for (int u = 0; u < kLaneLoads; ++u) some[u] = source.item(at[u]);
    fill_past_end(source, reducer, some, [&](int u) { return i + u * lanes >= n; });
    items.take(source, some, [&](int u) { return index[u]; });
  }
  return items.state();
}

// The state, over the `lanes` lanes of a row, of reduced positions [j, stop) of the group at
// `base`; the index is the result's. The lanes take several runs of the innermost reduced dim side
// by side. Not yet combined.
template <int kLoads, class Source, class Reducer>
__device__ auto scan(const Problem& p, const Source& source, const Reducer& reducer,
                     typename Source::At base, int64_t j, int64_t stop, int lane) {
  const Dim inner = p.reduced_count ? p.reduced()[0] : Dim{1, 0, 0};
  const uint32_t runs = p.plan.rows.runs, lanes = p.plan.rows.lanes / runs;  // powers of two
  const uint32_t first = lane >> log2_of(lanes);
  typename Reducer::template State<typename Source::Key, int64_t> state;
  if constexpr (kLoads == 0) {
    if (p.plan.rows.flat) {
      const auto found = scan_flat(p, source, reducer, base, static_cast<uint32_t>(j),
                                   static_cast<uint32_t>(stop - j), lane, p.plan.rows.lanes);
      if (!found.none()) state = widen(found, found.index);
      return state;
    }
  }
  for (int64_t run = split(j, inner.size).quotient + first; run * inner.size < stop; run += runs) {
    const int64_t begin = std::max<int64_t>(0, j - run * inner.size);
    const auto n = static_cast<uint32_t>(std::min(inner.size, stop - run * inner.size) - begin);
    const auto moved = source.move(base, p.reduced() + 1, p.reduced_count - 1, run);
    const auto from = source.along(moved.at, inner, begin);
    const auto found = [&] {
      if constexpr (kLoads > 0) {
        return scan_run<kLoads>(source, reducer, from, inner, n, lane & (lanes - 1), lanes);
      } else {
        return scan_apart(source, reducer, from, inner, n, lane & (lanes - 1), lanes);
      }
    }();
    // Positions are in memory order, which need not be that of the result's indices.
    if (!found.none()) merge(state, widen(found, moved.step + (begin + found.index) * inner.step));
  }
  return state;
}

// All rows, of which scan(base, j, stop, lane) is a lane's state of some reduced positions.
template <class Source, class Reducer, class Scan>
__device__ void take_rows(const Problem& p, const Source& source, const Reducer& reducer,
                          Scan&& scan) {
  using State = typename Reducer::template State<typename Source::Key, int64_t>;
  __shared__ State warps[kThreads / 32], parts[kCluster];
  if (p.candidates) let_next_launch();
  const int lanes = p.plan.rows.lanes;
  const int row = threadIdx.x >> log2_of(lanes), lane = threadIdx.x & (lanes - 1);
  const int rows_per_block = blockDim.x >> log2_of(lanes);
  for (int64_t block = blockIdx.x; block < p.plan.blocks; block += gridDim.x) {
    if (p.plan.cluster > 1) cluster_arrive();
    const auto [unit, part] = split(block, p.plan.parts);
    const int64_t output = unit * rows_per_block + row;
    const auto base =
        source.move(source.begin(p), p.axes(), p.axis_count, std::min(output, p.outputs - 1)).at;
    const int64_t j = part * p.plan.part_extent;
    const int64_t stop = std::min(j + p.plan.part_extent, p.walk);
    State state = block_combine(scan(base, j, stop, lane), lane, lanes, warps);
    if (lanes > 32) __syncthreads();
    if (p.plan.cluster > 1 && !cluster_combine(state, part, p.plan.cluster, parts)) continue;
    if (lane == 0 && output < p.outputs) emit(p, source, reducer, output, base.input, part, state);
  }
}

// With kLoads 16-byte loads in flight of a thread, or element by element.
template <int kLoads, int kBlocks, class Source, class Reducer>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows(const Source source, const Reducer reducer, const __grid_constant__ Problem p) {
  take_rows(p, source, reducer, [&](auto base, int64_t j, int64_t stop, int lane) {
    return scan<kLoads>(p, source, reducer, base, j, stop, lane);
  });
}

template <bool kVector, class Source, class Reducer>
void launch_rows_of(const Problem& p, const Source& source, const Reducer& reducer, void* stream) {
  constexpr Room kScalar{0, Stored<typename Source::Element>::row_room().blocks};
  constexpr Room kRoom = kVector ? Reducer::template row_room<Source>() : kScalar;
  enqueue(rows<kRoom.loads, kRoom.blocks, Source, Reducer>, p.plan, stream, 0, source, reducer, p);
}

}  // namespace reduceops::cuda
