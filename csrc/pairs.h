// What the ranks of a process group do with pairs (pair.h) for a reduced dim that is sharded over
// them: they make pairs of the results of their shards, exchange them, and take the best.
//
// The header before the pairs is where the shard begins, which is added to the indices, or the
// complement of its extent where shards follow each other in the order of ranks. So a rank need not
// know the others.
#pragma once

#include <cstdint>
#include <limits>

#include "groups.h"
#include "pair.h"

#ifdef __CUDACC__
#define REDUCEOPS_UNROLLED _Pragma("unroll")
#else
#define REDUCEOPS_UNROLLED
#endif

namespace reduceops {

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

// Whether a group has no element that a mask lets through: its index is 0, and the mask is False
// there.
struct Hidden {
  const uint8_t* mask = nullptr;
  int dims = 0;
  Dim dim[kMaxDims];  // the kept ones, by their strides in the mask, as the results follow

  REDUCEOPS_HD bool operator()(int64_t output, int64_t index) const {
    return mask && index == 0 && !mask[place(dim, dims, output).offset];
  }
};

// Pairs of results that lie in memory.
struct Packing {
  Words to;
  const void* values = nullptr;  // null where the shard is empty
  const int64_t* indices = nullptr;
  Shard shard;
  Hidden hidden;
};

template <class Key>
REDUCEOPS_HD void pack(const Packing& p, int64_t i) {
  if (p.to.count == 0) {
    p.to.words[0] = p.to.header;
  } else if (p.values) {
    int64_t index = p.indices[i];
    const bool hidden = p.hidden(i, index);
    if (p.shard.dims > 1) index = p.shard.index(index);
    p.to.put(i, Pair<Key>{static_cast<const Key*>(p.values)[i], hidden ? kAbsent : index});
  } else {
    p.to.put(i, Pair<Key>{0, kAbsent});
  }
}

// All ranks' pairs to combine.
struct Unpacking {
  int64_t ranks, count;
  bool wide;
  void* values;  // may be null
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
      pairs[r] = {0, kAbsent};
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
      // Of a group without any element: 0 of an empty shard, the identity of a mask's.
      if (pairs[r].index < 0 && best.index == Limits::max()) value |= pairs[r].bits;
      if (pairs[r].index < 0 || !better(other, best)) continue;
      best = other;
      value = pairs[r].bits;
    }
  }
  if (u.values) static_cast<Key*>(u.values)[i] = value;
  u.indices[i] = best.index == Limits::max() ? 0 : best.index;  // 0: there is none
}

}  // namespace reduceops
