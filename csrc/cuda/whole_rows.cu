// Rows that their threads hold as a whole: all 16-byte loads of a row are in flight at once, up to
// four of a thread, by a power of two of threads or by a block. Those agree on the best first and
// look for its place then, among what they hold. Of a longer row, or a part of one, a block holds
// batches of as many loads, one after the other, and the winning one once more.
//
// Mapped rows are several reduced dims that lie side by side in another order than the index counts
// them (all dims of a permuted tensor, say). Among equal elements the first in memory need not have
// the least index, so each thread maps all it has to their indices, those of a batch as long as it
// holds it. Without them, such a row would be read in runs of its innermost dim.
//
// Rows that are folded (fold.h) leave candidates for combine.cu, of each part where they have some.
//
// Bound by reading memory: the registers are so few that a multiprocessor is full of threads, and
// the chain of instructions before the loads and after them is short.
#include "cuda/combine.cuh"
#include "cuda/hand_in.cuh"
#include "cuda/keys.cuh"

namespace reduceops::cuda {
namespace {

struct WholeRows {
  static constexpr bool kMapped = false;
  const char* input;
  Outputs out;
  int64_t inner, outer;  // strides of the rows' axes in memory, if there are no more than two
  int64_t step;          // of the result index
  uint32_t rows, inner_rows, extent;
  uint32_t threads;  // to a row
  uint32_t parts, part_extent, cluster;
  int axis_count, kept_count;
  bool in_order;  // the results follow each other as the rows do
  int64_t walk;
  HandIn hand_in;         // where a row has more parts than a cluster has blocks
  Candidates candidates;  // of rows that are folded
  Dim axes[kWholeDims], kept[kWholeDims];

  WholeRows(const Problem& p, const Groups& groups)
      : input(p.input),
        out(p.out),
        inner(groups.axes.count > 0 ? groups.axes.dim[0].stride : 0),
        outer(groups.axes.count > 1 ? groups.axes.dim[1].stride : 0),
        step(p.dims[p.kept_count].step),
        rows(static_cast<uint32_t>(p.outputs)),
        inner_rows(static_cast<uint32_t>(groups.axes.count > 0 ? groups.axes.dim[0].size : 1)),
        extent(static_cast<uint32_t>(std::min(p.walk, p.plan.part_extent))),
        threads(p.plan.whole_rows.lanes),
        parts(static_cast<uint32_t>(p.plan.parts)),
        part_extent(static_cast<uint32_t>(p.plan.part_extent)),
        cluster(p.plan.cluster),
        axis_count(groups.axes.count),
        kept_count(p.kept_count),
        in_order(p.in_order),
        walk(p.walk),
        hand_in(hands_in(p) ? p.candidates.workspace : nullptr),
        candidates(hands_in(p) ? Candidates{} : p.candidates) {
    std::copy_n(groups.axes.dim, axis_count, axes);
    std::copy_n(p.dims, kept_count, kept);
  }

  static bool hands_in(const Problem& p) { return p.plan.candidate_bytes == kHandInBytes; }

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

struct MappedRows : WholeRows {
  static constexpr bool kMapped = true;
  int dims;
  uint32_t sizes[kMappedDims], steps[kMappedDims];  // the innermost in memory first

  MappedRows(const Problem& p, const Groups& groups)
      : WholeRows(p, groups), dims(groups.reduced.count) {
    step = 1;  // of results, which are indices already
    for (int d = 0; d < dims; ++d) {
      sizes[d] = static_cast<uint32_t>(groups.reduced.dim[d].size);
      steps[d] = static_cast<uint32_t>(groups.reduced.dim[d].step);
    }
  }

  // The index of where a run of the innermost dim begins, by its number in memory.
  __device__ uint32_t index_of_run(uint32_t run) const {
    uint32_t index = 0;
    REDUCEOPS_ROLLED
    for (int d = 1; d < dims - 1; ++d) {
      const uint32_t rest = run / sizes[d];
      index += (run - rest * sizes[d]) * steps[d];
      run = rest;
    }
    return index + run * steps[dims - 1];
  }
  // The index of a position in memory, and the other way round.
  __device__ uint32_t index_of(uint32_t position) const {
    const uint32_t run = position / sizes[0];
    return (position - run * sizes[0]) * steps[0] + index_of_run(run);
  }
  __device__ uint32_t position_of(uint32_t index) const {
    uint32_t position = 0, stride = 1;
    REDUCEOPS_ROLLED
    for (int d = 0; d < dims; ++d) {
      position += index / steps[d] % sizes[d] * stride;
      stride *= sizes[d];
    }
    return position;
  }
  // The least index of some positions from `first` on: a bit to each of them.
  __device__ uint32_t least_index(uint32_t first, uint32_t positions) const {
    uint32_t least = kNowhere;
    while (positions) {
      const uint32_t skipped = __ffs(positions) - 1, position = first + skipped;
      const uint32_t run = position / sizes[0], in_run = position - run * sizes[0];
      least = std::min(least, in_run * steps[0] + index_of_run(run));
      // The rest of the run has larger ones.
      const uint32_t next = skipped + sizes[0] - in_run;
      positions = next < 32 ? positions >> next << next : 0;
    }
    return least;
  }
};

// In a multiprocessor. With fewer registers than three leave, not all loads would be in flight.
constexpr int whole_blocks(size_t bytes, bool aligned) {
  return room_for(bytes == 4 && aligned ? 4 : 3, kWholeThreads);
}

// Elements whose value alone is worth a branch: what is scaled, but for the longest.
template <class Element>
constexpr bool kMayBeAlone = kIsHalf<Element> || std::is_same_v<Element, Product<Float32>>;

// kAligned: rows are whole vectors, at their addresses. kBatches: a block to a part of a row, which
// may have more loads. (What is asked for last of the parameters must not lie far from the others,
// for constants come from memory in lines; the dims at the end are rarely asked for.)
template <int kLoads, bool kAligned, bool kBatches, class Rows, class Element>
__global__ void __launch_bounds__(kWholeThreads, whole_blocks(sizeof(typename Element::Key),
                                                              kAligned && !kBatches))
    whole_rows(const Element element, const __grid_constant__ Rows p) {
  using Key = typename Element::Key;
  constexpr uint32_t kWidth = Vector<Key>::kWidth;
  if (kBatches && p.candidates) let_next_launch();
  if (kBatches && p.cluster > 1) cluster_arrive();
  const uint32_t threads = p.threads;
  uint32_t thread = threadIdx.x, row = blockIdx.x, part = 0, extent = p.extent;
  int64_t begin = 0;  // of the part
  if (kBatches) {
    row = blockIdx.x / p.parts;
    part = blockIdx.x - row * p.parts;
    begin = part * int64_t(p.part_extent);
    extent = static_cast<uint32_t>(std::min<int64_t>(p.part_extent, p.walk - begin));
  } else if (threads < blockDim.x) {
    thread &= threads - 1;
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
  const auto index_of = [&](uint32_t position) {
    if constexpr (Rows::kMapped) return p.index_of(static_cast<uint32_t>(begin) + position);
    return position;
  };
  // Of mapped rows, the least index of all elements held that are the same as the best of them.
  const auto least_index_of = [&](uint32_t from, Comparable<Element> best) {
    uint32_t least = kNowhere;
    if constexpr (Rows::kMapped) {
      const Key key = key_of_comparable(element, best);
      std::conditional_t<(kLoads * kWidth > 32), uint64_t, uint32_t> ties = 0;
#pragma unroll
      for (int l = 0; l < kLoads; ++l)
        ties |= decltype(ties)(ties_of(element, held[l], key)) << (l * kWidth);
#pragma unroll 1
      for (uint32_t l = from; ties != 0; ++l, ties >>= kWidth) {
        const uint32_t position = head + vector(l) * kWidth;
        const auto here = static_cast<uint32_t>(ties) & ((1u << kWidth) - 1);
        least = std::min(least, p.least_index(static_cast<uint32_t>(begin) + position, here));
      }
    }
    return least;
  };
  using Best = Comparable<Element>;
  Best best = kLast<Best>;
  uint32_t from = 0;  // the vector of the thread with which the batch of the best begins
  uint32_t least_index = kNowhere;  // of mapped rows, that of the best
  if (kBatches) {
#pragma unroll 1
    for (uint32_t v = 0; v * threads < vectors; v += kLoads) {
      hold(v);
      const Best least = least_of(element, held);
      if constexpr (Rows::kMapped) {
        // That of the warp, lest lanes be asked whose best is none of it.
        const Best of_warp = least_of_lanes(least, 32);
        if (wins(best, of_warp)) continue;
        if (!same(best, of_warp)) least_index = kNowhere;
        best = of_warp;
        if (same(least, of_warp)) least_index = std::min(least_index, least_index_of(v, least));
      } else if (wins(least, best)) {
        best = least;
        from = v;
      }
    }
  } else {
    hold(0);
  }

  Best at_edges = kLast<Best>;
  uint32_t edge_index = kNowhere;
  if (!kAligned) {
    const auto take = [&](Key bits, uint32_t i) {
      const Best here = comparable(element, bits);
      const uint32_t index = index_of(edge(i));
      if (wins(here, at_edges)) {
        at_edges = here;
        edge_index = index;
      } else if (same(here, at_edges)) {
        edge_index = std::min(edge_index, index);
      }
    };
    if (thread < edges) take(at_edge, thread);
    REDUCEOPS_ROLLED
    for (uint32_t i = thread + threads; i < edges; i += threads) take(first[edge(i)], i);
  }
  if (!kBatches) best = least_of(element, held);
  const uint32_t lanes = std::min(threads, 32u);
  const Best least = least_of_lanes(kAligned ? best : lesser(best, at_edges), lanes);
  if constexpr (!kBatches && kMayBeAlone<Element>) {
    // A value alone needs no place, but for zeros and NaNs, of which the bits are looked up.
    if (!p.out.indices && !p.out.pairs.words && threads <= 32) {
      Key value;
      const bool known = element.value_of_key(key_of_comparable(element, least), value);
      if (__all_sync(~0u, known)) {
        if (thread == 0 && row < p.rows)
          static_cast<Key*>(p.out.values)[p.result_of_row(row)] = value;
        return;
      }
    }
  }
  uint32_t index = !kAligned && same(at_edges, least) ? edge_index : kNowhere;
  if (same(best, least) && (!kBatches || vectors > 0)) {
    if constexpr (Rows::kMapped) {
      index = std::min(index, kBatches ? least_index : least_index_of(0, least));
    } else {
      if (kBatches) hold(from);
      const uint32_t at = first_of(element, held, least);
      index = std::min(index, head + vector(from + at / kWidth) * kWidth + at % kWidth);
    }
  }
  __shared__ Near<Key> warps[kWholeThreads / 32];
  const Near<Key> found = combine_warps(
      Near<Key>{key_of_comparable(element, least), warp_min(index, lanes)}, thread, threads, warps);
  Far<Key> result{found.key, Rows::kMapped ? found.index : begin + found.index};
  if constexpr (kBatches) {
    if (p.hand_in.words) {
      if (part + 1 < p.parts) {
        if (thread == 0) p.hand_in.put(blockIdx.x, result);
        return;
      }
      if (thread > 0) result = {};
      for (uint32_t i = thread; i < part; i += threads)
        merge(result, p.hand_in.template take<Key>(blockIdx.x - part + i));
      __shared__ Far<Key> of_warps[kWholeThreads / 32];
      result = block_combine(result, thread, threads, of_warps);
    }
    __shared__ Far<Key> parts[kCluster];
    if (p.cluster > 1 && !cluster_combine(result, part, p.cluster, parts)) return;
  }
  if (thread > 0 || row >= p.rows) return;
  if constexpr (kBatches) {
    if (p.candidates) {
      result.index *= p.step;
      return put(p.candidates, blockIdx.x, result);  // of a row, or of each of its parts
    }
  }
  p.out.put(p.result_of_row(row), result.index * p.step, [&] {
    int64_t at = result.index;
    if constexpr (Rows::kMapped) at = p.position_of(static_cast<uint32_t>(at));
    return element.value(first[at - begin]);
  });
}

template <int kLoads, bool kBatches, class Element>
void launch_loads(const Reduction& r, const Problem& problem, Element element, void* stream) {
  auto kernel = whole_rows<kLoads, true, kBatches, WholeRows, Element>;
  if constexpr (kLoads > 1) {
    if (!problem.plan.whole_rows.vector)
      kernel = whole_rows<kLoads, false, kBatches, WholeRows, Element>;
  }
  enqueue(kernel, problem.plan, stream, 0, element, WholeRows(problem, r.groups));
}

template <class Element>
void launch_mapped(const Reduction& r, const Problem& problem, Element element, void* stream) {
  constexpr int kLoads = kWholeLoads;
  const auto kernel = problem.plan.whole_rows.batches > 0
                          ? whole_rows<kLoads, false, true, MappedRows, Element>
                          : whole_rows<kLoads, false, false, MappedRows, Element>;
  enqueue(kernel, problem.plan, stream, 0, element, MappedRows(problem, r.groups));
}

}  // namespace

void launch_whole_rows(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    const Plan& plan = problem.plan;
    if (plan.whole_rows.mapped) return launch_mapped(r, problem, element, stream);
    if (plan.whole_rows.batches > 0)
      return launch_loads<int(kWholeLoads), true>(r, problem, element, stream);
    switch (plan.whole_rows.loads) {
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
