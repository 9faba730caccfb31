// Columns: a kept dim is innermost.
//
// A tile of columns keeps its best lanes and their rows in L1 while whole row segments stream by,
// kRows of them to a pass. A pass takes the smallest of its rows first and compares it once with
// the best; only where that is better, or a NaN is among them, does it ask which row it was. Bound
// by reading memory once: three instructions for each vector read, and a few more for each pass,
// are few enough for the loads of later rows to start early. Rows narrower than a few vectors are
// folded: several count as one wide one, and the columns that are really one are combined at the
// end.
#pragma once

#include "cpu/vector.h"
#include "cpu/walk.h"

namespace reduceops::cpu {
namespace {

template <class Element>
struct Columns : Walk<Element>, Lanes<Element> {
  using Base = Walk<Element>;
  using Vectors = Lanes<Element>;
  using typename Vectors::Index;
  using typename Vectors::Key;
  using typename Vectors::Lane;
  using typename Vectors::V;
  using Row = std::make_unsigned_t<Key>;  // of a block, in the lanes of a best
  using Base::input, Base::job, Base::r;
  using Vectors::element, Vectors::kFloats, Vectors::kLanes;

  static constexpr int64_t kTile = kTileBytes / sizeof(Key);
  static constexpr int kRows = 8;                         // to a pass
  static constexpr int64_t kFolded = 1024 / sizeof(Key);  // columns that folding makes at most
  static constexpr int64_t kNarrow = kFolded / 4;         // columns that are folded
  // Rows to a block, so that their numbers fit.
  static constexpr int64_t kBlock = sizeof(Key) == 1   ? 256
                                    : sizeof(Key) == 2 ? 65536
                                                       : int64_t(1) << 31;

  Columns(const Job& job, Element element) : Base(job, element), Vectors{element} {}

  // The vector of columns [c, c + kLanes) of a row; where these are not that many, or not
  // neighbours in memory, lane by lane.
  template <bool kUnit>
  V columns(const Key* row, int64_t c, int64_t width, int64_t stride) const {
    if constexpr (kUnit) {
      return this->load(row + c);
    } else {
      Key lanes[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) lanes[i] = load(row + least(c + i, width - 1) * stride);
      return this->load(lanes);
    }
  }

  // Takes rows [i, i + n) of a block into the bests of `width` columns. True if no more rows can
  // change these: all are NaN.
  template <int n, bool kFirst, bool kUnit>
  bool pass(const Key* const* row, int64_t i, int64_t width, int64_t stride, Lane* best,
            Row* at) const {
    bool settled = kFloats;
    for (int64_t next = 0; next < width; next += kLanes) {
      // The last vector overlaps the one before: what it does twice changes nothing.
      const int64_t c = kUnit ? least(next, width - kLanes) : next;
      V v[n];
      for (int u = 0; u < n; ++u) v[u] = columns<kUnit>(row[u], c, width, stride);
      V smallest = v[0], sum = v[0];
      for (int u = 1; u < n; ++u) {
        smallest = smaller(v[u], smallest);
        if constexpr (kFloats) sum += v[u];  // NaN if one is
      }
      V b = kFirst ? Vectors::all(Vectors::kLast) : get<V>(best + c);
      auto improved = smallest < b;
      if constexpr (kFloats) {
        if (any(sum != sum)) [[unlikely]] {
          Index a = kFirst ? Index{} : get<Index>(at + c);
          for (int u = 0; u < n; ++u) {
            const auto wins = (v[u] < b) | ((v[u] != v[u]) & (b == b));
            b = wins ? v[u] : b;
            a = wins ? Index{} + static_cast<Row>(i + u) : a;
          }
          put(best + c, b);
          put(at + c, a);
          settled &= !any(b == b);
          continue;
        }
        settled = false;
      }
      if (kFirst || any(improved)) {
        Index a = Index{} + static_cast<Row>(i + n - 1);
        for (int u = n - 2; u >= 0; --u)
          a = v[u] == smallest ? Index{} + static_cast<Row>(i + u) : a;
        put(at + c, kFirst ? a : improved ? a : get<Index>(at + c));
        put(best + c, kFirst ? smallest : smaller(smallest, b));
      }
    }
    return settled;
  }

  template <bool kFirst, bool kUnit>
  bool pass(int n, const Key* const* row, int64_t i, int64_t width, int64_t stride, Lane* best,
            Row* at) const {
    switch (n) {
      case 8:
        return pass<8, kFirst, kUnit>(row, i, width, stride, best, at);
      case 4:
        return pass<4, kFirst, kUnit>(row, i, width, stride, best, at);
      case 2:
        return pass<2, kFirst, kUnit>(row, i, width, stride, best, at);
      default:
        return pass<1, kFirst, kUnit>(row, i, width, stride, best, at);
    }
  }

  // The best of `width` neighbouring columns over positions [j, stop) of `dims`, and where they
  // are.
  template <bool kUnit>
  void tile(const Key* base, int64_t width, int64_t stride, const Dims& dims, int64_t j,
            int64_t stop, Lane* bests, int64_t* positions) const {
    alignas(kVectorBytes) Lane best[kTile + kLanes];
    alignas(kVectorBytes) Row at[kTile + kLanes];
    Cursor cursor(dims, 0, j);
    for (int64_t start = j; start < stop; start += kBlock) {
      const int64_t block = least(kBlock, stop - start);
      bool settled = false;
      for (int64_t i = 0; i < block && !settled;) {
        int n = kRows;
        while (n > block - i) n /= 2;
        const Key* row[kRows];
        for (int u = 0; u < n; ++u, cursor.next()) row[u] = base + cursor.place().offset;
        settled = i == 0 ? pass<true, kUnit>(n, row, i, width, stride, best, at)
                         : pass<false, kUnit>(n, row, i, width, stride, best, at);
        i += n;
      }
      if (start == j) {
        for (int64_t c = 0; c < width; ++c) {
          bests[c] = best[c];
          positions[c] = j + at[c];
        }
      } else {
        for (int64_t c = 0; c < width; ++c) {
          const bool wins = best[c] < bests[c] || (best[c] != best[c] && bests[c] == bests[c]);
          positions[c] = wins ? start + at[c] : positions[c];
          bests[c] = wins ? best[c] : bests[c];
        }
      }
      if (settled) break;
    }
  }

  // The same for a whole row of narrow, dense rows: `fold` of them count as one.
  void folded(const Key* base, int64_t width, int64_t j, int64_t stop, Lane* bests,
              int64_t* positions) const {
    const int64_t fold = kFolded / width, wide = (stop - j) / fold;
    const Key* rows = base + j * width;
    Lane fold_bests[kFolded];
    int64_t fold_positions[kFolded];
    Dims dims;
    dims.count = 1;
    dims.dim[0] = {wide, fold * width, 1};
    if (wide > 0) tile<true>(rows, fold * width, 1, dims, 0, wide, fold_bests, fold_positions);
    for (int64_t c = 0; c < width; ++c) {
      Best<Key> best{std::numeric_limits<Key>::max(), std::numeric_limits<int64_t>::max()};
      Lane winner = Vectors::kLast;
      const auto take = [&](Lane lane, int64_t position) {
        const Best<Key> one{this->key(lane), position};
        if (better(one, best)) best = one, winner = lane;
      };
      for (int64_t f = 0; f < fold && wide > 0; ++f) {
        take(fold_bests[f * width + c], j + fold_positions[f * width + c] * fold + f);
      }
      for (int64_t i = wide * fold; i < stop - j; ++i)
        take(this->lane(load(rows + i * width + c)), j + i);
      bests[c] = winner;
      positions[c] = best.index;
    }
  }

  void operator()(int64_t begin, int64_t end) const {
    const Plan& plan = job.plan;
    const Dims& reduced = r.groups.reduced;
    const Dim inner = r.groups.kept.dim[0];
    const int64_t walk = walk_extent(reduced);
    const bool narrow = inner.stride == 1 && inner.size <= kNarrow && reduced.count == 1 &&
                        reduced.dim[0].stride == inner.size;
    Lane bests[kTile];
    int64_t positions[kTile];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t unit_number = item / plan.parts, part = item % plan.parts;
      const int64_t outer = unit_number / plan.tiles, column = unit_number % plan.tiles * plan.tile;
      const int64_t width = least(plan.tile, inner.size - column);
      const int64_t j = part * plan.part_extent, stop = least(walk, j + plan.part_extent);
      const Place row = Cursor(r.groups.kept, 1, outer).place();
      const Place at{row.offset + column * inner.stride, row.step + column * inner.step};
      if (narrow) {
        folded(input + at.offset, width, j, stop, bests, positions);
      } else if (inner.stride == 1 && width >= kLanes) {
        tile<true>(input + at.offset, width, 1, reduced, j, stop, bests, positions);
      } else {
        tile<false>(input + at.offset, width, inner.stride, reduced, j, stop, bests, positions);
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
        for (int64_t c = 0; c < width; ++c)
          candidate[c * plan.parts] = {this->key(bests[c]), positions[c]};
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
