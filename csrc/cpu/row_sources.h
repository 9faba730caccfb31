// What the tile kernel of rows is handed: rows in memory, or copies of them in which a mask has put
// the identity in place of what is absent.
#pragma once

#include <algorithm>
#include <new>

#include "cpu/mask.h"
#include "cpu/row_kernel.h"

namespace reduceops::cpu {
namespace {

// Elements of a row, and their marks where there are any.
template <class Key>
struct Run {
  const Key* elements;
  int64_t stride;
  const uint8_t* marks;
  int64_t mark_stride;
  Run from(int64_t i) const {
    return {elements + i * stride, stride, marks + i * mark_stride, mark_stride};
  }
};

// Rows as they lie in memory, copied where a vector would not fit or elements have gaps.
template <class K>
class StoredRows {
 public:
  using Key = K;
  using GroupMarks = Marks<false>;
  static constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
  static constexpr int64_t kChunk = 16384 / sizeof(Key);
  static constexpr int64_t kSlack = kCopyBytes / sizeof(Key);  // short copies end behind a run
  static constexpr int64_t kFew = 16 / sizeof(Key);

  template <class Element>
  explicit StoredRows(const Walk<Element>& walk)
      : input_(walk.input), last_(walk.input + last_of(walk.r.groups)) {
    std::memset(copied_, 0, kLanes * sizeof(Key));
  }
  StoredRows(const StoredRows&) = delete;

  // Elements of a row that hand() takes at most, where the kernel takes `run`.
  static constexpr int64_t whole(int64_t run) { return run; }
  // How many rows of n elements without gaps to hand over together.
  static int64_t together(int64_t n) {
    constexpr int64_t kInCache = 32768 / sizeof(Key);
    return std::clamp<int64_t>(kInCache / n, (kLanes + 3) / 4, kLanes);
  }
  // Such rows, which lie `at` these places.
  void hand(const Place* at, Marks<false>&, int count, int64_t n, const Key** row) {
    const Key* highest = input_;
    for (int i = 0; i < count; ++i) {
      row[i] = input_ + at[i].offset;
      highest = std::max(highest, row[i]);
    }
    if (n >= kLanes || last_ - highest >= kLanes - 1) return;
    for (int i = 0; i < count; ++i) {
      if (last_ - row[i] >= kLanes - 1) continue;
      Key* copied = copied_ + i * kLanes;  // a vector would reach beyond the end
      std::memcpy(copied, row[i], n * sizeof(Key));
      row[i] = copied;
    }
  }
  // Corrects their positions.
  void settle(const Key* const*, int, int64_t, int64_t*) const {}

  // Whether nothing of a run is present, as far as one mark tells.
  bool absent(const Run<Key>&) const { return false; }
  // Whether chunks of a run of n elements are copied, of at most kChunk; else they may overlap, and
  // have at most the kernel's kRun.
  bool copies(const Run<Key>& run, int64_t n) const { return run.stride != 1 || n < kLanes; }
  const Key* chunk(const Run<Key>& run, int64_t n) {
    if (!copies(run, n)) return run.elements;
    append(0, run, n);
    return appended(n);
  }
  // Copies a run behind others, of together kChunk at most; then all of them.
  void append(int64_t i, const Run<Key>& run, int64_t n) {
    if (run.stride == 1 && n <= kSlack && last_ - run.elements >= kSlack - 1) {
      std::memcpy(copied_ + i, run.elements, kCopyBytes);
    } else if (run.stride == 2 && n <= kFew && last_ - run.elements >= 2 * (kFew - 1)) {
      // Always as many, of which the compiler makes a shuffle.
      for (int64_t k = 0; k < kFew; ++k) copied_[i + k] = get<Key>(run.elements + 2 * k);
    } else {
      copy_run(copied_ + i, run.elements, n, run.stride);
    }
  }
  // The same, positions [start, start + n) of short runs.
  void append_runs(int64_t i, const Key* from, Dim inner, Dim next, int64_t start, int64_t n) {
    copy_short_runs(copied_ + i, from, inner, next, start, n);
  }
  const Key* appended(int64_t) const { return copied_; }
  // The same as rows of n elements, `pitch` apart.
  void appended(int count, int64_t, int64_t pitch, const Key** row) const {
    for (int i = 0; i < count; ++i) row[i] = copied_ + i * pitch;
  }

  // Corrects the best of a group with these marks, or of positions [j, stop) of its walk.
  void settle(Best<int64_t>&, const uint8_t*) const {}
  void settle_part(Best<int64_t>&, const uint8_t*, int64_t, int64_t) const {}

 private:
  const Key* const input_;
  const Key* const last_;  // of all elements
  alignas(kVectorBytes) Key copied_[kChunk + kSlack];
};

// Copies in the thread's scratch; but where one mark is that of a whole row, and it is present, the
// row itself.
template <class K, bool kBools>
class MaskedRows {
 public:
  using Key = K;
  using GroupMarks = Marks<true>;
  static constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
  static constexpr int64_t kWhole = 16384 / sizeof(Key);
  static constexpr int64_t kChunk = kWhole;
  static constexpr int64_t kBuffer = 2 * kWhole;
  static constexpr int64_t kAhead = kRowAhead / sizeof(Key);

  template <class Element>
  explicit MaskedRows(const Walk<Element>& walk)
      : masking_(masking_of(walk.element)),
        search_(walk.r.groups.reduced),
        input_(walk.input),
        groups_(walk.r.groups),
        scratch_(in_scratch<Scratch>()),
        last_(input_ + last_of(groups_)),
        last_mark_(static_cast<const uint8_t*>(walk.r.mask) + last_of(groups_, &Dim::mask_stride)) {
    const Dims& reduced = groups_.reduced;
    mark_stride_ = walk.job.plan.copies ? 1 : reduced.count ? reduced.dim[0].mask_stride : 0;
    if (mark_stride_ || reduced.count != 1) return;
    std::fill_n(scratch_.absent, least(reduced.dim[0].size, kWhole) + kLanes, masking_.absent);
  }
  MaskedRows(const MaskedRows&) = delete;

  static constexpr int64_t whole(int64_t) { return kWhole; }
  static int64_t together(int64_t n) { return std::clamp<int64_t>(kBuffer / n, 1, kLanes); }

  REDUCEOPS_NOINLINE void hand(const Place* at, Marks<true>& marks, int count, int64_t n,
                               const Key** row) {
    const Dim inner = groups_.reduced.dim[0];
    const Dims& kept = groups_.kept;
    for (int i = 0; i < count; ++i, marks.next()) marks_[i] = marks.place();
    if (kept.count == 1 && kept.dim[0].stride == n && kept.dim[0].mask_stride == n &&
        mark_stride_ == 1) {
      const Key* from = input_ + at[0].offset;
      masking_.blend(scratch_.copied, from, marks_[0], count * n, from + kAhead,
                     marks_[0] + kAhead);
      for (int i = 0; i < count; ++i) row[i] = scratch_.copied + i * n;
      return;
    }
    const int64_t pitch = std::max(n, kLanes);
    for (int i = 0; i < count; ++i) {
      const Run<Key> run{input_ + at[i].offset, inner.stride, marks_[i], mark_stride_};
      row[i] = absent(run) ? scratch_.absent : marked(scratch_.copied + i * pitch, run, n);
    }
  }
  void settle(const Key* const* row, int count, int64_t n, int64_t* positions) const {
    for (int i = 0; mark_stride_ && i < count; ++i) {
      if (get<Key>(row[i] + positions[i]) != masking_.absent) continue;
      const int64_t first = kBools ? n : first_set(marks_[i], n, mark_stride_);
      positions[i] = first < n ? first : 0;
    }
  }

  bool absent(const Run<Key>& run) const { return run.mark_stride == 0 && !*run.marks; }
  bool copies(const Run<Key>& run, int64_t n) const {
    return run.stride != 1 || n < kLanes || !kPlain || run.mark_stride;
  }
  const Key* chunk(const Run<Key>& run, int64_t n) { return marked(scratch_.copied, run, n); }
  REDUCEOPS_NOINLINE void append(int64_t i, const Run<Key>& run, int64_t n) {
    copy_run(scratch_.copied + i, run.elements, n, run.stride);
    if (run.mark_stride == 0) {
      std::memset(scratch_.marks + i, *run.marks, n);
    } else {
      copy_run(scratch_.marks + i, run.marks, n, run.mark_stride);
    }
  }
  const Key* appended(int64_t n) {
    masking_.blend(scratch_.copied, scratch_.copied, scratch_.marks, n);
    return scratch_.copied;
  }
  void appended(int count, int64_t n, int64_t pitch, const Key** row) {
    appended((count - 1) * pitch + n);
    for (int i = 0; i < count; ++i) {
      row[i] = scratch_.copied + i * pitch;
      marks_[i] = scratch_.marks + i * pitch;
    }
  }

  void settle(Best<int64_t>& best, const uint8_t* marks) const {
    if (best.key == kLast) best.index = kBools ? kNowhere : first_present(marks, search_);
  }
  void settle_part(Best<int64_t>& best, const uint8_t* marks, int64_t j, int64_t stop) const {
    if (best.key == kLast)
      best.index = kBools ? kNowhere : first_present(marks, Search(groups_.reduced, j, stop));
  }

 private:
  static constexpr bool kPlain = !kBools;  // present ones stay the same
  static constexpr int64_t kLast = std::numeric_limits<Key>::max();

  struct Scratch {
    alignas(kVectorBytes) Key copied[kBuffer + kLanes * kLanes];  // a vector for each short row
    Key absent[kWhole + kLanes];
    uint8_t marks[kWhole];
  };
  static_assert(alignof(Scratch) <= kScratchAlignment);

  // A run with its marks taken into account; itself, where all of it has one that is set.
  REDUCEOPS_NOINLINE const Key* marked(Key* to, const Run<Key>& run, int64_t n) {
    if (!copies(run, n)) return run.elements;
    const Key* from = run.elements;
    const uint8_t* marks = run.marks;
    if (run.stride != 1) {
      copy_run(to, from, n, run.stride);
      from = to;
    }
    const auto ends = [](const auto* last, const auto* p) { return last - p < kLanes - 1; };
    const bool narrow = n < kLanes;
    if (run.mark_stride != 1 || (narrow && ends(last_mark_, marks))) {
      if (marks != copied_marks_ || n > copied_n_)  // rows may have the same ones
        copy_run(scratch_.marks, copied_marks_ = marks, copied_n_ = n, run.mark_stride);
      marks = scratch_.marks;
    }
    if (narrow && (from == to || !ends(last_, from))) n = kLanes;  // a whole vector
    if (from == to) {
      masking_.blend(to, from, marks, n);
    } else {
      masking_.blend(to, from, marks, n, from + kAhead, marks + kAhead);
    }
    return to;
  }

  const Masking<Key, kBools> masking_;
  const Search search_;
  const Key* const input_;
  const Groups& groups_;
  Scratch& scratch_;
  const Key* const last_;  // of all elements
  const uint8_t* const last_mark_;
  int64_t mark_stride_;  // in a row that is handed over
  const uint8_t* marks_[kLanes];
  const uint8_t* copied_marks_ = nullptr;  // of which so many are in the scratch
  int64_t copied_n_ = 0;
};

}  // namespace
}  // namespace reduceops::cpu
