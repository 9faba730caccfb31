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

// Once for all elements of a width: what makes values of their bits, where these are not the
// values, is behind a pointer.
template <class Key, bool kMasked, bool kBools>
struct Fill {
  static constexpr int64_t kTogether = 512;
  static constexpr int64_t kFewSets = 1024 / sizeof(Key);  // results so far apart share them
  static constexpr int64_t kOfRun = 16384 / sizeof(Key);   // that are copied, and then made values

  const Job& job;
  const Reduction& r;
  const Key* const input;
  const Masking<Key, kBools> masking;
  const void* const element;
  // Of bits that lie there or elsewhere; may be null.
  void (*const make_values)(const void* element, const Key* bits, Key* values, int64_t n);

  template <class Element>
  Fill(const Job& job, const Element& element)
      : job(job),
        r(job.reduction),
        input(static_cast<const Key*>(r.input)),
        masking(masking_of(element)),
        element(&element),
        make_values(kHasOwnValues<Element> ? nullptr : values_of<Element>) {}

  // Values of units [begin, end).
  REDUCEOPS_NOINLINE void operator()(int64_t begin, int64_t end) const {
    const Filling& filling = *job.filling;
    const Dims& dims = filling.dims;
    const Dim inner = dims.count ? dims.dim[0] : Dim{1, 1, 1};
    if constexpr (!kMasked) {
      if (filling.across) return blocks(filling, begin, end);
      if (dims.count > 1 && inner.size <= kShortRun) return short_runs(dims, begin, end);
    }
    const auto masking = this->masking;  // which no store changes
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
      } else if (make_values && done == begin && n >= kTogether && inner.stride == 1) {
        make_values(element, from, values + begin, n);
        done += n;
      } else {
        copy_run(values + begin, from, n, inner.stride);
      }
      begin += n;
      start += n;
      if (begin - done >= kTogether || begin == end) {
        if (make_values) make_values(element, values + done, values + done, begin - done);
        done = begin;
      }
      if (start < inner.size) continue;
      start = 0;
      outer.next();
      outer_marks.next();
    }
  }

 private:
  // Results of short runs of elements.
  REDUCEOPS_NOINLINE void short_runs(const Dims& dims, int64_t begin, int64_t end) const {
    const int64_t block = dims.dim[0].size * dims.dim[1].size;
    Cursor outer(dims, 2, begin / block);
    Key* values = static_cast<Key*>(r.values);
    int64_t done = begin;  // values so far
    for (int64_t start = begin % block; begin < end;) {
      const int64_t n = least(least(block - start, end - begin), kOfRun);
      copy_short_runs(values + begin, input + outer.place().offset, dims.dim[0], dims.dim[1], start,
                      n);
      begin += n;
      start += n;
      if (make_values && (begin - done >= kTogether || begin == end)) {
        make_values(element, values + done, values + done, begin - done);
        done = begin;
      }
      if (start < block) continue;
      start = 0;
      outer.next();
    }
  }

  // Units are chunks of blocks of the innermost dim in memory, which are columns of the results.
  // There is no mask.
  REDUCEOPS_NOINLINE void blocks(const Filling& filling, int64_t begin, int64_t end) const {
    const Dim along = filling.dims.dim[0], across = filling.dims.dim[1];
    const int64_t count = filling.blocks;
    // Rows are copied, and values made of them in the order of memory, where many are copied at
    // once. (Of 64 bits a block has no room.)
    constexpr bool kHasRoom = kFillResults <= kOfRun;
    const bool copies = kHasRoom && across.stride <= kMostStep &&
                        least(filling.block, across.size) * sizeof(Key) >= kCopyBytes / 2 &&
                        (make_values || across.stride > 1);
    Key copied[kHasRoom ? kFillResults : 1];
    Cursor outer(filling.dims, 2, begin / filling.chunks / count);
    int64_t block = begin / filling.chunks % count, chunk = begin % filling.chunks;
    for (; begin < end; ++begin) {
      const int64_t stop = least(along.size, (chunk + 1) * kFillChunk);
      const int64_t first = block * filling.block, n = least(filling.block, across.size - first);
      const Key* from = input + outer.place().offset + first * across.stride;
      Key* to = static_cast<Key*>(r.values) + outer.place().step + first * across.step;
      for (int64_t i = chunk * kFillChunk, m; i < stop; i += m) {
        m = stop - i;
        // Whole squares, before the rest; where there are rows left over, n is at most kFillBlock.
        if (const int64_t most = kFillResults / n; m > most) m = most - most % Square<Key>::kSide;
        const Key* rows = from + i * along.stride;
        int64_t pitch = along.stride, apart = across.stride;
        if (copies) {
          // Each row by itself only if it is whole vectors: what is left of one is made element by
          // element. Else rows are copied, and values made of all of them at once.
          constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
          if (make_values && apart == 1 && pitch == n) {
            make_values(element, rows, copied, m * n);
          } else if (make_values && apart == 1 && n % kLanes == 0) {
            for (int64_t u = 0; u < m; ++u)
              make_values(element, rows + u * pitch, copied + u * n, n);
          } else {
            for (int64_t u = 0; u < m; ++u) copy_run(copied + u * n, rows + u * pitch, n, apart);
            if (make_values) make_values(element, copied, copied, m * n);
          }
          rows = copied, pitch = n, apart = 1;
        }
        if (m >= Square<Key>::kSide && n >= Square<Key>::kSide && apart == 1) {
          transpose(rows, m, pitch, n, to + i, across.step);
        } else {
          for (int64_t u = 0; u < m; ++u)
            for (int64_t k = 0; k < n; ++k)
              to[k * across.step + i + u] = get<Key>(rows + u * pitch + k * apart);
        }
        if (!make_values || copies) continue;
        if (across.step == m) {
          make_values(element, to + i, to + i, n * m);
        } else {
          for (int64_t k = 0; k < n; ++k) {
            Key* bits = to + k * across.step + i;
            make_values(element, bits, bits, m);
          }
        }
      }
      if (++chunk < filling.chunks) continue;
      chunk = 0;
      if (++block == count) {
        block = 0;
        outer.next();
      }
    }
  }

  // m rows of n neighbours become columns. Where columns share the sets of a cache, they are
  // written a few at a time, each from end to end: all at once they would evict each other's lines.
  static void transpose(const Key* from, int64_t m, int64_t pitch, int64_t n, Key* to,
                        int64_t to_pitch) {
    constexpr int64_t kSide = Square<Key>::kSide;
    // The last squares overlap those before.
    const auto square = [&](int64_t next, int64_t following) REDUCEOPS_INLINED {
      const int64_t i = least(next, m - kSide), k = least(following, n - kSide);
      Square<Key>::transpose(from + i * pitch + k, pitch,
                             [&](int64_t u) { return to + (k + u) * to_pitch + i; });
    };
    if (power_of_two_in(to_pitch) >= std::max(kFewSets, power_of_two_in(pitch))) {
      for (int64_t k = 0; k < n; k += kSide)
        for (int64_t i = 0; i < m; i += kSide) square(i, k);
    } else {
      for (int64_t i = 0; i < m; i += kSide)
        for (int64_t k = 0; k < n; k += kSide) square(i, k);
    }
  }

  // The largest that divides it.
  static int64_t power_of_two_in(int64_t n) { return n & -n; }

  // Bits in memory become values.
  template <class Element>
  REDUCEOPS_NOINLINE static void values_of(const void* element, const Key* bits, Key* values,
                                           int64_t n) {
    const Element of = *static_cast<const Element*>(element);  // which no store changes
    int64_t i = 0;
    if constexpr (kHalves && std::is_same_v<Element, Scaled<Float16>>) {
      // By an instruction that the compiler does not use of itself, and that makes other NaNs.
      constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
      constexpr Key kMagnitude = std::numeric_limits<Key>::max(), kInfinity = 0x7c00;
      for (; i + kLanes <= n; i += kLanes) {
        const auto v = get<Vector<Key>>(bits + i);
        auto scaled = Narrow<Float16>::scaled(v, of.scale);
        const auto nan = (scaled & kMagnitude) > kInfinity;
        if (any(nan)) {
          for (int u = 0; u < kLanes; ++u) scaled[u] = of.value(v[u]);
        }
        put(values + i, scaled);
      }
    }
    for (; i < n; ++i) values[i] = of.value(get<Key>(bits + i));
  }
};

}  // namespace
}  // namespace reduceops::cpu
