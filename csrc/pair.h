// A pair: the element that a rank chose for an output, and its index in the rank's shard. The bits
// are the element's own, for a key has lost a NaN's and the sign of a zero; they become keys again
// where pairs are compared.
//
// A rank sends words of 8 bytes: the header, then the pairs. A narrow pair is one word, the bits
// above the index. A wide one is two, with all bits before all indices. An index whose bits are all
// ones says that there is no element: the shard is empty, or a mask lets none through.
#pragma once

#include <cstdint>
#include <type_traits>

#include "order.h"

namespace reduceops {

// Whether indices below `extent` need a word of their own.
inline bool is_wide(int bytes, int64_t extent) {
  return bytes == 8 || uint64_t(extent) >= ~uint64_t(0) >> 8 * bytes;
}

constexpr int64_t kAbsent = -1;  // an index

// Calls f with an integer of so many bytes.
template <class F>
REDUCEOPS_HD void with_bits(int64_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f(int8_t());
    case 2:
      return f(int16_t());
    case 4:
      return f(int32_t());
    default:
      return f(int64_t());
  }
}

template <class Key>
struct Pair {
  static constexpr int kIndexBits = 64 - 8 * sizeof(Key);  // of a narrow pair
  Key bits;
  int64_t index;

  // `pairs` are those of a rank, of which there are `count`.
  REDUCEOPS_HD void put(int64_t* pairs, int64_t count, bool wide, int64_t i) const {
    const auto raw = static_cast<uint64_t>(static_cast<std::make_unsigned_t<Key>>(bits));
    if constexpr (kIndexBits > 0) {
      if (!wide) {
        const uint64_t mask = (uint64_t(1) << kIndexBits) - 1;
        pairs[i] = static_cast<int64_t>(raw << kIndexBits | (static_cast<uint64_t>(index) & mask));
        return;
      }
    }
    pairs[i] = static_cast<int64_t>(raw);
    pairs[count + i] = index;
  }
  // `word(i)` is a rank's i-th word after the header.
  template <class Word>
  static REDUCEOPS_HD Pair get(Word word, int64_t count, bool wide, int64_t i) {
    if constexpr (kIndexBits > 0) {
      if (!wide) {
        const auto both = static_cast<uint64_t>(word(i));
        const uint64_t mask = (uint64_t(1) << kIndexBits) - 1, index = both & mask;
        return {static_cast<Key>(both >> kIndexBits),
                index == mask ? kAbsent : static_cast<int64_t>(index)};
      }
    }
    return {static_cast<Key>(word(i)), word(count + i)};
  }
};

// Where a rank's pairs go.
struct Words {
  int64_t* words = nullptr;
  int64_t header = 0, count = 0;
  bool wide = false;

  template <class Key>
  REDUCEOPS_HD void put(int64_t i, Pair<Key> pair) const {
    if (i == 0) words[0] = header;
    pair.put(words + 1, count, wide, i);
  }
};

}  // namespace reduceops
