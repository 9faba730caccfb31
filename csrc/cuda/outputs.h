// Where results are stored: indices of 1, 2, 4 or 8 bytes, and values; or pairs of both (pair.h).
//
// The width of an index is the same for the whole grid, so that asking for it costs a branch that
// no warp takes both ways, and kernels are not compiled for each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/sizes.h"
#include "pair.h"

namespace reduceops::cuda {

// The first of neighbouring indices in the bits of a word, as many as it has room for.
template <class Index>
__device__ uint32_t packed(const uint32_t* index) {
  if constexpr (sizeof(Index) == 4) {
    return index[0];
  } else if constexpr (sizeof(Index) == 2) {
    return __byte_perm(index[0], index[1], 0x5410);
  } else {
    return __byte_perm(__byte_perm(index[0], index[1], 0x0040),
                       __byte_perm(index[2], index[3], 0x0040), 0x5410);
  }
}

// Whether 16-byte stores may begin there; at null, too, where nothing is wanted.
inline bool is_aligned(const void* results) {
  return reinterpret_cast<uintptr_t>(results) % kLoadBytes == 0;
}

// Neighbouring results that go out in one store, of 16 bytes at most.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Neighbours {
  T at[kCount];

  static __device__ bool may_begin(const T* to) {
    return reinterpret_cast<uintptr_t>(to) % sizeof(Neighbours) == 0;
  }
  __device__ void put(T* to) const { *reinterpret_cast<Neighbours*>(to) = *this; }
};

struct Outputs {
  char* indices;    // may be null
  void* values;     // may be null
  int index_bytes;  // 1, 2 (unsigned), 4 or 8
  Words pairs;      // if it has words, they are all that is stored, and `values` is not null

  __device__ void put_index(int64_t to, int64_t index) const {
    with_index([&]<class As>(As) { put_as(to, static_cast<As>(index)); });
  }

  // Of neighbours from `to` on, which is a multiple of their number.
  template <int kCount>
  __device__ void put_indices(int64_t to, const uint32_t (&index)[kCount]) const {
    with_index([&]<class As>(As) { put_neighbours<As>(to, index); });
  }
  // The same from anywhere on, of which `count` are wanted.
  template <int kCount>
  __device__ void put_indices(int64_t to, uint32_t count, const uint32_t (&index)[kCount]) const {
    const auto at = reinterpret_cast<uintptr_t>(indices + to * index_bytes);
    if (kCount > 1 && count >= kCount &&
        at % std::min<uint32_t>(kCount * index_bytes, kLoadBytes) == 0) {
      put_indices(to, index);
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) put_index(to + i, index[i]);
    }
  }

  // Values of so many neighbours, `value(i)` of each.
  template <class Key, int kCount, class ValueOf>
  __device__ void put_values(int64_t to, ValueOf value) const {
    Neighbours<Key, kCount> some;
#pragma unroll
    for (int i = 0; i < kCount; ++i) some.at[i] = value(i);
    auto* first = static_cast<Key*>(values) + to;
    if (some.may_begin(first)) return some.put(first);
#pragma unroll
    for (int i = 0; i < kCount; ++i) first[i] = some.at[i];
  }

  // One result. `value` is called where values are wanted.
  template <class Value>
  __device__ void put(int64_t to, int64_t index, Value&& value) const {
    if (!values) return put_index(to, index);
    const auto bits = value();
    using Bits = std::remove_const_t<decltype(bits)>;
    if (pairs.words) return pairs.put(to, Pair<Bits>{bits, index});
    static_cast<Bits*>(values)[to] = bits;
    if (indices) put_index(to, index);
  }

  // Several results, of which `each` calls its argument with where one goes and what index(...) and
  // value(...) take: what there is to store is asked once.
  template <class Key, class Each, class Index, class Value>
  __device__ void put_each(Each each, Index index, Value value) const {
    if (pairs.words) {
      each([&](int64_t to, auto... of) {
        pairs.put(to, Pair<Key>{value(of...), static_cast<int64_t>(index(of...))});
      });
      return;
    }
    if (values) each([&](int64_t to, auto... of) { static_cast<Key*>(values)[to] = value(of...); });
    if (!indices) return;
    with_index([&]<class As>(As) {
      each([&](int64_t to, auto... of) { put_as(to, static_cast<As>(index(of...))); });
    });
  }

  // The same of runs of neighbours, each with a number behind what index(...) and value(...) take.
  // Runs begin with multiples of their length, in arrays that begin where 16-byte stores do.
  template <class Key, int kCount, class Each, class Index, class Value>
  __device__ void put_each_run(Each each, Index index, Value value) const {
    if (values)
      each([&](int64_t to, auto... of) {
        Neighbours<Key, kCount> some;
#pragma unroll
        for (int e = 0; e < kCount; ++e) some.at[e] = value(of..., e);
        some.put(static_cast<Key*>(values) + to);
      });
    if (!indices) return;
    with_index([&]<class As>(As) {
      each([&](int64_t to, auto... of) {
        uint32_t some[kCount];
#pragma unroll
        for (int e = 0; e < kCount; ++e) some[e] = index(of..., e);
        put_neighbours<As>(to, some);
      });
    });
  }

 private:
  // Calls f with an integer that is as wide as an index.
  template <class F>
  __device__ void with_index(F f) const {
    if (index_bytes == 8) {
      f(int64_t());
    } else if (index_bytes == 4) {
      f(int32_t());
    } else if (index_bytes == 2) {
      f(uint16_t());
    } else {
      f(uint8_t());
    }
  }
  template <class Index>
  __device__ void put_as(int64_t to, Index index) const {
    reinterpret_cast<Index*>(indices)[to] = index;
  }
  template <class Index, int kCount>
  __device__ void put_neighbours(int64_t to, const uint32_t (&index)[kCount]) const {
    constexpr int kBytes = kCount * sizeof(Index), kInWord = 4 / std::min<int>(4, sizeof(Index));
    auto* at = reinterpret_cast<Index*>(indices) + to;
    if constexpr (kCount == 1) {
      at[0] = static_cast<Index>(index[0]);
    } else if constexpr (sizeof(Index) == 8) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2)
        *reinterpret_cast<longlong2*>(at + i) = {index[i], index[i + 1]};
    } else if constexpr (kBytes == 2) {
      *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(index[0] | index[1] << 8);
    } else if constexpr (kBytes == 4) {
      *reinterpret_cast<uint32_t*>(at) = packed<Index>(index);
    } else if constexpr (kBytes == 8) {
      *reinterpret_cast<uint2*>(at) = {packed<Index>(index), packed<Index>(index + kInWord)};
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4 * kInWord) {
        *reinterpret_cast<uint4*>(at + i) = {
            packed<Index>(index + i), packed<Index>(index + i + kInWord),
            packed<Index>(index + i + 2 * kInWord), packed<Index>(index + i + 3 * kInWord)};
      }
    }
  }
};

}  // namespace reduceops::cuda
