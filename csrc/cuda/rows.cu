// Rows: the reduced dim is innermost. `lanes` threads share a row: a few lanes of a warp for short
// rows (their loads lie side by side in memory), a warp, or a block; few long rows are cut into
// parts.
//
// Each thread takes the minimum key of the elements of a 16-byte load, compares it once with its
// best, and remembers only the load; the element is looked up at the end. Bound by reading memory;
// for 8-bit types by the key arithmetic.
#include "cuda/device.cuh"

namespace reduceops::cuda {
namespace {

constexpr int kUnroll = 4;          // independent loads in flight per thread
constexpr int kBlocksResident = 4;  // per multiprocessor: latency is hidden by other rows

// This lane's best of n contiguous elements; the index is the position.
template <class Element, class Key = typename Element::Key>
__device__ Best<Key> scan_run(Element element, const Key* p, int64_t n, int lane, int lanes) {
  constexpr int kWidth = Vector<Key>::kWidth;
  Best<Key> best = no_best<Key>();
  const int64_t misaligned = reinterpret_cast<uintptr_t>(p) % kLoadBytes / sizeof(Key);
  const int64_t head = misaligned ? std::min<int64_t>(kWidth - misaligned, n) : 0;
  const int64_t loads = (n - head) / kWidth;
  for (int64_t i = lane; i < head; i += lanes) take(best, {element.key(p[i]), i});
  for (int64_t i = head + loads * kWidth + lane; i < n; i += lanes)
    take(best, {element.key(p[i]), i});

  const auto* body = reinterpret_cast<const Vector<Key>*>(p + head);
  if (lane < loads) {
    Key smallest = std::numeric_limits<Key>::max();
    int64_t at = lane;  // if nothing is below the largest key, the first load holds it too
    for (int64_t v = lane; v < loads; v += int64_t(lanes) * kUnroll) {
      Vector<Key> load[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (v + int64_t(u) * lanes < loads) load[u] = body[v + int64_t(u) * lanes];
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (v + int64_t(u) * lanes < loads) {
          Key key = element.key(load[u].at[0]);
#pragma unroll
          for (int i = 1; i < kWidth; ++i) key = std::min(key, element.key(load[u].at[i]));
          if (key < smallest) {
            smallest = key;
            at = v + int64_t(u) * lanes;
          }
        }
      }
    }
    const Vector<Key> found = body[at];
    int position = 0;
#pragma unroll
    for (int i = kWidth - 1; i >= 0; --i) {
      if (element.key(found.at[i]) == smallest) position = i;
    }
    take(best, {smallest, head + at * kWidth + position});
  }
  return best;
}

// This lane's best of reduced positions [j, stop) of the group at `base`.
template <bool kVector, class Element, class Key = typename Element::Key>
__device__ Best<Key> scan(const Problem& p, Element element, const Key* base, int64_t j,
                          int64_t stop, int lane) {
  Best<Key> best = no_best<Key>();
  if constexpr (kVector) {
    const Dim inner = p.reduced()[0];
    int64_t start = p.reduced_count == 1 ? j : j % inner.size;
    while (j < stop) {
      const int64_t n = std::min(inner.size - start, stop - j);
      const Place at = place(p.reduced(), p.reduced_count, j);
      Best<Key> run = scan_run(element, base + at.offset, n, lane, p.lanes);
      if (run.index != no_best<Key>().index)
        take(best, {run.key, at.step + run.index * inner.step});
      j += n;
      start = 0;
    }
  } else {
    for (j += lane; j < stop; j += p.lanes) {
      const Place at = place(p.reduced(), p.reduced_count, j);
      take(best, {element.key(base[at.offset]), at.step});
    }
  }
  return best;
}

template <bool kVector, class Element>
__global__ void __launch_bounds__(kThreads, kBlocksResident)
    rows(const __grid_constant__ Problem p, Element element) {
  using Key = typename Element::Key;
  __shared__ Best<Key> warps[32];
  const int rows_per_block = blockDim.x / p.lanes, lane = threadIdx.x % p.lanes;
  for (int64_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const auto [unit, part] = split(block, p.parts);
    const int64_t output = unit * rows_per_block + threadIdx.x / p.lanes;
    const Place at = place(p.kept(), p.kept_count, output);
    Best<Key> best = no_best<Key>();
    if (output < p.outputs) {
      const Key* base = static_cast<const Key*>(p.input) + at.offset;
      const int64_t j = part * p.part_extent;
      best = scan<kVector>(p, element, base, j, std::min(j + p.part_extent, p.walk), lane);
    }
    best = warp_best(best, std::min(p.lanes, 32));
    if (p.lanes > 32) {
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
      __syncthreads();
      if (threadIdx.x < 32) {
        best = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : no_best<Key>();
        best = warp_best(best, 32);
      }
      __syncthreads();
    }
    if (lane == 0 && output < p.outputs) emit(p, element, output, at, part, best);
  }
}

}  // namespace

void launch_rows(const Reduction& r, const Plan& plan, const Problem& problem, void* stream) {
  visit_element(r, [&](auto element) {
    const auto kernel =
        plan.vector ? rows<true, decltype(element)> : rows<false, decltype(element)>;
    kernel<<<grid_of(plan.blocks), plan.threads, 0, static_cast<cudaStream_t>(stream)>>>(problem,
                                                                                         element);
  });
  check(cudaGetLastError());
}

}  // namespace reduceops::cuda
