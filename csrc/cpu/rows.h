// Rows: the reduced dim is innermost.
//
// A block of elements is mapped to keys in L1, and its minimum compared once with the best so far;
// only the winning block is remembered and its first element with that key looked up at the end.
// Nothing depends on the data. Bound by reading memory once; rows of a few dozen elements by the
// work per row, so neighbouring ones are mapped together.
#pragma once

#include "cpu/walk.h"

namespace reduceops::cpu {
namespace {

template <class Element>
struct Rows : Walk<Element> {
  using Base = Walk<Element>;
  using Key = typename Base::Key;
  using Base::Base, Base::element, Base::input, Base::job, Base::r;

  static constexpr int64_t kBlock =
      4096 / sizeof(Key);                 // keys, twice this with the input, stay in L1
  static constexpr int64_t kTiny = 8;     // vector loops do not pay below
  static constexpr int64_t kShort = 256;  // one pass with packed keys beats two

  void map(const Key* p, int64_t n, int64_t stride, Key* keys) const {
    if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) keys[i] = element.key(load(p + i));
    } else {
      for (int64_t i = 0; i < n; ++i) keys[i] = element.key(load(p + i * stride));
    }
  }

  static Key minimum(const Key* keys, int64_t n) {
    Key smallest = std::numeric_limits<Key>::max();
    for (int64_t i = 0; i < n; ++i) smallest = least(smallest, keys[i]);
    return smallest;
  }

  // Position of the first of n keys that equals `key`; there is one.
  static int64_t find(const Key* keys, int64_t n, Key key) {
    constexpr int64_t kChunk = 256 / sizeof(Key);
    int64_t i = 0;
    for (; i + kChunk <= n; i += kChunk) {
      Key any = 0;
      for (int64_t c = 0; c < kChunk; ++c) any |= static_cast<Key>(keys[i + c] == key);
      if (any) break;
    }
    while (i < n - 1 && keys[i] != key) ++i;
    return i;
  }

  // The first smallest of at most kShort keys.
  static Best<Key> short_best(const Key* keys, int64_t n) {
    if constexpr (sizeof(Key) == 8) {
      const Key smallest = minimum(keys, n);
      return {smallest, find(keys, n, smallest)};
    } else if (n < kTiny) {
      Best<Key> best{std::numeric_limits<Key>::max(), 0};
      for (int64_t i = 0; i < n; ++i) {
        if (keys[i] < best.key) best = {keys[i], i};
      }
      return best;
    } else {
      // The position below the key in one wider integer: their minimum is both.
      using Packed = std::conditional_t<sizeof(Key) == 4, int64_t, int32_t>;
      constexpr int kBits = sizeof(Key) == 4 ? 32 : 16;
      Packed smallest = std::numeric_limits<Packed>::max();
      for (int32_t i = 0; i < static_cast<int32_t>(n); ++i) {
        smallest = least(smallest, static_cast<Packed>(Packed(keys[i]) * (Packed(1) << kBits) + i));
      }
      return {static_cast<Key>(smallest >> kBits), smallest & 0xffff};
    }
  }

  // The first smallest of n elements, stride apart; the index is the position.
  Best<Key> run(const Key* p, int64_t n, int64_t stride) const {
    Key keys[kBlock];
    if (n <= kShort) {
      map(p, n, stride, keys);
      return short_best(keys, n);
    }
    Best<Key> best{std::numeric_limits<Key>::max(),
                   0};  // if no block beats it, all are equal to it
    int64_t mapped = -1;
    for (int64_t b = 0; b < n; b += kBlock) {
      const int64_t m = least(kBlock, n - b);
      map(p + b * stride, m, stride, keys);
      const Key smallest = minimum(keys, m);
      if (smallest < best.key) best = {smallest, b};
      mapped = b;
    }
    const int64_t m = least(kBlock, n - best.index);
    if (mapped != best.index) map(p + best.index * stride, m, stride, keys);
    best.index += find(keys, m, best.key);
    return best;
  }

  // Items that are whole, short, contiguous rows, one right after the other.
  void dense(int64_t begin, int64_t end) const {
    const int64_t n = r.groups.reduced.dim[0].size;
    const Dim kept = r.groups.kept.dim[0];
    const int64_t together = kBlock / n;
    Key keys[kBlock];
    for (int64_t row = begin; row < end; row += together) {
      const int64_t rows = least(together, end - row);
      map(input + row * n, rows * n, 1, keys);
      for (int64_t i = 0; i < rows; ++i) {
        const Place at{(row + i) * n, (row + i) * kept.step};
        this->finish(at, short_best(keys + i * n, n).index);
      }
    }
  }

  bool is_dense() const {
    const Dims &kept = r.groups.kept, &reduced = r.groups.reduced;
    return job.plan.parts == 1 && kept.count == 1 && reduced.count == 1 &&
           reduced.dim[0].stride == 1 && reduced.dim[0].step == 1 &&
           kept.dim[0].stride == reduced.dim[0].size && reduced.dim[0].size <= kShort;
  }

  void operator()(int64_t begin, int64_t end) const {
    if (is_dense()) return dense(begin, end);
    const Dims& reduced = r.groups.reduced;
    const Dim inner = reduced.count ? reduced.dim[0] : Dim{1, 1, 0};
    const int64_t walk = walk_extent(reduced), parts = job.plan.parts;
    Cursor kept(r.groups.kept, 0, begin / parts);
    int64_t part = begin % parts;
    for (int64_t item = begin; item < end; ++item) {
      int64_t j = part * job.plan.part_extent;
      const int64_t stop = least(walk, j + job.plan.part_extent);
      const Place at = kept.place();
      Best<int64_t> best{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
      Cursor outer(reduced, 1, j / inner.size);
      for (int64_t start = j % inner.size; j < stop; start = 0, outer.next()) {
        const int64_t n = least(inner.size - start, stop - j);
        const Place run_at = outer.place();
        const auto found =
            run(input + at.offset + run_at.offset + start * inner.stride, n, inner.stride);
        const Best<int64_t> here{found.key, run_at.step + (start + found.index) * inner.step};
        if (better(here, best)) best = here;
        j += n;
      }
      if (job.candidates) {
        job.candidates[item] = {best.key, best.index};
      } else {
        this->finish(at, best.index);
      }
      if (++part == parts) {
        part = 0;
        kept.next();
      }
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
