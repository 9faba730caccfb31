// Rows that their threads hold as a whole: all 16-byte loads of a row are in flight at once, up to
// four of a thread, by a power of two of threads. Those agree on the smallest key first and look
// for its place then, among what they hold.
//
// Bound by reading memory: the registers are so few that a multiprocessor is full of threads, and
// the chain of instructions before the loads and after them is short.
#include "cuda/keys.cuh"

namespace reduceops::cuda {
namespace {

struct WholeRows {
  const char* input;
  int64_t* indices;  // may be null
  void* values;      // may be null
  Dim inner, outer;  // of the rows
  int64_t step;      // of the result index
  uint32_t rows, inner_rows, outer_rows, extent;
  uint32_t threads;  // to a row

  explicit WholeRows(const Problem& p)
      : input(p.input),
        indices(p.indices),
        values(p.values),
        inner(p.kept_count > 0 ? p.dims[0] : Dim{1, 0, 0}),
        outer(p.kept_count > 1 ? p.dims[1] : Dim{1, 0, 0}),
        step(p.dims[p.kept_count].step),
        rows(static_cast<uint32_t>(p.outputs)),
        inner_rows(static_cast<uint32_t>(inner.size)),
        outer_rows(static_cast<uint32_t>(outer.size)),
        extent(static_cast<uint32_t>(p.walk)),
        threads(p.plan.lanes) {}
};

// In a multiprocessor. With fewer registers than three leave, not all loads would be in flight.
constexpr int whole_blocks(size_t bytes, bool aligned) {
  return room_for(bytes == 4 && aligned ? 4 : 3, kWholeThreads);
}

// kAligned: rows are whole vectors, at their addresses.
template <int kLoads, bool kAligned, class Element>
__global__ void __launch_bounds__(kWholeThreads,
                                  whole_blocks(sizeof(typename Element::Key), kAligned))
    whole_rows(const __grid_constant__ WholeRows p, const Element element) {
  using Key = typename Element::Key;
  constexpr uint32_t kWidth = Vector<Key>::kWidth;
  const uint32_t threads = p.threads, thread = threadIdx.x & (threads - 1);
  const uint32_t row = (blockIdx.x * blockDim.x + threadIdx.x) >> log2_of(threads);
  const uint32_t number = std::min(row, p.rows - 1);
  int64_t offset = number * p.inner.stride, to = number * p.inner.step;
  if (p.outer_rows > 1) {
    const uint32_t outer = number / p.inner_rows, inner = number - outer * p.inner_rows;
    offset = inner * p.inner.stride + outer * p.outer.stride;
    to = inner * p.inner.step + outer * p.outer.step;
  }
  const Key* first = reinterpret_cast<const Key*>(p.input) + offset;
  // Before and after whole vectors there are fewer elements than two of them hold.
  uint32_t head = 0;
  if (!kAligned) head = -(reinterpret_cast<uintptr_t>(first) / sizeof(Key)) % kWidth;
  const uint32_t vectors = (p.extent - head) / kWidth, edges = p.extent - vectors * kWidth;
  const auto edge = [&](uint32_t i) { return i < head ? i : i + vectors * kWidth; };
  Key at_edge{};
  if (!kAligned && thread < edges) at_edge = first[edge(thread)];
  // Past the end there is the last vector again.
  const auto vector = [&](uint32_t v) { return std::min(thread + v * threads, vectors - 1); };
  Vector<Key> held[kLoads];
#pragma unroll
  for (int v = 0; v < kLoads; ++v)
    held[v] = Vector<Key>::load(reinterpret_cast<const Vector<Key>*>(first + head) + vector(v));

  Near<Key> best;
  if (!kAligned) {
    if (thread < edges) best.take(element.key(at_edge), edge(thread));
    for (uint32_t i = thread + threads; i < edges; i += threads)
      best.take(element.key(first[edge(i)]), edge(i));
  }
  const Key smallest = smallest_of(element, held);
  const uint32_t lanes = std::min(threads, 32u);
  const Key key = warp_min(std::min(smallest, best.key), lanes);
  uint32_t index = best.key == key ? best.index : kNowhere;
  if (smallest == key) {
    const uint32_t at = first_of(element, held, key);
    index = std::min(index, head + vector(at / kWidth) * kWidth + at % kWidth);
  }
  best = {key, warp_min(index, lanes)};
  if (threads > 32) {
    __shared__ Near<Key> warps[kWholeThreads / 32];
    const uint32_t warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) warps[warp] = best;
    __syncthreads();
    if (thread >= 32) return;
    best = warp_best(thread < threads / 32 ? warps[warp + thread] : Near<Key>());
  }
  if (thread > 0 || row >= p.rows) return;
  if (p.indices) p.indices[to] = best.index * p.step;
  if (p.values) static_cast<Key*>(p.values)[to] = element.value(first[best.index]);
}

template <int kLoads, class Element>
void launch_loads(const Problem& problem, Element element, void* stream) {
  const auto kernel =
      problem.plan.vector ? whole_rows<kLoads, true, Element> : whole_rows<kLoads, false, Element>;
  launch(kernel, problem.plan, WholeRows(problem), element, stream);
}

}  // namespace

void launch_whole_rows(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    switch (problem.plan.loads) {
      case 2:
        return launch_loads<2>(problem, element, stream);
      case 3:
        return launch_loads<3>(problem, element, stream);
      default:
        return launch_loads<4>(problem, element, stream);
    }
  });
}

}  // namespace reduceops::cuda
