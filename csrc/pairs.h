// What the ranks of a process group exchange for a reduced dim that is sharded over them: for each
// output the element that a rank chose in its shard, and its index. The bits are the element's own,
// for a key has lost a NaN's and the sign of a zero; they become keys again where pairs are
// compared.
//
// A rank sends words of 8 bytes: the header, then the pairs. A narrow pair is one word, the bits
// above the index. A wide one is two, with all bits before all indices. An index whose bits are all
// ones says that the shard is empty.
//
// The header is where the shard begins, which is added to the indices, or the complement of its
// extent where shards follow each other in the order of ranks. So a rank need not know the others.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "groups.h"
#include "order.h"

#ifdef __CUDACC__
#define REDUCEOPS_UNROLLED _Pragma("unroll")
#else
#define REDUCEOPS_UNROLLED
#endif

namespace reduceops {

// Whether indices below `extent` need a word of their own.
inline bool is_wide(int bytes, int64_t extent) {
  return bytes == 8 || uint64_t(extent) >= ~uint64_t(0) >> 8 * bytes;
}

template <class Key>
struct Pair {
  static constexpr int kIndexBits = 64 - 8 * sizeof(Key);  // of a narrow pair
  static constexpr int64_t kAbsent = -1;                   // an index
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

// The reduced dims of a shard, the innermost first. Where only the outermost is sharded they are
// one.
struct Shard {
  int dims = 0;
  int64_t local[kMaxDims], start[kMaxDims], size[kMaxDims];  // of the shard; its begin; of all

  // Adds the next dim outwards.
  void add(int64_t local_size, int64_t begin, int64_t whole) {
    const int inner = dims - 1;
    if (dims > 0 && local[inner] == size[inner]) {
      local_size *= size[inner];
      begin *= size[inner];
      whole *= size[inner];
    } else {
      ++dims;
    }
    local[dims - 1] = local_size;
    start[dims - 1] = begin;
    size[dims - 1] = whole;
  }

  // The index in all shards of an index in this one. (Of one dim, the header says where it begins.)
  REDUCEOPS_HD int64_t index(int64_t rest) const {
    int64_t index = 0, step = 1;
    for (int d = 0; d < dims; ++d) {
      const bool last = d + 1 == dims;
      const int64_t over = last ? 0 : rest / local[d];
      index += (rest - over * (last ? 0 : local[d]) + start[d]) * step;
      step *= size[d];
      rest = over;
    }
    return index;
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

// Pairs of results that lie in memory: the values apart, each index where its pair will be.
struct Packing {
  Words to;
  const void* values;  // null where the shard is empty
  Shard shard;
};

template <class Key>
REDUCEOPS_HD void pack(const Packing& p, int64_t i) {
  if (p.to.count == 0) {
    p.to.words[0] = p.to.header;
  } else if (p.values) {
    const int64_t index = p.to.words[1 + i];
    p.to.put(i, Pair<Key>{static_cast<const Key*>(p.values)[i],
                          p.shard.dims > 1 ? p.shard.index(index) : index});
  } else {
    p.to.put(i, Pair<Key>{0, Pair<Key>::kAbsent});
  }
}

// All ranks' pairs to combine.
struct Unpacking {
  int64_t ranks, count;
  bool wide;
  void* values;
  int64_t* indices;
};

// The words of all ranks, gathered in memory.
struct Gathered {
  const int64_t* words;
  int64_t length;  // of one rank's

  REDUCEOPS_HD int64_t operator()(int64_t rank, int64_t i) const {
    return words[rank * length + i];
  }
};

// `word(rank, i)` is a word of a rank.
template <class Element, class Word>
REDUCEOPS_HD void unpack(const Unpacking& u, Element element, int64_t i, Word word) {
  using Key = typename Element::Key;
  using Limits = std::numeric_limits<int64_t>;
  Best<Key> best{std::numeric_limits<Key>::max(), Limits::max()};
  Key value = 0;
  int64_t next = 0;           // where the shard of a rank begins that follows the one before
  constexpr int kAtOnce = 4;  // ranks whose words are read before any is looked at
  for (int64_t first = 0; first < u.ranks; first += kAtOnce) {
    int64_t headers[kAtOnce];
    Pair<Key> pairs[kAtOnce];
    REDUCEOPS_UNROLLED
    for (int r = 0; r < kAtOnce; ++r) {
      headers[r] = 0;
      pairs[r] = {0, Pair<Key>::kAbsent};
      if (first + r >= u.ranks) continue;
      headers[r] = word(first + r, 0);
      pairs[r] =
          Pair<Key>::get([&](int64_t at) { return word(first + r, 1 + at); }, u.count, u.wide, i);
    }
    REDUCEOPS_UNROLLED
    for (int r = 0; r < kAtOnce; ++r) {
      const int64_t begin = headers[r] < 0 ? next : headers[r];
      next += headers[r] < 0 ? ~headers[r] : 0;
      const Best<Key> other{element.key(pairs[r].bits), begin + pairs[r].index};
      if (pairs[r].index < 0 || !better(other, best)) continue;
      best = other;
      value = pairs[r].bits;
    }
  }
  static_cast<Key*>(u.values)[i] = value;
  u.indices[i] = best.index == Limits::max() ? 0 : best.index;  // 0: all shards are empty
}

}  // namespace reduceops
