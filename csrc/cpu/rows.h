// Rows: each group by itself, for which a reduced dim should be innermost.
//
// For rows of any length and with any gaps: as many as fill a vector's lanes together, copied where
// they are not contiguous; longer ones run by run, short runs joined. Bound by reading memory
// once; rows of a few dozen bytes by the work per row.
#pragma once

#include "cpu/row_sources.h"

namespace reduceops::cpu {
namespace {

// Copies of rows, and whole rows, of which some are reduced together. The kernel is behind a
// pointer, so that this is there once for all elements of a width.
template <class Key, class Source>
struct WholeRows {
  using GroupMarks = typename Source::GroupMarks;
  static constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
  static constexpr bool kPlain = std::is_same_v<GroupMarks, Marks<false>>;

  const Job& job;
  const Reduction& r;
  const Key* const input;
  const void* const kernel;
  void (*const reduce)(const void* kernel, const Key* const* row, int count, int64_t n,
                       int64_t* positions, Key* values);

  // Copies positions [j, stop) of the group that lies `at`, one behind the other, to place `to`.
  REDUCEOPS_NOINLINE void copy(Source& source, Place at, const uint8_t* marks, int64_t j,
                               int64_t stop, int64_t to) const {
    const Dims& reduced = r.groups.reduced;
    const Dim inner = reduced.dim[0];
    if constexpr (kPlain) {
      if (reduced.count > 1 && inner.size <= kShortRun && inner.stride != 1)
        return copy_short(source, at, j, stop, to);
    }
    Cursor outer(reduced, 1, j / inner.size);
    GroupMarks outer_marks(r, reduced, 1, j / inner.size);
    for (int64_t start = j % inner.size; j < stop; start = 0) {
      const int64_t n = least(inner.size - start, stop - j);
      const Run<Key> run{input + at.offset + outer.place().offset, inner.stride,
                         outer_marks.of(marks), inner.mask_stride};
      source.append(to, run.from(start), n);
      to += n;
      j += n;
      outer.next();
      outer_marks.next();
    }
  }

  // The same of short runs with gaps, without marks.
  REDUCEOPS_NOINLINE void copy_short(Source& source, Place at, int64_t j, int64_t stop,
                                     int64_t to) const {
    const Dims& reduced = r.groups.reduced;
    const Dim inner = reduced.dim[0], next = reduced.dim[1];
    const int64_t block = inner.size * next.size;
    Cursor outer(reduced, 2, j / block);
    for (int64_t start = j % block, n; j < stop; j += n, to += n, start = 0, outer.next()) {
      n = least(block - start, stop - j);
      source.append_runs(to, input + at.offset + outer.place().offset, inner, next, start, n);
    }
  }

  // Items are whole rows of n elements, without gaps or to be copied: as many at once as a vector
  // has lanes, but of long ones only those that still are in L1 when their winning blocks are read
  // again, and of copies those that have room.
  REDUCEOPS_NOINLINE void operator()(Source& source, int64_t begin, int64_t end, int64_t n) const {
    const Dims &kept = r.groups.kept, &reduced = r.groups.reduced;
    const bool copies = job.plan.copies;
    const bool in_place = counts(reduced) && in_order(r.groups);
    const bool streams = job.streams && in_place && n <= RowLimits<Key>::kShort;
    const bool direct = in_place && !streams;
    const bool follow = kPlain && copies && follow_each_other(r.groups);
    const int64_t pitch = follow ? n : std::max(n, kLanes);
    int64_t together = Source::together(n);
    if (copies) together = least(together, Source::kChunk / pitch);
    Cursor cursor(kept, 0, begin);
    GroupMarks marks(r, kept, 0, begin);
    while (begin < end) {
      const Key* row[kLanes];
      Place at[kLanes];
      int64_t local[kLanes], narrowed[kLanes];
      Key local_values[kLanes];
      const int64_t most = streams ? together - begin % together : together;  // lines of results
      const int count = static_cast<int>(least(most, end - begin));
      next_places(kept, begin, count, cursor, at);
      if (copies) {
        for (int i = 0, m; i < count; i += m, marks.next()) {
          const Dim inner = reduced.dim[0];
          m = 1;
          while (follow && i + m < count && at[i + m].offset == at[i].offset + m * n * inner.stride)
            ++m;
          if (kPlain && m > 1) {  // as one run
            source.append(i * pitch, {input + at[i].offset, inner.stride, nullptr, 0}, m * n);
          } else {
            copy(source, at[i], marks.place(), 0, n, i * pitch);
          }
        }
        source.appended(count, n, pitch, row);
      } else {
        source.hand(at, marks, count, n, row);
      }
      int64_t* positions = direct ? wide_indices(r, begin) : nullptr;
      if (!positions) positions = local;
      Key* const written = r.values ? static_cast<Key*>(r.values) + begin : nullptr;
      Key* values = written && !direct ? local_values : written;
      reduce(kernel, row, count, n, positions, values);
      source.settle(row, count, n, positions);
      if (!in_place) {
        for (int i = 0; i < count; ++i)
          write_result(r, at[i].step, place(reduced.dim, reduced.count, positions[i]).step,
                       r.values ? local_values[i] : Key{});
      } else {
        if (r.indices && positions == local)
          write_indices(r, begin, local, count, streams, narrowed);
        if (r.values && streams) stream(written, local_values, count * sizeof(Key));
      }
      begin += count;
    }
  }
};

template <class Element, class Source>
struct Rows : Walk<Element> {
  using Base = Walk<Element>;
  using Kernel = RowKernel<Element>;
  using Base::element, Base::input, Base::job, Base::r;
  using typename Base::Key;
  using GroupMarks = typename Source::GroupMarks;
  static constexpr int64_t kLanes = Kernel::kLanes;
  static constexpr int64_t kAsked =
      (1 << 20) / sizeof(Key);  // elements between two looks at others

  const Kernel kernel;
  const WholeRows<Key, Source> whole;

  Rows(const Job& job, Element element)
      : Base(job, element),
        kernel(element, job),
        whole{job, r, input, &kernel, [](const void* kernel, auto... arguments) {
                static_cast<const Kernel*>(kernel)->reduce(arguments...);
              }} {}

  // The smallest of n elements without gaps, of which the first is position `start`.
  REDUCEOPS_NOINLINE Best<int64_t> best_of(const Key* p, int64_t n, int64_t start) const {
    int64_t position;
    kernel.reduce(&p, 1, n, &position, nullptr);
    return {kernel.key(kernel.lane(get<Key>(p + position))), start + position};
  }

  // The first smallest of n elements, stride apart; the index is the position.
  REDUCEOPS_SMALL Best<int64_t> best_of(Source& source, const Run<Key>& run, int64_t n) const {
    if (source.absent(run)) return {std::numeric_limits<Key>::max(), 0};
    const bool copies = source.copies(run, n);
    const int64_t step = copies ? Source::kChunk : Kernel::kRun;
    Best<int64_t> best{};
    for (int64_t next = 0; next < n; next += step) {
      // A last vector's worth overlaps the run before.
      const int64_t start = copies ? next : least(next, n - kLanes);
      const int64_t m = least(step, n - start);
      const Best<int64_t> here = best_of(source.chunk(run.from(start), m), m, start);
      if (next == 0 || better(here, best)) best = here;
      if (best.key == element.order.floor) break;  // nothing can be better
    }
    return best;
  }

  // The first smallest of positions [j, stop) of the walk, copied from all its runs; these follow
  // each other in the order of the index.
  REDUCEOPS_SMALL Best<int64_t> joined(Source& source, Place at, const uint8_t* marks, int64_t j,
                                       int64_t stop) const {
    const Dims& reduced = r.groups.reduced;
    Best<int64_t> best{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
    for (int64_t m; j < stop; j += m) {
      m = least(Source::kChunk, stop - j);
      whole.copy(source, at, marks, j, j + m, 0);
      const Best<int64_t> here = best_of(source.appended(m), m, j);
      if (better(here, best)) best = here;
      if (best.key == element.order.floor) break;  // nothing can be better
    }
    return {best.key, place(reduced.dim, reduced.count, best.index).step};
  }

  // Whether an earlier part of the row has what no other beats, and then that this part has it.
  bool is_beaten(const Item& item) const {
    return job.decided && job.decided[item.unit].load(std::memory_order_relaxed) < item.part;
  }
  void decide(const Item& item) const {
    std::atomic<int64_t>& decided = job.decided[item.unit];
    int64_t first = decided.load(std::memory_order_relaxed);
    while (item.part < first && !decided.compare_exchange_weak(first, item.part)) {
    }
  }

  REDUCEOPS_SMALL void operator()(int64_t begin, int64_t end) const {
    Source source(*this);
    const Dims& reduced = r.groups.reduced;
    const int64_t walk = walk_extent(reduced);
    const bool in_place = reduced.count == 1 && reduced.dim[0].stride == 1;
    const int64_t most = job.plan.copies ? Source::kChunk
                         : in_place      ? Source::whole(Kernel::kRun)
                                         : 0;
    if (walk <= most && !job.candidates) return whole(source, begin, end, walk);
    const Dim inner = reduced.count ? reduced.dim[0] : Dim{1, 1, 0};
    const int64_t asked = job.decided ? kAsked : walk;
    const bool ordered = is_ordered(reduced);
    Item item(job.plan, begin);
    Cursor kept(r.groups.kept, 0, item.unit);
    GroupMarks kept_marks(r, r.groups.kept, 0, item.unit);
    for (; begin < end; ++begin) {
      const int64_t part = item.part;
      const int64_t first = part * job.plan.part_extent;
      const int64_t stop = least(walk, first + job.plan.part_extent);
      int64_t j = first;
      const Place at = kept.place();
      const uint8_t* const marks = kept_marks.place();
      Best<int64_t> best{std::numeric_limits<int64_t>::max(), kNowhere};
      if (job.plan.copies) {
        best = joined(source, at, marks, j, stop);
        j = stop;
      }
      Cursor outer(reduced, 1, j / inner.size);
      GroupMarks outer_marks(r, reduced, 1, j / inner.size);
      for (int64_t start = j % inner.size; j < stop && !is_beaten(item);) {
        const int64_t n = least(least(inner.size - start, stop - j), asked);
        const Place run_at = outer.place();
        const Run<Key> run{input + at.offset + run_at.offset, inner.stride, outer_marks.of(marks),
                           inner.mask_stride};
        const auto found = best_of(source, run.from(start), n);
        const Best<int64_t> here{found.key, run_at.step + (start + found.index) * inner.step};
        if (better(here, best)) best = here;
        if (ordered && best.key == element.order.floor) break;  // nothing can be better
        j += n;
        start += n;
        if (start == inner.size) {
          start = 0;
          outer.next();
          outer_marks.next();
        }
      }
      if (job.decided && best.key == element.order.floor) decide(item);
      if (job.candidates) {
        source.settle_part(best, marks, first, stop);
        const int64_t number = job.crossed ? at.step : item.unit;  // steps count candidates there
        job.candidates[number * job.plan.parts + part] = {best.key, best.index};
      } else {
        source.settle(best, marks);
        finish(*this, at, best.index);
      }
      if (item.next()) {
        kept.next();
        kept_marks.next();
      }
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
