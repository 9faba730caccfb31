// Source: what an element is, and how a walk gets it.
//
// A walk knows places and strides; a Source knows the operands they are of. Its types:
//
//   Key    what an element's bits are held in; `element` (element.h, keys.cuh) orders them
//   At     where the walk is, in every operand: `begin`, `move` along dims, or `along` one of them
//   Pack   16 bytes of neighbouring elements, and Item, one element, as they were loaded: with all
//          that belongs to them, and not looked at, so that a thread has many in flight
//
// `bits(pack)` and `bits(item)` are the elements, `present` whether they take part at all. An
// absent element has the bits `absent()`, which lose against all others, or equal them: where the
// smallest key is theirs, it is a Reducer's business that a present element wins.
//
// Another operand (a bias, a factor per row) is another struct like Masked: its pointer and stride
// in At, its elements in Pack and Item, what it does to an element in `bits`. Some walks ask for
// more. Rows held whole: where packs begin and end (`for_packs`, `behind_pack`). Shifted columns:
// how far behind a block of 16 bytes they begin (`past_block`). Columns: loads by way of shared
// memory (`copy`, `copied`, and `Ahead` for what is loaded beside them), and what a thread has seen
// on the way (`see`, `Seen`).
#pragma once

#include <type_traits>

#include "cuda/async.cuh"
#include "cuda/keys.cuh"
#include "cuda/option_policy.h"

namespace reduceops::cuda {

// Quotient and remainder of a position, which has 32 bits if the count has.
__device__ inline void divide(int64_t position, int64_t count, int64_t& quotient, int64_t& rest) {
  const Split parts = split(position, count);
  quotient = parts.quotient;
  rest = parts.remainder;
}
__device__ inline void divide(uint32_t position, int64_t count, uint32_t& quotient,
                              uint32_t& rest) {
  quotient = position / static_cast<uint32_t>(count);
  rest = position - quotient * static_cast<uint32_t>(count);
}

template <class At>
struct Moved {
  At at;
  int64_t step;  // Place::step
};

// Loads of a thread in flight, and blocks that shall find room in a multiprocessor beside them;
// `stages` of shared memory that they go through, each of so many, so that others are in flight
// while some are looked at and take no registers; none by default.
struct Room {
  int loads, blocks, stages = 0;
};

// A pack of the input is not its elements before it is looked at, lest each byte be held in a
// register of its own.
template <class Key>
__device__ Vector<Key> vector_of(const uint4& pack) {
  Vector<Key> vector;
  memcpy(&vector, &pack, kLoadBytes);
  return vector;
}

// The input alone.
template <class E>
struct Stored {
  using Element = E;
  using Key = typename E::Key;
  static constexpr bool kMasked = false;
  static constexpr bool kJoined = false;  // whether a pack is of two blocks of a mask
  E element;

  struct At {
    const Key* input;
  };
  using Pack = uint4;
  using Item = Key;

  template <class Problem>
  static __device__ At begin(const Problem& p) {
    return {reinterpret_cast<const Key*>(p.input)};
  }
  template <class Dim, class Count>
  static __device__ At along(At at, const Dim& dim, Count n) {
    return {at.input + n * dim.stride};
  }
  static __device__ Moved<At> move(At at, const Dim* dims, int count, int64_t position) {
    const Place to = place(dims, count, position);
    return {{at.input + to.offset}, to.step};
  }

  // The `number`th block of 16 bytes from `at` on. (Dim: that along which the elements lie.)
  static __device__ Pack pack(At at, const Dim&, int64_t number = 0) {
    return reinterpret_cast<const Pack*>(at.input)[number];
  }
  static __device__ Item item(At at) { return *at.input; }
  static __device__ At for_packs(At at, const Dim&) { return at; }

  // Which elements of some packs, or items, have taken part.
  struct Seen {
    __device__ bool of(int) const { return true; }
  };
  template <class Load>
  static __device__ void see(const Load&, Seen&) {}

  // A pack by way of a row of shared memory, which has 16 bytes for each thread, and what of it
  // does not go that way but ahead.
  struct Ahead {};
  static __device__ void copy(At at, char* row) {
    copy_async<kLoadBytes>(row + threadIdx.x * kLoadBytes, at.input);
  }
  template <int kCount>
  static __device__ void load_ahead(const At (&)[kCount], const Dim&, Ahead (&)[kCount]) {}
  static __device__ Pack copied(const char* row, Ahead) {
    return reinterpret_cast<const Pack*>(row)[threadIdx.x];
  }
  __device__ Vector<Key> bits(const Pack& pack) const { return vector_of<Key>(pack); }
  __device__ Key bits(Item item) const { return item; }
  // Elements of a row from where a pack could begin to `at`, as far as its low digits matter; and
  // how many there must be behind the last pack.
  static __device__ uint32_t past_block(At at) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.input) / sizeof(Key));
  }
  static __device__ uint32_t behind_pack(At) { return 0; }

  // Of a pack or an item that is all of these bits.
  static __device__ void fill(Pack& pack, Key bits) {
    Vector<Key> vector;
#pragma unroll
    for (Key& x : vector.at) x = bits;
    memcpy(&pack, &vector, kLoadBytes);
  }
  static __device__ void fill(Item& item, Key bits) { item = bits; }

  static constexpr Room row_room() { return {kLaneLoads, kRowLoads / kThreads / kLaneLoads}; }
  static constexpr int64_t kMostHeldLoads = most_held_loads(sizeof(Key));
  static constexpr Room column_room(bool vector) {
    return {column_loads(sizeof(Key), vector), column_blocks(sizeof(Key), vector)};
  }
};

// What remains of two blocks of so many words, one behind the other, from byte number `from` on.
template <int kWords>
__device__ void join(uint32_t (&words)[2 * kWords], uint32_t from) {
  // A condition to each power of two, lest words be found by an index.
#pragma unroll
  for (int step = kWords / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i + step < 2 * kWords; ++i)
      words[i] = from & (4 * step) ? words[i + step] : words[i];
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 8 * from);
}

// All bits of the bytes of word number i that are among the first `count` of several words.
__device__ inline uint32_t first_bytes(int i, uint32_t count) {
  const int bytes = std::clamp(static_cast<int>(count) - 4 * i, 0, 4);
  return static_cast<uint32_t>((uint64_t(1) << (8 * bytes)) - 1);
}

// The elements of a pack that begins there, but zeros past the end of the input.
template <class Key>
__device__ uint4 load_before(const Key* elements, const char* end) {
  uint32_t words[kLoadBytes / 4] = {};
#pragma unroll
  for (int i = 0; i < Vector<Key>::kWidth; ++i) {
    if (reinterpret_cast<const char*>(elements + i) >= end) continue;
    if constexpr (sizeof(Key) >= 4) {
      memcpy(words + i * sizeof(Key) / 4, elements + i, sizeof(Key));
    } else {
      const auto bits = static_cast<std::make_unsigned_t<Key>>(elements[i]);
      words[i * sizeof(Key) / 4] |= uint32_t(bits) << (8 * (i * sizeof(Key) % 4));
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// 16 bytes of elements that begin anywhere: the two blocks in which they lie are loaded, and joined
// when they are looked at. (The second comes from L1: a neighbour has it.)
template <class Key>
struct Anywhere {
  uint4 low, high;
  uint32_t at;  // bytes of `low` before them

  static __device__ Anywhere load(const Key* elements, const char* end) {
    const auto address = reinterpret_cast<uintptr_t>(elements), first = address / kLoadBytes;
    const auto last = reinterpret_cast<uintptr_t>(end) / kLoadBytes;  // blocks before it are whole
    const char* begin = reinterpret_cast<const char*>(elements) - address % kLoadBytes;
    const auto* blocks = reinterpret_cast<const uint4*>(begin);
    if (first + 1 < last) return {blocks[0], blocks[1], uint32_t(address % kLoadBytes)};
    return {load_before(elements, end), {}, 0};
  }
  __device__ Vector<Key> joined() const {
    uint32_t words[2 * kLoadBytes / 4] = {low.x,  low.y,  low.z,  low.w,
                                          high.x, high.y, high.z, high.w};
    join<kLoadBytes / 4>(words, at);
    Vector<Key> vector;
    memcpy(&vector, words, kLoadBytes);
    return vector;
  }
};

// The input alone, in packs that begin anywhere.
template <class E>
struct Realigned : Stored<E> {
  using typename Stored<E>::Key;
  using typename Stored<E>::At;
  using typename Stored<E>::Item;
  using Stored<E>::bits;
  using Stored<E>::fill;
  const char* end;  // of the input

  using Pack = Anywhere<Key>;
  __device__ Pack pack(At at, const Dim&) const { return Pack::load(at.input, end); }
  static __device__ void fill(Pack& pack, Key bits) {
    Stored<E>::fill(pack.low, bits);
    pack.at = 0;
  }
  __device__ Vector<Key> bits(const Pack& pack) const { return pack.joined(); }

  static constexpr Room column_room(bool) { return {4, sizeof(Key) == 1 ? 2 : 3}; }
};

// The input alone, in packs of a row that begin anywhere: what lies behind the row is absent.
template <class E>
struct RowPacks : Stored<E> {
  using typename Stored<E>::Key;
  using typename Stored<E>::At;
  using Stored<E>::bits;
  static constexpr int kWidth = Vector<Key>::kWidth;
  const char* end;  // of the input
  uint32_t size;    // of a row
  Key none;         // the bits of an absent element

  struct Pack {
    Anywhere<Key> elements;
    uint32_t count;  // those of the row
  };
  __device__ Pack pack(At at, const auto&, uint32_t number) const {
    const uint32_t first = number * kWidth;
    return {Anywhere<Key>::load(at.input + first, end), size - first};
  }
  __device__ Vector<Key> bits(const Pack& pack) const {
    Vector<Key> vector = pack.elements.joined();
    if (pack.count >= kWidth) return vector;
    if constexpr (sizeof(Key) >= 4) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) vector.at[i] = i < pack.count ? vector.at[i] : none;
    } else {
      uint32_t words[kLoadBytes / 4];
      memcpy(words, &vector, kLoadBytes);
#pragma unroll
      for (int i = 0; i < int(kLoadBytes) / 4; ++i) {
        const uint32_t care = first_bytes(i, pack.count * sizeof(Key));
        words[i] = (words[i] & care) | (slot_of_all(none) & ~care);
      }
      memcpy(&vector, words, kLoadBytes);
    }
    return vector;
  }
};

// The input alone, of which every second element counts: those of a pack are what remains of two
// blocks of 16 bytes. Of types of up to 4 bytes.
template <class E>
struct Spaced : Stored<E> {
  using typename Stored<E>::Key;
  using typename Stored<E>::At;
  using Stored<E>::bits;
  using Stored<E>::fill;

  struct Pack {
    uint4 first, second;
    bool odd;  // whether elements are the second of each two
  };

  static __device__ uint32_t past_block(At at) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.input) / (2 * sizeof(Key)));
  }
  static __device__ bool is_odd(At at) {
    return reinterpret_cast<uintptr_t>(at.input) / sizeof(Key) % 2 != 0;
  }
  // Its blocks end with an element that is none, which the input need not have.
  static __device__ uint32_t behind_pack(At at) { return is_odd(at) ? 0 : 1; }

  template <class Dim>
  static __device__ Pack pack(At at, const Dim&, int64_t number = 0) {
    const bool odd = is_odd(at);
    const auto* blocks = reinterpret_cast<const uint4*>(at.input - odd) + 2 * number;
    return {blocks[0], blocks[1], odd};
  }
  __device__ Vector<Key> bits(const Pack& pack) const {
    constexpr int kWords = kLoadBytes / 4;
    uint32_t words[2 * kWords], chosen[kWords];
    memcpy(words, &pack.first, kLoadBytes);
    memcpy(words + kWords, &pack.second, kLoadBytes);
    const uint32_t selector =
        sizeof(Key) == 1 ? (pack.odd ? 0x7531 : 0x6420) : (pack.odd ? 0x7632 : 0x5410);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32_t one = words[2 * i], other = words[2 * i + 1];
      chosen[i] = sizeof(Key) == 4 ? (pack.odd ? other : one) : __byte_perm(one, other, selector);
    }
    Vector<Key> vector;
    memcpy(&vector, chosen, kLoadBytes);
    return vector;
  }

  static constexpr Room row_room() { return {4, 3}; }
};

// A load from memory, which a pointer that comes with others is not known to point to.
template <class T>
__device__ T load_global(const T* from) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(from));
#endif
  return *from;
}

// Words of a mask where it is the same for a whole row.
alignas(kLoadBytes)
    __device__ const uint8_t kAllPresent[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
alignas(kLoadBytes) __device__ const uint8_t kAllAbsent[16] = {};

// How the bytes of a mask for a pack of elements lie.
enum class MaskOf {
  kBlocks,     // as an aligned block, or the same for all packs along a dim
  kWords,      // as aligned words of up to 4 bytes, or one byte for all of a pack
  kNeighbors,  // side by side, beginning anywhere: two blocks are loaded, and joined when looked at
  kApart,      // anywhere: each is loaded by itself
};

// Calls found(c, turn) with the first of `turns` turns in which column c takes part, if there is
// one, for the columns along `inner` that have a bit in `wanted`: of one, or of those of a pack.
// `row(turn)` is the place of the first one. As many loads are in flight as there is room for.
template <int kWidth, class Source, class Row, class Found>
__device__ void find_first_present(const Source& source, uint32_t wanted, uint32_t turns, Row row,
                                   const Dim& inner, Found found) {
  static_assert(kWidth == 1 || kWidth == Source::kWidth);
  constexpr int kTurns = kWidth == 1 ? 8 : std::min(kWidth > 8 ? 4 : 8, 16 / Source::kMaskLoads);
  using Mask = std::conditional_t<kWidth == 1, uint8_t, typename Source::Words>;
  REDUCEOPS_ROLLED
  for (uint32_t first = 0; first < turns && wanted; first += kTurns) {
    Mask masks[kTurns];
    const auto turn = [&](uint32_t i) { return std::min(first + i, turns - 1); };
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const auto at = row(turn(i));
      if constexpr (kWidth == 1) {
        masks[i] = *at.mask;
      } else {
        masks[i] = source.mask_at(at, inner);
      }
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        bool present;
        if constexpr (kWidth == 1) {
          present = masks[i] != 0;
        } else {
          present = Source::byte_of(masks[i], c);
        }
        if (!present || !(wanted >> c & 1)) continue;
        found(c, turn(i));
        wanted &= ~(1u << c);
      }
    }
  }
}

// The input and a mask, with strides of its own: bools that say which elements take part. Bound
// like Stored, with a byte more to each element.
template <class E, MaskOf kMask>
struct Masked {
  using Element = E;
  using Key = typename E::Key;
  static constexpr bool kMasked = true;
  static constexpr int kWidth = Vector<Key>::kWidth;
  static constexpr int kMaskWords = (kWidth + 3) / 4;
  static constexpr int kMaskLoads = kMask == MaskOf::kApart ? kWidth : 1;  // of a pack, or about so
  static constexpr bool kJoined = kMask == MaskOf::kNeighbors;
  E element;
  Key none;                  // the bits of an absent element: the largest for a minimum, and so on
  const char* whole_blocks;  // of the mask, as Problem has it of the input

  struct At {
    const Key* input;
    const uint8_t* mask;
  };
  struct Words {
    uint32_t at[kMaskWords];
  };
  struct Nothing {};
  struct Pack {
    uint4 elements;
    Words mask;
    // The block behind it, and where the mask begins in the two.
    std::conditional_t<kJoined, Words, Nothing> high;
    std::conditional_t<kJoined, uint32_t, Nothing> from;
  };
  struct Item {
    Key bits;
    uint8_t mask;
  };

  template <class Problem>
  static __device__ At begin(const Problem& p) {
    return {reinterpret_cast<const Key*>(p.input), p.mask};
  }
  template <class Dim, class Count>
  static __device__ At along(At at, const Dim& dim, Count n) {
    return {at.input + n * dim.stride, at.mask + n * dim.mask_stride};
  }
  template <class Position>
  static __device__ Moved<At> move(At at, const Dim* dims, int count, Position position) {
    int64_t step = 0;
    REDUCEOPS_ROLLED
    for (int d = 0; d < count; ++d) {
      Position rest = 0, digit = position;
      if (d + 1 < count) divide(position, dims[d].size, rest, digit);
      at = along(at, dims[d], digit);
      step += digit * dims[d].step;
      position = rest;
    }
    return {at, step};
  }

  static __device__ Pack pack(At at, const Dim& dim, int64_t number = 0) {
    Pack pack;
    pack.elements = load_global(reinterpret_cast<const uint4*>(at.input) + number);
    // (Where bytes are not apart, what the compiler multiplies with is a bit.)
    const int64_t step = kMask == MaskOf::kApart ? dim.mask_stride : dim.mask_stride != 0;
    const uint8_t* first = at.mask + number * kWidth * step;
    if constexpr (kJoined) {
      pack.from = past_mask_block(at);
      pack.mask = block(first - pack.from);
      pack.high = block(first - pack.from + (pack.from ? kWidth : 0));
    } else {
      pack.mask = load_mask(first, dim.mask_stride);
    }
    return pack;
  }
  // Of the pack there, the mask alone.
  static __device__ Words mask_at(At at, const Dim& dim) {
    if constexpr (kJoined) {
      const uint32_t from = past_mask_block(at);
      return joined(block(at.mask - from), block(at.mask - from + (from ? kWidth : 0)), from);
    } else {
      return load_mask(at.mask, dim.mask_stride);
    }
  }
  static __device__ Item item(At at) { return {load_global(at.input), load_global(at.mask)}; }
  // Packs along a dim that the mask does not have are masked by the same words.
  static __device__ At for_packs(At at, const Dim& dim) {
    if (kMask != MaskOf::kApart && dim.mask_stride == 0)
      at.mask = *at.mask ? kAllPresent : kAllAbsent;
    return at;
  }

  struct Ahead {
    Words mask;
  };
  static __device__ void copy(At at, char* row) {
    copy_async<kLoadBytes>(row + threadIdx.x * kLoadBytes, at.input);
  }
  template <int kCount>
  static __device__ void load_ahead(const At (&at)[kCount], const Dim& dim,
                                    Ahead (&ahead)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) ahead[i].mask = load_mask(at[i].mask, dim.mask_stride);
  }
  static __device__ Pack copied(const char* row, const Ahead& ahead) {
    Pack pack;
    pack.elements = reinterpret_cast<const uint4*>(row)[threadIdx.x];
    pack.mask = ahead.mask;
    return pack;
  }
  static __device__ uint32_t past_block(At at) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.input) / sizeof(Key));
  }
  // Of a mask that is one block farther than its elements, the last block is not whole.
  static __device__ uint32_t behind_pack(At at) {
    const uint32_t past = kJoined ? past_mask_block(at) : 0;
    return past ? kWidth - past : 0;
  }

  struct Seen {
    Words any{};
    __device__ bool of(int i) const { return byte_of(any, i); }
  };
  static __device__ void see(const Pack& pack, Seen& seen) {
    const Words mask = mask_of(pack);
#pragma unroll
    for (int w = 0; w < kMaskWords; ++w) seen.any.at[w] |= mask.at[w];
  }
  static __device__ void see(Item item, Seen& seen) { seen.any.at[0] |= item.mask; }

  static __device__ bool present(Item item) { return item.mask != 0; }
  static __device__ bool any_present(const Pack& pack) {
    uint32_t any = 0;
    for (const uint32_t some : mask_of(pack).at) any |= some;
    return any != 0;
  }
  // The number of the first element that takes part, if one does.
  static __device__ uint32_t first_present(const Pack& pack) {
    const Words mask = mask_of(pack);
    uint32_t first = kNowhere;
#pragma unroll
    for (int w = kMaskWords - 1; w >= 0; --w) {
      const uint32_t any = any_in_bytes(mask.at[w]) & 0x80808080u;
      if (any) first = 4 * w + (__ffs(any) - 1) / 8;
    }
    return first;
  }

  __device__ Key absent() const { return none; }
  __device__ Key bits(Item item) const { return present(item) ? item.bits : none; }
  __device__ Vector<Key> bits(const Pack& pack) const {
    const Words mask = mask_of(pack);
    Vector<Key> vector = vector_of<Key>(pack.elements);
    if constexpr (sizeof(Key) >= 4) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) vector.at[i] = byte_of(mask, i) ? vector.at[i] : none;
    } else {
      uint32_t words[kLoadBytes / 4];
      memcpy(words, &vector, kLoadBytes);
#pragma unroll
      for (int i = 0; i < int(kLoadBytes) / 4; ++i) {
        const uint32_t any = any_in_bytes(mask.at[i / int(sizeof(Key))]);
        uint32_t care;
        if constexpr (sizeof(Key) == 1) {
          care = signs_of_bytes<0xba98>(any);
        } else {
          care = i % 2 ? signs_of_bytes<0xbbaa>(any) : signs_of_bytes<0x9988>(any);
        }
        words[i] = (words[i] & care) | (slot_of_all(none) & ~care);
      }
      memcpy(&vector, words, kLoadBytes);
    }
    return vector;
  }

  // Fewer than of Stored, for there is more to each of them.
  static constexpr Room row_room() {
    if (kMask == MaskOf::kApart) return {sizeof(Key) == 1 ? 4 : 8, 2};
    return {4, 3};
  }
  static constexpr Room column_room(bool vector) {
    if (!vector) return {sizeof(Key) == 8 ? 8 : 16, 4};
    if (sizeof(Key) == 1) return {4, 2, kMask == MaskOf::kApart ? 0 : 3};
    return {4, 4};
  }
  static constexpr int64_t kMostHeldLoads =
      kMask == MaskOf::kApart ? held_loads(sizeof(Key)) : most_held_loads(sizeof(Key));
  static constexpr int held_blocks(int loads) {
    if (kMask == MaskOf::kApart) return sizeof(Key) == 2 || sizeof(Key) == 8 ? 3 : 2;
    return (kJoined ? 3 : 4) - (sizeof(Key) == 2 && loads > 4);
  }

  static __device__ Words block(const uint8_t* from) {
    Words words;
    if constexpr (kWidth == 16) {
      const uint4 all = load_global(reinterpret_cast<const uint4*>(from));
      memcpy(&words, &all, sizeof(words));
    } else if constexpr (kWidth == 8) {
      const uint2 all = load_global(reinterpret_cast<const uint2*>(from));
      memcpy(&words, &all, sizeof(words));
    } else if constexpr (kWidth == 4) {
      words.at[0] = load_global(reinterpret_cast<const uint32_t*>(from));
    } else {
      words.at[0] = load_global(reinterpret_cast<const uint16_t*>(from));
    }
    return words;
  }
  // What remains of two blocks, one behind the other, from byte number `from` on.
  static __device__ Words joined(const Words& low, const Words& high, uint32_t from) {
    if constexpr (kWidth == 2) {
      return {{(low.at[0] | high.at[0] << 16) >> (8 * from) & 0xffff}};
    } else {
      uint32_t words[2 * kMaskWords];
      memcpy(words, &low, sizeof(Words));
      memcpy(words + kMaskWords, &high, sizeof(Words));
      join<kMaskWords>(words, from);
      Words mask;
      memcpy(&mask, words, sizeof(Words));
      return mask;
    }
  }
  static __device__ bool byte_of(const Words& mask, int i) {
    return (mask.at[i / 4] >> (8 * (i % 4)) & 0xff) != 0;
  }

 private:
  // Of a pack, whose bytes are `step` apart.
  static __device__ Words load_mask(const uint8_t* from, int64_t step) {
    if constexpr (kMask == MaskOf::kBlocks) return block(from);
    Words mask;
    if constexpr (kMask == MaskOf::kWords) {
      using Word = std::conditional_t<kWidth == 2, uint16_t, uint32_t>;
      const uint32_t all = step == 0 ? load_global(from) * 0x1010101u : 0;
#pragma unroll
      for (int w = 0; w < kMaskWords; ++w)
        mask.at[w] = step == 0 ? all : load_global(reinterpret_cast<const Word*>(from) + w);
    } else {
      uint32_t bytes[4 * kMaskWords]{};
#pragma unroll
      for (int i = 0; i < kWidth; ++i) bytes[i] = load_global(from + i * step);
#pragma unroll
      for (int w = 0; w < kMaskWords; ++w)
        mask.at[w] =
            bytes[4 * w] | bytes[4 * w + 1] << 8 | bytes[4 * w + 2] << 16 | bytes[4 * w + 3] << 24;
    }
    return mask;
  }
  // Bytes of a block before the mask of a pack; the same for all packs of a row.
  static __device__ uint32_t past_mask_block(At at) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.mask)) % kWidth;
  }
  static __device__ Words mask_of(const Pack& pack) {
    if constexpr (kJoined) {
      return joined(pack.mask, pack.high, pack.from);
    } else {
      return pack.mask;
    }
  }
  // Of each byte whether it is not zero, in its top bit.
  static __device__ uint32_t any_in_bytes(uint32_t x) {
    return ((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x;
  }
};

// The same in packs of columns that begin anywhere, as do the bytes of their mask, or which have
// one and the same byte. (Of 16-bit types more is in flight without packs.)
template <class E>
struct RealignedMasked : Masked<E, MaskOf::kWords> {
  using Base = Masked<E, MaskOf::kWords>;
  using Base::bits;
  using Base::kWidth;
  using Base::see;
  using typename Base::At;
  using typename Base::Item;
  using typename Base::Key;
  using typename Base::Seen;
  using typename Base::Words;
  const char *end, *mask_end;

  struct Pack {
    Anywhere<Key> elements;
    Words mask, high;  // two blocks, and where the mask begins in them
    uint32_t from;
  };

  __device__ Pack pack(At at, const auto& dim) const {
    Pack pack;
    pack.elements = Anywhere<Key>::load(at.input, end);
    set_mask(at, dim, pack);
    return pack;
  }
  __device__ Words mask_at(At at, const auto& dim) const {
    Pack pack;
    set_mask(at, dim, pack);
    return Base::joined(pack.mask, pack.high, pack.from);
  }
  __device__ void set_mask(At at, const auto& dim, Pack& pack) const {
    pack.from = 0;
    pack.mask = pack.high = {};
    if (dim.mask_stride == 0) {
      const uint32_t all = load_global(at.mask) * 0x1010101u;
      for (uint32_t& word : pack.mask.at) word = all;
    } else if (reinterpret_cast<const char*>(at.mask) + 2 * kWidth <= mask_end) {
      pack.from = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.mask)) % kWidth;
      pack.mask = Base::block(at.mask - pack.from);
      pack.high = Base::block(at.mask - pack.from + (pack.from ? kWidth : 0));
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (reinterpret_cast<const char*>(at.mask) + i < mask_end)
          pack.mask.at[i / 4] |= uint32_t(at.mask[i]) << (8 * (i % 4));
      }
    }
  }
  __device__ typename Base::Pack whole(const Pack& pack) const {
    typename Base::Pack all;
    const Vector<Key> vector = pack.elements.joined();
    memcpy(&all.elements, &vector, kLoadBytes);
    all.mask = Base::joined(pack.mask, pack.high, pack.from);
    return all;
  }
  __device__ Vector<Key> bits(const Pack& pack) const { return Base::bits(whole(pack)); }
  __device__ void see(const Pack& pack, Seen& seen) const { Base::see(whole(pack), seen); }

  static constexpr Room column_room(bool) { return {4, 2}; }
};

// The same in packs of a row, behind which nothing takes part; of any type.
template <class E>
struct MaskedRowPacks : RealignedMasked<E> {
  using Base = RealignedMasked<E>;
  using Base::bits;
  using Base::kWidth;
  using Base::present;
  using typename Base::At;
  using typename Base::Key;
  uint32_t size;  // of a row

  struct Pack {
    typename Base::Pack all;
    uint32_t count;  // elements of the row
  };
  __device__ Pack pack(At at, const auto& dim, uint32_t number) const {
    const uint32_t first = number * kWidth;
    return {Base::pack(Base::along(at, dim, first), dim), size - first};
  }
  __device__ typename Base::Base::Pack of_row(const Pack& pack) const {
    auto whole = Base::whole(pack.all);
    if (pack.count >= kWidth) return whole;
#pragma unroll
    for (int w = 0; w < Base::kMaskWords; ++w) whole.mask.at[w] &= first_bytes(w, pack.count);
    return whole;
  }
  __device__ Vector<Key> bits(const Pack& pack) const { return Base::Base::bits(of_row(pack)); }
  __device__ bool any_present(const Pack& pack) const {
    return Base::Base::any_present(of_row(pack));
  }
  __device__ uint32_t first_present(const Pack& pack) const {
    return Base::Base::first_present(of_row(pack));
  }
};

}  // namespace reduceops::cuda
