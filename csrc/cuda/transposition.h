// The tiles by which values are transposed that follow each other in memory along other dims than
// in the results (transpose.cuh).
#pragma once

#include <algorithm>
#include <bit>

#include "cuda/plan/price.h"
#include "cuda/policy.h"
#include "groups.h"

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
    for (Run* run : {&memory, &results}) {
      const int64_t tiles = ceil_div(run->size, int64_t{run->side});
      if (tiles > kMaxBlocks) return false;
      run->tiles = static_cast<uint32_t>(tiles);
    }
    return blocks() <= kMaxBlocks && (is_square() || blocks() >= kLongBlocks) &&
           2 * memory.size * results.size >= int64_t{kTransposeTile} * memory.tiles * results.tiles;
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

}  // namespace reduceops::cuda
