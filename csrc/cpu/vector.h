// Elements in the lanes of vectors, of which the smallest wins. Included by kernels.cpp only, as
// walk.h is.
#pragma once

#include "cpu/marked_bool.h"
#include "cpu/target.h"
#include "element.h"

namespace reduceops::cpu {
namespace {

template <class V>
REDUCEOPS_INLINE V smaller(V a, V b) {
  return a < b ? a : b;
}

// Of n vectors. In order, for so the compiler loads them: hardware prefetches a stream that is read
// upwards only.
template <int n, class V>
REDUCEOPS_INLINE V smallest_of(const V* v) {
  V smallest = v[0];
  for (int i = 1; i < n; ++i) smallest = smaller(v[i], smallest);
  return smallest;
}

template <int n, class V>
REDUCEOPS_INLINE V sum_of(const V* v) {
  V sum = v[0];
  for (int i = 1; i < n; ++i) sum += v[i];
  return sum;
}

template <class V>
REDUCEOPS_INLINE V larger(V a, V b) {
  return a < b ? b : a;
}

// A vector of 16-bit floats as two of float, and back: what Format does with each, but for the bits
// of NaNs.
template <class Format>
struct Narrow {
  typedef uint16_t Half __attribute__((vector_size(kVectorBytes / 2)));
  using Word = Vector<uint32_t>;
  using Float = Vector<float>;

  template <class Bits>
  static REDUCEOPS_INLINE Bits scaled(Bits bits, float scale) {
    constexpr int kHalf = kVectorBytes / 4;
    Half low, high;
#if __has_builtin(__builtin_shufflevector)
    // Not by memory: the whole would have to wait until both halves are there.
    [&]<int... i>(std::integer_sequence<int, i...>) {
      low = reinterpret_cast<Half>(__builtin_shufflevector(bits, bits, i...));
      high = reinterpret_cast<Half>(__builtin_shufflevector(bits, bits, (kHalf + i)...));
    }(std::make_integer_sequence<int, kHalf>());
    low = encode(decode(low) * scale);
    high = encode(decode(high) * scale);
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      return reinterpret_cast<Bits>(__builtin_shufflevector(low, high, i...));
    }(std::make_integer_sequence<int, 2 * kHalf>());
#else  // GCC before 12
    std::memcpy(&low, &bits, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&bits) + sizeof(low), sizeof(high));
    low = encode(decode(low) * scale);
    high = encode(decode(high) * scale);
    std::memcpy(&bits, &low, sizeof(low));
    std::memcpy(reinterpret_cast<char*>(&bits) + sizeof(low), &high, sizeof(high));
    return bits;
#endif
  }

  static REDUCEOPS_INLINE Float decode(Half bits) {
    if constexpr (kHalves && std::is_same_v<Format, Float16>) return from_halves(bits);
    const Word w = __builtin_convertvector(bits, Word) << 16;
    if constexpr (std::is_same_v<Format, BFloat16>) return reinterpret_cast<Float>(w);
    const Word sign = w & 0x80000000u, twice = w + w;
    const Float normal = reinterpret_cast<Float>((twice >> 4) + (0xe0u << 23)) * 0x1p-112f;
    const Float subnormal = reinterpret_cast<Float>((twice >> 17) | (126u << 23)) - 0.5f;
    return reinterpret_cast<Float>(sign |
                                   reinterpret_cast<Word>(twice < (1u << 27) ? subnormal : normal));
  }

 private:
  static REDUCEOPS_INLINE Half encode(Float x) {
    if constexpr (kHalves && std::is_same_v<Format, Float16>) return to_halves<Half>(x);
    const Word w = reinterpret_cast<Word>(x);
    if constexpr (std::is_same_v<Format, BFloat16>) {
      const Word rounded = (w + 0x7fff + (w >> 16 & 1)) >> 16;
      return __builtin_convertvector((w & 0x7fffffff) > 0x7f800000 ? Word{} + 0x7fc0 : rounded,
                                     Half);
    }
    const Word sign = w & 0x80000000u, twice = w + w;
    const Float base = reinterpret_cast<Float>(w & 0x7fffffffu) * 0x1p+112f * 0x1p-110f;
    Word bias = twice & 0xff000000u;
    bias = bias < 0x71000000u ? Word{} + 0x71000000u : bias;
    const Word bits =
        reinterpret_cast<Word>(reinterpret_cast<Float>((bias >> 1) + 0x07800000u) + base);
    const Word rounded = (bits >> 13 & 0x7c00u) + (bits & 0xfffu);
    return __builtin_convertvector(sign >> 16 | (twice > 0xff000000u ? Word{} + 0x7e00u : rounded),
                                   Half);
  }
};

// What an element is in a lane. Wide floats are compared as floats, times the scale and negated for
// max: one multiplication, but NaNs are left to whoever compares. All others are their keys.
template <class Element>
struct LaneOf {
  using type = typename Element::Key;
};
template <>
struct LaneOf<Plain<int32_t, true>> {
  using type = float;
};
template <>
struct LaneOf<Plain<int64_t, true>> {
  using type = double;
};
template <>
struct LaneOf<Scaled<Float32>> {
  using type = float;
};
template <>
struct LaneOf<Scaled<Float64>> {
  using type = double;
};

template <class Element>
struct Lanes {
  using Key = typename Element::Key;
  using Lane = typename LaneOf<Element>::type;
  using V = Vector<Lane>;
  using Bits = Vector<Key>;
  using Index = Vector<std::make_unsigned_t<Key>>;
  static constexpr bool kFloats = std::is_floating_point_v<Lane>;
  static constexpr bool kNarrowFloats = !kFloats && !std::is_same_v<Element, Plain<Key, false>> &&
                                        !std::is_same_v<Element, Bool> &&
                                        !std::is_same_v<Element, MarkedBool>;
  static constexpr int kLanes = kVectorBytes / sizeof(Key);

  const Element element;

  // Loses to every element, or ties with it.
  static constexpr Lane kLast =
      kFloats ? std::numeric_limits<Lane>::infinity() : std::numeric_limits<Lane>::max();

  static REDUCEOPS_INLINE V all(Lane lane) { return V{} + lane; }

  REDUCEOPS_INLINE V load(const Key* p) const { return of(get<Bits>(p)); }
  REDUCEOPS_INLINE V of(Bits bits) const { return level(lanes(element, bits)); }

  // The same in two steps, of which the second may as well be taken after a minimum: it makes all
  // NaNs of narrow floats equal, which the first leaves in an order of their own.
  REDUCEOPS_INLINE V load_unlevelled(const Key* p) const { return lanes(element, get<Bits>(p)); }
  REDUCEOPS_INLINE V level(V v) const {
    return kNarrowFloats ? larger(v, all(element.order.floor)) : v;
  }

  // Comparisons for any() and first() only.
  using Asked = cpu::Asked<Lane>;
  static REDUCEOPS_INLINE Asked less(V a, V b) { return asked_less<Lane>(a, b); }
  static REDUCEOPS_INLINE Asked less_or_nan(V a, V b) { return asked_less_or_nan<Lane>(a, b); }
  static REDUCEOPS_INLINE Asked nan(V v) { return asked_nan<Lane>(v); }

  // The lane of a single element, and the key of a lane.
  REDUCEOPS_INLINE Lane lane(Key bits) const {
    if constexpr (kFloats) {
      return lanes(element, Bits{} + bits)[0];
    } else {
      return element.key(bits);
    }
  }
  REDUCEOPS_INLINE Key key(Lane lane) const {
    if constexpr (kFloats) {
      const Order<Key> ascending{0, element.order.bias, element.order.floor};
      if (lane == 0) lane = 0;  // denormals, too, where these count as zero
      return key_of<true>(std::bit_cast<Key>(lane), ascending);
    } else {
      return lane;
    }
  }

  // The elements in these lanes, scaled; true in `unsure` where a lane does not tell: a NaN may
  // have any bits, and a zero either sign, unless floats are known to be those of the first of
  // equals.
  REDUCEOPS_INLINE Bits elements(V lanes, Bits& unsure, bool knows_zeros = false) const {
    const Order<Key> order = element.order;
    if constexpr (kFloats) {
      const Bits zeros = Bits{} + Key(knows_zeros ? 0 : -1);
      unsure |= reinterpret_cast<Bits>(lanes != lanes);
      unsure |= reinterpret_cast<Bits>(lanes == 0) & zeros;
      return reinterpret_cast<Bits>(lanes) ^ Key(order.flip & kSign);
    } else if constexpr (std::is_same_v<Element, Plain<Key, false>>) {
      return lanes ^ order.flip;
    } else if constexpr (std::is_same_v<Element, Bool>) {
      return (lanes != order.flip) & Key(1);
    } else if constexpr (std::is_same_v<Element, MarkedBool>) {
      return (lanes ^ order.flip) & Key(MarkedBool::kTrue);
    } else {  // as bits_of() does
      const Unsigned bias = order.bias, flip = order.flip & kSign;
      const Index ordered = reinterpret_cast<Index>(lanes) - bias;
      const auto negative = reinterpret_cast<Bits>(ordered) < 0;
      const Index magnitude = negative ? -ordered : ordered;
      unsure |= reinterpret_cast<Bits>((ordered == 0) | (lanes == order.floor));
      return reinterpret_cast<Bits>(magnitude |
                                    ((reinterpret_cast<Index>(negative) & kSign) ^ flip));
    }
  }

 private:
  using Unsigned = std::make_unsigned_t<Key>;
  static constexpr Unsigned kSign = Unsigned(1) << (8 * sizeof(Key) - 1);

  template <class K>
  static REDUCEOPS_INLINE V lanes(const Plain<K, false>& plain, Bits bits) {
    return bits ^ plain.order.flip;
  }

  static REDUCEOPS_INLINE V lanes(const Bool& element, Bits bits) {
    return ((bits != 0) & Bool::kTrue) ^ element.order.flip;
  }

  // As key_of() does, but the negation comes first, and NaNs stay apart.
  template <class K>
  static REDUCEOPS_INLINE V lanes(const Plain<K, true>& plain, Bits bits) {
    if constexpr (kFloats) {
      // Not multiplied: of a denormal that takes a processor a hundred cycles.
      return opaque(reinterpret_cast<V>(bits ^ Key(plain.order.flip & kSign)));
    } else {
      return keys(plain.order, bits);
    }
  }

  static REDUCEOPS_INLINE V keys(const Order<Key>& order, Bits bits) {
    const Unsigned bias = order.bias, mirror = bias + kSign;
    const Index raw = reinterpret_cast<Index>(bits) ^ Unsigned(order.flip & kSign);
    return reinterpret_cast<V>(reinterpret_cast<Bits>(raw) < 0 ? mirror - raw : raw + bias);
  }

  template <class F>
  static REDUCEOPS_INLINE V lanes(const Scaled<F>& scaled, Bits bits) {
    if constexpr (kFloats) {
      return reinterpret_cast<V>(bits) * (scaled.order.flip < 0 ? -scaled.scale : scaled.scale);
    } else {
      return keys(scaled.order, Narrow<F>::scaled(bits, scaled.scale));
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
