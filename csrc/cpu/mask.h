// Elements of which a mask says whether they take part, as what Sources hand to the tile kernels:
// copied into a small buffer with those that are absent replaced by the identity, which wins
// against no element. Bound by reading both once; a store to L1 and a load from it come on top.
//
// An absent element ties with a present one that equals the identity. So a group whose best is the
// identity is asked again; all present elements of it are equal then, and the first is the answer,
// which is found in the mask alone.
#pragma once

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

// The reduced dims along which the mask varies, in the order of the index: along the others, the
// first position is as good as any.
REDUCEOPS_NOINLINE inline Dims searched(const Dims& reduced) {
  Dims dims;
  for (int d = 0; d < reduced.count; ++d) {
    const Dim& dim = reduced.dim[d];
    if (dim.mask_stride) insert(dims, {dim.size, dim.mask_stride, dim.step}, &Dim::step);
  }
  return dims;
}

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
  if (stride == 1) {
    for (; i + kVectorBytes <= n; i += kVectorBytes) {
      const auto set = get<Vector<uint8_t>>(marks + i) != 0;
      if (any(set)) return i + first<uint8_t>(set);
    }
  }
  while (i < n && !marks[i * stride]) ++i;
  return i;
}

// The index of the first present element of a group whose marks begin at `marks`; 0 if there is
// none.
REDUCEOPS_NOINLINE inline int64_t first_present(const uint8_t* marks, const Dims& searched) {
  if (searched.count == 0) return 0;
  const Dim inner = searched.dim[0];
  const int64_t runs = walk_extent(searched) / inner.size;
  Cursor outer(searched, 1, 0);
  for (int64_t i = 0; i < runs; ++i, outer.next()) {
    const int64_t at = first_set(marks + outer.place().offset, inner.size, inner.stride);
    if (at < inner.size) return outer.place().step + at * inner.step;
  }
  return 0;
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

// The rare answers of a masked reduction: writes the result of the group that lies `at` and has its
// marks there, if the identity is its best; `value` is that. `searched`: see there.
template <class Key>
bool finish_identity(const Reduction& r, const Dims& searched, Place at, const uint8_t* marks,
                     int64_t best, Key value) {
  if (best != std::numeric_limits<Key>::max()) return false;
  write_result(r, at.step, first_present(marks, searched), value);
  return true;
}

}  // namespace
}  // namespace reduceops::cpu
