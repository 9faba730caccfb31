// Rows of several short runs, whose packs are counted through all of them: which run a pack is of
// costs a thread a few instructions, where run by run the lanes would wait for each. The last pack
// of a run ends where the run does, so elements may come twice, and packs begin anywhere.
//
// Bound by memory; 8- and 16-bit types by instructions.
#pragma once

#include "cuda/rows.cuh"

namespace reduceops::cuda {

// Of a thread in flight, and blocks that shall find room in a multiprocessor beside them.
constexpr int kRunLoads = 4, kRunBlocks = 4;

// The state of this lane of reduced positions [j, stop), which are whole runs, of the group at
// `base`. Packs need not come in the order of the result's indices, so those are compared.
template <class Source>
__device__ Near<typename Source::Key> scan_packs(const Problem& p, const Source& source,
                                                 typename Source::At base, int64_t j, int64_t stop,
                                                 uint32_t lane, uint32_t lanes) {
  using Key = typename Source::Key;
  constexpr uint32_t kWidth = Vector<Key>::kWidth;
  const Dim inner = p.reduced()[0];
  const auto size = static_cast<uint32_t>(inner.size), step = static_cast<uint32_t>(inner.step);
  const uint32_t packs = (size + kWidth - 1) / kWidth;  // of a run
  const uint32_t first = static_cast<uint32_t>(j) / size * packs;
  const uint32_t n = static_cast<uint32_t>(stop) / size * packs - first;
  using Best = Comparable<typename Source::Element>;
  Best best = kLast<Best>;
  uint32_t found = kNowhere;
  REDUCEOPS_ROLLED
  for (uint32_t i = lane; i < n; i += kRunLoads * lanes) {
    typename Source::At at[kRunLoads];
    uint32_t rest[kRunLoads], index[kRunLoads];
#pragma unroll
    for (int u = 0; u < kRunLoads; ++u) {
      // Past the end there is the last pack again.
      const uint32_t pack = first + std::min(i + u * lanes, n - 1);
      rest[u] = p.by_size[0].quotient(pack);
      const uint32_t from = std::min((pack - rest[u] * packs) * kWidth, size - kWidth);
      at[u] = source.along(base, inner, from);
      index[u] = from * step;
    }
    REDUCEOPS_ROLLED
    for (int d = 1; d < p.reduced_count; ++d) {
      const Dim dim = p.reduced()[d];
#pragma unroll
      for (int u = 0; u < kRunLoads; ++u) {
        const uint32_t over = p.by_size[d].quotient(rest[u]);
        const uint32_t digit = rest[u] - over * static_cast<uint32_t>(dim.size);
        at[u] = source.along(at[u], dim, digit);
        index[u] += digit * static_cast<uint32_t>(dim.step);
        rest[u] = over;
      }
    }
    typename Source::Pack held[kRunLoads];
#pragma unroll
    for (int u = 0; u < kRunLoads; ++u) held[u] = source.pack(at[u], inner);
    Best leasts[kRunLoads], least = kLast<Best>;
#pragma unroll
    for (int u = 0; u < kRunLoads; ++u) {
      leasts[u] = least_of(source.element, {source.bits(held[u])});
      least = lesser(least, leasts[u]);
    }
    if (wins(best, least)) continue;
    if (!same(best, least)) found = kNowhere;
    best = least;
#pragma unroll
    for (int u = 0; u < kRunLoads; ++u) {
      if (!same(leasts[u], least)) continue;
      const uint32_t at = first_of(source.element, {source.bits(held[u])}, least);
      found = std::min(found, index[u] + at * step);
    }
  }
  if (found == kNowhere) return {};
  return {key_of_comparable(source.element, best), found};
}

template <class Source>
__global__ void __launch_bounds__(kThreads, kRunBlocks)
    packed_rows(const Source source, const __grid_constant__ Problem p) {
  using State = Far<typename Source::Key>;
  take_rows(p, source, Extreme(), [&](auto base, int64_t j, int64_t stop, int lane) {
    const auto found = scan_packs(p, source, base, j, stop, lane, p.plan.rows.lanes);
    return found.none() ? State() : widen(found, found.index);
  });
}

}  // namespace reduceops::cuda
