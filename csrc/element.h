// How a kernel reads an element: its order key and the value to return, as it is or scaled. The
// value also follows from the key, but for zeros and NaNs.
//
// Scaling is x * scale as torch computes it: in float for the 16-bit types and rounded once, in
// their own type else.
#pragma once

#include <bit>
#include <cstdint>

#include "order.h"
#include "reduction.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace reduceops {

template <class To, class From>
REDUCEOPS_HD To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
#ifdef __CUDA_ARCH__
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
#else
  return std::bit_cast<To>(from);
#endif
}

// Each format: the key type that holds its bits, the type it multiplies in, and both conversions.
struct Float64 {
  using Key = int64_t;
  using Compute = double;
  static REDUCEOPS_HD double decode(Key bits) { return bits_as<double>(bits); }
  static REDUCEOPS_HD Key encode(double x) { return bits_as<Key>(x); }
};

struct Float32 {
  using Key = int32_t;
  using Compute = float;
  static REDUCEOPS_HD float decode(Key bits) { return bits_as<float>(bits); }
  static REDUCEOPS_HD Key encode(float x) { return bits_as<Key>(x); }
};

struct BFloat16 {
  using Key = int16_t;
  using Compute = float;
  static REDUCEOPS_HD float decode(Key bits) {
    return bits_as<float>(static_cast<uint32_t>(bits) << 16);
  }
  static REDUCEOPS_HD Key encode(float x) {
#ifdef __CUDA_ARCH__
    return static_cast<Key>(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
#else
    const uint32_t bits = bits_as<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<Key>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0u : rounded);
#endif
  }
};

// On the host the conversions are branch-free so that they vectorise everywhere (after
// Maratyszcza's FP16 library).
struct Float16 {
  using Key = int16_t;
  using Compute = float;
  static REDUCEOPS_HD float decode(Key half) {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
#else
    const uint32_t w = static_cast<uint32_t>(half) << 16;
    const uint32_t sign = w & 0x80000000u, twice = w + w;
    const float normal = bits_as<float>((twice >> 4) + (0xe0u << 23)) * 0x1p-112f;
    const float subnormal = bits_as<float>((twice >> 17) | (126u << 23)) - 0.5f;
    return bits_as<float>(sign | bits_as<uint32_t>(twice < (1u << 27) ? subnormal : normal));
#endif
  }
  static REDUCEOPS_HD Key encode(float x) {
#ifdef __CUDA_ARCH__
    return static_cast<Key>(__half_as_ushort(__float2half_rn(x)));
#else
    const uint32_t w = bits_as<uint32_t>(x);
    const uint32_t sign = w & 0x80000000u, twice = w + w;
    const float base = bits_as<float>(w & 0x7fffffffu) * 0x1p+112f * 0x1p-110f;
    uint32_t bias = twice & 0xff000000u;
    bias = bias < 0x71000000u ? 0x71000000u : bias;
    const uint32_t bits = bits_as<uint32_t>(bits_as<float>((bias >> 1) + 0x07800000u) + base);
    const uint32_t rounded = (bits >> 13 & 0x7c00u) + (bits & 0xfffu);
    return static_cast<Key>(sign >> 16 | (twice > 0xff000000u ? 0x7e00u : rounded));
#endif
  }
};

// Elements as they are: what is ordered and returned are the input's own bits.
template <class K, bool kFloat>
struct Plain {
  using Key = K;
  Order<Key> order;
  REDUCEOPS_HD Key value(Key bits) const { return bits; }
  REDUCEOPS_HD Key key(Key bits) const { return key_of<kFloat>(bits, order); }
  REDUCEOPS_HD bool value_of_key(Key key, Key& value) const {
    return bits_of<kFloat>(key, order, value);
  }
};

// Bools: any byte but zero is true, of which the value is 1.
struct Bool {
  using Key = int8_t;
  static constexpr Key kTrue = std::numeric_limits<Key>::min();  // a key; that of false is zero
  Order<Key> order;
  explicit Bool(bool largest) : order{largest ? Key(0) : kTrue, 0, kTrue} {}
  REDUCEOPS_HD Key value(Key bits) const { return bits != 0; }
  REDUCEOPS_HD Key key(Key bits) const { return (bits != 0 ? kTrue : Key(0)) ^ order.flip; }
  REDUCEOPS_HD bool value_of_key(Key key, Key& value) const {
    value = (key ^ order.flip) < 0;  // also of the largest key, which is that of no element
    return true;
  }
};

// Elements times a scale, never stored.
template <class F>
struct Scaled {
  using Format = F;
  using Key = typename Format::Key;
  Order<Key> order;
  typename Format::Compute scale;
  REDUCEOPS_HD Key value(Key bits) const { return Format::encode(Format::decode(bits) * scale); }
  REDUCEOPS_HD Key key(Key bits) const { return key_of<true>(value(bits), order); }
  REDUCEOPS_HD bool value_of_key(Key key, Key& value) const {
    return bits_of<true>(key, order, value);
  }
};

// The bits of a product without its sign.
template <class Format, class Key = typename Format::Key>
Key magnitude_of_product(Scaled<Format> element, Key bits) {
  return element.value(bits) & std::numeric_limits<Key>::max();
}
// Whether products have the order of what is multiplied, or the reverse: those by a finite factor
// that is no zero. (They may be equal where what is multiplied is not.)
template <class Format, class Key = typename Format::Key>
bool keeps_order(Scaled<Format> element, Key infinity) {
  return magnitude_of_product(element, Key(0)) == 0 &&
         magnitude_of_product(element, infinity) == infinity;
}

// Calls f with the element reader of a reduction. Thirteen cover every dtype and every operator but
// softmax_max: four widths of integers and four of floats, bools, and the four formats that scale.
template <class F>
void visit_element(const Reduction& r, F&& f) {
  const auto plain = [&]<class Key>(Key) {
    const Order<Key> order = order_of<Key>(*r.dtype, r.largest);
    if (r.dtype->kind == Kind::kFloat) {
      f(Plain<Key, true>{order});
    } else {
      f(Plain<Key, false>{order});
    }
  };
  const auto scaled = [&]<class Format>(Format) {
    using Key = typename Format::Key;
    f(Scaled<Format>{order_of<Key>(*r.dtype, r.largest),
                     static_cast<typename Format::Compute>(r.scale)});
  };
  switch (r.dtype->bytes) {
    case 1:
      return r.dtype->is_bool() ? f(Bool(r.largest)) : plain(int8_t());
    case 2:
      if (!r.scaled) return plain(int16_t());
      return r.dtype->max_magnitude == 0x7c00 ? scaled(Float16()) : scaled(BFloat16());
    case 4:
      return r.scaled ? scaled(Float32()) : plain(int32_t());
    default:
      return r.scaled ? scaled(Float64()) : plain(int64_t());
  }
}

}  // namespace reduceops
