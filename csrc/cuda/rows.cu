// Rows: the reduced dim is innermost. `lanes` threads share a row: a few lanes of a warp for short
// rows (their loads lie side by side in memory), a warp, or a block; few long rows are cut into
// parts, which a cluster of blocks combines if there are not more than it has blocks.
//
// Each thread takes the minimum key of the elements of a 16-byte load, compares it once with its
// best, and remembers only the load; the element is looked up at the end. Bound by reading memory,
// in rows of 16 KiB and more: 16 loads in flight of 512 threads to a multiprocessor reach all of
// its bandwidth, 8 of 1024 threads 0.88. For shorter rows it is the other way round.
#include "cuda/keys.cuh"

namespace reduceops::cuda {
namespace {

// Where in a vector that is read once more the first element with this key is: its last one should
// somebody have written to it meanwhile.
template <class Element, class Key = typename Element::Key>
__device__ uint32_t found_again(Element element, const Vector<Key>& vector, Key key) {
  return std::min<uint32_t>(first_of(element, {vector}, key), Vector<Key>::kWidth - 1);
}

// This lane's best of n contiguous elements; the index is the position. `lanes` is a power of two.
template <uint32_t kLoads, class Element, class Key = typename Element::Key>
__device__ Near<Key> scan_run(Element element, const Key* p, uint32_t n, uint32_t lane,
                              uint32_t lanes) {
  constexpr uint32_t kWidth = Vector<Key>::kWidth;
  // Loads of a whole warp begin at a line of memory, if its lanes are enough for what is before it.
  const uint32_t line = lanes < 32 ? kWidth : std::min<uint32_t>(lanes, kLineBytes / sizeof(Key));
  const uint32_t past_line = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) / sizeof(Key);
  const uint32_t head = std::min(-past_line & (line - 1), n);
  const uint32_t loads = (n - head) / kWidth, body_end = head + loads * kWidth;
  // The elements before and after whole vectors: the first of a lane is asked for beforehand.
  const uint32_t edges = n - loads * kWidth;
  const auto edge = [&](uint32_t i) { return i < head ? i : i - head + body_end; };
  Key first{};
  if (lane < edges) first = p[edge(lane)];

  const auto* body = reinterpret_cast<const Vector<Key>*>(p + head);
  Key smallest = std::numeric_limits<Key>::max();
  uint32_t at = lane;  // if nothing is below the largest key, the first load holds it too
  const auto compare = [&](const Vector<Key>& vector, uint32_t v) {
    const Key key = smallest_of(element, {vector});
    if (key < smallest) {
      smallest = key;
      at = v;
    }
  };
  // Whether a batch is whole is the same for all lanes.
  uint32_t v = lane;
  // Past the end there is the last load again.
  const auto rest = [&]<uint32_t kRest>(std::integral_constant<uint32_t, kRest>) {
    Vector<Key> load[kRest];
#pragma unroll
    for (uint32_t u = 0; u < kRest; ++u) load[u] = body[std::min(v + u * lanes, loads - 1)];
#pragma unroll
    for (uint32_t u = 0; u < kRest; ++u) compare(load[u], std::min(v + u * lanes, loads - 1));
  };
  for (; v - lane + lanes * kLoads <= loads; v += lanes * kLoads) {
    Vector<Key> load[kLoads];
#pragma unroll
    for (uint32_t u = 0; u < kLoads; ++u) load[u] = body[v + u * lanes];
#pragma unroll
    for (uint32_t u = 0; u < kLoads; ++u) compare(load[u], v + u * lanes);
  }
  if (v - lane + lanes * (kLoads / 2) < loads) {
    rest(std::integral_constant<uint32_t, kLoads>());
  } else if (v - lane + lanes * (kLoads / 4) < loads) {
    rest(std::integral_constant<uint32_t, kLoads / 2>());
  } else if (v - lane + lanes < loads) {
    rest(std::integral_constant<uint32_t, kLoads / 4>());
  } else if (v - lane < loads) {
    rest(std::integral_constant<uint32_t, 1>());
  }

  Near<Key> best;
  if (lane < edges) best.take(element.key(first), edge(lane));
  for (uint32_t i = lane + lanes; i < edges; i += lanes)
    best.take(element.key(p[edge(i)]), edge(i));
  if (lane < loads)
    best.take(smallest, head + at * kWidth + found_again(element, body[at], smallest));
  return best;
}

// The same of elements that lie `stride` apart.
template <class Element, class Key = typename Element::Key>
__device__ Near<Key> scan_apart(Element element, const Key* p, int64_t stride, uint32_t n,
                                uint32_t lane, uint32_t lanes) {
  Near<Key> best;
  for (uint32_t i = lane; i < n; i += kFewLoads * lanes) {
    // Past the end there is the last element again, which changes nothing.
    const auto at = [&](int u) { return std::min(i + u * lanes, n - 1); };
    Key x[kFewLoads];
#pragma unroll
    for (int u = 0; u < kFewLoads; ++u) x[u] = p[at(u) * stride];
#pragma unroll
    for (int u = 0; u < kFewLoads; ++u) best.take(element.key(x[u]), at(u));
  }
  return best;
}

// The best, over the `lanes` lanes of a row, of reduced positions [j, stop) of the group at `base`;
// the index is the result's. The lanes take several runs of the innermost reduced dim side by side.
template <int kLoads, class Element, class Key = typename Element::Key>
__device__ Best<Key> scan(const Problem& p, Element element, const Key* base, int64_t j,
                          int64_t stop, int lane) {
  const Dim inner = p.reduced_count ? p.reduced()[0] : Dim{1, 0, 0};
  const uint32_t runs = p.plan.runs, lanes = p.plan.lanes / runs;  // powers of two
  const uint32_t first = lane >> log2_of(lanes);
  Best<Key> best = no_best<Key>();
  for (int64_t run = split(j, inner.size).quotient + first; run * inner.size < stop; run += runs) {
    const int64_t begin = std::max<int64_t>(0, j - run * inner.size);
    const auto n = static_cast<uint32_t>(std::min(inner.size, stop - run * inner.size) - begin);
    const Place at = place(p.reduced() + 1, p.reduced_count - 1, run);
    const Key* from = base + at.offset + begin * inner.stride;
    Near<Key> found;
    if constexpr (kLoads > 0) {
      found = scan_run<kLoads>(element, from, n, lane & (lanes - 1), lanes);
    } else {
      found = scan_apart(element, from, inner.stride, n, lane & (lanes - 1), lanes);
    }
    // Positions are in memory order, which need not be that of the result's indices.
    if (found.index != ~0u) take(best, {found.key, at.step + (begin + found.index) * inner.step});
  }
  return warp_best(best, std::min<int>(p.plan.lanes, 32));
}

// With kLoads 16-byte loads in flight, or without any.
template <int kLoads, class Element>
__global__ void __launch_bounds__(kThreads, kRowLoads / kThreads / (kLoads ? kLoads : kFewLoads))
    rows(const __grid_constant__ Problem p, const Element element) {
  using Key = typename Element::Key;
  __shared__ Best<Key> warps[kThreads / 32], parts[kCluster];
  if (p.candidates) let_next_launch();
  const int lanes = p.plan.lanes;
  const int row = threadIdx.x >> log2_of(lanes), lane = threadIdx.x & (lanes - 1);
  const int rows_per_block = blockDim.x >> log2_of(lanes);
  for (int64_t block = blockIdx.x; block < p.plan.blocks; block += gridDim.x) {
    if (p.plan.cluster > 1) cluster_arrive();
    const auto [unit, part] = split(block, p.plan.parts);
    const int64_t output = unit * rows_per_block + row;
    const int64_t offset = place(p.axes(), p.axis_count, std::min(output, p.outputs - 1)).offset;
    const Key* base = reinterpret_cast<const Key*>(p.input) + offset;
    const int64_t j = part * p.plan.part_extent;
    Best<Key> best =
        scan<kLoads>(p, element, base, j, std::min(j + p.plan.part_extent, p.walk), lane);
    if (lanes > 32) {
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
      __syncthreads();
      if (threadIdx.x < 32) {
        best = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : no_best<Key>();
        best = warp_best(best);
      }
      __syncthreads();
    }
    if (p.plan.cluster > 1) {
      cluster_wait();  // every block is there to be written to
      if (threadIdx.x == 0) *in_block(&parts[part], 0) = best;
      cluster_arrive();
      cluster_wait();
      if (part > 0) continue;
      if (threadIdx.x < 32) {
        best = threadIdx.x < p.plan.cluster ? parts[threadIdx.x] : no_best<Key>();
        best = warp_best(best);
      }
    }
    if (lane == 0 && output < p.outputs) emit(p, element, output, offset, part, best);
  }
}

}  // namespace

void launch_rows(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    const Kernel<Element> kernel = !problem.plan.vector               ? rows<0, Element>
                                   : problem.plan.loads == kManyLoads ? rows<kManyLoads, Element>
                                                                      : rows<kFewLoads, Element>;
    launch(kernel, problem.plan, problem, element, stream);
  });
}

}  // namespace reduceops::cuda
