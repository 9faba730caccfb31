// Columns: outputs side by side in the lanes of vectors. They lie so where a kept dim is innermost;
// others are gathered (gather.h).
//
// Bound by reading memory once. Narrow rows with small gaps or none are folded: several count as
// one wide one, and the columns that are really one are combined at the end.
#pragma once

#include "cpu/column_sources.h"

namespace reduceops::cpu {
namespace {

// Writes the results of `width` outputs from number `first` on to their places.
template <class From, class T>
REDUCEOPS_NOINLINE void scatter(const Dims& kept, const From* from, int64_t first, int64_t width,
                                T* results) {
  // Lines are of the dims before that along which results are neighbours, or of the innermost.
  Dims line;
  line.count = 0;
  int64_t size = 1;
  do {
    line.dim[line.count] = kept.dim[line.count];
    size *= kept.dim[line.count++].size;
  } while (line.count < kept.count && kept.dim[line.count].step != 1 &&
           size * kept.dim[line.count].size <= kGatherColumns);
  if (line.count == kept.count || kept.dim[line.count].step != 1) {
    line.count = 1;
    size = kept.dim[0].size;
  }
  int next = line.count;
  Dim second = next < kept.count ? kept.dim[next++] : Dim{1, 0, 0};
  // Dims whose results follow those of the second count as part of it.
  for (; second.step == 1 && next < kept.count && kept.dim[next].step == second.size; ++next)
    second.size *= kept.dim[next].size;
  int64_t start = first % size, number = first / size % second.size;
  Cursor outer(kept, next, first / size / second.size);
  for (int64_t c = 0; c < width;) {
    T* __restrict to = results + outer.place().step + number * second.step;
    const int64_t lines = start > 0 ? 0 : least(second.size - number, (width - c) / size);
    // Whole lines; the inner loop is the one whose results are neighbours, or the longer one.
    if (lines >= kResultsTogether && (second.step == 1 || lines > size)) {
      Cursor place(line, 0, 0);
      int64_t i = 0;
      if constexpr (sizeof(From) == sizeof(T)) {
        constexpr int64_t kSide = Square<From>::kSide;
        for (; second.step == 1 && lines >= kSide && i + kSide <= size; i += kSide) {
          T* column[kSide];
          for (int64_t u = 0; u < kSide; ++u, place.next()) column[u] = to + place.place().step;
          for (int64_t next = 0; next < lines; next += kSide) {
            const int64_t k = least(next, lines - kSide);  // the last square overlaps
            Square<From>::transpose(from + c + k * size + i, size,
                                    [&](int64_t u) { return column[u] + k; });
          }
        }
      }
      for (; i < size; ++i, place.next()) {
        T* __restrict column = to + place.place().step;
        for (int64_t k = 0; k < lines; ++k)
          column[k * second.step] = static_cast<T>(from[c + k * size + i]);
      }
      c += lines * size;
      number += lines;
    } else {
      const int64_t n = least(size - start, width - c);
      if (line.count == 1) {
        const int64_t step = line.dim[0].step;
        if (step == 1 && sizeof(From) == sizeof(T)) {
          std::memcpy(to + start, from + c, n * sizeof(T));
        } else {
          for (int64_t i = 0; i < n; ++i) to[(start + i) * step] = static_cast<T>(from[c + i]);
        }
      } else {
        const int64_t inner = line.dim[0].size, step = line.dim[0].step;
        Cursor place(line, 1, start / inner);
        for (int64_t i = 0, at = start % inner, m; i < n; i += m, at = 0, place.next()) {
          m = least(inner - at, n - i);
          T* __restrict run = to + place.place().step + at * step;
          for (int64_t k = 0; k < m; ++k) run[k * step] = static_cast<T>(from[c + i + k]);
        }
      }
      c += n;
      start = 0;
      ++number;
    }
    if (number == second.size) {
      number = 0;
      outer.next();
    }
  }
}

template <class Element, class Source>
struct Columns : Walk<Element> {
  using Base = Walk<Element>;
  using Kernel = ColumnKernel<Element>;
  using typename Base::Key;
  using Lane = typename Kernel::Lane;
  using Bests = typename Kernel::Bests;
  using Base::element, Base::input, Base::job, Base::r;

  static constexpr int64_t kLanes = Kernel::kLanes, kTile = Kernel::kTile;

  // Too large for the stack of every thread.
  struct Scratch {
    Bests bests;
    int64_t positions[kTile];
    int32_t narrowed[kTile];
    Key values[kTile];
    typename Source::Scratch source;
  };

  const Kernel kernel;

  Columns(const Job& job, Element element) : Base(job, element), kernel(element) {}

  // How many rows count as one.
  int64_t fold(int64_t walk) const {
    if (!price::is_dense(r.groups, walk, sizeof(Key), r.softmax)) return 1;
    const Dim &reduced = r.groups.reduced.dim[0], &axes = r.groups.axes.dim[0];
    const int64_t pitch = reduced.stride, width = axes.size;
    // Rows that are present, or not, as a whole need no marks.
    if (r.mask && axes.mask_stride == 0 && reduced.mask_stride != 0 && width >= kLanes) return 1;
    const int64_t rows = folded_rows(pitch, walk, sizeof(Key), kLanes);
    // No gap follows the last of them, and what masks are put to is read by whole vectors.
    const bool narrow = rows > 1 && (rows - 1) * pitch + width < kLanes;
    return narrow && !Source::kTakesNarrow ? rows + 1 : rows;
  }

  // The best of rows [j, stop) of all columns, `fold` of them taken as one. `wide_positions` is for
  // those of the wide rows; `positions` may be the same.
  REDUCEOPS_NOINLINE void folded(Source& source, int64_t first, const Key* base, int64_t width,
                                 int64_t fold, int64_t j, int64_t stop, Bests& bests,
                                 int64_t* wide_positions, int64_t* positions) const {
    const int64_t wide = (stop - j) / fold;
    const Dim& down = r.groups.reduced.dim[0];
    const int64_t pitch = down.stride, mark_stride = down.mask_stride;
    const int64_t columns = (fold - 1) * pitch + width;  // of a wide row
    const Key* rows = base + j * pitch;
    Dims dims;
    dims.count = 1;
    dims.dim[0] = {wide, fold * pitch, 1, fold * mark_stride};
    typename Source::InPlace in_place(source, rows, dims, 0, first, {fold, width, pitch, columns},
                                      j * mark_stride);
    kernel.tile(in_place, columns, 0, wide, bests, wide_positions);
    const uint8_t* const marks = source.marks_of(first);
    for (int64_t c = 0; c < width; ++c) {
      Best<Key> best{std::numeric_limits<Key>::max(), std::numeric_limits<int64_t>::max()};
      Lane winner = Kernel::kLast;
      const auto take = [&](Lane lane, int64_t position) {
        const Best<Key> one{kernel.key(lane), position};
        if (better(one, best)) best = one, winner = lane;
      };
      for (int64_t f = 0; f < fold; ++f)
        take(bests.lane[f * pitch + c], j + wide_positions[f * pitch + c] * fold + f);
      for (int64_t i = wide * fold; i < stop - j; ++i)
        take(kernel.lane(source.element(rows + i * pitch + c, marks, c, j + i)), j + i);
      bests.lane[c] = winner;
      positions[c] = best.index;
    }
  }

  // Writes the values of columns whose bests these are; whether a best does not tell their bits.
  REDUCEOPS_NOINLINE bool put_values(int64_t width, const Bests& bests, Key* values) const {
    typename Kernel::Bits unsure{};
    for (int64_t next = 0; next < width; next += kLanes) {
      // The last vector overlaps the one before, if there is one.
      const int64_t c = std::max<int64_t>(0, least(next, width - kLanes));
      const auto elements = kernel.elements(get<typename Kernel::V>(bests.lane + c), unsure);
      if (width >= kLanes) {
        put(values + c, elements);
      } else {
        std::memcpy(values, &elements, width * sizeof(Key));
      }
    }
    return any(unsure);
  }

  // What is known of a tile besides its bests.
  struct Known {
    bool results, values, unsure;
  };

  // The bests of a tile and their results; but where only values are wanted, these instead, and
  // results only if they are needed to tell them.
  template <class Rows>
  REDUCEOPS_SMALL Known tile(Rows& rows, int64_t width, int64_t j, int64_t stop, Bests& bests,
                             int64_t* results, Key* values) const {
    const bool waits = values && !r.indices && !r.mask && rows.most(stop - j) == stop - j;
    kernel.tile(rows, width, j, stop, bests, waits ? nullptr : results);
    if (!waits) return {true, false, false};
    const bool unsure = put_values(width, bests, values);
    if (!unsure || (Kernel::kKeepsBlock && bests.block.rows)) return {false, true, unsure};
    ColumnTile<Key>::find_results(rows, j, static_cast<typename Kernel::Number>(stop - j), width,
                                  bests.at, results, true);
    return {true, true, true};
  }

  // Whether a best does not tell the bits of its value.
  bool is_unsure(Lane best) const {
    if constexpr (Kernel::kFloats) return best != best || (best == 0 && !kernel.knows_zeros);
    Key value;
    return !element.value_of_key(best, value);
  }

  // Reads the values again that the bests do not tell: those of a block by vectors.
  REDUCEOPS_NOINLINE void read_again(int64_t first, int64_t width, const Bests& bests,
                                     const int64_t* indices, Key* values) const {
    if constexpr (Kernel::kKeepsBlock) {
      if (bests.block.rows) return kernel.read_again(width, bests, values);
    }
    Cursor column(r.groups.axes, 0, first);
    for (int64_t c = 0; c < width; ++c, column.next())
      if (is_unsure(bests.lane[c]))
        values[c] = kernel.value(this->read(column.place(), indices[c]));
  }

  REDUCEOPS_NOINLINE void store_candidates(int64_t first, int64_t width, int64_t part,
                                           const Bests& bests, const int64_t* indices) const {
    Candidate* candidate = job.candidates + part;
    Cursor place(r.groups.kept, 0, first);  // whose steps count the candidates of crossed dims
    for (int64_t c = 0; c < width; ++c, place.next()) {
      const int64_t number = job.crossed ? place.place().step : first + c;
      candidate[number * job.plan.parts] = {kernel.key(bests.lane[c]), indices[c]};
    }
  }

  REDUCEOPS_SMALL void operator()(int64_t begin, int64_t end) const {
    const Plan& plan = job.plan;
    const bool gathers = plan.walk == Walks::kGather;
    const Dims &reduced = r.groups.reduced, &kept = r.groups.kept, &axes = r.groups.axes;
    const int64_t columns = gathers ? r.groups.outputs : axes.dim[0].size;
    const int64_t walk = walk_extent(reduced);
    const int64_t rows = plan.folds ? fold(least(walk, plan.part_extent)) : 1;
    // Whether the results of a tile follow each other.
    const bool follow =
        kept.dim[0].step == 1 && (in_order(r.groups) || (!gathers && kept.dim[0].size == columns));
    const bool positions_count = counts(reduced);
    auto& [bests, local, narrowed, local_values, source_scratch] = in_scratch<Scratch>();
    Source source(*this, source_scratch);
    for (int64_t item = begin; item < end; ++item) {
      const auto [part, first, width, j, stop] = tile_item(plan, item, columns, walk);
      const bool in_place = !job.candidates && follow;
      const bool streams = job.streams && in_place;
      const int64_t to = in_place ? Cursor(kept, 0, first).place().step : 0;
      int64_t* indices = in_place && !streams ? wide_indices(r, to) : nullptr;
      if (!indices) indices = local;
      Key* values = static_cast<Key*>(r.values);
      Key* const written = job.candidates || !values ? nullptr
                           : in_place && !streams    ? values + to
                                                     : local_values;
      Known known{true, false, false};
      const bool folds = rows > 1 && stop - j >= rows;
      if constexpr (Kernel::kKeepsBlock) bests.block.rows = nullptr;
      if (gathers || (!folds && width < kLanes && !Source::kTakesNarrow)) {
        typename Source::Gathered gathered(source, first, width, kLanes);
        const int32_t* lane = gathered.lane_of_columns();
        if (Kernel::kKeepsBlock && gathered.are_copied() && !lane && width >= kLanes &&
            gathered.most(stop - j) == stop - j)
          bests.block = {gathered.row(0), gathered.row(1) - gathered.row(0), stop - j};
        known = tile(gathered, gathered.lanes(), j, stop, bests, lane ? local : indices,
                     lane ? nullptr : written);
        for (int64_t c = 0; lane && c < width; ++c) {
          bests.lane[c] = bests.lane[lane[c]];
          indices[c] = local[lane[c]];
        }
      } else {
        const Key* base = input + Cursor(axes, 0, first).place().offset;
        if (folds) {
          folded(source, first, base, width, rows, j, stop, bests, local, indices);
        } else {
          typename Source::InPlace neighbours(source, base, reduced, j, first,
                                              {1, width, width, width});
          const int64_t pitch = reduced.dim[0].stride;
          if (Kernel::kKeepsBlock && reduced.count == 1 && width >= kLanes &&
              neighbours.most(stop - j) == stop - j)
            bests.block = {base + j * pitch, pitch, stop - j};
          known = tile(neighbours, width, j, stop, bests, indices, written);
        }
        if (known.results && !positions_count) to_indices(reduced, indices, width);
      }
      if (job.candidates) {
        source.settle_part(first, width, bests.lane, Kernel::kLast, indices, j, stop);
        store_candidates(first, width, part, bests, indices);
        continue;
      }
      source.settle(first, width, bests.lane, Kernel::kLast, indices);
      if (values) {
        if (!known.values) known.unsure = put_values(width, bests, written);
        if (known.unsure) read_again(first, width, bests, indices, written);
        if (streams) stream(values + to, written, width * sizeof(Key));
        if (!in_place) scatter(kept, written, first, width, values);
      }
      if (!r.indices || indices != local) continue;
      if (in_place) {
        write_indices(r, to, local, width, streams, narrowed);
      } else {
        visit_results(r.indices, r.index_bytes,
                      [&](auto* results) { scatter(kept, local, first, width, results); });
      }
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
