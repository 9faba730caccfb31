// Elements of which a mask says whether they take part, as what Sources hand to the tile kernels:
// copied into a small buffer with those that are absent replaced by the identity, which wins
// against no element. Bound by reading both once; a store to L1 and a load from it come on top.
//
// An absent element ties with a present one that equals the identity. So a group, or a part of one,
// whose best is the identity is asked again; all present elements of it are equal then, and the
// first is the answer, which is found in the mask alone.
#pragma once

#include <bit>

#include "cpu/walk.h"
#include "make_groups.h"

namespace reduceops::cpu {
namespace {

// Dims with the strides of the mask in place of those of the input.
REDUCEOPS_NOINLINE inline Dims of_mask(const Dims& dims) {
  Dims mask;
  mask.count = dims.count;
  for (int d = 0; d < dims.count; ++d)
    mask.dim[d] = {dims.dim[d].size, dims.dim[d].mask_stride, dims.dim[d].step};
  return mask;
}

// Where the first present element of a group, or of a part, is looked for: its positions [from, to)
// of reduced dims, with the strides of the mask.
struct Search {
  Dims dims;
  bool ordered;  // like the index
  int64_t from, to;

  // Of a group: the dims along which the mask varies, in the order of the index; along the others,
  // the first position is as good as any.
  REDUCEOPS_NOINLINE explicit Search(const Dims& reduced) : ordered(true), from(0) {
    for (int d = 0; d < reduced.count; ++d) {
      const Dim& dim = reduced.dim[d];
      if (dim.mask_stride) insert(dims, {dim.size, dim.mask_stride, dim.step}, &Dim::step);
    }
    to = walk_extent(dims);
  }
  // Of positions [j, stop) of the walk; where all elements of a group have one mark, the first
  // tells.
  REDUCEOPS_NOINLINE Search(const Dims& reduced, int64_t j, int64_t stop)
      : dims(of_mask(reduced)), ordered(is_ordered(reduced)), from(j), to(least(stop, j + 1)) {
    for (int d = 0; d < dims.count; ++d)
      if (dims.dim[d].stride) to = stop;
  }
};

// Where the marks of groups, or those of runs in a group, are, as a Cursor steps through them;
// nowhere, if there is no mask.
template <bool kMasked>
class Marks {
 public:
  REDUCEOPS_NOINLINE Marks(const Reduction& r, const Dims& dims, int first, int64_t position)
      : marks_(static_cast<const uint8_t*>(r.mask)),
        dims_(of_mask(dims)),
        cursor_(dims_, first, position) {}
  Marks(const Marks&) = delete;
  const uint8_t* place() const { return of(marks_); }
  // Of a group whose marks begin at `group`.
  const uint8_t* of(const uint8_t* group) const { return group + cursor_.place().offset; }
  void next() { cursor_.next(); }

 private:
  const uint8_t* const marks_;
  const Dims dims_;
  Cursor cursor_;
};
template <>
class Marks<false> {
 public:
  Marks(const Reduction&, const Dims&, int, int64_t) {}
  const uint8_t* place() const { return nullptr; }
  const uint8_t* of(const uint8_t*) const { return nullptr; }
  void next() {}
};

// The first of n marks, `stride` apart, that is set; n if none is.
inline int64_t first_set(const uint8_t* marks, int64_t n, int64_t stride) {
  int64_t i = 0;
  if (stride == 0) return *marks ? 0 : n;
  if (stride == 1) {
    for (; i + kVectorBytes <= n; i += kVectorBytes) {
      const auto set = get<Vector<uint8_t>>(marks + i) != 0;
      if (any(set)) return i + first<uint8_t>(set);
    }
  }
  constexpr int64_t kWord = sizeof(uint64_t);
  for (; stride == 1 && i + kWord <= n; i += kWord)
    if (const auto word = get<uint64_t>(marks + i)) return i + std::countr_zero(word) / 8;
  while (i < n && !marks[i * stride]) ++i;
  return i;
}

// The index of the first present element, of a group whose marks begin at `marks`; kNowhere if
// there is none.
REDUCEOPS_NOINLINE inline int64_t first_present(const uint8_t* marks, const Search& search) {
  const Dim inner = search.dims.count ? search.dims.dim[0] : Dim{1, 0, 0};
  Cursor outer(search.dims, 1, search.from / inner.size);
  int64_t start = search.from % inner.size, found = kNowhere;
  for (int64_t j = search.from, n; j < search.to; j += n, start = 0, outer.next()) {
    n = least(inner.size - start, search.to - j);
    const uint8_t* run = marks + outer.place().offset + start * inner.stride;
    const int64_t at = first_set(run, n, inner.stride);
    if (at == n) continue;
    found = least(found, outer.place().step + (start + at) * inner.step);
    if (search.ordered) break;
  }
  return found;
}

// The columns of a tile whose index is that of their first present element, or kNowhere.
struct ColumnsApart {
  int32_t column[kTileColumns];
  int64_t offset[kTileColumns];  // of their marks
};
struct UnsettledColumns {
  const uint8_t* marks;  // of all outputs
  const Dims& axes;      // of the mask
  int64_t first, width;  // the tile's first output, and how many it has
  uint8_t* unsettled;    // which they are; a vector behind the last one may be written
  ColumnsApart& apart;
};

// By rows of the tile, whose columns lie in a run.
REDUCEOPS_SMALL inline void find_in_run(const UnsettledColumns& columns, const Search& search,
                                        int64_t* indices) {
  uint8_t* unsettled = columns.unsettled;
  std::memset(unsettled + columns.width, 0, kVectorBytes);
  const int64_t from = first_set(unsettled, columns.width, 1);
  int64_t to = columns.width;
  while (to > from && !unsettled[to - 1]) --to;
  int64_t count = 0;
  for (int64_t c = from; c < to; c += sizeof(uint64_t))
    count += std::popcount(get<uint64_t>(unsettled + c));
  // Whole vectors; those that reach beyond the columns have marks of their own.
  const auto settle_row = [&](const uint8_t* marks, int64_t c, int64_t index) {
    const auto found =
        (get<Vector<uint8_t>>(marks) != 0) & (get<Vector<uint8_t>>(unsettled + c) != 0);
    for (uint64_t lanes = bits_of_mask(found) & kOneBit<uint8_t>; lanes; lanes &= lanes - 1) {
      const int64_t i = c + std::countr_zero(lanes) / kBitsPerByte;
      indices[i] = least(indices[i], index);
      if (!search.ordered) continue;
      unsettled[i] = 0;
      --count;
    }
  };
  const int64_t across = columns.axes.dim[0].stride;
  const uint8_t* base = columns.marks + Cursor(columns.axes, 0, columns.first).place().offset;
  Cursor row(search.dims, 0, search.from);
  for (int64_t p = search.from; p < search.to && count; ++p, row.next()) {
    const uint8_t* marks = base + row.place().offset;
    const int64_t index = row.place().step;
    for (int64_t c = from; c < to; c += kVectorBytes) {
      const int64_t n = least<int64_t>(to - c, kVectorBytes);
      if (across == 1 && n == kVectorBytes) {
        settle_row(marks + c, c, index);
      } else {
        alignas(kVectorBytes) uint8_t copied[kVectorBytes];
        if (across == 0) {
          std::memset(copied, *marks, kVectorBytes);
        } else {
          copy_run(copied, marks + c * across, n, across);
        }
        settle_row(copied, c, index);
      }
    }
  }
}

// The same, wherever they lie.
REDUCEOPS_NOINLINE inline void find_apart(const UnsettledColumns& columns, const Search& search,
                                          int64_t* indices) {
  auto& [column, offset] = columns.apart;
  Cursor each(columns.axes, 0, columns.first);
  int64_t count = 0;
  for (int64_t c = 0; c < columns.width; ++c, each.next()) {
    if (!columns.unsettled[c]) continue;
    column[count] = static_cast<int32_t>(c);
    offset[count++] = each.place().offset;
  }
  Cursor row(search.dims, 0, search.from);
  for (int64_t p = search.from; p < search.to && count; ++p, row.next()) {
    const uint8_t* marks = columns.marks + row.place().offset;
    for (int64_t i = count - 1; i >= 0; --i) {
      if (!marks[offset[i]]) continue;
      indices[column[i]] = least(indices[column[i]], row.place().step);
      if (!search.ordered) continue;
      column[i] = column[--count];
      offset[i] = offset[count];
    }
  }
}

// Once for elements of all types.
inline void find_in_columns(const UnsettledColumns& columns, const Search& search,
                            int64_t* indices) {
  const int64_t run = columns.axes.dim[0].size;
  const bool one_run = columns.first % run + columns.width <= run;
  one_run ? find_in_run(columns, search, indices) : find_apart(columns, search, indices);
}

// The indices of those of `width` columns that are set, which are this one; and of those without
// any present element, 0. Once for elements of all types. (By arithmetic: which they are cannot be
// foreseen, and compilers make branches of conditions.)
REDUCEOPS_NOINLINE inline void put_where(const uint8_t* set, int64_t width, int64_t index,
                                         int64_t* indices) {
  for (int64_t c = 0; c < width; ++c) indices[c] ^= (indices[c] ^ index) & -int64_t(set[c]);
}
REDUCEOPS_NOINLINE inline void nowhere_is_first(int64_t* indices, int64_t width) {
  for (int64_t c = 0; c < width; ++c) indices[c] &= -int64_t(indices[c] != kNowhere);
}

// `kBools`: elements are those of MarkedBool.
template <class K, bool kBools>
struct Masking {
  using Key = K;
  using V = Vector<Key>;
  static constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
  static constexpr int64_t kMarks = 64;  // that are asked at once whether any is set

  const Key absent;  // bits of the identity, as a tile kernel takes them

  // The value of a group without any present element.
  Key value() const { return kBools ? Key(absent & MarkedBool::kTrue) : absent; }

  // An element as a tile kernel takes it.
  static REDUCEOPS_INLINE Key present(Key bits) {
    if constexpr (kBools) return bits != 0;
    return bits;
  }
  REDUCEOPS_INLINE Key marked(Key bits, uint8_t mark) const {
    return mark ? present(bits) : absent;
  }

  // Hands over n elements and reads no more of them, nor of their marks; `to` may be `from`. Asks
  // for the elements and marks that will be read next, if it is told where they are.
  REDUCEOPS_NOINLINE void blend(Key* to, const Key* from, const uint8_t* marks, int64_t n,
                                const Key* ahead = nullptr,
                                const uint8_t* marks_ahead = nullptr) const {
    const V none = V{} + absent;
    int64_t i = 0;
    for (; i + kMarks <= n; i += kMarks) {
      if (ahead) {
        prefetch(marks_ahead, i);
        for (int64_t line = 0; line < kMarks; line += kMarks / sizeof(Key))
          prefetch(ahead, (i + line) * sizeof(Key));
      }
      if (!any_set(marks + i)) {
        for (int64_t c = 0; c < kMarks; c += kLanes) put(to + i + c, none);
      } else {
        for (int64_t c = i; c < i + kMarks; c += kLanes) take(to + c, from + c, marks + c, none);
      }
    }
    for (; i + kLanes <= n; i += kLanes) take(to + i, from + i, marks + i, none);
    if (i == n) return;
    const int64_t last = n - kLanes;
    if (last >= 0) return take(to + last, from + last, marks + last, none);
    for (; i < n; ++i) to[i] = marked(get<Key>(from + i), marks[i]);
  }

 private:
  static REDUCEOPS_INLINE bool any_set(const uint8_t* marks) {
    Vector<uint8_t> all{};
    for (int64_t c = 0; c < kMarks; c += kVectorBytes) all |= get<Vector<uint8_t>>(marks + c);
    return any_marked(all);
  }

  // One vector.
  static REDUCEOPS_INLINE void take(Key* to, const Key* from, const uint8_t* marks, V none) {
    V v = get<V>(from);
    if constexpr (kBools) v = (v != 0) & MarkedBool::kTrue;
    put(to, marked_lanes<Key>(marks, v, none));
  }
};

template <class Element>
using MaskingOf = Masking<typename Element::Key, std::is_same_v<Element, MarkedBool>>;

template <class Element>
MaskingOf<Element> masking_of(const Element& element) {
  using Key = typename Element::Key;
  constexpr Key kLast = std::numeric_limits<Key>::max();
  if constexpr (std::is_same_v<Element, MarkedBool>) return {Key(kLast ^ element.order.flip)};
  Key bits;
  element.value_of_key(kLast, bits);
  return {bits};
}

// Writes the result of the group that lies `at`.
template <class Element>
REDUCEOPS_NOINLINE void finish(const Walk<Element>& walk, Place at, uint64_t index) {
  if (index >= kNowhere) return write_result(walk.r, at.step, 0, masking_of(walk.element).value());
  write_result(walk.r, at.step, index,
               walk.r.values ? walk.element.value(walk.read(at, index)) : typename Element::Key{});
}

}  // namespace
}  // namespace reduceops::cpu
