// The one order behind every operator, for host and device code.
//
// An element's bits become a signed integer key of the same width; the element chosen is the one
// with the smallest key, and among equal keys the one with the lowest index. All that a dtype, or
// min against max, changes is the map from bits to keys, so every kernel only ever looks for a
// minimum of integers.
//
// * Integers: xor with `flip` reverses the order (max) and moves unsigned values to signed order.
// * Floats: sign and magnitude become two's complement (so -0.0 equals 0.0), negated for max.
//   Adding `bias` wraps the NaNs above infinity around to the lowest integers, where those below
//   -infinity are too; the maximum with `floor` makes all of them equal.
//
// Taking (key, index) lexicographically is associative and commutative: the result does not depend
// on the split.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtype.h"

#ifdef __CUDACC__
#define REDUCEOPS_HD __host__ __device__ __forceinline__
#define REDUCEOPS_ROLLED _Pragma("unroll 1")  // before a loop that is rarely run, and long
#else
#define REDUCEOPS_HD inline __attribute__((always_inline))
#define REDUCEOPS_ROLLED
#endif

namespace reduceops {

template <class Key>
struct Order {
  Key flip;
  Key bias;   // of floats
  Key floor;  // the smallest key there is; of floats that of NaNs
};

template <class Key>
Order<Key> order_of(const DType& dtype, bool largest) {
  using Limits = std::numeric_limits<Key>;
  Key flip = largest ? Key(-1) : Key(0);
  if (dtype.kind == Kind::kUnsigned) flip ^= Limits::min();
  if (dtype.kind != Kind::kFloat) return {flip, 0, Limits::min()};
  const Key magnitude = static_cast<Key>(dtype.max_magnitude);
  const Key bias = Key(Limits::max() - magnitude);
  return {flip, bias, Key(bias - magnitude - 1)};
}

template <bool kFloat, class Key>
REDUCEOPS_HD Key key_of(Key bits, Order<Key> order) {
  static_assert(std::is_signed_v<Key>);
  if constexpr (!kFloat) {
    return bits ^ order.flip;
  } else {
    using Unsigned = std::make_unsigned_t<Key>;
    const Key negative = Key(bits ^ order.flip) < 0 ? Key(-1) : Key(0);
    const Key magnitude = bits & std::numeric_limits<Key>::max();
    const Key key = Key(Unsigned(magnitude ^ negative) + Unsigned(order.bias) - Unsigned(negative));
    return key < order.floor ? order.floor : key;
  }
}

// The bits whose key this is, if they are the only ones: not those of a zero or a NaN.
template <bool kFloat, class Key>
REDUCEOPS_HD bool bits_of(Key key, Order<Key> order, Key& bits) {
  if constexpr (!kFloat) {
    bits = key ^ order.flip;
    return true;
  } else {
    using Unsigned = std::make_unsigned_t<Key>;
    const Key ordered = Key(Unsigned(key) - Unsigned(order.bias));  // negated for max
    const Key magnitude = ordered < 0 ? Key(0 - Unsigned(ordered)) : ordered;
    const bool negative = (ordered < 0) != (order.flip < 0);
    bits = negative ? Key(magnitude | std::numeric_limits<Key>::min()) : magnitude;
    return ordered != 0 && key != order.floor;
  }
}

// A candidate: `index` is the result index, not a position in memory.
template <class Key, class Index = int64_t>
struct Best {
  Key key;
  Index index;
};

template <class Key, class Index>
REDUCEOPS_HD bool better(Best<Key, Index> a, Best<Key, Index> b) {
  return a.key < b.key || (a.key == b.key && a.index < b.index);
}

}  // namespace reduceops
