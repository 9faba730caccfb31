// Values that follow each other in memory along other dims than in the results: a block copies a
// tile, by rows of memory into shared memory and by rows of results out of it.
//
// Bound by memory, of which both sides are whole sectors, and where one side is short by
// instructions.
#pragma once

#include "cuda/device.cuh"
#include "cuda/source.cuh"
#include "cuda/transposition.h"

namespace reduceops::cuda {

// A store to memory, which a pointer out of shared memory is not known to point to.
template <class T>
__device__ void store_global(T* to, T value) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(to));
#endif
  *to = value;
}

// Calls beside() first, for what else a block has to write. kSquare: what the sides of a tile are
// is known to the compiler, for a tenth of the time.
template <bool kSquare, class Element, class Beside, class Key = typename Element::Key>
__device__ void transpose_tile(const Key* input, Key* values, const Transposition& t,
                               const Element& element, Beside beside) {
  constexpr int kLoads = kTransposeTile / kThreads;
  const uint32_t memory_side = kSquare ? kTransposeSide : t.memory.side;
  const uint32_t results_side = kSquare ? kTransposeSide : t.results.side;
  const int memory_log2 = log2_of(memory_side), results_log2 = log2_of(results_side);
  const int pitch = int(memory_side) + kTransposePad<sizeof(Key)>;
  // Where rows of the tile begin in memory, one to a position along results, and in the results.
  const auto sources = reinterpret_cast<const Key**>(dynamic_shared());
  const auto targets = const_cast<Key**>(sources) + results_side;
  auto* const tile = reinterpret_cast<Key*>(targets + memory_side);
  // Blocks that run together shall write neighbouring tiles of the results, for sectors where two
  // tiles meet are then written once; and read a few neighbouring tiles of memory, for its bursts.
  const uint32_t tiles = t.memory.tiles * t.results.tiles, number = blockIdx.x % tiles;
  const uint32_t band = number / (kTransposeBand * t.results.tiles) * kTransposeBand;
  const uint32_t in_band = number - band * t.results.tiles;
  const uint32_t width = std::min(t.memory.tiles - band, uint32_t{kTransposeBand});
  const uint32_t results_tile = in_band / width, memory_tile = band + in_band % width;
  const Place outer = place(t.outer, t.outer_count, blockIdx.x / tiles);
  const int64_t in_memory = int64_t{memory_tile} * memory_side,
                in_results = int64_t{results_tile} * results_side;
  const auto inside = [](const Transposition::Run& run, int64_t from) {
    return static_cast<int>(std::min<int64_t>(run.size - from, run.side));
  };
  const int inside_memory = inside(t.memory, in_memory),
            inside_results = inside(t.results, in_results);
  for (int i = threadIdx.x; i < inside_results; i += kThreads)
    sources[i] = input + outer.offset + in_memory +
                 place(t.results.dims, t.results.count, in_results + i).offset;
  for (int i = threadIdx.x; i < inside_memory; i += kThreads)
    targets[i] =
        values + outer.step + in_results + place(t.memory.dims, t.memory.count, in_memory + i).step;
  __syncthreads();
  // Where in a tile of rows of so many elements a thread has its element number l.
  struct At {
    int row, lane;
  };
  const auto at = [](int l, int side_log2) {
    if constexpr (kSquare) {
      constexpr int kSide = kTransposeSide, kRows = kThreads / kSide;
      return At{int(threadIdx.x) / kSide + l * kRows, int(threadIdx.x) % kSide};
    }
    const int number = threadIdx.x + l * kThreads, row = number >> side_log2;
    return At{row, number - (row << side_log2)};
  };
  Key held[kLoads];
#pragma unroll
  for (int l = 0; l < kLoads; ++l) {
    const auto [row, lane] = at(l, memory_log2);
    if (row < inside_results && lane < inside_memory) held[l] = load_global(sources[row] + lane);
  }
  beside();
#pragma unroll
  for (int l = 0; l < kLoads; ++l) {
    const auto [row, lane] = at(l, memory_log2);
    tile[row * pitch + lane] = held[l];
  }
  __syncthreads();
#pragma unroll
  for (int l = 0; l < kLoads; ++l) {
    const auto [row, lane] = at(l, results_log2);
    Key* const target = targets[row];  // of a row outside: nothing, and nothing goes there
    const Key value = element.value(tile[lane * pitch + row]);
    if (row < inside_memory && lane < inside_results) store_global(target + lane, value);
  }
}

}  // namespace reduceops::cuda
