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

  // A pack by way of a row of shared memory, which has room for so many bytes of each thread.
  static constexpr int kCopied = kLoadBytes;
  static __device__ void copy(At at, const Dim&, char* row) {
    copy_async<kLoadBytes>(row + threadIdx.x * kLoadBytes, at.input);
  }
  static __device__ Pack copied(const char* row) {
    return Pack::load(reinterpret_cast<const Pack*>(row) + threadIdx.x);
  }
  __device__ Pack bits(const Pack& pack) const { return pack; }
  __device__ Key bits(Item item) const { return item; }

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

// A load from memory, which a pointer that comes with others is not known to point to.
template <class T>
__device__ T load_global(const T* from) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(from));
#endif
  return *from;
}

// The input and a mask, with strides of its own: bools that say which elements take part.
//
// kWords: the bytes of the mask for a pack are aligned words, each from memory in one load. Else
// each is loaded by itself, wherever it lies. Bound like Stored, with a byte more to each element.
template <class E, bool kWords>
struct Masked {
  using Element = E;
  using Key = typename E::Key;
  static constexpr bool kMasked = true;
  static constexpr int kWidth = Vector<Key>::kWidth;
  E element;
  Key none;  // the bits of an absent element: the largest for a minimum, and so on

  struct At {
    const Key* input;
    const uint8_t* mask;
  };
  struct Pack {
    Vector<Key> vector;
    std::conditional_t<kWords, uint32_t[(kWidth + 3) / 4], uint8_t[kWidth]> mask;
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
    if constexpr (kWords) {
      using Word = std::conditional_t<kWidth == 2, uint16_t, uint32_t>;
      const auto* words = reinterpret_cast<const Word*>(at.mask + number * kWidth);
#pragma unroll
      for (int i = 0; i < int(sizeof(pack.mask) / 4); ++i) pack.mask[i] = load_global(words + i);
    } else {
      const uint8_t* mask = at.mask + number * kWidth * dim.mask_stride;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) pack.mask[i] = load_global(mask + i * dim.mask_stride);
    }
    return pack;
  }
  static __device__ Item item(At at) { return {load_global(at.input), load_global(at.mask)}; }

  static constexpr int kCopied = kWords && kWidth >= 4 ? kLoadBytes + kWidth : 0;
  static __device__ void copy(At at, const Dim&, char* row) {
    copy_async<kLoadBytes>(row + threadIdx.x * kLoadBytes, at.input);
    char* words = row + kThreads * kLoadBytes;
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i)
      copy_async<4>(words + 4 * (i * kThreads + threadIdx.x), at.mask + 4 * i);
  }
  static __device__ Pack copied(const char* row) {
    Pack pack;
    pack.vector = Vector<Key>::load(reinterpret_cast<const Vector<Key>*>(row) + threadIdx.x);
    const auto* words = reinterpret_cast<const uint32_t*>(row + kThreads * kLoadBytes);
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) pack.mask[i] = words[i * kThreads + threadIdx.x];
    return pack;
  }

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
        uint32_t care = __vcmpne4(mask_word(pack, i / int(sizeof(Key))), 0);
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
    if (sizeof(Key) == 1) return kWords ? Room{4, 2, 3} : Room{2, 2};
    if (sizeof(Key) == 2) return kWords ? Room{8, 2, 2} : Room{2, 3};
    return {4, 3, kCopied > 0 ? 3 : 0};
  }
  static constexpr int held_blocks() {
    if (!kWords) return sizeof(Key) == 2 || sizeof(Key) == 8 ? 3 : 2;
    return 4;
  }

 private:
  static __device__ bool mask_of(const Pack& pack, int i) {
    if constexpr (kWords) {
      return (pack.mask[i / 4] >> (8 * (i % 4)) & 0xff) != 0;
    } else {
      return pack.mask[i] != 0;
    }
  }
  // Bytes 4 * i and on of the mask.
  static __device__ uint32_t mask_word(const Pack& pack, int i) {
    if constexpr (kWords) {
      return pack.mask[i];
    } else {
      const uint32_t low = pack.mask[4 * i] | uint32_t(pack.mask[4 * i + 1]) << 8;
      const uint32_t high = pack.mask[4 * i + 2] | uint32_t(pack.mask[4 * i + 3]) << 8;
      return low | high << 16;
    }
  }
};

}  // namespace reduceops::cuda
