// Columns: a kept dim is innermost.
//
// A tile of columns keeps its best keys and positions in L1 while whole row segments stream by,
// several rows to a pass. Rows narrower than a few vectors are folded: several rows count as one
// wide one, and the columns that are really one are combined at the end. Nothing depends on the
// data. Bound by reading memory once.
#pragma once

#include "cpu/walk.h"

namespace reduceops::cpu {
namespace {

template <class Element>
struct Columns : Walk<Element> {
  using Base = Walk<Element>;
  using Key = typename Base::Key;
  using Base::Base, Base::element, Base::input, Base::job, Base::r;

  static constexpr int64_t kTile = kTileBytes / sizeof(Key);
  static constexpr int64_t kPositions =
      std::numeric_limits<Key>::max();                   // positions of a block fit the key's lanes
  static constexpr int kUnroll = 4;                      // rows to a pass over the accumulators
  static constexpr int64_t kNarrow = 256 / sizeof(Key);  // rows to fold

  // The best of `width` neighbouring columns over positions [j, stop) of `dims`: keys and
  // positions.
  template <bool kUnit>
  void tile(const Key* base, int64_t width, int64_t stride, const Dims& dims, int64_t j,
            int64_t stop, Key* keys, int64_t* positions) const {
    const int64_t s = kUnit ? 1 : stride;
    Key best[kTile], at[kTile];
    Cursor cursor(dims, 0, j);
    const auto next_row = [&] {
      const Key* row = base + cursor.place().offset;
      cursor.next();
      return row;
    };
    for (int64_t block_start = j; block_start < stop; block_start += kPositions) {
      const int64_t block = least(kPositions, stop - block_start);
      const Key* first = next_row();
      for (int64_t c = 0; c < width; ++c) {
        best[c] = element.key(load(first + c * s));
        at[c] = 0;
      }
      int64_t i = 1;
      for (; i + kUnroll <= block; i += kUnroll) {
        const Key* row[kUnroll];
        for (int u = 0; u < kUnroll; ++u) row[u] = next_row();
        for (int64_t c = 0; c < width; ++c) {
          Key k = best[c], a = at[c];
          for (int u = 0; u < kUnroll; ++u) {
            const Key key = element.key(load(row[u] + c * s));
            a = key < k ? static_cast<Key>(i + u) : a;
            k = key < k ? key : k;
          }
          best[c] = k;
          at[c] = a;
        }
      }
      for (; i < block; ++i) {
        const Key* row = next_row();
        for (int64_t c = 0; c < width; ++c) {
          const Key key = element.key(load(row + c * s));
          at[c] = key < best[c] ? static_cast<Key>(i) : at[c];
          best[c] = least(best[c], key);
        }
      }
      if (block_start == j) {
        for (int64_t c = 0; c < width; ++c) {
          keys[c] = best[c];
          positions[c] = j + at[c];
        }
      } else {
        for (int64_t c = 0; c < width; ++c) {
          positions[c] = best[c] < keys[c] ? block_start + at[c] : positions[c];
          keys[c] = least(keys[c], best[c]);
        }
      }
    }
  }

  // The same for a whole row of narrow, dense rows: `fold` of them count as one.
  void folded(const Key* base, int64_t width, int64_t j, int64_t stop, Key* keys,
              int64_t* positions) const {
    const int64_t fold = kNarrow * 4 / width, wide = (stop - j) / fold;
    const Key* rows = base + j * width;
    Key fold_keys[kNarrow * 4];
    int64_t fold_positions[kNarrow * 4];
    Dims dims;
    dims.count = 1;
    dims.dim[0] = {wide, fold * width, 1};
    if (wide > 0) tile<true>(rows, fold * width, 1, dims, 0, wide, fold_keys, fold_positions);
    for (int64_t c = 0; c < width; ++c) {
      Best<Key> best{std::numeric_limits<Key>::max(), std::numeric_limits<int64_t>::max()};
      const auto take = [&](Key key, int64_t position) {
        if (better(Best<Key>{key, position}, best)) best = {key, position};
      };
      for (int64_t f = 0; f < fold && wide > 0; ++f) {
        take(fold_keys[f * width + c], j + fold_positions[f * width + c] * fold + f);
      }
      for (int64_t i = wide * fold; i < stop - j; ++i)
        take(element.key(load(rows + i * width + c)), j + i);
      keys[c] = best.key;
      positions[c] = best.index;
    }
  }

  void operator()(int64_t begin, int64_t end) const {
    const Plan& plan = job.plan;
    const Dims& reduced = r.groups.reduced;
    const Dim inner = r.groups.kept.dim[0];
    const int64_t walk = walk_extent(reduced);
    const bool unit = inner.stride == 1;
    const bool narrow =
        unit && inner.size <= kNarrow && reduced.count == 1 && reduced.dim[0].stride == inner.size;
    Key keys[kTile];
    int64_t positions[kTile];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t unit_number = item / plan.parts, part = item % plan.parts;
      const int64_t outer = unit_number / plan.tiles, column = unit_number % plan.tiles * plan.tile;
      const int64_t width = least(plan.tile, inner.size - column);
      const int64_t j = part * plan.part_extent, stop = least(walk, j + plan.part_extent);
      const Place row = Cursor(r.groups.kept, 1, outer).place();
      const Place at{row.offset + column * inner.stride, row.step + column * inner.step};
      if (narrow) {
        folded(input + at.offset, width, j, stop, keys, positions);
      } else if (unit) {
        tile<true>(input + at.offset, width, 1, reduced, j, stop, keys, positions);
      } else {
        tile<false>(input + at.offset, width, inner.stride, reduced, j, stop, keys, positions);
      }
      // From positions of the walk to result indices.
      if (reduced.count != 1) {
        for (int64_t c = 0; c < width; ++c)
          positions[c] = place(reduced.dim, reduced.count, positions[c]).step;
      } else if (reduced.dim[0].step != 1) {
        for (int64_t c = 0; c < width; ++c) positions[c] *= reduced.dim[0].step;
      }
      if (job.candidates) {
        Candidate* candidate = job.candidates + (outer * inner.size + column) * plan.parts + part;
        for (int64_t c = 0; c < width; ++c) candidate[c * plan.parts] = {keys[c], positions[c]};
      } else if (!r.values && inner.step == 1) {
        std::memcpy(r.indices + at.step, positions, width * sizeof(int64_t));
      } else {
        for (int64_t c = 0; c < width; ++c) {
          this->finish({at.offset + c * inner.stride, at.step + c * inner.step}, positions[c]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
