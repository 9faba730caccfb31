// Columns: outputs side by side in the lanes of vectors. They lie so where a kept dim is innermost;
// others are gathered (gather.h).
//
// A tile of columns keeps its best lanes and their rows in cache while whole row segments stream
// by, kRows of them to a pass. A pass takes the smallest of its rows first and compares it once
// with the best; only where that is better, or a NaN is among them, does it ask which row it was.
// Once few vectors ask, as in all but the first rows of tall columns, each row is compared with the
// bests by itself: memory is then read in its order, not in kRows places at once. Bound by reading
// memory once: three or four instructions for each vector read are few enough for the loads of
// later rows to start early. Narrow rows without gaps are folded: several count as one wide one,
// and the columns that are really one are combined at the end.
#pragma once

#include <new>

#include "cpu/gather.h"
#include "cpu/scratch.h"
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
  using Number = std::make_unsigned_t<Key>;  // of a row in its block, from 1, in a lane
  using Base::input, Base::job, Base::r;
  using Vectors::element, Vectors::kFloats, Vectors::kLanes;

  static constexpr int64_t kTile = least<int64_t>(kTileBytes / sizeof(Key), kTileColumns);
  static constexpr int kRows = 8;            // to a pass
  static constexpr int kAhead = 1024;        // bytes in each row of a pass
  static constexpr int kRowAhead = 6 << 10;  // bytes in a row by itself
  static constexpr int kGroup = 4;           // vectors of a row that are compared at once
  static constexpr int64_t kCalm = 4;        // where fewer than one in so many ask
  // Rows to a block, so that their numbers fit.
  static constexpr int64_t kBlock =
      sizeof(Key) <= 2 ? (int64_t(1) << 8 * sizeof(Key)) - kRows : int64_t(1) << 31;
  // Elements for each column that folding makes: so few that combining them does not matter.
  static constexpr int64_t kFoldedWalk = 256;

  // The accumulators of a tile.
  struct Bests {
    alignas(kVectorBytes) Lane lane[kTile + kLanes];
    alignas(kVectorBytes) Number at[kTile + kLanes];  // 0: not in this block
  };

  // Too large for the stack of every thread.
  struct Scratch {
    Bests bests;
    int64_t positions[kTile];
    Key values[kTile];
    typename Gather<Key>::Scratch copied;
  };
  static_assert(alignof(Scratch) <= kScratchAlignment);

  Columns(const Job& job, Element element) : Base(job, element), Vectors{element} {}

  // Which lanes win against the best: a NaN against any number.
  static REDUCEOPS_INLINE auto beats(V v, V best) {
    auto wins = v < best;
    if constexpr (kFloats) wins |= (v != v) & (best == best);
    return wins;
  }

  // Takes n rows, the first of which is number `number` of its block, into the bests of `width`
  // columns, and counts the vectors that ask which row it was. True if no more rows can change
  // these: all are NaN.
  template <int n, bool kFirst>
  bool pass(const Key* const* row, Number number, int64_t width, Bests& bests,
            int64_t& asked) const {
    bool settled = kFloats;
    for (int64_t next = 0; next < width; next += kLanes) {
      // The last vector overlaps the one before: what it does twice changes nothing.
      const int64_t c = least(next, width - kLanes);
      V v[n];
      for (int u = 0; u < n; ++u) {
        v[u] = this->load(row[u] + c);
        prefetch(row[u] + c, kAhead);
      }
      const V smallest = smallest_of<n>(v);
      const V best = kFirst ? Vectors::all(Vectors::kLast) : get<V>(bests.lane + c);
      const auto improved = smallest < best;
      auto asks = Vectors::less(smallest, best);
      if constexpr (kFloats) {
        const auto nan = Vectors::nan(sum_of<n>(v));  // if one is
        asks |= nan;
        if ((kFirst || any(asks)) && any(nan)) [[unlikely]] {
          ++asked;
          V b = best;
          Index a = kFirst ? Index{} + number : get<Index>(bests.at + c);
          for (int u = 0; u < n && any(b == b); ++u) {
            const auto wins = beats(v[u], b);
            b = wins ? v[u] : b;
            a = wins ? Index{} + static_cast<Number>(number + u) : a;
          }
          put(bests.lane + c, b);
          put(bests.at + c, a);
          settled &= !any(b == b);
          continue;
        }
        settled = false;
      }
      if (kFirst || any(asks)) {
        ++asked;
        Index a = Index{} + static_cast<Number>(number + n - 1);
        for (int u = n - 2; u >= 0; --u)
          a = v[u] == smallest ? Index{} + static_cast<Number>(number + u) : a;
        put(bests.at + c, kFirst ? a : improved ? a : get<Index>(bests.at + c));
        put(bests.lane + c, kFirst ? smallest : smaller(smallest, best));
      }
    }
    return settled;
  }

  template <bool kFirst>
  bool pass(int n, const Key* const* row, Number number, int64_t width, Bests& bests,
            int64_t& asked) const {
    switch (n) {
      case 8:
        return pass<8, kFirst>(row, number, width, bests, asked);
      case 4:
        return pass<4, kFirst>(row, number, width, bests, asked);
      case 2:
        return pass<2, kFirst>(row, number, width, bests, asked);
      default:
        return pass<1, kFirst>(row, number, width, bests, asked);
    }
  }

  // Takes some vectors of row `number` into the bests of their columns; whether any element asks.
  template <int kVectors>
  static REDUCEOPS_INLINE bool take(Vectors lanes, const Key* row, int64_t c, Number number,
                                    Bests& bests) {
    V v[kVectors], best[kVectors];
    typename Vectors::Asked asks{};
    for (int g = 0; g < kVectors; ++g) {
      v[g] = lanes.load(row + c + g * kLanes);
      best[g] = get<V>(bests.lane + c + g * kLanes);
      // A NaN asks, and where the best is one everything does.
      asks |= Vectors::less_or_nan(v[g], best[g]);
    }
    if (!any(asks)) [[likely]]
      return false;
    for (int g = 0; g < kVectors; ++g) {
      const auto wins = beats(v[g], best[g]);
      const Index at = get<Index>(bests.at + c + g * kLanes);
      put(bests.lane + c + g * kLanes, wins ? v[g] : best[g]);
      put(bests.at + c + g * kLanes, wins ? Index{} + number : at);
    }
    return true;
  }

  // Takes a row by itself: of neighbouring columns, at least a vector of them. `next` is the row
  // that follows. Counts the groups of vectors that ask.
  void take_row(const Key* row, const Key* next, Number number, int64_t width, Bests& bests,
                int64_t& asked) const {
    constexpr int64_t kColumns = kGroup * kLanes;
    const Vectors lanes = *this;  // which no store changes
    const int64_t ahead = least<int64_t>(kRowAhead / sizeof(Key), width);
    const auto part = [&](int64_t c, int64_t stop, const Key* to) {
      for (; c + kColumns <= stop; c += kColumns) {
        for (int g = 0; g < kGroup; ++g) prefetch<kIntoL2>(to + c + g * kLanes, 0);
        asked += take<kGroup>(lanes, row, c, number, bests);
      }
      return c;
    };
    int64_t c = part(0, width - ahead, row + ahead);
    c = part(c, width, next - (width - ahead));
    // The last vector overlaps the one before: what it does twice changes nothing.
    for (; c < width; c += kLanes)
      asked += take<1>(lanes, row, least(c, width - kLanes), number, bests);
  }

  // Rows of neighbouring columns where they lie; their results are positions of the walk.
  class InPlace {
   public:
    InPlace(const Key* base, const Dims& dims, int64_t position)
        : base_(base), cursor_(dims, 0, position) {}
    int64_t most(int64_t rows) const { return least(rows, kBlock); }
    void begin(int64_t, int64_t) {}
    const Key* next() {
      const Key* row = base_ + cursor_.place().offset;
      cursor_.next();
      return row;
    }
    int64_t result(int64_t start, Number number) const { return start - 1 + number; }

   private:
    const Key* const base_;
    Cursor cursor_;
  };

  // The best of `width` columns over positions [j, stop) of a walk, and the results that `rows`
  // gives for where they are. Rows have a vector of columns at least.
  template <class Source>
  void tile(Source& rows, int64_t width, int64_t j, int64_t stop, Bests& bests,
            int64_t* results) const {
    const int64_t lanes = std::max<int64_t>(width, kLanes);
    bool settled = false, changed = false;
    for (int64_t start = j, block; start < stop && !settled; start += block) {
      block = rows.most(stop - start);
      rows.begin(start, block);
      if (start != j && changed) std::fill_n(bests.at, lanes, Number(0));
      changed = false;
      int n = kRows;
      while (n > block) n /= 2;
      const Key* row[kRows];
      bool calm = false;
      for (int64_t i = 0; i < block && !settled;) {
        // The last pass of a block overlaps the one before: what it does twice changes nothing.
        const int taken = static_cast<int>(least<int64_t>(n, block - i));
        std::copy(row + taken, row + n, row);
        for (int u = n - taken; u < n; ++u) row[u] = rows.next();
        i += taken;
        const auto number = static_cast<Number>(i - n + 1);
        const bool first = start == j && i == n;
        int64_t asked = 0;
        if (calm) {
          for (int u = n - taken; u < n; ++u) {
            const Key* next = u + 1 < n ? row[u + 1] : row[u] + (row[1] - row[0]);
            take_row(row[u], next, static_cast<Number>(number + u), lanes, bests, asked);
          }
          calm = asked * kCalm * kGroup * kLanes < lanes * taken;
        } else {
          settled = first ? pass<true>(n, row, number, lanes, bests, asked)
                          : pass<false>(n, row, number, lanes, bests, asked);
          calm = n == kRows && asked * kCalm * kLanes < lanes;
        }
        changed |= asked > 0;
      }
      if (!changed) continue;
      if (start == j) {
        for (int64_t c = 0; c < width; ++c) results[c] = rows.result(start, bests.at[c]);
      } else {
        for (int64_t c = 0; c < width; ++c)
          results[c] = bests.at[c] ? rows.result(start, bests.at[c]) : results[c];
      }
    }
  }

  // How many of narrow rows without gaps count as one; 1 where that does not pay.
  int64_t fold(int64_t walk) const {
    const Dims& reduced = r.groups.reduced;
    const Dim inner = r.groups.axes.dim[0];
    if (inner.stride != 1 || reduced.count != 1 || reduced.dim[0].stride != inner.size) return 1;
    const int64_t wide = std::clamp<int64_t>(inner.size * walk / kFoldedWalk, kLanes, kTile);
    const int64_t fills = (kLanes + inner.size - 1) / inner.size;
    const int64_t count = least(std::max(wide / inner.size, fills), walk);
    return count * inner.size >= kLanes ? count : 1;
  }

  // The best of rows [j, stop) of all columns, `fold` of them taken as one. `wide_positions` is for
  // those of the wide rows; `positions` may be the same.
  void folded(const Key* base, int64_t width, int64_t fold, int64_t j, int64_t stop, Bests& bests,
              int64_t* wide_positions, int64_t* positions) const {
    const int64_t wide = (stop - j) / fold;
    const Key* rows = base + j * width;
    Dims dims;
    dims.count = 1;
    dims.dim[0] = {wide, fold * width, 1};
    InPlace source(rows, dims, 0);
    tile(source, fold * width, 0, wide, bests, wide_positions);
    for (int64_t c = 0; c < width; ++c) {
      Best<Key> best{std::numeric_limits<Key>::max(), std::numeric_limits<int64_t>::max()};
      Lane winner = Vectors::kLast;
      const auto take = [&](Lane lane, int64_t position) {
        const Best<Key> one{this->key(lane), position};
        if (better(one, best)) best = one, winner = lane;
      };
      for (int64_t f = 0; f < fold; ++f)
        take(bests.lane[f * width + c], j + wide_positions[f * width + c] * fold + f);
      for (int64_t i = wide * fold; i < stop - j; ++i)
        take(this->lane(get<Key>(rows + i * width + c)), j + i);
      bests.lane[c] = winner;
      positions[c] = best.index;
    }
  }

  // Writes the values of columns whose bests these are; reads them again only where the best does
  // not tell their bits.
  void write_values(int64_t first, int64_t width, const Bests& bests, const int64_t* indices,
                    Key* values) const {
    typename Vectors::Bits unsure{};
    for (int64_t next = 0; next < width; next += kLanes) {
      // The last vector overlaps the one before, if there is one.
      const int64_t c = std::max<int64_t>(0, least(next, width - kLanes));
      const auto elements = this->elements(get<V>(bests.lane + c), unsure);
      if (width >= kLanes) {
        put(values + c, elements);
      } else {
        std::memcpy(values, &elements, width * sizeof(Key));
      }
    }
    if (!any(unsure)) return;
    const Dims& reduced = r.groups.reduced;
    Cursor column(r.groups.axes, 0, first);
    for (int64_t c = 0; c < width; ++c, column.next()) {
      Key value;
      if (element.value_of_key(this->key(bests.lane[c]), value)) continue;
      const int64_t offset = offset_of(reduced.dim, reduced.count, indices[c]);
      values[c] = element.value(get<Key>(input + column.place().offset + offset));
    }
  }

  // Writes the results of `width` outputs from number `first` on to their places.
  template <class T>
  void scatter(const T* from, int64_t first, int64_t width, T* results) const {
    const Dims& kept = r.groups.kept;
    const Dim inner = kept.dim[0];
    const Dim second = kept.count > 1 ? kept.dim[1] : Dim{1, 0, 0};
    int64_t start = first % inner.size, line = first / inner.size % second.size;
    Cursor outer(kept, 2, first / inner.size / second.size);
    for (int64_t c = 0; c < width;) {
      T* to = results + outer.place().step + line * second.step;
      const int64_t lines = start > 0 ? 0 : least(second.size - line, (width - c) / inner.size);
      if (lines > inner.size) {  // whole ones; the longer loop is the inner one
        for (int64_t i = 0; i < inner.size; ++i)
          for (int64_t k = 0; k < lines; ++k)
            to[i * inner.step + k * second.step] = from[c + k * inner.size + i];
        c += lines * inner.size;
        line += lines;
      } else {
        const int64_t n = least(inner.size - start, width - c);
        for (int64_t i = 0; i < n; ++i) to[(start + i) * inner.step] = from[c + i];
        c += n;
        start = 0;
        ++line;
      }
      if (line == second.size) {
        line = 0;
        outer.next();
      }
    }
  }

  void operator()(int64_t begin, int64_t end) const {
    const Plan& plan = job.plan;
    const Dims &reduced = r.groups.reduced, &kept = r.groups.kept, &axes = r.groups.axes;
    const int64_t columns = plan.gathers ? r.groups.outputs : axes.dim[0].size;
    const int64_t walk = walk_extent(reduced);
    const int64_t rows =
        plan.gathers || plan.tile < columns ? 1 : fold(least(walk, plan.part_extent));
    // Whether the results of a tile follow each other.
    const bool follow = kept.dim[0].step == 1 &&
                        (in_order(r.groups) || (!plan.gathers && kept.dim[0].size == columns));
    auto& [bests, local, local_values, copied] = *new (scratch(sizeof(Scratch))) Scratch;
    Gather<Key> gather(input, r.groups, copied);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t unit_number = item / plan.parts, part = item % plan.parts;
      const int64_t outer = unit_number / plan.tiles, column = unit_number % plan.tiles * plan.tile;
      const int64_t width = least(plan.tile, columns - column);
      const int64_t first = outer * columns + column;  // of the outputs
      const int64_t j = part * plan.part_extent, stop = least(walk, j + plan.part_extent);
      const bool in_place = !job.candidates && follow;
      const bool streams = job.streams && in_place;
      const int64_t to = in_place ? Cursor(kept, 0, first).place().step : 0;
      int64_t* indices = in_place && r.indices && !streams ? r.indices64() + to : local;
      const bool folds = rows > 1 && stop - j >= rows;
      if (plan.gathers || (!folds && width < kLanes)) {
        gather.columns(first, width, kLanes);
        tile(gather, width, j, stop, bests, indices);
      } else {
        const Key* base = input + Cursor(axes, 0, first).place().offset;
        if (folds) {
          folded(base, width, rows, j, stop, bests, local, indices);
        } else {
          InPlace source(base, reduced, j);
          tile(source, width, j, stop, bests, indices);
        }
        // From positions of the walk to result indices.
        if (reduced.count != 1) {
          for (int64_t c = 0; c < width; ++c)
            indices[c] = place(reduced.dim, reduced.count, indices[c]).step;
        } else if (reduced.dim[0].step != 1) {
          for (int64_t c = 0; c < width; ++c) indices[c] *= reduced.dim[0].step;
        }
      }
      if (job.candidates) {
        Candidate* candidate = job.candidates + first * plan.parts + part;
        for (int64_t c = 0; c < width; ++c)
          candidate[c * plan.parts] = {this->key(bests.lane[c]), indices[c]};
        continue;
      }
      Key* values = static_cast<Key*>(r.values);
      if (values) {
        Key* written = in_place && !streams ? values + to : local_values;
        write_values(first, width, bests, indices, written);
        if (streams) stream(values + to, written, width * sizeof(Key));
        if (!in_place) scatter(written, first, width, values);
      }
      if (streams && r.indices) stream(r.indices64() + to, local, width * sizeof(int64_t));
      if (!in_place && r.indices) scatter(local, first, width, r.indices64());
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
