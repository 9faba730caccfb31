// Values that follow each other in memory along other dims than in the results: a block copies a
// tile, by rows of memory into shared memory and by rows of results out of it.
//
// Bound by memory, of which both sides are whole sectors.
#pragma once

#include <algorithm>

#include "cuda/device.cuh"
#include "reduction.h"

namespace reduceops::cuda {

constexpr int kTransposeSide = 64;      // elements of a tile along memory, and along results
constexpr int kTransposeDims = 4;       // most along memory, along results, and of the rest
constexpr uint32_t kTransposeBand = 4;  // tiles along memory

struct Transposition {
  struct Run {
    int64_t size = 1;
    uint32_t tiles = 1;
    int count = 0;
    Dim dims[kTransposeDims];

    // Takes dims out of `from` that follow each other by `pitch` (the first has a pitch of 1),
    // until they fill a tile. Number `kept` stays there.
    void take(Dims& from, int64_t Dim::* pitch, int kept) {
      for (int d = 0; d < from.count && count < kTransposeDims && size < kTransposeSide;) {
        if (d == kept || from.dim[d].*pitch != size) {
          ++d;
          continue;
        }
        dims[count++] = from.dim[d];
        size *= from.dim[d].size;
        std::copy(from.dim + d + 1, from.dim + from.count, from.dim + d);
        --from.count;
        d = 0;
      }
      tiles = static_cast<uint32_t>(ceil_div(size, kTransposeSide));
    }
  };
  Run memory, results;
  int64_t outers = 1;
  int outer_count = 0;
  Dim outer[kTransposeDims];

  int64_t blocks() const { return outers * memory.tiles * results.tiles; }

  // `dims` in the order of the results. False where tiles would not be worth it: at least half of
  // their elements are to be used.
  bool make(Dims dims) {
    if (dims.count == 0 || dims.dim[0].stride == 0) return false;  // a copy of what is read once
    memory.take(dims, &Dim::stride, 0);  // the innermost of the results is left for these
    results.take(dims, &Dim::step, -1);
    if (dims.count > kTransposeDims) return false;
    for (int d = 0; d < dims.count; ++d) {
      outer[outer_count++] = dims.dim[d];
      outers *= dims.dim[d].size;
    }
    constexpr int64_t kTile = kTransposeSide * kTransposeSide;
    return 2 * memory.size * results.size >= kTile * memory.tiles * results.tiles &&
           blocks() <= kMaxBlocks;
  }
};

// Calls beside() first, for what else a block has to write.
template <class Element, class Beside, class Key = typename Element::Key>
__device__ void transpose_tile(const Key* input, Key* values, const Transposition& t,
                               const Element& element, Beside beside) {
  constexpr int kSide = kTransposeSide, kPad = std::max<int>(4 / sizeof(Key), 1);  // for banks
  constexpr int kRows = kThreads / kSide, kLoads = kSide / kRows;
  __shared__ Key tile[kSide][kSide + kPad];
  __shared__ int64_t from[kSide], to[kSide];  // of the rows of each side
  // Blocks that run together shall write neighbouring tiles of the results, for sectors where two
  // tiles meet are then written once; and read a few neighbouring tiles of memory, for its bursts.
  const uint32_t tiles = t.memory.tiles * t.results.tiles, number = blockIdx.x % tiles;
  const uint32_t band = number / (kTransposeBand * t.results.tiles) * kTransposeBand;
  const uint32_t in_band = number - band * t.results.tiles;
  const uint32_t width = std::min(t.memory.tiles - band, uint32_t{kTransposeBand});
  const uint32_t results_tile = in_band / width, memory_tile = band + in_band % width;
  const Place outer = place(t.outer, t.outer_count, blockIdx.x / tiles);
  const int64_t in_memory = memory_tile * int64_t(kSide),
                in_results = results_tile * int64_t(kSide);
  const int inside_memory = static_cast<int>(std::min<int64_t>(t.memory.size - in_memory, kSide));
  const int inside_results =
      static_cast<int>(std::min<int64_t>(t.results.size - in_results, kSide));
  const int lane = threadIdx.x % kSide, first = threadIdx.x / kSide;
  if (first == 0 && lane < inside_results)
    from[lane] = place(t.results.dims, t.results.count, in_results + lane).offset;
  if (first == 1 && lane < inside_memory)
    to[lane] = place(t.memory.dims, t.memory.count, in_memory + lane).step;
  __syncthreads();
  Key held[kLoads];
#pragma unroll
  for (int l = 0; l < kLoads; ++l) {
    const int row = first + l * kRows;
    if (row < inside_results && lane < inside_memory)
      held[l] = input[outer.offset + from[row] + in_memory + lane];
  }
  beside();
#pragma unroll
  for (int l = 0; l < kLoads; ++l) tile[first + l * kRows][lane] = held[l];
  __syncthreads();
#pragma unroll
  for (int l = 0; l < kLoads; ++l) {
    const int row = first + l * kRows;
    if (row < inside_memory && lane < inside_results)
      values[outer.step + to[row] + in_results + lane] = element.value(tile[lane][row]);
  }
}

}  // namespace reduceops::cuda
