// softmax_max of columns: outputs side by side in the lanes of vectors, as in columns.h, which also
// says what folding is; those that do not lie so are gathered (gather.h).
//
// A tile of columns keeps for each of them the largest element so far, its row and the sum, while
// eight rows to a pass stream by. No row comes twice: the last passes are as long as what is left,
// and a last vector that overlaps the one before has states of its own, which are moved together at
// the end. Bound by memory with wide vectors, by exp() with narrow ones.
#pragma once

#include "cpu/columns.h"
#include "cpu/softmax.h"

namespace reduceops::cpu {
namespace {

template <class Format>
struct SoftmaxColumns : SoftmaxWalk<Format> {
  using Base = SoftmaxWalk<Format>;
  using Lanes = SoftmaxLanes<Format>;
  using Base::input, Base::job, Base::r;
  using Lanes::kLanes;
  using typename Base::Compute;
  using typename Base::Key;
  using typename Lanes::Index;
  using typename Lanes::Number;
  using typename Lanes::V;
  using Stored = StoredColumns<Key>;
  using Plainly = Columns<typename Base::Ordered, Stored>;

  static constexpr int64_t kTile = Plainly::kTile;
  static constexpr int64_t kNarrow = Plainly::kLanes;  // columns that are fewer are gathered
  static constexpr int kRows = kPassRows;
  static constexpr int kAhead = ColumnLimits<Key>::kAhead;
  static constexpr int64_t kNarrowBytes = 16 << 10;    // of a row: the next pass is asked for
  static constexpr int64_t kBlock = int64_t(1) << 30;  // rows whose numbers fit a lane

  // The states of a tile, by vectors: the last may overlap the one before.
  struct States {
    alignas(kVectorBytes) Compute largest[kTile + kLanes];
    alignas(kVectorBytes) Compute base[kTile + kLanes];
    alignas(kVectorBytes) Compute sum[kTile + kLanes];
    alignas(kVectorBytes) Compute excess[kTile + kLanes];
    alignas(kVectorBytes) Number at[kTile + kLanes];  // rows of this block from 1; 0: none
  };

  // Too large for the stack of every thread.
  struct Scratch {
    States states;
    typename Plainly::Bests bests;  // of a tile with a NaN
    int64_t positions[kTile];
    int64_t nan_positions[kTile];
    Key values[kTile];
    typename Stored::Scratch stored;
  };

  const Plainly plainly;  // finds the first NaNs

  explicit SoftmaxColumns(const Job& job) : Base(job), plainly(job, this->element) {}

  // Takes n rows, the first of which is number `number` of its block, into the states of `width`
  // columns.
  template <int n, bool kFirst>
  REDUCEOPS_NOINLINE static void pass(const Key* const* row, Number number, int64_t width,
                                      States& states) {
    const int64_t next_rows = ColumnLimits<Key>::template next_pass<n>(row, width, kNarrowBytes);
    const int64_t ahead = next_rows >= 0 ? next_rows : kAhead;
    for (int64_t at = 0; at < width; at += kLanes) {
      const int64_t c = least(at, width - kLanes);
      V v[n];
      for (int u = 0; u < n; ++u) {
        v[u] = Lanes::load(row[u] + c);
        prefetch(row[u] + c, ahead);
      }
      typename Lanes::State state;
      if constexpr (!kFirst) {
        state.largest = get<V>(states.largest + at);
        state.base = get<V>(states.base + at);
        state.sum = get<V>(states.sum + at);
        state.excess = get<V>(states.excess + at);
      } else {
        put(states.at + at, Index{});
        put(states.largest + at, state.largest);
      }
      Lanes::template take<n, true>(v, state, [&](auto improved, V largest, const Index&) {
        Index found = Index{} + static_cast<Number>(number + n - 1);
        for (int u = n - 2; u >= 0; --u)
          found = v[u] == largest ? Index{} + static_cast<Number>(number + u) : found;
        put(states.at + at, improved ? found : get<Index>(states.at + at));
        put(states.largest + at, larger(state.largest, largest));
      });
      put(states.base + at, state.base);
      put(states.sum + at, state.sum);
      put(states.excess + at, state.excess);
    }
  }

  template <bool kFirst, int kMost = kRows>
  static void pass(int n, const Key* const* row, Number number, int64_t width, States& states) {
    if constexpr (kMost > 1) {
      if (n < kMost)
        return pass<kFirst, (kMost > 4 ? 4 : kMost - 1)>(n, row, number, width, states);
    }
    pass<kMost, kFirst>(row, number, width, states);
  }

  // The states of `width` columns over positions [j, stop) of a walk, and the results that `rows`
  // gives for where their largest are. Rows have a vector of columns at least.
  template <class Source>
  REDUCEOPS_NOINLINE static void tile(Source& rows, int64_t width, int64_t j, int64_t stop,
                                      States& states, int64_t* results) {
    const int64_t lanes = std::max<int64_t>(width, kLanes);
    for (int64_t start = j, block; start < stop; start += block) {
      block = least(rows.most(stop - start), kBlock);
      rows.begin(start, block);
      if (start != j) std::fill_n(states.at, lanes + kLanes, Number(0));
      const Key* row[kRows];
      for (int64_t i = 0, n; i < block; i += n) {
        n = block - i < kRows ? least<int64_t>(4, block - i) : kRows;
        for (int u = 0; u < n; ++u) row[u] = rows.next();
        const auto number = static_cast<Number>(i + 1);
        start == j&& i == 0 ? pass<true>(static_cast<int>(n), row, number, lanes, states)
                            : pass<false>(static_cast<int>(n), row, number, lanes, states);
      }
      together(states.at, lanes);
      const auto of = rows.results(start);
      if (start == j) {
        for (int64_t c = 0; c < width; ++c) results[c] = of(std::max(states.at[c], Number(1)));
      } else {
        for (int64_t c = 0; c < width; ++c)
          results[c] = states.at[c] ? of(states.at[c]) : results[c];
      }
    }
    together(states.largest, lanes);
    together(states.base, lanes);
    together(states.sum, lanes);
    together(states.excess, lanes);
  }

  // Completes the sums and leaves what the largest added to each in place of the base.
  REDUCEOPS_NOINLINE static void finish_sums(int64_t width, States& states) {
    for (int64_t c = 0; c < width; c += kLanes) {
      const V largest = get<V>(states.largest + c), base = get<V>(states.base + c);
      const V share = exp_of<Compute>(largest - base);
      const V sum = get<V>(states.sum + c) - get<V>(states.excess + c);
      put(states.sum + c, sum + Lanes::more(largest, base, share));
      put(states.base + c, share);
    }
  }

  REDUCEOPS_NOINLINE static bool has_nan(int64_t width, const States& states) {
    bool any = false;
    for (int64_t c = 0; c < width; ++c) any |= states.sum[c] != states.sum[c];
    return any;
  }

  REDUCEOPS_NOINLINE static void find_probabilities(int64_t width, const States& states,
                                                    Key* values) {
    for (int64_t c = 0; c < width; ++c)
      values[c] = Lanes::probability(states.largest[c], states.base[c], states.sum[c]);
  }

  // Moves what belongs to an overlapping last vector to its columns.
  template <class T>
  static void together(T* of, int64_t width) {
    if (const int64_t over = width % kLanes)
      std::memmove(of + width - kLanes, of + width - over, kLanes * sizeof(T));
  }

  // The states of rows [j, stop) of all columns, `fold` of them taken as one. `wide_positions` is
  // for those of the wide rows; `positions` may be the same.
  REDUCEOPS_NOINLINE void folded(Stored& stored, const Key* base, int64_t width, int64_t fold,
                                 int64_t j, int64_t stop, States& states, int64_t* wide_positions,
                                 int64_t* positions) const {
    const int64_t wide = (stop - j) / fold, columns = fold * width;
    const Key* rows = base + j * width;
    Dims dims;
    dims.count = 1;
    dims.dim[0] = {wide, columns, 1};
    typename Stored::InPlace source(stored, rows, dims, 0, 0, {1, columns, columns, columns});
    tile(source, columns, 0, wide, states, wide_positions);
    for (int64_t f = 0; f < fold; ++f)
      for (int64_t c = f * width; c < (f + 1) * width; ++c)
        wide_positions[c] = j + wide_positions[c] * fold + f;
    // What does not fill a wide row.
    const Key* rest = rows + wide * columns;
    const int64_t left = (stop - j) * width - wide * columns, whole = left / kLanes * kLanes;
    if (whole > 0) {
      std::fill_n(states.at, whole, Number(0));
      pass<1, false>(&rest, 1, whole, states);
      for (int64_t c = 0; c < whole; ++c)
        wide_positions[c] = states.at[c] ? j + wide * fold + c / width : wide_positions[c];
    }
    finish_sums(columns, states);
    for (int64_t c = whole; c < left; ++c) {
      SoftmaxSum both;
      both.add(group(states, c, wide_positions[c]));
      both.add({Format::decode(get<Key>(rest + c)), 1, j + wide * fold + c / width});
      const auto [largest, sum, index] = both.group();
      states.largest[c] = static_cast<Compute>(largest);
      states.sum[c] = static_cast<Compute>(sum);
      states.base[c] = 1;
      wide_positions[c] = index;
    }
    // The largest of each column; then the share of each wide column in its sum; then the sums. By
    // halves, so that few roundings add up.
    Compute* largest = std::copy_n(states.largest, columns, states.excess) - columns;
    halve(fold, width, [&](int64_t c, int64_t other) {
      const bool second =
          largest[other] > largest[c] ||
          (largest[other] == largest[c] && wide_positions[other] < wide_positions[c]);
      largest[c] = second ? largest[other] : largest[c];
      wide_positions[c] = second ? wide_positions[other] : wide_positions[c];
    });
    for (int64_t c = width; c < columns; ++c) largest[c] = largest[c - width];
    for (int64_t c = 0; c < columns; c += kLanes) {
      const V base = at_least_finite(get<V>(largest + c));
      const V share = exp_of<Compute>(get<V>(states.largest + c) - base);
      put(states.sum + c, get<V>(states.sum + c) / get<V>(states.base + c) * share);
    }
    halve(fold, width, [&](int64_t c, int64_t other) { states.sum[c] += states.sum[other]; });
    std::copy_n(largest, width, states.largest);
    std::fill_n(states.base, width, Compute(1));
    std::copy_n(wide_positions, width, positions);
  }

  static Softmax group(const States& states, int64_t c, int64_t position) {
    return {states.largest[c], double{states.sum[c]} / states.base[c], position};
  }

  // Calls f(column, another) for the columns of `count` rows until those of the first have met all.
  template <class F>
  static void halve(int64_t count, int64_t width, const F& f) {
    for (int64_t half; count > 1; count -= half) {
      half = count / 2;
      for (int64_t c = 0; c < half * width; ++c) f(c, c + (count - half) * width);
    }
  }

  // Columns whose sum is a NaN have one among their elements, or an infinite largest: where is what
  // the walk of max says, whose bests these are.
  REDUCEOPS_SMALL void take_nans(int64_t width, const typename Plainly::Bests& bests,
                                 const int64_t* found, States& states, int64_t* positions) const {
    for (int64_t c = 0; c < width; ++c) {
      if (states.sum[c] == states.sum[c]) continue;
      Key bits;
      const bool known = this->element.value_of_key(plainly.kernel.key(bests.lane[c]), bits);
      states.largest[c] = known ? Format::decode(bits) : Compute(NAN);
      positions[c] = found[c];
    }
  }

  REDUCEOPS_SMALL void operator()(int64_t begin, int64_t end) const {
    const Plan& plan = job.plan;
    const bool gathers = plan.walk == Walks::kGather;
    const Dims &reduced = r.groups.reduced, &kept = r.groups.kept, &axes = r.groups.axes;
    const int64_t columns = gathers ? r.groups.outputs : axes.dim[0].size;
    const int64_t walk = walk_extent(reduced);
    // Wider rows than a part alone would fold to: its columns have fewer sums to combine than rows.
    const int64_t rows = plan.folds ? plainly.fold(least(walk, 4 * plan.part_extent)) : 1;
    auto& [states, bests, positions, nan_positions, values, stored_scratch] = in_scratch<Scratch>();
    Stored stored(*this, stored_scratch);
    for (int64_t item = begin; item < end; ++item) {
      const auto [part, first, width, j, stop] = tile_item(plan, item, columns, walk);
      const bool folds = rows > 1 && stop - j >= rows;
      if (gathers || (!folds && width < kNarrow)) {
        typename Stored::Gathered gathered(stored, first, width, kNarrow);
        tile(gathered, width, j, stop, states, positions);
        finish_sums(width, states);
        if (has_nan(width, states)) [[unlikely]] {
          plainly.kernel.tile(gathered, width, j, stop, bests, nan_positions);
          take_nans(width, bests, nan_positions, states, positions);
        }
      } else {
        const Key* base = input + Cursor(axes, 0, first).place().offset;
        if (folds) {
          folded(stored, base, width, rows, j, stop, states, positions, positions);
        } else {
          typename Stored::InPlace source(stored, base, reduced, j, first,
                                          {1, width, width, width});
          tile(source, width, j, stop, states, positions);
          finish_sums(width, states);
        }
        if (has_nan(width, states)) [[unlikely]] {
          if (folds) {
            plainly.folded(stored, first, base, width, rows, j, stop, bests, nan_positions,
                           nan_positions);
          } else {
            typename Stored::InPlace source(stored, base, reduced, j, first,
                                            {1, width, width, width});
            plainly.kernel.tile(source, width, j, stop, bests, nan_positions);
          }
          take_nans(width, bests, nan_positions, states, positions);
        }
      }
      if (job.candidates) {
        for (int64_t c = 0; c < width; ++c)
          this->store_candidate((first + c) * plan.parts + part, group(states, c, positions[c]));
        continue;
      }
      find_probabilities(width, states, values);
      scatter(kept, values, first, width, static_cast<Key*>(r.values));
      scatter(kept, positions, first, width, static_cast<int64_t*>(r.indices));
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
