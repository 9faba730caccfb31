// Columns: a kept dim is innermost. `lanes` threads lie side by side over columns (one each, or as
// many as 16 bytes hold); where columns are few, threads share them by turns and the reduced extent
// is cut into parts as well.
//
// Bound by reading memory where 16-byte loads are possible; with an odd row pitch by the number of
// loads in flight.
#include "cuda/results.cuh"

namespace reduceops::cuda {
namespace {

constexpr int kPitch = kThreads + 1;  // of bests in shared memory; odd, for its banks

// Whether each thread has all of its columns, and writes their results itself.
__host__ __device__ inline bool alone(const Problem& p) {
  return p.plan.shares == 1 && p.reduced_count == 1;
}

// The results of a block's groups from the bests of their threads, of which there are
// bests[c * kPitch + thread] for column c of a thread's load. Neighbouring threads take
// neighbouring columns.
template <int kWidth, class Element, class Key = typename Element::Key>
__device__ void combine_shares(const Problem& p, Element element, const Near<Key>* bests,
                               int64_t unit, int64_t part) {
  const uint32_t lanes = p.plan.lanes, shares = p.plan.shares;
  const uint32_t groups = p.plan.threads / (lanes * shares), columns = lanes * kWidth;
  const uint32_t takers = std::clamp<uint32_t>(shares / kWidth, 1, 32);  // of a column
  const Dim inner = p.kept()[0];
  for (uint32_t first = 0; first < groups * columns * takers; first += blockDim.x) {
    const uint32_t item = first + threadIdx.x, taker = item & (takers - 1);
    const uint32_t group = (item >> log2_of(takers)) / columns;
    const uint32_t here = (item >> log2_of(takers)) - group * columns;
    Near<Key> best;
    if (group < groups) {
      const Near<Key>* of_column = bests + here % kWidth * kPitch + here / kWidth;
      for (uint32_t share = taker; share < shares; share += takers) {
        const Near<Key> other = of_column[(group * shares + share) * lanes];
        best.take(other.key, other.index);
      }
    }
    best = warp_best(best, takers);
    const int64_t tile = unit * groups + group;
    const auto [outer, across] = split(tile, p.plan.across);
    const int64_t column = across * columns + here;
    if (taker > 0 || group >= groups || tile >= p.plan.tiles || column >= inner.size) continue;
    const Place base = place(p.kept() + 1, p.kept_count - 1, outer);
    const Place at{base.offset + column * inner.stride, base.step + column * inner.step};
    const int64_t position = part * p.plan.part_extent + best.index;
    const int64_t index = place(p.reduced(), p.reduced_count, position).step;
    emit(p, element, outer * inner.size + column, at, part, Best<Key>{best.key, index});
  }
}

template <bool kVector, class Element>
__global__ void columns(const __grid_constant__ Problem p, Element element) {
  using Key = typename Element::Key;
  constexpr int kWidth = kVector ? Vector<Key>::kWidth : 1;
  constexpr int kUnroll = 8;  // independent loads in flight per thread
  struct alignas(sizeof(Key) * kWidth) Load {
    Key at[kWidth];
  };
  extern __shared__ char shared[];
  auto* bests = reinterpret_cast<Near<Key>*>(shared);
  if (p.candidates) let_next_launch();
  const uint32_t lanes = p.plan.lanes, shares = p.plan.shares;  // shares: a power of two
  const uint32_t column_of = threadIdx.x / lanes, lane = threadIdx.x - column_of * lanes;
  const int shares_log2 = log2_of(shares);
  const uint32_t share = column_of & (shares - 1), group = column_of >> shares_log2;
  const uint32_t groups = p.plan.threads / (lanes * shares);
  const Dim inner = p.kept()[0];
  for (int64_t block = blockIdx.x; block < p.plan.blocks; block += gridDim.x) {
    const auto [unit, part] = split(block, p.plan.parts);
    const int64_t tile = unit * groups + group;
    const auto [outer, across] = split(tile, p.plan.across);
    const int64_t column = (across * lanes + lane) * kWidth;
    const bool inside = group < groups && tile < p.plan.tiles && column < inner.size;
    const int64_t begin = part * p.plan.part_extent,
                  stop = std::min(begin + p.plan.part_extent, p.walk);
    Key smallest[kWidth];
    uint32_t turn[kWidth];  // the thread's turn at which it met its best: position begin + share +
                            // turn * shares
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      smallest[c] = std::numeric_limits<Key>::max();
      turn[c] = 0;
    }
    if (inside) {
      const Key* base = reinterpret_cast<const Key*>(p.input) +
                        place(p.kept() + 1, p.kept_count - 1, outer).offset + column * inner.stride;
      // Positions are taken in turns of `shares`.
      const auto extent = static_cast<uint32_t>(stop - begin);
      const uint32_t turns = share < extent ? ((extent - share - 1) >> shares_log2) + 1 : 0;
      const auto take_turn = [&](const Load& load, uint32_t t) {
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          const Key key = element.key(load.at[c]);
          if (key < smallest[c]) {
            smallest[c] = key;
            turn[c] = t;
          }
        }
      };
      if (p.reduced_count == 1) {
        const int64_t step = shares * p.reduced()[0].stride;
        const Key* next = base + (begin + share) * p.reduced()[0].stride;
        const auto take_turns = [&]<int kTurns>(std::integral_constant<int, kTurns>, uint32_t t) {
          Load load[kTurns];
#pragma unroll
          for (int u = 0; u < kTurns; ++u, next += step)
            load[u] = *reinterpret_cast<const Load*>(next);
#pragma unroll
          for (int u = 0; u < kTurns; ++u) take_turn(load[u], t + u);
        };
        uint32_t t = 0;
        for (; t + kUnroll <= turns; t += kUnroll)
          take_turns(std::integral_constant<int, kUnroll>(), t);
        for (; t + 2 <= turns; t += 2) take_turns(std::integral_constant<int, 2>(), t);
        if (t < turns) take_turns(std::integral_constant<int, 1>(), t);
      } else {
#pragma unroll 1
        for (uint32_t t = 0; t < turns; ++t) {
          const int64_t position = begin + share + int64_t(t) * shares;
          const Key* at = base + place(p.reduced(), p.reduced_count, position).offset;
          take_turn(*reinterpret_cast<const Load*>(at), t);
        }
      }
    }
    if (alone(p)) {
      const Place at = place(p.kept() + 1, p.kept_count - 1, outer);
      const Results<Element> results(
          p, {at.offset + column * inner.stride, at.step + column * inner.step}, inner,
          outer * inner.size + column, part, begin);
      if (!inside) continue;
      if (results.only_indices()) {
        results.put_indices(0, kWidth, turn);
        continue;
      }
#pragma unroll
      for (int c = 0; c < kWidth; ++c) results.put(element, c, smallest[c], turn[c]);
      continue;
    }
    // A walk over columns is in index order, so positions compare like indices until the winner is
    // known.
    const bool any = inside && begin + share < stop;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      Near<Key> best;
      if (any) best = {smallest[c], share + turn[c] * shares};
      bests[c * kPitch + threadIdx.x] = best;
    }
    __syncthreads();
    combine_shares<kWidth>(p, element, bests, unit, part);
    __syncthreads();
  }
}

}  // namespace

void launch_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_element(r, [&](auto element) {
    using Element = decltype(element);
    using Key = typename Element::Key;
    const Kernel<Element> kernel =
        problem.plan.vector ? columns<true, Element> : columns<false, Element>;
    const size_t columns_of_thread = problem.plan.vector ? Vector<Key>::kWidth : 1;
    const size_t shared = alone(problem) ? 0 : columns_of_thread * kPitch * sizeof(Near<Key>);
    launch(kernel, problem.plan.blocks, problem, element, shared, stream);
  });
}

}  // namespace reduceops::cuda
