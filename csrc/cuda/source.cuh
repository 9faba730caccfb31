// Source: what an element is, and how a walk gets it.
//
// A walk knows places and strides; a Source knows the operands they are of. Its types:
//
//   Key    what an element's bits are held in; `element` (element.h, keys.cuh) orders them
//   At     where the walk is, in every operand: `begin`, `move` along dims, `along` one of them
//   Pack   16 bytes of neighbouring elements, and Item, one element, as they were loaded: with all
//          that belongs to them, and not looked at, so that a thread has many in flight
//
// `bits(pack)` and `bits(item)` are the elements, `present` whether they take part at all. An
// absent element has the bits `absent()`, which lose against all others, or equal them: where the
// smallest key is theirs, it is a Reducer's business that a present element wins.
//
// Another operand (a bias, a factor per row) is another struct like Masked: its pointer and stride
// in At, its elements in Pack and Item, what it does to an element in `bits`.
#pragma once

#include <type_traits>

#include "cuda/async.cuh"
#include "cuda/keys.cuh"

namespace reduceops::cuda {

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

// The input alone.
template <class E>
struct Stored {
  using Element = E;
  using Key = typename E::Key;
  static constexpr bool kMasked = false;
  E element;

  struct At {
    const Key* input;
  };
  using Pack = Vector<Key>;
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
    return Pack::load(reinterpret_cast<const Pack*>(at.input) + number);
  }
  static __device__ Item item(At at) { return *at.input; }
  static __device__ At for_packs(At at, const Dim&) { return at; }

  // A pack by way of a row of shared memory, which has 16 bytes for each thread, and what of it
  // does not go that way but ahead.
  struct Ahead {};
  static __device__ void copy(At at, char* row) {
    copy_async<kLoadBytes>(row + threadIdx.x * kLoadBytes, at.input);
  }
  template <int kCount>
  static __device__ void load_ahead(const At (&)[kCount], const Dim&, Ahead (&)[kCount]) {}
  static __device__ Pack copied(const char* row, Ahead) {
    return Pack::load(reinterpret_cast<const Pack*>(row) + threadIdx.x);
  }
  __device__ Pack bits(const Pack& pack) const { return pack; }
  __device__ Key bits(Item item) const { return item; }
  // Elements of a row from where a pack could begin to `at`, as far as its low digits matter; and
  // how many there must be behind the last pack.
  static __device__ uint32_t past_block(At at) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.input) / sizeof(Key));
  }
  static __device__ uint32_t behind_pack(At) { return 0; }

  // Of a pack or an item that is all of these bits.
  static __device__ void fill(Pack& pack, Key bits) {
#pragma unroll
    for (Key& x : pack.at) x = bits;
  }
  static __device__ void fill(Item& item, Key bits) { item = bits; }

  // Of rows, where the plan may want many loads, and of columns.
  static constexpr Room row_room(bool many) {
    const int64_t loads = many ? kManyLoads : kFewLoads;
    return {int(loads), int(kRowLoads / kThreads / loads)};
  }
  static constexpr Room column_room(bool vector) {
    return {column_loads(sizeof(Key), vector), column_blocks(sizeof(Key), vector)};
  }
};

// The input alone, in packs that begin anywhere: of each the two blocks of 16 bytes are loaded in
// which it lies, and joined when it is looked at. (The second comes from L1: a neighbour has it.)
// Of types of up to 2 bytes.
template <class E>
struct Realigned : Stored<E> {
  using typename Stored<E>::Key;
  using typename Stored<E>::At;
  using typename Stored<E>::Item;
  using Stored<E>::bits;
  using Stored<E>::fill;
  const char* end;  // of the input

  struct Pack {
    uint4 low, high;
    uint32_t at;  // bytes of `low` before it
  };

  // Elements past the end of the input are zeros.
  __device__ Pack pack(At at, const Dim&) const {
    const auto address = reinterpret_cast<uintptr_t>(at.input), first = address / kLoadBytes;
    const auto last = reinterpret_cast<uintptr_t>(end) / kLoadBytes;  // blocks before it are whole
    const char* begin = reinterpret_cast<const char*>(at.input) - address % kLoadBytes;
    const auto* blocks = reinterpret_cast<const uint4*>(begin);
    Pack pack;
    pack.at = address % kLoadBytes;
    if (first + 1 < last) {
      pack.low = blocks[0];
      pack.high = blocks[1];
    } else {
      uint32_t words[kLoadBytes / 4] = {};
#pragma unroll
      for (int i = 0; i < Vector<Key>::kWidth; ++i) {
        if (reinterpret_cast<const char*>(at.input + i) >= end) continue;
        const auto bits = static_cast<std::make_unsigned_t<Key>>(at.input[i]);
        words[i * sizeof(Key) / 4] |= uint32_t(bits) << (8 * (i * sizeof(Key) % 4));
      }
      pack = {{words[0], words[1], words[2], words[3]}, {}, 0};
    }
    return pack;
  }
  __device__ Vector<Key> bits(const Pack& pack) const {
    uint32_t words[2 * kLoadBytes / 4] = {pack.low.x,  pack.low.y,  pack.low.z,  pack.low.w,
                                          pack.high.x, pack.high.y, pack.high.z, pack.high.w};
    // A condition to each power of two, lest words be found by an index.
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = pack.at & 8 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = pack.at & 4 ? words[i + 1] : words[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 8 * pack.at);
    Vector<Key> vector;
    memcpy(&vector, words, kLoadBytes);
    return vector;
  }

  static constexpr Room column_room(bool) { return {4, sizeof(Key) == 1 ? 2 : 3}; }
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
    Vector<Key> first, second;
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
    const auto* blocks = reinterpret_cast<const Vector<Key>*>(at.input - odd) + 2 * number;
    return {Vector<Key>::load(blocks), Vector<Key>::load(blocks + 1), odd};
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

  static constexpr Room row_room(bool many) { return {many ? 8 : 4, many ? 2 : 3}; }
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
alignas(4)
    __device__ const uint8_t kAllPresent[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
alignas(4) __device__ const uint8_t kAllAbsent[16] = {};

// The input and a mask, with strides of its own: bools that say which elements take part.
//
// kWords: the bytes of the mask for a pack are aligned words, each from memory in one load, or the
// same for all packs along a dim. Else each is loaded by itself, wherever it lies. Bound like
// Stored, with a byte more to each element.
template <class E, bool kWords>
struct Masked {
  using Element = E;
  using Key = typename E::Key;
  static constexpr bool kMasked = true;
  static constexpr int kWidth = Vector<Key>::kWidth;
  static constexpr int kMaskWords = (kWidth + 3) / 4;
  E element;
  Key none;  // the bits of an absent element: the largest for a minimum, and so on

  struct At {
    const Key* input;
    const uint8_t* mask;
  };
  struct Pack {
    Vector<Key> vector;
    uint32_t mask[kMaskWords];
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
  static __device__ Moved<At> move(At at, const Dim* dims, int count, int64_t position) {
    int64_t step = 0;
    REDUCEOPS_ROLLED
    for (int d = 0; d < count; ++d) {
      const auto [rest, digit] = d + 1 < count ? split(position, dims[d].size) : Split{0, position};
      at = along(at, dims[d], digit);
      step += digit * dims[d].step;
      position = rest;
    }
    return {at, step};
  }

  static __device__ Pack pack(At at, const Dim& dim, int64_t number = 0) {
    Pack pack;
    const uint4 elements = load_global(reinterpret_cast<const uint4*>(at.input) + number);
    memcpy(&pack.vector, &elements, kLoadBytes);
    load_mask(at.mask + number * kWidth * dim.mask_stride, dim.mask_stride, pack.mask);
    return pack;
  }
  static __device__ Item item(At at) { return {load_global(at.input), load_global(at.mask)}; }
  // Packs along a dim that the mask does not have are masked by the same words.
  static __device__ At for_packs(At at, const Dim& dim) {
    if (kWords && dim.mask_stride == 0) at.mask = *at.mask ? kAllPresent : kAllAbsent;
    return at;
  }

  struct Ahead {
    uint32_t mask[kMaskWords];
  };
  static __device__ void copy(At at, char* row) {
    copy_async<kLoadBytes>(row + threadIdx.x * kLoadBytes, at.input);
  }
  template <int kCount>
  static __device__ void load_ahead(const At (&at)[kCount], const Dim& dim,
                                    Ahead (&ahead)[kCount]) {
    if (!kWords && dim.mask_stride == 0) {  // a mask of classes, say: one byte for all
#pragma unroll
      for (int i = 0; i < kCount; ++i) ahead[i].mask[0] = load_global(at[i].mask);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int w = kMaskWords - 1; w >= 0; --w) ahead[i].mask[w] = ahead[i].mask[0] * 0x1010101u;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) load_mask(at[i].mask, dim.mask_stride, ahead[i].mask);
    }
  }
  static __device__ Pack copied(const char* row, const Ahead& ahead) {
    Pack pack;
    pack.vector = Vector<Key>::load(reinterpret_cast<const Vector<Key>*>(row) + threadIdx.x);
#pragma unroll
    for (int w = 0; w < kMaskWords; ++w) pack.mask[w] = ahead.mask[w];
    return pack;
  }
  static __device__ uint32_t past_block(At at) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.input) / sizeof(Key));
  }
  static __device__ uint32_t behind_pack(At) { return 0; }

  static __device__ bool present(Item item) { return item.mask != 0; }
  static __device__ bool any_present(const Pack& pack) {
    uint32_t any = 0;
    for (const uint32_t some : pack.mask) any |= some;
    return any != 0;
  }
  // The number of the first element that takes part, if one does.
  static __device__ uint32_t first_present(const Pack& pack) {
    uint32_t first = kNowhere;
#pragma unroll
    for (int i = kWidth - 1; i >= 0; --i) {
      if (mask_of(pack, i)) first = i;
    }
    return first;
  }

  __device__ Key absent() const { return none; }
  __device__ Key bits(Item item) const { return present(item) ? item.bits : none; }
  __device__ Vector<Key> bits(const Pack& pack) const {
    Vector<Key> vector = pack.vector;
    if constexpr (sizeof(Key) >= 4) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) vector.at[i] = mask_of(pack, i) ? vector.at[i] : none;
    } else {  // four bytes of the mask at once
      const uint32_t absent =
          sizeof(Key) == 2 ? 0x10001u * static_cast<uint16_t>(none) : 0x1010101u * uint8_t(none);
      uint32_t words[kLoadBytes / 4];
      memcpy(words, &vector, kLoadBytes);
#pragma unroll
      for (int i = 0; i < int(kLoadBytes) / 4; ++i) {
        uint32_t care = __vcmpne4(pack.mask[i / int(sizeof(Key))], 0);
        if (sizeof(Key) == 2) care = __byte_perm(care, 0, i % 2 ? 0x3322 : 0x1100);
        words[i] = (words[i] & care) | (absent & ~care);
      }
      memcpy(&vector, words, kLoadBytes);
    }
    return vector;
  }

  // Fewer than of Stored, for there is more to each of them.
  static constexpr Room row_room(bool) {
    if (!kWords) return sizeof(Key) == 8 ? Room{8, 3} : sizeof(Key) == 1 ? Room{2, 4} : Room{4, 3};
    return sizeof(Key) < 4 ? Room{4, 3} : Room{8, 2};
  }
  static constexpr Room column_room(bool vector) {
    if (!vector) return {sizeof(Key) == 8 ? 8 : 16, 4};
    if (sizeof(Key) == 1) return {4, 2, 3};
    return {4, 3, 4};
  }
  static constexpr int held_blocks() {
    if (!kWords) return sizeof(Key) == 2 || sizeof(Key) == 8 ? 3 : 2;
    return 4;
  }

 private:
  // Of a pack, whose bytes are `step` apart.
  static __device__ void load_mask(const uint8_t* from, int64_t step,
                                   uint32_t (&mask)[kMaskWords]) {
    if constexpr (kWords) {
      using Word = std::conditional_t<kWidth == 2, uint16_t, uint32_t>;
#pragma unroll
      for (int w = 0; w < kMaskWords; ++w)
        mask[w] = load_global(reinterpret_cast<const Word*>(from) + w);
    } else {
      uint32_t bytes[4 * kMaskWords]{};
#pragma unroll
      for (int i = 0; i < kWidth; ++i) bytes[i] = load_global(from + i * step);
#pragma unroll
      for (int w = 0; w < kMaskWords; ++w)
        mask[w] =
            bytes[4 * w] | bytes[4 * w + 1] << 8 | bytes[4 * w + 2] << 16 | bytes[4 * w + 3] << 24;
    }
  }
  static __device__ bool mask_of(const Pack& pack, int i) {
    return (pack.mask[i / 4] >> (8 * (i % 4)) & 0xff) != 0;
  }
};

}  // namespace reduceops::cuda
