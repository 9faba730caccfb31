// Elements of any dtype of a size, ordered by what is asked for at run time: for kernels that wait
// for loads rather than for instructions, of which four are compiled instead of ten.
#pragma once

#include "cuda/keys.cuh"

namespace reduceops::cuda {

template <class K>
struct Sized {
  using Key = K;
  Order<Key> order;
  Key flip;      // of integers; 0 of floats
  Key care;      // bits that are ordered as a number; of floats all but the sign
  Key is_float;  // 0 or all bits
  bool is_bool;  // any byte but zero is true, of which the value is 1

  Sized(const DType& dtype, bool largest) : order(order_of<Key>(dtype, largest)) {
    const bool floats = dtype.kind == Kind::kFloat;
    flip = floats ? Key(0) : order.flip;
    care = floats ? std::numeric_limits<Key>::max() : Key(-1);
    is_float = floats ? Key(-1) : Key(0);
    is_bool = dtype.is_bool();
  }

  REDUCEOPS_HD Key value(Key bits) const {
    return sizeof(Key) == 1 && is_bool ? Key(bits != 0) : bits;
  }
  // As key_of (order.h) has it of either.
  REDUCEOPS_HD Key key(Key bits) const {
    using Unsigned = std::make_unsigned_t<Key>;
    const Key x = value(bits);
    const Key negative = Key(Key(x ^ order.flip) < 0 ? -1 : 0) & is_float;
    const Key ordered = Key((x & care) ^ negative ^ flip);
    return std::max(Key(Unsigned(ordered) + Unsigned(order.bias) - Unsigned(negative)),
                    order.floor);
  }
  REDUCEOPS_HD bool value_of_key(Key key, Key& bits) const {
    const bool known =
        is_float ? bits_of<true>(key, order, bits) : bits_of<false>(key, order, bits);
    bits = value(bits);
    return known;
  }
};

template <class Key>
constexpr bool kIsPlain<Sized<Key>> = false;

// Of two elements that stand as in keys.cuh.
template <class Key>
__device__ uint32_t pair_of_keys(Sized<Key> element, uint32_t bits) {
  if (sizeof(Key) == 1 && element.is_bool)
    bits = ((((bits & 0x7f007f00u) + 0x7f007f00u) | bits) & 0x80008000u) >> 7;
  const Order<Key>& order = element.order;
  const uint32_t negative =
      signs_of_halves(bits ^ halves(order.flip)) & static_cast<uint32_t>(element.is_float);
  const uint32_t bias = halves(order.bias);
  const uint32_t moved = bias ^ (negative & (bias ^ (bias + 0x10001u)));  // bias - negative
  return __viaddmax_s16x2((bits & halves(element.care)) ^ negative ^ halves(element.flip), moved,
                          halves(order.floor));
}
__device__ inline uint32_t ordered_pair(Sized<int16_t> element, uint32_t bits) {
  return pair_of_keys(element, bits);
}

// Calls f with the element of a reduction that does not scale.
template <class F>
void visit_sized(const Reduction& r, F&& f) {
  const auto visit = [&]<class Key>(Key) { f(Sized<Key>(*r.dtype, r.largest)); };
  switch (r.dtype->bytes) {
    case 1:
      return visit(int8_t());
    case 2:
      return visit(int16_t());
    case 4:
      return visit(int32_t());
    default:
      return visit(int64_t());
  }
}

}  // namespace reduceops::cuda
