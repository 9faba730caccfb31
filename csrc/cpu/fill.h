// Groups of one element: the element itself is the value, or the identity where a mask says that it
// takes no part. The index is 0.
//
// Goes over the results in their order, or where memory has another in blocks of both. Bound by
// writing.
#pragma once

#include "cpu/gather.h"
#include "cpu/mask.h"
#include "make_groups.h"

namespace reduceops::cpu {
namespace {

// Whether the value of an element is its bits.
template <class Element>
constexpr bool kHasOwnValues = false;
template <class Key, bool kFloat>
constexpr bool kHasOwnValues<Plain<Key, kFloat>> = true;

template <class Element, bool kMasked>
struct Fill : Walk<Element> {
  using Base = Walk<Element>;
  using Base::element, Base::input, Base::job, Base::r;
  using typename Base::Key;

  static constexpr int64_t kTogether = 512, kMade = 16 * kFillBlock;
  static constexpr int64_t kOfRun = 16384 / sizeof(Key);  // that are copied, and then made values

  Fill(const Job& job, Element element) : Base(job, element) {}

  // Values of units [begin, end).
  REDUCEOPS_NOINLINE void operator()(int64_t begin, int64_t end) const {
    const Filling& filling = *job.filling;
    if constexpr (!kMasked) {
      if (filling.across) return blocks(filling, begin, end);
    }
    const Dims& dims = filling.dims;
    const Dim inner = dims.count ? dims.dim[0] : Dim{1, 1, 1};
    const auto masking = masking_of(element);
    Cursor outer(dims, 1, begin / inner.size);
    Marks<kMasked> outer_marks(r, dims, 1, begin / inner.size);
    Key* values = static_cast<Key*>(r.values);
    int64_t done = begin;  // values so far; what is copied becomes values some runs at a time
    for (int64_t start = begin % inner.size; begin < end;) {
      const int64_t n = least(least(inner.size - start, end - begin), kOfRun);
      const Key* from = input + outer.place().offset + start * inner.stride;
      if constexpr (kMasked) {
        const uint8_t* marks = outer_marks.place() + start * inner.mask_stride;
        if (inner.stride == 1 && inner.mask_stride == 1) {
          masking.blend(values + begin, from, marks, n);
        } else {
          for (int64_t i = 0; i < n; ++i)
            values[begin + i] =
                masking.marked(get<Key>(from + i * inner.stride), marks[i * inner.mask_stride]);
        }
      } else {
        copy_run(values + begin, from, n, inner.stride);
      }
      begin += n;
      start += n;
      if (begin - done >= kTogether || begin == end) {
        to_values(values + done, begin - done);
        done = begin;
      }
      if (start < inner.size) continue;
      start = 0;
      outer.next();
      outer_marks.next();
    }
  }

 private:
  // Units are chunks of blocks of the innermost dim in memory, which are columns of the results.
  // There is no mask.
  REDUCEOPS_NOINLINE void blocks(const Filling& filling, int64_t begin, int64_t end) const {
    const Dim along = filling.dims.dim[0], across = filling.dims.dim[1];
    const int64_t count = filling.blocks;
    Cursor outer(filling.dims, 2, begin / filling.chunks / count);
    int64_t block = begin / filling.chunks % count, chunk = begin % filling.chunks;
    for (; begin < end; ++begin) {
      const int64_t stop = least(along.size, (chunk + 1) * kFillChunk);
      const int64_t first = block * filling.block, n = least(filling.block, across.size - first);
      const Key* from = input + outer.place().offset + first * across.stride;
      Key* to = static_cast<Key*>(r.values) + outer.place().step + first * across.step;
      for (int64_t i = chunk * kFillChunk, m; i < stop; i += m) {
        m = least(kFillBlock, stop - i);
        const Key* rows = from + i * along.stride;
        if (m >= Square<Key>::kSide && n >= Square<Key>::kSide && across.stride == 1) {
          transpose_values(rows, m, along.stride, n, to + i, across.step);
          continue;
        }
        for (int64_t u = 0; u < m; ++u)
          for (int64_t k = 0; k < n; ++k)
            to[k * across.step + i + u] =
                element.value(get<Key>(rows + u * along.stride + k * across.stride));
      }
      if (++chunk < filling.chunks) continue;
      chunk = 0;
      if (++block == count) {
        block = 0;
        outer.next();
      }
    }
  }

  // Values of m rows of n neighbours become columns. They are made of some columns at a time
  // before, for the loops over rows are long.
  void transpose_values(const Key* from, int64_t m, int64_t pitch, int64_t n, Key* to,
                        int64_t to_pitch) const {
    if constexpr (kHasOwnValues<Element>) {
      transpose(from, m, pitch, n, to, to_pitch);
    } else {
      Key made[kMade];
      const int64_t some = least(kMade / m, n);
      for (int64_t next = 0; next < n; next += some) {
        const int64_t k = least(next, n - some);
        for (int64_t u = 0; u < m; ++u)
          for (int64_t i = 0; i < some; ++i)
            made[u * some + i] = element.value(get<Key>(from + u * pitch + k + i));
        transpose(made, m, some, some, to + k * to_pitch, to_pitch);
      }
    }
  }

  // m rows of n neighbours become columns.
  static void transpose(const Key* from, int64_t m, int64_t pitch, int64_t n, Key* to,
                        int64_t to_pitch) {
    constexpr int64_t kSide = Square<Key>::kSide;
    // The last squares overlap those before.
    for (int64_t next = 0; next < m; next += kSide) {
      const int64_t i = least(next, m - kSide);
      for (int64_t following = 0; following < n; following += kSide) {
        const int64_t k = least(following, n - kSide);
        Square<Key>::transpose(from + i * pitch + k, pitch,
                               [&](int64_t u) { return to + (k + u) * to_pitch + i; });
      }
    }
  }

  // Elements in memory become values.
  void to_values(Key* values, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) values[i] = element.value(values[i]);
  }
};

}  // namespace
}  // namespace reduceops::cpu
