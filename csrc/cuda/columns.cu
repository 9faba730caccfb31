// Columns: a kept dim is innermost. `lanes` threads lie side by side over columns (one each, or as
// many as 16 bytes hold); where columns are few, threads share them by turns and the reduced extent
// is cut into parts as well.
//
// Bound by reading memory where 16-byte loads are possible; with an odd row pitch by the number of
// loads in flight.
#include "cuda/results.cuh"

namespace reduceops::cuda {
namespace {

template <bool kVector, class Element>
__global__ void columns(const __grid_constant__ Problem p, Element element) {
  using Key = typename Element::Key;
  constexpr int kWidth = kVector ? Vector<Key>::kWidth : 1;
  constexpr int kUnroll = 8;  // independent loads in flight per thread
  struct alignas(sizeof(Key) * kWidth) Load {
    Key at[kWidth];
  };
  extern __shared__ char shared[];
  if (p.candidates) let_next_launch();
  auto* bests = reinterpret_cast<Best<Key>*>(shared);
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
      // Positions are taken in turns of `shares`; with one reduced dim an address is one step from
      // the last.
      const bool plain = p.reduced_count == 1;
      const int64_t step = plain ? shares * p.reduced()[0].stride : 0;
      const Key* next = base + (plain ? (begin + share) * p.reduced()[0].stride : 0);
      const auto extent = static_cast<uint32_t>(stop - begin);
      const uint32_t turns = share < extent ? ((extent - share - 1) >> shares_log2) + 1 : 0;
      const auto read = [&](uint32_t t) {
        const Key* at = next;
        if (plain) {
          next += step;
        } else {
          at += place(p.reduced(), p.reduced_count, begin + share + int64_t(t) * shares).offset;
        }
        return *reinterpret_cast<const Load*>(at);
      };
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
      const auto take_turns = [&]<int kTurns>(std::integral_constant<int, kTurns>, uint32_t t) {
        Load load[kTurns];
#pragma unroll
        for (int u = 0; u < kTurns; ++u) load[u] = read(t + u);
#pragma unroll
        for (int u = 0; u < kTurns; ++u) take_turn(load[u], t + u);
      };
      uint32_t t = 0;
      for (; t + kUnroll <= turns; t += kUnroll)
        take_turns(std::integral_constant<int, kUnroll>(), t);
      for (; t + 2 <= turns; t += 2) take_turns(std::integral_constant<int, 2>(), t);
      if (t < turns) take_turns(std::integral_constant<int, 1>(), t);
    }
    const Place at = place(p.kept() + 1, p.kept_count - 1, outer);
    if (shares == 1 && p.reduced_count == 1) {
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
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      // A walk over columns is in index order, so positions compare like indices until the winner
      // is known.
      Best<Key> best = no_best<Key>();
      if (begin + share < stop) best = {smallest[c], begin + share + int64_t(turn[c]) * shares};
      if (shares > 1) {
        bests[threadIdx.x] = best;
        for (uint32_t half = shares / 2; half > 0; half /= 2) {
          __syncthreads();
          if (share < half && group < groups) {
            take(best, bests[threadIdx.x + half * lanes]);
            bests[threadIdx.x] = best;
          }
        }
        __syncthreads();
      }
      if (share == 0 && inside) {
        best.index = place(p.reduced(), p.reduced_count, best.index).step;
        const int64_t here = column + c;
        const Place out{at.offset + here * inner.stride, at.step + here * inner.step};
        emit(p, element, outer * inner.size + here, out, part, best);
      }
    }
  }
}

}  // namespace

void launch_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_element(r, [&](auto element) {
    using Element = decltype(element);
    const Kernel<Element> kernel =
        problem.plan.vector ? columns<true, Element> : columns<false, Element>;
    launch(kernel, problem.plan.blocks, problem, element,
           kThreads * sizeof(Best<typename Element::Key>), stream);
  });
}

}  // namespace reduceops::cuda
