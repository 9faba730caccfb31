// Columns that do not lie side by side in memory, copied into a small buffer where they do.
// Long runs may stay where they lie.
//
// Outputs of any layout so become the lanes of the ordinary passes over columns. Bound by a load
// and a store for each run of neighbouring columns, for each element where there are no runs; rows
// that lie along memory are transposed in squares of 16 bytes, a few instructions for each. Copies
// may read elements between those of the view, of the same storage; their values mean nothing.
#pragma once

#include <algorithm>

#include "cpu/walk.h"

namespace reduceops::cpu {
namespace {

// Rows of 16 bytes, as many as each has elements.
template <class Key>
struct Square {
  static constexpr int kSide = 16 / sizeof(Key);
  typedef Key Row __attribute__((vector_size(16)));

  // Rows become columns: in each step, each row meets the one half of them further on.
  static REDUCEOPS_INLINE void transpose(Row (&rows)[kSide]) {
    for (int step = 1; step < kSide; step *= 2) {
      Row next[kSide];
      for (int i = 0; i < kSide / 2; ++i) {
        next[2 * i] = interleaved<0>(rows[i], rows[i + kSide / 2]);
        next[2 * i + 1] = interleaved<kSide / 2>(rows[i], rows[i + kSide / 2]);
      }
      for (int i = 0; i < kSide; ++i) rows[i] = next[i];
    }
  }

  // The same from rows that lie `pitch` apart to those that begin at to(0), to(1) ...
  template <class To>
  static REDUCEOPS_INLINE void transpose(const Key* from, int64_t pitch, To to) {
    Row rows[kSide];
    for (int64_t u = 0; u < kSide; ++u) std::memcpy(&rows[u], from + u * pitch, sizeof(rows[u]));
    transpose(rows);
    for (int64_t u = 0; u < kSide; ++u) put(to(u), rows[u]);
  }

 private:
  // Elements of a and of b in turns, from `kFrom` on.
  template <int kFrom>
  static REDUCEOPS_INLINE Row interleaved(Row a, Row b) {
    return [&]<int... i>(std::integer_sequence<int, i...>) {
#if __has_builtin(__builtin_shufflevector)
      return __builtin_shufflevector(a, b, (kFrom + i / 2 + i % 2 * kSide)...);
#else  // GCC before 12
      return __builtin_shuffle(a, b, Row{(kFrom + i / 2 + i % 2 * kSide)...});
#endif
    }(std::make_integer_sequence<int, kSide>());
  }
};

template <class Key>
class Gather {
 public:
  static constexpr int64_t kMostRows = 240;                         // to a block; fit a byte
  static constexpr int64_t kRunsAhead = 8, kAheadBytes = 32;        // runs of so many are asked for
  static constexpr int64_t kColumnsAhead = 32;                      // the same, of far columns
  static constexpr int64_t kStayingAhead = 2;                       // the same, of those that stay
  static constexpr int64_t kSlack = kCopyBytes / sizeof(Key);       // copies end behind a row
  static constexpr int64_t kBuffer = 20480 / sizeof(Key);           // stays in L1
  static constexpr int64_t kColumns = kGatherColumns + kCopyBytes;  // and what fills a vector
  static_assert(kBuffer * sizeof(Key) >= kSpanBytes * kGatherColumns + 2 * kCopyBytes);

  // Too large for the stack of every thread.
  struct Scratch {
    alignas(kVectorBytes) Key buffer[kBuffer + kSlack];
    int64_t offset[kColumns];   // of each run of columns, or of each column
    int64_t column[kColumns];   // the first of each run
    int32_t lane[kColumns];     // of each column, where gaps are copied too
    int64_t row[kMostRows];     // offsets, of those that differ from the one before
    uint8_t number[kMostRows];  // of each row, that of the one that it repeats
    int64_t index[kMostRows];
  };

  // Columns may be copied with what lies between them, `most` elements for each (span_of()).
  Gather(const Key* input, const Dims& axes, const Dims& reduced, Scratch& scratch,
         int64_t most = 1)
      : input_(input),
        axes_(axes),
        reduced_(reduced),
        scratch_(scratch),
        end_(reach(axes) + reach(reduced)) {
    const Dim& inner = axes_.dim[0];
    along_ = reduced_.count > 0 && reduced_.dim[0].stride < inner.stride;
    most_ = most;
    runs_ = most > 1 || inner.stride == 1;
    far_ = inner.stride * int64_t(sizeof(Key)) >= 3 * kCopyBytes / 2 &&
           walk_extent(axes) >= kCacheBytes / kCopyBytes;
  }

  // `width` columns from output `first` on, as at least `lanes` of them: the last one comes again.
  // If they stay, nothing is copied: next() and runs() are all there is.
  REDUCEOPS_NOINLINE void columns(int64_t first, int64_t width, int64_t lanes, bool stay = false) {
    width_ = width;
    stay_ = stay;
    most_ > 1 ? find_spans(first, width) : find_runs(first, width);
    with_gaps_ = width_ > width;
    lanes_ = std::max(width_, lanes);
    pitch_ = (lanes_ + kSlack - 1) / kSlack * kSlack + kSlack;
  }

  // Of the columns and the gaps that are copied with them.
  int64_t lanes() const { return width_; }
  // Null where there are no gaps.
  const int32_t* lane_of_columns() const { return with_gaps_ ? scratch_.lane : nullptr; }

  // The last element's offset.
  int64_t end() const { return end_; }

  // Of `rows` that are left, those to copy at once: all, or as many as make whole passes.
  int64_t most(int64_t rows) const {
    const int64_t fit = stay_ ? kMostRows : std::min(kBuffer / pitch_, kMostRows);
    return rows <= fit ? rows : fit < kPassRows ? fit : fit / kPassRows * kPassRows;
  }

  // Copies rows [start, start + count).
  REDUCEOPS_NOINLINE void begin(int64_t start, int64_t count) {
    if (start != start_ || count != count_) {
      Cursor cursor(reduced_, 0, start);
      rows_ = 0;
      for (int64_t u = 0; u < count; ++u, cursor.next()) {
        const auto [offset, index] = cursor.place();
        if (u == 0 || offset != scratch_.row[rows_ - 1]) scratch_.row[rows_++] = offset;
        scratch_.number[u] = static_cast<uint8_t>(rows_ - 1);
        scratch_.index[u] = index;
      }
      start_ = start;
      count_ = count;
    }
    next_ = 0;
    if (stay_) return;
    if (runs_) {
      const int64_t bytes = longest_ * sizeof(Key);
      if (bytes <= 4) {
        copy_runs<4>();
      } else if (bytes <= 8) {
        copy_runs<8>();
      } else if (bytes <= 16) {
        copy_runs<16>();
      } else if (bytes <= 32) {
        copy_runs<32>();
      } else {
        copy_runs<kCopyBytes>();
      }
    } else if (longest_ >= kSteppedRun && is_stepped(axes_.dim[0])) {
      copy_elements();
    } else if (along_ && width_ >= Square<Key>::kSide) {
      transpose();
    } else if (along_) {
      copy_along(0, rows_, 0, width_);
    } else {
      copy_elements();
    }
    for (int64_t u = 0; width_ < lanes_ && u < rows_; ++u) {
      Key* to = row(u);
      std::fill(to + width_, to + lanes_, to[width_ - 1]);
    }
    // The last first, for each is further on than what it is copied from.
    for (int64_t u = count_ - 1; u > scratch_.number[u]; --u)
      std::memcpy(row(u), row(scratch_.number[u]), lanes_ * sizeof(Key));
  }

  const Key* next() {
    const int64_t u = next_++;
    return stay_ ? input_ + scratch_.row[scratch_.number[u]] : row(u);
  }

  // Calls f with each run of n rows: pointers to its elements, also of the row that follows, its
  // first column and their number. Asks for the runs that come next.
  template <class F>
  void runs(const Key* const* row, int n, const Key* following, F f) const {
    const Key* part[kPassRows];
    for (int64_t i = 0; i < run_count_; ++i) {
      const int64_t offset = scratch_.offset[i], column = scratch_.column[i];
      const bool asks = i + kStayingAhead < run_count_;
      const int64_t next = asks ? scratch_.offset[i + kStayingAhead] : 0;
      for (int u = 0; u < n; ++u) {
        part[u] = row[u] + offset;
        for (int64_t c = 0; asks && c < longest_; c += kSlack) prefetch(row[u] + next + c, 0);
      }
      f(part, following + offset, column, scratch_.column[i + 1] - column);
    }
  }
  // A row of those that were copied, with room for whole vectors; the indices of their elements.
  Key* row(int64_t u) { return scratch_.buffer + u * pitch_; }
  const int64_t* indices() const { return scratch_.index; }

 private:
  void find_runs(int64_t first, int64_t width) {
    const Dim inner = axes_.dim[0];
    Cursor outer(axes_, 1, first / inner.size);
    int64_t start = first % inner.size, count = 0, longest = 0;
    for (int64_t c = 0; c < width; start = 0, outer.next()) {
      const int64_t n = least(inner.size - start, width - c);
      const int64_t offset = outer.place().offset + start * inner.stride;
      scratch_.column[count] = c;
      if (runs_) {
        scratch_.offset[count] = offset;
      } else {
        for (int64_t i = 0; i < n; ++i) scratch_.offset[c + i] = offset + i * inner.stride;
      }
      ++count;
      longest = std::max(longest, n);
      c += n;
    }
    scratch_.column[count] = width;
    run_count_ = count;
    longest_ = longest;
  }

  // Runs that take in the gaps before them, so that more columns are copied at once.
  void find_spans(int64_t first, int64_t width) {
    const Dim inner = axes_.dim[0];
    Cursor outer(axes_, 1, first / inner.size);
    int64_t start = first % inner.size, end = 0;
    run_count_ = longest_ = width_ = 0;
    for (int64_t c = 0, n; c < width; c += n, start = 0, outer.next()) {
      n = least(inner.size - start, width - c);
      const int64_t offset = outer.place().offset + start * inner.stride;
      const int64_t size = (n - 1) * inner.stride + 1, gap = offset - end;
      end = offset + size;
      if (c > 0 && gap >= 0 && gap + size <= most_ * n) {
        width_ += gap;
      } else {
        scratch_.column[run_count_] = width_;
        scratch_.offset[run_count_++] = offset;
      }
      for (int64_t i = 0; i < n; ++i)
        scratch_.lane[c + i] = static_cast<int32_t>(width_ + i * inner.stride);
      width_ += size;
      longest_ = std::max(longest_, width_ - scratch_.column[run_count_ - 1]);
    }
    scratch_.column[run_count_] = width_;
  }

  // A run at once, or in turns of kBytes: what is copied behind its end is written again with the
  // run that follows.
  template <int kBytes>
  void copy_runs() {
    constexpr int64_t kStep = kBytes / sizeof(Key);
    if constexpr (kStep > 0) {
      // Copies, so that no store changes them.
      const int64_t *offset = scratch_.offset, *column = scratch_.column, *row = scratch_.row;
      const int64_t rows = rows_, runs = run_count_, pitch = pitch_, last = end_ + 1 - kStep;
      const Key* input = input_;
      Key* buffer = scratch_.buffer;
      const auto copy = [=](int64_t i, int64_t u) REDUCEOPS_INLINED {
        const int64_t n = column[i + 1] - column[i], at = offset[i] + row[u];
        Key* to = buffer + u * pitch + column[i];
        if (kBytes >= kAheadBytes)  // shorter ones are many
          prefetch(input + offset[least(i + kRunsAhead, runs - 1)] + row[u], 0);
        if (at + n > last) [[unlikely]] {
          std::memcpy(to, input + at, n * sizeof(Key));
        } else {
          std::memcpy(to, input + at, kBytes);
          if constexpr (kBytes == kCopyBytes) {
            for (int64_t c = kStep; c < n; c += kStep) std::memcpy(to + c, input + at + c, kBytes);
          }
        }
      };
      if (by_run()) {
        for (int64_t i = 0; i < runs; ++i)
          for (int64_t u = 0; u < rows; ++u) copy(i, u);
      } else {
        for (int64_t u = 0; u < rows; ++u)
          for (int64_t i = 0; i < runs; ++i) copy(i, u);
      }
    }
  }

  // Whether the rows of a run lie closer together than the runs.
  bool by_run() const {
    return axes_.count > 1 && reduced_.count > 0 && reduced_.dim[0].stride < axes_.dim[1].stride;
  }

  void copy_elements() {
    const int64_t *offset = scratch_.offset, *column = scratch_.column, width = width_;
    for (int64_t u = 0; u < rows_; ++u) {
      Key* to = scratch_.buffer + u * pitch_;
      const Key* from = input_ + scratch_.row[u];
      if (longest_ >= kSteppedRun) {
        for (int64_t i = 0; i < run_count_; ++i) {
          const int64_t c = column[i];
          copy_run(to + c, from + offset[c], column[i + 1] - c, axes_.dim[0].stride);
        }
      } else {
        int64_t c = 0;
        for (; far_ && c < width - kColumnsAhead; ++c) {
          to[c] = get<Key>(from + offset[c]);
          prefetch(from + offset[c + kColumnsAhead], 0);
        }
        for (; c < width; ++c) to[c] = get<Key>(from + offset[c]);
      }
    }
  }

  // Of columns [c, stop) rows [u, u + n), each column after the other.
  void copy_along(int64_t u, int64_t n, int64_t c, int64_t stop) {
    const int64_t *row = scratch_.row + u, pitch = pitch_;
    for (; c < stop; ++c) {
      const Key* from = input_ + scratch_.offset[c];
      Key* to = scratch_.buffer + u * pitch + c;
      for (int64_t i = 0; i < n; ++i) to[i * pitch] = get<Key>(from + row[i]);
    }
  }

  // Asks for the elements of a square of far columns. Not in the loop, which it would slow down.
  REDUCEOPS_NOINLINE void ask_for(const int64_t* offset, int64_t row) const {
    for (int k = 0; k < Square<Key>::kSide; ++k) prefetch(input_ + offset[k] + row, 0);
    asm volatile("");  // else GCC takes the call for one without an effect, and leaves it out
  }

  void transpose() {
    constexpr int64_t kSide = Square<Key>::kSide;
    const int64_t *offsets = scratch_.offset, width = width_, pitch = pitch_, count = rows_;
    const int64_t last = end_ + 1 - kSide;  // at which a square may begin
    const int64_t highest = *std::max_element(offsets, offsets + width);
    int64_t n;
    for (int64_t u = 0; u < count; u += n) {
      const int64_t* row = scratch_.row + u;
      for (n = 1; u + n < count && row[n] == row[n - 1] + 1;) ++n;
      for (int64_t next = 0; next < width; next += kSide) {
        const int64_t c = least(next, width - kSide);  // the last squares overlap those before
        const int64_t* offset = offsets + c;
        if (far_) ask_for(offset + least(2 * kSide, width - kSide - c), row[0]);
        if (n == 1 || (n < kSide && highest + row[0] > last &&
                       *std::max_element(offset, offset + kSide) + row[0] > last)) {
          copy_along(u, n, c, c + kSide);  // not worth it, or it would reach beyond the end
          continue;
        }
        for (int64_t done = 0; done < n; done += kSide) {
          const int64_t i = n < kSide ? 0 : least(done, n - kSide);
          typename Square<Key>::Row square[kSide];
          for (int k = 0; k < kSide; ++k)
            std::memcpy(&square[k], input_ + offset[k] + row[0] + i, sizeof(square[k]));
          Square<Key>::transpose(square);
          Key* to = scratch_.buffer + (u + i) * pitch + c;
          for (int k = 0; k < kSide && (n >= kSide || k < n); ++k) put(to + k * pitch, square[k]);
        }
      }
    }
  }

  const Key* const input_;
  const Dims &axes_, &reduced_;
  Scratch& scratch_;
  const int64_t end_;
  bool runs_;     // columns are neighbours, some of them, or are copied as if they were
  int64_t most_;  // elements for each column, gaps included
  bool along_;    // a column's rows lie closer together than the columns
  bool far_;      // columns have lines of their own, more than the caches of a core hold
  int64_t width_ = 0, lanes_ = 0, pitch_ = 0;
  int64_t run_count_ = 0, longest_ = 0;
  bool with_gaps_ = false, stay_ = false;
  int64_t start_ = -1, count_ = 0, rows_ = 0, next_ = 0;
};

}  // namespace
}  // namespace reduceops::cpu
