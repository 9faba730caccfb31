// Values that follow each other in memory along other dims than in the results: a block copies a
// tile, by rows of memory into shared memory and by rows of results out of it.
//
// Bound by memory, of which both sides are whole sectors.
#pragma once

#include <algorithm>
#include <bit>

#include "cuda/device.cuh"
#include "cuda/plan/price.h"
#include "cuda/source.cuh"
#include "reduction.h"

namespace reduceops::cuda {

constexpr int kTransposeTile = 4096;  // elements
// Of a tile, along memory and along results: where one is short, the other is longer.
constexpr int kTransposeSide = 64, kLeastTransposeSide = 4;
constexpr int kTransposeDims = 4;       // most along memory, along results, and of the rest
constexpr uint32_t kTransposeBand = 4;  // tiles along memory

// Behind a row of a tile, for banks.
template <int64_t kBytes>
constexpr int kTransposePad = std::max<int>(4 / kBytes, 1);

struct Transposition {
  struct Run {
    int64_t size = 1;
    uint32_t tiles = 1, side = kTransposeSide;
    int count = 0;
    Dim dims[kTransposeDims];

    // Takes dims out of `from` that follow each other by `pitch` (the first has a pitch of 1),
    // until they fill the side of a tile. Number `kept` stays there.
    void take(Dims& from, int64_t Dim::* pitch, int kept) {
      for (int d = 0; d < from.count && count < kTransposeDims && size < side;) {
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
    }
    // Of tiles with this side, what lies in the run.
    double used(uint32_t side) const {
      return static_cast<double>(size) /
             static_cast<double>(ceil_div(size, int64_t{side}) * int64_t{side});
    }
    // Where the run is shorter than a tile, that is as short; returns the other side.
    uint32_t shorten() {
      const auto needed = static_cast<uint64_t>(std::max<int64_t>(size, kLeastTransposeSide));
      side = static_cast<uint32_t>(std::min(std::bit_ceil(needed), uint64_t{side}));
      return kTransposeTile / side;
    }
  };
  Run memory, results;
  int64_t outers = 1;
  int outer_count = 0;
  Dim outer[kTransposeDims];

  int64_t blocks() const { return outers * memory.tiles * results.tiles; }
  bool is_square() const { return memory.side == results.side; }
  template <int64_t kBytes>
  size_t shared_bytes() const {
    return results.side * (memory.side + kTransposePad<kBytes>)*kBytes +
           (memory.side + results.side) * sizeof(const void*);
  }

  // `dims` in the order of the results, of elements of so many bytes. False where tiles would not
  // be worth it: at least half of their elements are to be used. Long ones, whose blocks take
  // longer, are to be enough for all multiprocessors twice; of 8 bytes they gain nothing.
  bool make(Dims dims, int64_t bytes) {
    if (dims.count == 0 || dims.dim[0].stride == 0) return false;  // a copy of what is read once
    memory.take(dims, &Dim::stride, 0);  // the innermost of the results is left for these
    results.take(dims, &Dim::step, -1);
    if (bytes <= 4 && memory.size < kTransposeSide) {
      results.side = memory.shorten();
      results.take(dims, &Dim::step, -1);
    } else if (bytes <= 4 && results.size < kTransposeSide) {
      memory.side = results.shorten();
      memory.take(dims, &Dim::stride, -1);
    }
    if (dims.count > kTransposeDims) return false;
    for (int d = 0; d < dims.count; ++d) {
      outer[outer_count++] = dims.dim[d];
      outers *= dims.dim[d].size;
    }
    if (bytes <= 4 && is_square()) lengthen();
    for (Run* run : {&memory, &results})
      run->tiles = static_cast<uint32_t>(ceil_div(run->size, int64_t{run->side}));
    return 2 * memory.size * results.size >=
               int64_t{kTransposeTile} * memory.tiles * results.tiles &&
           blocks() <= kMaxBlocks && (is_square() || blocks() >= kLongBlocks);
  }

 private:
  static constexpr int64_t kLongBlocks = 2 * int64_t(price::kMultiprocessors);

  // Another shape of tiles where that leaves fewer of their elements without use.
  void lengthen() {
    constexpr double kLong = 0.85;  // times as fast as square ones
    const auto used = [&](uint32_t side) {
      return memory.used(side) * results.used(kTransposeTile / side);
    };
    double most = used(kTransposeSide);
    for (const uint32_t side : {kTransposeSide / 2, 2 * kTransposeSide}) {
      const int64_t tiles = ceil_div(memory.size, int64_t{side}) *
                            ceil_div(results.size, int64_t{kTransposeTile / side});
      if (kLong * used(side) <= most || outers * tiles < kLongBlocks) continue;
      most = kLong * used(side);
      memory.side = side;
      results.side = kTransposeTile / side;
    }
  }
};

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
