// Vectors of the instruction set that a file is compiled for, and elements in them as lanes of
// which the smallest wins.
//
// In the compiler's own vector types, which are loads, minima and blends on every architecture; a
// comparison is a vector of 0 and -1. Included by kernels.cpp only, as walk.h is.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <bit>
#include <cstring>
#include <utility>

#include "element.h"

namespace reduceops::cpu {
namespace {

#define REDUCEOPS_INLINE inline __attribute__((always_inline))

#if defined(__AVX512BW__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

// A bit, or as many as a byte has, for each byte of a comparison: counted from the lowest, the
// first that is set belongs to the first lane that is true.
#if defined(__AVX512BW__)
constexpr int kBitsPerByte = 1;
template <class Mask>
REDUCEOPS_INLINE uint64_t bits_of_mask(Mask mask) {
  return _mm512_movepi8_mask(reinterpret_cast<__m512i>(mask));
}
#elif defined(__AVX2__)
constexpr int kBitsPerByte = 1;
template <class Mask>
REDUCEOPS_INLINE uint32_t bits_of_mask(Mask mask) {
  return _mm256_movemask_epi8(reinterpret_cast<__m256i>(mask));
}
#elif defined(__SSE2__)
constexpr int kBitsPerByte = 1;
template <class Mask>
REDUCEOPS_INLINE uint32_t bits_of_mask(Mask mask) {
  return _mm_movemask_epi8(reinterpret_cast<__m128i>(mask));
}
#else
// Half of each byte (on 64-bit Arm, one shrn).
constexpr int kBitsPerByte = 4;
template <class Mask>
REDUCEOPS_INLINE uint64_t bits_of_mask(Mask mask) {
  typedef uint16_t Words __attribute__((vector_size(16)));
  typedef uint8_t Bytes __attribute__((vector_size(8)));
  return std::bit_cast<uint64_t>(
      __builtin_convertvector(reinterpret_cast<Words>(mask) >> 4, Bytes));
}
#endif

template <class Mask>
REDUCEOPS_INLINE bool any(Mask mask) {
  return bits_of_mask(mask) != 0;
}
REDUCEOPS_INLINE bool any(uint64_t mask) { return mask != 0; }

// The first lane that is true; there is one.
template <class T, class Mask>
REDUCEOPS_INLINE int first(Mask mask) {
  return std::countr_zero(bits_of_mask(mask)) / (kBitsPerByte * static_cast<int>(sizeof(T)));
}
template <class T>
REDUCEOPS_INLINE int first(uint64_t lanes) {
  return std::countr_zero(lanes);
}

// By memcpy: tensors may be unaligned.
template <class V, class T>
REDUCEOPS_INLINE V get(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <class T, class V>
REDUCEOPS_INLINE void put(T* p, V v) {
  std::memcpy(p, &v, sizeof(v));
}

// Stores a vector past the caches; `to` is aligned. What is stored so is in order with other stores
// only after end_streams().
REDUCEOPS_INLINE void stream_vector(void* to, const void* from) {
#if defined(__AVX512BW__)
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
  _mm256_stream_si256(static_cast<__m256i*>(to),
                      _mm256_loadu_si256(static_cast<const __m256i*>(from)));
#elif defined(__SSE2__)
  _mm_stream_si128(static_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
  std::memcpy(to, from, kVectorBytes);
#endif
}
REDUCEOPS_INLINE void end_streams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Asks for the line that is `bytes` behind p, which may lie outside the input: hardware prefetches
// no further than a page.
constexpr int kIntoL1 = 3, kIntoL2 = 2;
template <int kInto = kIntoL1>
REDUCEOPS_INLINE void prefetch(const void* p, int64_t bytes) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + bytes), 0,
                     kInto);
}

// Lanes of a, and of b where the number is past those of a.
template <int... lane, class V>
REDUCEOPS_INLINE V shuffled(V a, V b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, lane...);
#else  // GCC before 12
  using Number = std::remove_reference_t<decltype((a < b)[0])>;
  return __builtin_shuffle(a, b, Vector<Number>{lane...});
#endif
}

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
#if defined(__AVX512BW__)
    if constexpr (std::is_same_v<Format, Float16>)
      return _mm512_cvtph_ps(reinterpret_cast<__m256i>(bits));
#elif defined(__F16C__)
    if constexpr (std::is_same_v<Format, Float16>)
      return _mm256_cvtph_ps(reinterpret_cast<__m128i>(bits));
#endif
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
#if defined(__AVX512BW__)
    if constexpr (std::is_same_v<Format, Float16>)
      return reinterpret_cast<Half>(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    if constexpr (std::is_same_v<Format, Float16>)
      return reinterpret_cast<Half>(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#endif
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
  static constexpr bool kNarrowFloats =
      !kFloats && !std::is_same_v<Element, Plain<Key, false>> && !std::is_same_v<Element, Bool>;
  static constexpr int kLanes = kVectorBytes / sizeof(Key);

  const Element element;

  // Loses to every element, or ties with it.
  static constexpr Lane kLast =
      kFloats ? std::numeric_limits<Lane>::infinity() : std::numeric_limits<Lane>::max();

  static REDUCEOPS_INLINE V all(Lane lane) { return V{} + lane; }

  REDUCEOPS_INLINE V load(const Key* p) const { return level(load_unlevelled(p)); }

  // The same in two steps, of which the second may as well be taken after a minimum: it makes all
  // NaNs of narrow floats equal, which the first leaves in an order of their own.
  REDUCEOPS_INLINE V load_unlevelled(const Key* p) const { return lanes(element, get<Bits>(p)); }
  REDUCEOPS_INLINE V level(V v) const {
    return kNarrowFloats ? larger(v, all(element.order.floor)) : v;
  }

  // Comparisons for any() and first() only: with AVX-512 their outcome is in a mask register, of
  // which the compiler would make a vector first.
#if defined(__AVX512BW__)
  using Asked = uint64_t;
  template <int kPredicate>
  static REDUCEOPS_INLINE Asked compared(V a, V b) {
    const auto x = reinterpret_cast<__m512i>(a), y = reinterpret_cast<__m512i>(b);
    if constexpr (std::is_same_v<Lane, float>) {
      return _mm512_cmp_ps_mask(a, b, kPredicate);
    } else if constexpr (std::is_same_v<Lane, double>) {
      return _mm512_cmp_pd_mask(a, b, kPredicate);
    } else if constexpr (sizeof(Lane) == 1) {
      return _mm512_cmplt_epi8_mask(x, y);
    } else if constexpr (sizeof(Lane) == 2) {
      return _mm512_cmplt_epi16_mask(x, y);
    } else if constexpr (sizeof(Lane) == 4) {
      return _mm512_cmplt_epi32_mask(x, y);
    } else {
      return _mm512_cmplt_epi64_mask(x, y);
    }
  }
  static REDUCEOPS_INLINE Asked less(V a, V b) { return compared<_CMP_LT_OQ>(a, b); }
  static REDUCEOPS_INLINE Asked less_or_nan(V a, V b) { return compared<_CMP_NGE_UQ>(a, b); }
  static REDUCEOPS_INLINE Asked nan(V v) { return compared<_CMP_UNORD_Q>(v, v); }
#else
  using Asked = decltype(V{} < V{});
  static REDUCEOPS_INLINE Asked less(V a, V b) { return a < b; }
  static REDUCEOPS_INLINE Asked less_or_nan(V a, V b) { return kFloats ? ~(a >= b) : a < b; }
  static REDUCEOPS_INLINE Asked nan(V v) { return v != v; }
#endif

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
      return key_of<true>(std::bit_cast<Key>(lane), ascending);
    } else {
      return lane;
    }
  }

  // The elements in these lanes, scaled; true in `unsure` where a lane does not tell: a zero may
  // have either sign, a NaN any bits.
  REDUCEOPS_INLINE Bits elements(V lanes, Bits& unsure) const {
    const Order<Key> order = element.order;
    if constexpr (kFloats) {
      unsure |= reinterpret_cast<Bits>((lanes == 0) | (lanes != lanes));
      return reinterpret_cast<Bits>(lanes * (order.flip < 0 ? Lane(-1) : Lane(1)));
    } else if constexpr (std::is_same_v<Element, Plain<Key, false>>) {
      return lanes ^ order.flip;
    } else if constexpr (std::is_same_v<Element, Bool>) {
      return (lanes != order.flip) & Key(1);
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
      return reinterpret_cast<V>(bits) * (plain.order.flip < 0 ? Lane(-1) : Lane(1));
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
