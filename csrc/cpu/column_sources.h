// What the tile kernel of columns is handed: rows in memory or gathered ones, or copies of them in
// which a mask has put the identity in place of what is absent.
//
// Rows of a block come one after the other (next) and are handed over some at a time and, where
// they are copied, in segments that fit L1.
#pragma once

#include <algorithm>

#include "cpu/column_kernel.h"
#include "cpu/gather.h"
#include "cpu/mask.h"

namespace reduceops::cpu {
namespace {

// Rows that need no copy: pointers to their elements.
template <class Key>
struct PlainRows {
  using Row = const Key*;
  void begin(int64_t, int64_t) {}
  // Calls f with the rows, the row behind them, the first column and the number of columns.
  template <class F>
  void hand(const Row* row, int, int64_t lanes, Row following, F f) const {
    f(row, following, 0, lanes);
  }
  // The row behind row u of a full pass, as far as one can tell.
  Row following(const Row* row, int u) const { return row[u] + (row[1] - row[0]); }
};

// What the results of row `number` of a block are, from 1: positions of the walk, or indices.
struct PositionOf {
  int64_t before;
  int64_t operator()(int64_t number) const { return before + number; }
};
struct IndexOf {
  const int64_t* index;
  int64_t operator()(int64_t number) const { return index[number - 1]; }
};

// Neighbouring columns of a tile that are walked where they lie: `fold` narrow rows, of `inner`
// columns each and `pitch` apart, count as one of `columns`, the gaps between them included.
struct Shape {
  int64_t fold, inner, pitch, columns;
};

template <class K>
class StoredColumns {
 public:
  using Key = K;
  using Limits = ColumnLimits<Key>;
  static constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
  static constexpr bool kTakesNarrow = true;           // columns in place may be fewer than lanes
  static constexpr int kLastRows = 2 * Limits::kRows;  // more than are handed over at once
  struct Scratch {
    typename Gather<Key>::Scratch gathered;
    alignas(kVectorBytes) Key last_rows[kLastRows][kLanes];
  };

  template <class Element>
  StoredColumns(const Walk<Element>& walk, Scratch& scratch)
      : gather_(walk.input, walk.r.groups.axes, walk.r.groups.reduced, scratch.gathered,
                most_of_column(walk)),
        stay_(walk.job.plan.stays),
        last_(walk.input + gather_.end() + 1 - kLanes),
        last_rows_(scratch.last_rows) {}
  StoredColumns(const StoredColumns&) = delete;

  // Rows where they lie; their results are positions of the walk.
  class InPlace : public PlainRows<Key> {
   public:
    InPlace(StoredColumns& source, const Key* base, const Dims& rows, int64_t position, int64_t,
            Shape shape, int64_t = 0)
        : source_(source),
          base_(base),
          inner_(rows.dim[0]),
          outer_(rows, 1, position / inner_.size),
          left_(inner_.size - position % inner_.size),
          row_(base + outer_.place().offset + position % inner_.size * inner_.stride),
          width_(shape.columns) {}
    int64_t most(int64_t rows) const { return least(rows, Limits::kBlock); }
    const Key* next() {
      const Key* row = row_;
      row_ += inner_.stride;
      if (--left_ == 0) {
        outer_.next();
        row_ = base_ + outer_.place().offset;
        left_ = inner_.size;
      }
      return width_ < kLanes && row > source_.last_ ? source_.copied(row, width_) : row;
    }
    static auto results(int64_t start) { return PositionOf{start - 1}; }

   private:
    StoredColumns& source_;
    const Key* const base_;
    const Dim inner_;
    Cursor outer_;
    int64_t left_;  // along the innermost dim
    const Key* row_;
    const int64_t width_;
  };

  // Rows of `width` outputs from number `first` on, wherever they lie; their results are indices.
  class Gathered : public PlainRows<Key> {
   public:
    Gathered(StoredColumns& source, int64_t first, int64_t width, int64_t lanes)
        : gather_(source.gather_), stay_(source.stay_) {
      gather_.columns(first, width, lanes, stay_);
    }
    int64_t most(int64_t rows) const { return gather_.most(rows); }
    void begin(int64_t start, int64_t count) { gather_.begin(start, count); }
    const Key* next() { return gather_.next(); }
    const Key* row(int64_t u) const { return gather_.row(u); }
    template <class F>
    void hand(const Key* const* row, int n, int64_t lanes, const Key* following, F f) const {
      if (!stay_) return f(row, following, 0, lanes);
      gather_.runs(row, n, following, f);
    }
    // Whether the columns of a row lie side by side.
    bool are_copied() const { return !stay_; }
    IndexOf results(int64_t) const { return {gather_.indices()}; }
    int64_t lanes() const { return gather_.lanes(); }
    // Null where they are the first ones.
    const int32_t* lane_of_columns() const { return gather_.lane_of_columns(); }

   private:
    Gather<Key>& gather_;
    const bool stay_;
  };

  // An element of column c, at this position of the walk; the marks are those of the first column.
  static const uint8_t* marks_of(int64_t) { return nullptr; }
  Key element(const Key* element, const uint8_t*, int64_t, int64_t) const {
    return get<Key>(element);
  }

  // Corrects the indices of a tile, or of a part of it.
  template <class Lane>
  void settle(int64_t, int64_t, const Lane*, Lane, int64_t*) {}
  template <class Lane>
  void settle_part(int64_t, int64_t, const Lane*, Lane, int64_t*, int64_t, int64_t) {}

 private:
  template <class Element>
  static int64_t most_of_column(const Walk<Element>& walk) {
    const Plan& plan = walk.job.plan;
    if (walk.r.softmax || plan.walk != Walks::kGather || plan.stays) return 1;
    const Groups& groups = walk.r.groups;
    const Span span = span_of(groups, walk_extent(groups.reduced), sizeof(Key));
    return ceil_div(span.size, span.count);
  }

  // A row of fewer columns than lanes, where a vector would reach beyond the end.
  REDUCEOPS_NOINLINE const Key* copied(const Key* row, int64_t width) {
    Key* to = last_rows_[next_ = (next_ + 1) % kLastRows];
    for (int64_t c = 0; c < kLanes; ++c) to[c] = get<Key>(row + least(c, width - 1));
    return to;
  }

  Gather<Key> gather_;
  const bool stay_;        // Plan's
  const Key* const last_;  // at which a vector may begin
  Key (*const last_rows_)[kLanes];
  int next_ = 0;
};

template <class K, bool kBools>
class MaskedColumns {
 public:
  using Key = K;
  using Limits = ColumnLimits<Key>;
  static constexpr bool kTakesNarrow = false;
  using Mark = int8_t;  // as elements of a byte have, whose copying is there already
  static constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
  static constexpr int64_t kSegment = 2048 / sizeof(Key);  // of each row of a pass
  static constexpr int64_t kPitch = kSegment + 2 * kLanes;
  static constexpr int64_t kAhead = Limits::kAhead / sizeof(Key);
  static constexpr int64_t kSingle = kRowAhead / sizeof(Key);  // of a row by itself
  static constexpr int64_t kSplat = 16;                        // bytes
  static_assert(kSingle + kLanes <= Limits::kRows * kPitch);

  struct Scratch {
    typename Gather<Key>::Scratch gathered;
    typename Gather<Mark>::Scratch gathered_marks;
    alignas(kVectorBytes) Key copied[Limits::kRows * kPitch];
    alignas(kVectorBytes) Key absent[Limits::kTile + kLanes];
    uint8_t padded_marks[kSplat + kSingle + kLanes + kSplat];
    uint8_t unsettled[Limits::kTile + kVectorBytes];
    ColumnsApart apart;
    uint8_t* marks() { return padded_marks + kSplat; }
  };

  template <class Element>
  MaskedColumns(const Walk<Element>& walk, Scratch& scratch)
      : masking_(masking_of(walk.element)),
        groups_(walk.r.groups),
        marks_(static_cast<const uint8_t*>(walk.r.mask)),
        axes_(of_mask(groups_.axes)),
        reduced_(of_mask(groups_.reduced)),
        search_(groups_.reduced),
        marks_rows_(!kBools && std::all_of(axes_.dim, axes_.dim + axes_.count,
                                           [](const Dim& dim) { return dim.stride == 0; })),
        gather_(walk.input, groups_.axes, groups_.reduced, scratch.gathered),
        mark_gather_(reinterpret_cast<const Mark*>(marks_), axes_, reduced_,
                     scratch.gathered_marks),
        scratch_(scratch) {}
  MaskedColumns(const MaskedColumns&) = delete;

  class InPlace {
   public:
    // Null elements: none of the row is present. Null marks: all are.
    struct Row {
      const Key* elements;
      const uint8_t* marks;
      Row from(int64_t column) const {
        return {elements ? elements + column : elements, marks ? marks + column : marks};
      }
    };

    // From output number `first` on, whose marks begin `mark_offset` further on.
    InPlace(MaskedColumns& source, const Key* base, const Dims& rows, int64_t position,
            int64_t first, Shape shape, int64_t mark_offset = 0)
        : source_(source),
          shape_(shape),
          base_(base),
          cursor_(rows, 0, position),
          marks_(source.marks_of(first) + mark_offset),
          mark_rows_(of_mask(rows)),
          mark_cursor_(mark_rows_, 0, position),
          across_(source.axes_.dim[0].stride),
          down_(source.reduced_.dim[0].stride) {}
    InPlace(const InPlace&) = delete;

    int64_t most(int64_t rows) const { return least(rows, Limits::kBlock); }
    void begin(int64_t, int64_t) {}
    Row next() {
      Row row{base_ + cursor_.place().offset, marks_ + mark_cursor_.place().offset};
      cursor_.next();
      mark_cursor_.next();
      if (across_ == 0 && (shape_.fold == 1 || down_ == 0))
        return {*row.marks ? row.elements : nullptr, nullptr};
      return row;
    }
    static auto results(int64_t start) { return PositionOf{start - 1}; }

    Row following(const Row* row, int u) const {
      if (!row[0].elements || !row[1].elements || !row[u].elements) return row[u];
      return {row[u].elements + (row[1].elements - row[0].elements),
              row[u].marks ? row[u].marks + (row[1].marks - row[0].marks) : nullptr};
    }

    template <class F>
    void hand(const Row* row, int n, int64_t lanes, Row following, F f) {
      const Key* part[Limits::kRows];
      if (kPlain && no_marks(row, n)) {
        for (int u = 0; u < n; ++u)
          part[u] = row[u].elements ? row[u].elements : source_.absent(lanes);
        return f(part, following.elements ? following.elements : part[0], 0, lanes);
      }
      const int64_t most = n == 1 ? kSingle : kSegment;
      for (int64_t c = 0, width; c < lanes; c += width) {
        width = lanes - c < most + kLanes ? lanes - c : most;  // a vector at least
        const bool last = c + width == lanes;
        for (int u = 0; u < n; ++u) {
          Key* to = source_.scratch_.copied + u * kPitch;
          const int64_t distance = n > 1 ? kAhead : width;
          part[u] =
              segment(row[u], c, width, to, n == 1 && last ? following : row[u].from(c + distance));
        }
        f(part, part[0], c, width);
      }
    }

   private:
    static constexpr bool kPlain = !kBools;

    static bool no_marks(const Row* row, int n) {
      return std::all_of(row, row + n, [](const Row& one) { return !one.marks; });
    }

    // Asks for the next elements, `ahead` of the row's first, and their marks.
    REDUCEOPS_NOINLINE const Key* segment(Row row, int64_t c, int64_t width, Key* to, Row ahead) {
      if (!row.elements) return source_.absent(width);
      if (kPlain && !row.marks) return row.elements + c;
      const uint8_t* marks = source_.scratch_.marks();
      const uint8_t* marks_ahead = marks;
      if (!row.marks) {
        std::memset(source_.scratch_.marks(), 1, width);
      } else if (across_ == 1 && (shape_.fold == 1 || down_ == shape_.pitch)) {
        marks = row.marks + c;
        marks_ahead = ahead.marks;
      } else {
        spread(row.marks, c, width);
      }
      source_.masking_.blend(to, row.elements + c, marks, width, ahead.elements, marks_ahead);
      return to;
    }

    // The marks of columns [c, c + width) of a folded row, or of ones whose marks have gaps. Those
    // of gaps may be anything: nobody asks for the results.
    void spread(const uint8_t* marks, int64_t c, int64_t width) {
      uint8_t* to = source_.scratch_.marks();
      uint8_t* const end = to + width;
      int64_t i = c % shape_.pitch;
      marks += c / shape_.pitch * down_;
      if (across_ == 0 && shape_.pitch <= kSplat) {
        typedef uint8_t Splat __attribute__((vector_size(kSplat)));
        // What is written behind the end of a row is written again with the one that follows.
        for (to -= i; to < end; to += shape_.pitch, marks += down_) put(to, Splat{} + *marks);
        return;
      }
      for (; to < end; i = 0, marks += down_) {
        const int64_t n = least(shape_.inner - i, end - to);
        if (n > 0 && across_ == 0) std::memset(to, *marks, n);
        if (n > 0 && across_ != 0) copy_run(to, marks + i * across_, n, across_);
        to += shape_.pitch - i;
      }
    }

    MaskedColumns& source_;
    const Shape shape_;
    const Key* const base_;
    Cursor cursor_;
    const uint8_t* const marks_;
    const Dims mark_rows_;
    Cursor mark_cursor_;
    const int64_t across_, down_;  // strides of the marks
  };

  class Gathered : public PlainRows<Key> {
   public:
    Gathered(MaskedColumns& source, int64_t first, int64_t width, int64_t lanes)
        : source_(source), lanes_((std::max(width, lanes) + kLanes - 1) / kLanes * kLanes) {
      source_.gather_.columns(first, width, lanes);
      if (!source_.marks_rows_) source_.mark_gather_.columns(first, width, lanes);
    }
    int64_t most(int64_t rows) const {
      const int64_t fit = source_.gather_.most(rows);
      return source_.marks_rows_ ? fit : least(fit, source_.mark_gather_.most(rows));
    }
    void begin(int64_t start, int64_t count) {
      source_.gather_.begin(start, count);
      if (source_.marks_rows_) return mark_rows(start, count);
      source_.mark_gather_.begin(start, count);
      for (int64_t u = 0; u < count; ++u) {
        Key* row = source_.gather_.row(u);
        const Mark* marks = source_.mark_gather_.row(u);
        source_.masking_.blend(row, row, reinterpret_cast<const uint8_t*>(marks), lanes_);
      }
    }
    const Key* next() { return source_.gather_.next(); }
    static bool are_copied() { return true; }
    const Key* row(int64_t u) const { return source_.gather_.row(u); }
    IndexOf results(int64_t) const { return {source_.gather_.indices()}; }
    int64_t lanes() const { return source_.gather_.lanes(); }
    static const int32_t* lane_of_columns() { return nullptr; }

   private:
    REDUCEOPS_NOINLINE void mark_rows(int64_t start, int64_t count) {
      Cursor mark(source_.reduced_, 0, start);
      for (int64_t u = 0; u < count; ++u, mark.next()) {
        if (!source_.marks_[mark.place().offset])
          std::fill_n(source_.gather_.row(u), lanes_, source_.masking_.absent);
      }
    }

    MaskedColumns& source_;
    const int64_t lanes_;  // whole vectors
  };

  // The marks of output number `first`.
  const uint8_t* marks_of(int64_t first) const {
    return marks_ + Cursor(axes_, 0, first).place().offset;
  }
  Key element(const Key* element, const uint8_t* marks, int64_t c, int64_t position) const {
    const uint8_t mark = marks[c * axes_.dim[0].stride + position * reduced_.dim[0].stride];
    return masking_.marked(get<Key>(element), mark);
  }

  // Of columns whose best is the identity, the index is that of the first present element, or 0.
  template <class Lane>
  void settle(int64_t first, int64_t width, const Lane* bests, Lane identity, int64_t* indices) {
    if (!find_unsettled(width, bests, identity, indices)) return;
    if (!kBools) find_present(first, width, search_, indices);
    nowhere_is_first(indices, width);
  }
  // The same for positions [j, stop) of the walk, where nothing may be present.
  template <class Lane>
  void settle_part(int64_t first, int64_t width, const Lane* bests, Lane identity, int64_t* indices,
                   int64_t j, int64_t stop) {
    if (!find_unsettled(width, bests, identity, indices) || kBools) return;
    find_present(first, width, Search(groups_.reduced, j, stop), indices);
  }

 private:
  // As many absent elements, and a vector behind them.
  REDUCEOPS_NOINLINE const Key* absent(int64_t lanes) {
    if (lanes > absent_lanes_) {
      std::fill_n(scratch_.absent, lanes + kLanes, masking_.absent);
      absent_lanes_ = lanes;
    }
    return scratch_.absent;
  }

  template <class Lane>
  bool find_unsettled(int64_t width, const Lane* bests, Lane identity, int64_t* indices) {
    typedef uint8_t Narrow __attribute__((vector_size(kLanes)));
    uint8_t* const unsettled = scratch_.unsettled;
    for (int64_t c = 0; c < width; c += kLanes) {  // with what is behind the last column
      const auto is_identity = get<Vector<Lane>>(bests + c) == identity;
      const Narrow narrow = __builtin_convertvector(is_identity, Narrow) & 1;
      std::memcpy(unsettled + c, &narrow, kLanes);
    }
    const bool found = first_set(unsettled, width, 1) < width;
    if (found) put_where(unsettled, width, kNowhere, indices);
    return found;
  }

  // The indices of unsettled columns.
  void find_present(int64_t first, int64_t width, const Search& search, int64_t* indices) {
    uint8_t* unsettled = scratch_.unsettled;
    if (marks_rows_) return put_where(unsettled, width, first_present(marks_, search), indices);
    find_in_columns({marks_, axes_, first, width, unsettled, scratch_.apart}, search, indices);
  }

  const Masking<Key, kBools> masking_;
  const Groups& groups_;
  const uint8_t* const marks_;
  const Dims axes_, reduced_;  // of the mask
  const Search search_;
  const bool marks_rows_;  // a mark is that of all columns
  Gather<Key> gather_;
  Gather<Mark> mark_gather_;
  int64_t absent_lanes_ = 0;  // that are there
  Scratch& scratch_;
};

}  // namespace
}  // namespace reduceops::cpu
