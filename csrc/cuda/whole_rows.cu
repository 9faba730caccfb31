// Rows that their threads hold as a whole: all 16-byte loads of a row are in flight at once, up to
// four of a thread, by a power of two of threads. Those agree on the smallest key first and look
// for its place then, among what they hold. Of a longer row, or a part of one, a block holds
// batches of as many loads, one after the other, and the winning one once more.
//
// Bound by reading memory: the registers are so few that a multiprocessor is full of threads, and
// the chain of instructions before the loads and after them is short.
#include "cuda/combine.cuh"
#include "cuda/keys.cuh"

namespace reduceops::cuda {
namespace {

struct WholeRows {
  const char* input;
  int64_t* indices;      // may be null
  void* values;          // may be null
  int64_t inner, outer;  // strides of the rows' axes in memory, if there are no more than two
  int64_t step;          // of the result index
  uint32_t rows, inner_rows, extent;
  uint32_t threads;  // to a row
  uint32_t parts, part_extent, cluster;
  int axis_count, kept_count;
  bool in_order;  // the results follow each other as the rows do
  int64_t walk;
  Candidates candidates;
  Dim axes[kWholeDims], kept[kWholeDims];

  WholeRows(const Problem& p, const Groups& groups)
      : input(p.input),
        indices(p.indices),
        values(p.values),
        inner(groups.axes.count > 0 ? groups.axes.dim[0].stride : 0),
        outer(groups.axes.count > 1 ? groups.axes.dim[1].stride : 0),
        step(p.dims[p.kept_count].step),
        rows(static_cast<uint32_t>(p.outputs)),
        inner_rows(static_cast<uint32_t>(groups.axes.count > 0 ? groups.axes.dim[0].size : 1)),
        extent(static_cast<uint32_t>(std::min(p.walk, p.plan.part_extent))),
        threads(p.plan.lanes),
        parts(static_cast<uint32_t>(p.plan.parts)),
        part_extent(static_cast<uint32_t>(p.plan.part_extent)),
        cluster(p.plan.cluster),
        axis_count(groups.axes.count),
        kept_count(p.kept_count),
        in_order(p.in_order),
        walk(p.walk),
        candidates(p.candidates) {
    std::copy_n(groups.axes.dim, axis_count, axes);
    std::copy_n(p.dims, kept_count, kept);
  }

  // Where a row begins in the input, and where its result goes.
  __device__ int64_t offset_of_row(uint32_t row) const {
    if (axis_count <= 1) return row * inner;
    if (axis_count > 2) return place(axes, axis_count, row).offset;
    const uint32_t over = row / inner_rows;
    return (row - over * inner_rows) * inner + over * outer;
  }
  __device__ int64_t result_of_row(uint32_t row) const {
    return in_order ? row : place(kept, kept_count, row).step;
  }
};

// In a multiprocessor. With fewer registers than three leave, not all loads would be in flight.
constexpr int whole_blocks(size_t bytes, bool aligned) {
  return room_for(bytes == 4 && aligned ? 4 : 3, kWholeThreads);
}

// kAligned: rows are whole vectors, at their addresses. kBatches: a block to a part of a row, which
// may have more loads.
template <int kLoads, bool kAligned, bool kBatches, class Element>
__global__ void __launch_bounds__(kWholeThreads, whole_blocks(sizeof(typename Element::Key),
                                                              kAligned && !kBatches))
    whole_rows(const __grid_constant__ WholeRows p, const Element element) {
  using Key = typename Element::Key;
  constexpr uint32_t kWidth = Vector<Key>::kWidth;
  if (kBatches && p.candidates) let_next_launch();
  if (kBatches && p.cluster > 1) cluster_arrive();
  const uint32_t threads = p.threads;
  const uint32_t thread = kBatches ? threadIdx.x : threadIdx.x & (threads - 1);
  uint32_t row, part = 0, extent = p.extent;
  int64_t begin = 0;  // of the part
  if (kBatches) {
    row = blockIdx.x / p.parts;
    part = blockIdx.x - row * p.parts;
    begin = part * int64_t(p.part_extent);
    extent = static_cast<uint32_t>(std::min<int64_t>(p.part_extent, p.walk - begin));
  } else {
    row = (blockIdx.x * blockDim.x + threadIdx.x) >> log2_of(threads);
  }
  const Key* first =
      reinterpret_cast<const Key*>(p.input) + (p.offset_of_row(std::min(row, p.rows - 1)) + begin);
  // Before and after whole vectors there are fewer elements than two of them hold.
  uint32_t head = 0;
  if (!kAligned) head = -(reinterpret_cast<uintptr_t>(first) / sizeof(Key)) % kWidth;
  if (kBatches) head = std::min(head, extent);  // the last part may be that short
  const uint32_t vectors = (extent - head) / kWidth, edges = extent - vectors * kWidth;
  const auto edge = [&](uint32_t i) { return i < head ? i : i + vectors * kWidth; };
  Key at_edge{};
  if (!kAligned && thread < edges) at_edge = first[edge(thread)];
  // Past the end there is the last vector again.
  const auto vector = [&](uint32_t v) { return std::min(thread + v * threads, vectors - 1); };
  Vector<Key> held[kLoads];
  const auto hold = [&](uint32_t from) {
#pragma unroll
    for (int v = 0; v < kLoads; ++v)
      held[v] =
          Vector<Key>::load(reinterpret_cast<const Vector<Key>*>(first + head) + vector(from + v));
  };
  Key smallest = std::numeric_limits<Key>::max();
  uint32_t from = 0;  // the vector of the thread with which the batch of the smallest begins
  if (kBatches) {
#pragma unroll 1
    for (uint32_t v = 0; v * threads < vectors; v += kLoads) {
      hold(v);
      const Key key = smallest_of(element, held);
      if (key < smallest) {
        smallest = key;
        from = v;
      }
    }
  } else {
    hold(0);
  }

  Near<Key> best;
  if (!kAligned) {
    if (thread < edges) best.take(element.key(at_edge), edge(thread));
    for (uint32_t i = thread + threads; i < edges; i += threads)
      best.take(element.key(first[edge(i)]), edge(i));
  }
  if (!kBatches) smallest = smallest_of(element, held);
  const uint32_t lanes = std::min(threads, 32u);
  const Key key = warp_min(std::min(smallest, best.key), lanes);
  uint32_t index = best.key == key ? best.index : kNowhere;
  if (smallest == key && (!kBatches || vectors > 0)) {
    if (kBatches) hold(from);
    const uint32_t at = first_of(element, held, key);
    index = std::min(index, head + vector(from + at / kWidth) * kWidth + at % kWidth);
  }
  __shared__ Near<Key> warps[kWholeThreads / 32];
  best = combine_warps(Near<Key>{key, warp_min(index, lanes)}, thread, threads, warps);
  Far<Key> result{best.key, begin + best.index};
  if constexpr (kBatches) {
    if (p.candidates) {
      result.index *= p.step;
      if (thread == 0) put(p.candidates, blockIdx.x, result);
      return;
    }
    __shared__ Far<Key> parts[kCluster];
    if (p.cluster > 1 && !cluster_combine(result, part, p.cluster, parts)) return;
  }
  if (thread > 0 || row >= p.rows) return;
  const int64_t to = p.result_of_row(row);
  if (p.indices) p.indices[to] = result.index * p.step;
  if (p.values) static_cast<Key*>(p.values)[to] = element.value(first[result.index]);
}

template <int kLoads, bool kBatches, class Element>
void launch_loads(const Reduction& r, const Problem& problem, Element element, void* stream) {
  auto kernel = whole_rows<kLoads, true, kBatches, Element>;
  if constexpr (kLoads > 1) {
    if (!problem.plan.vector) kernel = whole_rows<kLoads, false, kBatches, Element>;
  }
  launch(kernel, problem.plan, WholeRows(problem, r.groups), element, stream);
}

}  // namespace

void launch_whole_rows(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    const Plan& plan = problem.plan;
    if (plan.batches > 0) return launch_loads<int(kWholeLoads), true>(r, problem, element, stream);
    switch (plan.loads) {
      case 1:
        return launch_loads<1, false>(r, problem, element, stream);
      case 2:
        return launch_loads<2, false>(r, problem, element, stream);
      case 3:
        return launch_loads<3, false>(r, problem, element, stream);
      default:
        return launch_loads<int(kWholeLoads), false>(r, problem, element, stream);
    }
  });
}

}  // namespace reduceops::cuda
