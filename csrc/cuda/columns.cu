// Columns: a kept dim is innermost. `lanes` threads lie side by side over columns (one each, or as many as 16 bytes
// hold), the block's other threads take every n-th reduced position; few columns are cut into parts as well.
//
// Bound by reading memory where 16-byte loads are possible; with an odd row pitch by the number of loads in flight.
#include "cuda/device.cuh"

namespace reduceops::cuda {
namespace {

constexpr int kUnroll = 4;  // independent loads in flight per thread

template <bool kVector, class Element>
__global__ void columns(const __grid_constant__ Problem p, Element element) {
  using Key = typename Element::Key;
  constexpr int kWidth = kVector ? Vector<Key>::kWidth : 1;
  struct alignas(sizeof(Key) * kWidth) Load {
    Key at[kWidth];
  };
  extern __shared__ char shared[];
  auto* bests = reinterpret_cast<Best<Key>*>(shared);
  const int shares = blockDim.x / p.lanes;  // threads per column
  const int share = threadIdx.x / p.lanes, lane = threadIdx.x % p.lanes;
  const Dim inner = p.kept()[0];
  const int64_t tiles = (inner.size / kWidth + p.lanes - 1) / p.lanes;
  for (int64_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const int part = block % p.parts;
    const int64_t tile = block / p.parts;
    const int64_t outer = tile / tiles, column = (tile % tiles * p.lanes + lane) * kWidth;
    const bool inside = column < inner.size;
    const int64_t begin = part * p.part_extent, stop = std::min(begin + p.part_extent, p.walk);
    Key smallest[kWidth];
    uint32_t turn[kWidth];  // the thread's turn at which it met its best: position begin + share + turn * shares
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      smallest[c] = std::numeric_limits<Key>::max();
      turn[c] = 0;
    }
    if (inside) {
      const Key* base = static_cast<const Key*>(p.input) + place(p.kept() + 1, p.kept_count - 1, outer).offset +
                        column * inner.stride;
      uint32_t t = 0;
      for (int64_t j = begin + share; j < stop; j += int64_t(shares) * kUnroll, t += kUnroll) {
        Load load[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int64_t position = j + int64_t(u) * shares;
          if (position < stop) {
            load[u] = *reinterpret_cast<const Load*>(base + place(p.reduced(), p.reduced_count, position).offset);
          }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (j + int64_t(u) * shares < stop) {
#pragma unroll
            for (int c = 0; c < kWidth; ++c) {
              const Key key = element.key(load[u].at[c]);
              if (key < smallest[c]) {
                smallest[c] = key;
                turn[c] = t + u;
              }
            }
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      // A walk over columns is in index order, so positions compare like indices until the winner is known.
      Best<Key> best = no_best<Key>();
      if (begin + share < stop) best = {smallest[c], begin + share + int64_t(turn[c]) * shares};
      if (shares > 1) {
        bests[threadIdx.x] = best;
        for (int half = shares / 2; half > 0; half /= 2) {
          __syncthreads();
          if (share < half) {
            take(best, bests[threadIdx.x + half * p.lanes]);
            bests[threadIdx.x] = best;
          }
        }
        __syncthreads();
      }
      if (share == 0 && inside) {
        best.index = place(p.reduced(), p.reduced_count, best.index).step;
        emit(p, element, outer * inner.size + column + c, part, best);
      }
    }
  }
}

}  // namespace

void launch_columns(const Reduction& r, const Plan& plan, const Problem& problem, void* stream) {
  visit_element(r, [&](auto element) {
    using Key = typename decltype(element)::Key;
    const auto kernel = plan.vector ? columns<true, decltype(element)> : columns<false, decltype(element)>;
    const size_t shared = plan.threads * sizeof(Best<Key>);
    kernel<<<grid_of(plan.blocks), plan.threads, shared, static_cast<cudaStream_t>(stream)>>>(problem, element);
  });
  check(cudaGetLastError());
}

}  // namespace reduceops::cuda
