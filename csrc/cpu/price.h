// What each walk would take for a reduction, so that the plan is the cheapest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/limits.h"
#include "make_groups.h"

namespace reduceops::cpu {

// Whether memory's order of the reduced dims is the index's: what comes first in it wins a tie.
inline bool is_ordered(const Dims& reduced) {
  for (int d = 1; d < reduced.count; ++d)
    if (reduced.dim[d].step < reduced.dim[d - 1].step) return false;
  return true;
}

// Whether there are many columns a few elements apart, of which vectors are made.
inline bool is_stepped(Dim inner) {
  return inner.size >= kSteppedRun && inner.stride > 1 && inner.stride <= kMostStep;
}

// Whether elements that are a step apart are those of one row, and then those of the next.
inline bool follow_each_other(const Groups& groups) {
  const Dims &kept = groups.kept, &reduced = groups.reduced;
  return reduced.count == 1 && kept.count > 0 &&
         kept.dim[0].stride == reduced.dim[0].size * reduced.dim[0].stride;
}

// Columns that a gather copies together, with what lies between them: no other rows, and little
// where there are few rows, for every gap is a lane of its own.
struct Span {
  int64_t count, size;  // elements, from the first to the last
};
inline Span span_of(const Groups& groups, int64_t walk, int64_t bytes) {
  const Dims& axes = groups.axes;
  int64_t nearest = std::numeric_limits<int64_t>::max();
  for (int d = 0; d < groups.reduced.count; ++d)
    nearest = std::min(nearest, groups.reduced.dim[d].stride);
  Span span{1, 1};
  const int64_t most = std::min(kSpanBytes / bytes, std::max<int64_t>(1, walk / kGapWalk));
  for (int d = 0; d < axes.count && !is_stepped(axes.dim[0]); ++d) {
    const Dim dim = axes.dim[d];
    if (dim.stride < span.size || dim.stride > std::min(nearest, most * span.count)) break;
    span = {span.count * dim.size, span.size + (dim.size - 1) * dim.stride};
  }
  return span;
}

// What the walks cost on one core, in nanoseconds for inputs in cache: memory costs all of them the
// same. Fitted to the times of 970 random cases with every walk they may take
// (AVX-512): what counts are ratios, and how many elements are worth a thread (thread_work).
namespace price {

constexpr double kLine = 1.5;                                     // 64 bytes of rows
constexpr double kRow = 3.5, kCopiedRow = 7.6, kSoftmaxRow = 60;  // combining the lanes of one
constexpr double kRun = 35;                                       // reduced by itself
constexpr double kCopiedRun = 3.4, kCopiedLine = 1;
constexpr double kStepped = 0.1, kNear = 0.35, kFar = 0.6;  // elements, by their distance
constexpr double kPage = 0.5;  // of each of them that is in a page of its own
constexpr double kAcross = 1;  // elements of rows whose lines are gone before the next row is read
constexpr int64_t kLinesKept = 512;  // so many, or adjacent ones (kLostBytes)
constexpr double kGathered = 0.3, kGatheredRow = 4, kGatheredLine = 4, kGatheredRun = 1,
                 kGatheredNear = 0.5, kGatheredAlong = 1.2, kGatheredFar = 1.2,
                 kGatheredFarRun = 0.8;
// Far elements that hardware prefetches: so many, and some to a page.
constexpr int64_t kLongRun = 1000, kLongRunBytes = 512;
constexpr double kApart = 0.7, kRowApart = 1.5;  // what is not read in memory's order
constexpr double kTile = 32, kColumn = 0.3, kColumnLine = 1.4, kFoldedColumn = 2.7;
constexpr double kDenseRow = 2.5, kColumnRow = 3.8, kNarrowRow = 2;  // of fewer columns than lanes
constexpr double kScatteredRow = 3.5, kScattered = 0.6, kScatteredColumn = 1.1;   // results
constexpr double kSlice = 2500, kCandidate = 4, kCombined = 7, kCrossedRow = 70;  // of crossed dims

// Of a square of kSquareBytes that is transposed.
constexpr double square(int64_t bytes) {
  return bytes == 1 ? 11 : bytes == 2 ? 6 : bytes == 4 ? 1.6 : 0.7;
}

// Of an element that is copied by itself.
constexpr double element(int64_t stride, int64_t bytes) {
  if (stride <= 4) return kStepped;
  return stride * bytes < kCopyBytes ? kNear : stride * bytes < kPageBytes ? kFar : kFar + kPage;
}

// Whether lines are left out between one run of neighbours and whatever comes next.
inline bool apart(const Groups& groups, Dim inner, int64_t bytes) {
  int64_t next = groups.reduced.dim[0].stride;
  if (groups.axes.count > 1) next = std::min(next, groups.axes.dim[1].stride);
  return (next - inner.size) * bytes >= 2 * kCopyBytes;
}

// Whether rows of neighbouring columns follow each other without gaps, or many of them with small
// ones, which sums are not taken over.
inline bool is_dense(const Groups& groups, int64_t walk, int64_t bytes, bool softmax) {
  const Dim inner = groups.axes.dim[0], down = groups.reduced.dim[0];
  const int64_t gap = down.stride - inner.size;
  return inner.stride == 1 && groups.reduced.count == 1 &&
         (gap == 0 || (gap > 0 && gap * bytes < kLostBytes && walk >= kFoldedWalk && !softmax));
}

// Whether marks lie along the outputs: in rows, each costs a line.
inline bool are_marks_across(const Groups& groups) {
  return is_rows(groups) && groups.reduced.dim[0].mask_stride > kCopyBytes;
}

// Rows read run by run, or as copies without gaps; both are equal where one is the other.
struct Rows {
  double in_runs, copied;
};
inline Rows rows(const Groups& groups, int64_t walk, int64_t bytes, bool softmax) {
  const double elements = static_cast<double>(groups.outputs) * walk, lines = elements * bytes / 64;
  const Dim inner = groups.reduced.dim[0];
  const bool ordered = is_ordered(groups.reduced);
  const Dim copied = ordered ? inner : by_step(groups.reduced).dim[0];
  const bool whole = groups.reduced.count == 1 && inner.stride == 1;
  // Rows that are one in memory: a gather reads it once for many, and their marks in order.
  const bool same = groups.kept.count > 0 && groups.kept.dim[0].stride == 0;
  const double again = same && walk * kCopyBytes >= kPartBytes ? kAcross : 0;
  const double marks =
      are_marks_across(groups) ? elements * (element(inner.mask_stride, 1) + again) : 0;
  const double read = lines * kLine + marks +
                      groups.outputs * ((in_order(groups) ? 0 : kScatteredRow) +
                                        (softmax && !whole ? kSoftmaxRow : 0));
  const auto gaps = [&](Dim dim) {
    return dim.stride == 1 ? lines * kCopiedLine : elements * element(dim.stride, bytes);
  };
  const double runs =
      elements / copied.size / (follow_each_other(groups) ? groups.kept.dim[0].size : 1);
  Rows price{read, read + groups.outputs * kCopiedRow + runs * kCopiedRun + gaps(copied)};
  if (whole) {
    price.in_runs += groups.outputs * kRow;
  } else if (ordered && inner.stride != 1) {  // runs would be copied, too
    price.in_runs = price.copied;
  } else {
    price.in_runs += elements / inner.size * kRun + (inner.stride == 1 ? 0 : gaps(inner));
  }
  const bool across = inner.stride * bytes >= kLostBytes && groups.kept.count > 0 &&
                      groups.kept.dim[0].stride * bytes < kCopyBytes;
  if (across && walk > kLinesKept) {
    price.in_runs += elements * kAcross;
    price.copied += elements * kAcross;
  }
  return price;
}

inline double gather(const Groups& groups, int64_t walk, int64_t bytes) {
  const double columns = groups.outputs, elements = columns * walk;
  const Dim inner = groups.axes.dim[0], down = by_step(groups.reduced).dim[0];
  const Span span = span_of(groups, walk, bytes);
  const int64_t side = kSquareBytes / bytes, lanes = kCopyBytes / bytes;
  double price = columns * (kGathered + (in_order(groups) ? 0 : kScattered)) +
                 std::max(columns * span.size / span.count, double(lanes)) * walk * bytes / 64 *
                     kGatheredLine +
                 std::max(columns / kGatherColumns, 1.0) * walk * kGatheredRow;
  if (span.count > 1) {
    const bool gaps = span.count == inner.size && apart(groups, inner, bytes);
    price += elements / span.count * (kGatheredRun + (gaps ? kApart : 0));
  } else if (is_stepped(inner)) {
    price += elements * kStepped;
  } else if (down.stride == 1 && down.stride < inner.stride && columns >= side) {
    price += columns / side * (static_cast<double>(walk) / down.size) *
             ((down.size + side - 1) / side) * square(bytes);
  } else {
    const bool along = down.stride < inner.stride, near = inner.stride * bytes < kCopyBytes;
    const bool runs = inner.size >= kLongRun && inner.stride * bytes < kLongRunBytes;
    price += elements * (along  ? kGatheredAlong
                         : near ? kGatheredNear
                         : runs ? kGatheredFarRun
                                : kGatheredFar);
  }
  return price;
}

// Of a column, besides what is read: its result.
inline double result(const Groups& groups) {
  const bool follow = in_order(groups) || groups.kept.dim[0].step == 1;
  return kColumn + (follow ? 0 : kScatteredColumn);
}

// Of neighbours.
inline double columns(const Groups& groups, int64_t walk, int64_t bytes, bool softmax) {
  const Dim inner = groups.axes.dim[0];
  const int64_t lanes = kCopyBytes / bytes, tile = std::min(tile_of(bytes), inner.size);
  const double tiles = static_cast<double>(groups.outputs) / tile;
  const bool dense = is_dense(groups, walk, bytes, softmax), wide = tile * bytes >= kPlainBytes;
  const double price = tiles * kTile + groups.outputs * result(groups);
  const auto lines = [&](int64_t columns) { return static_cast<double>(ceil_div(columns, lanes)); };
  const int64_t pitch = groups.reduced.dim[0].stride;
  const int64_t fold =
      dense && tile == inner.size ? folded_rows(pitch, walk, bytes, lanes) : int64_t(1);
  if (fold > 1 || (dense && pitch == inner.size && !wide)) {
    return price + (fold > 1 ? groups.outputs * fold * kFoldedColumn : 0) +
           tiles * walk / fold * (kDenseRow + lines(fold > 1 ? pitch * fold : tile) * kColumnLine);
  }
  const bool gaps = !wide && apart(groups, inner, bytes);
  return price + tiles * walk *
                     (kColumnRow + lines(tile) * kColumnLine + (gaps ? kRowApart : 0) +
                      (tile < lanes ? kNarrowRow : 0));
}

}  // namespace price

}  // namespace reduceops::cpu
