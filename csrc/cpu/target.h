// What an instruction set has, and nothing of what is done with it: the width of its vectors, and
// every intrinsic of the CPU kernels.
//
// Vectors are the compiler's own types, which are loads, minima and blends on every architecture; a
// comparison is a vector of 0 and -1. Included by kernels.cpp only, as walk.h is.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

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
// only after end_streams(). Arm's hints for that (stnp) promise nothing, so it has none.
#ifdef __SSE2__
constexpr bool kStreams = true;
REDUCEOPS_INLINE void stream_vector(void* to, const void* from) {
#if defined(__AVX512BW__)
  _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
  _mm256_stream_si256(static_cast<__m256i*>(to),
                      _mm256_loadu_si256(static_cast<const __m256i*>(from)));
#else
  _mm_stream_si128(static_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
#endif
}
REDUCEOPS_INLINE void end_streams() { _mm_sfence(); }
#else
constexpr bool kStreams = false;
REDUCEOPS_INLINE void stream_vector(void*, const void*) {}
REDUCEOPS_INLINE void end_streams() {}
#endif

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

// Comparisons for any() and first() only: with AVX-512 their outcome is in a mask register, of
// which the compiler would make a vector first.
#if defined(__AVX512BW__)
template <class Lane>
using Asked = uint64_t;
template <int kPredicate, class Lane>
REDUCEOPS_INLINE uint64_t compared(Vector<Lane> a, Vector<Lane> b) {
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
template <class Lane>
REDUCEOPS_INLINE uint64_t asked_less(Vector<Lane> a, Vector<Lane> b) {
  return compared<_CMP_LT_OQ, Lane>(a, b);
}
template <class Lane>
REDUCEOPS_INLINE uint64_t asked_less_or_nan(Vector<Lane> a, Vector<Lane> b) {
  return compared<_CMP_NGE_UQ, Lane>(a, b);
}
template <class Lane>
REDUCEOPS_INLINE uint64_t asked_nan(Vector<Lane> v) {
  return compared<_CMP_UNORD_Q, Lane>(v, v);
}
#else
template <class Lane>
using Asked = decltype(Vector<Lane>{} < Vector<Lane>{});
template <class Lane>
REDUCEOPS_INLINE Asked<Lane> asked_less(Vector<Lane> a, Vector<Lane> b) {
  return a < b;
}
template <class Lane>
REDUCEOPS_INLINE Asked<Lane> asked_less_or_nan(Vector<Lane> a, Vector<Lane> b) {
  if constexpr (std::is_floating_point_v<Lane>) return ~(a >= b);
  return a < b;
}
template <class Lane>
REDUCEOPS_INLINE Asked<Lane> asked_nan(Vector<Lane> v) {
  return v != v;
}
#endif

// As a comparison of lanes: where the marks, a byte for each lane, are not zero.
template <class Lane>
REDUCEOPS_INLINE auto set_lanes(const uint8_t* marks) {
  typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes / sizeof(Lane))));
  Bytes bytes;
  std::memcpy(&bytes, marks, sizeof(bytes));
  return __builtin_convertvector(bytes, Vector<std::make_unsigned_t<Lane>>) != 0;
}

// Half a vector of float16 as a vector of float, and back, rounded to nearest; only where kHalves.
#if defined(__AVX512BW__)
constexpr bool kHalves = true;
template <class Half>
REDUCEOPS_INLINE Vector<float> from_halves(Half bits) {
  return _mm512_cvtph_ps(reinterpret_cast<__m256i>(bits));
}
template <class Half>
REDUCEOPS_INLINE Half to_halves(Vector<float> x) {
  return reinterpret_cast<Half>(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
constexpr bool kHalves = true;
template <class Half>
REDUCEOPS_INLINE Vector<float> from_halves(Half bits) {
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(bits));
}
template <class Half>
REDUCEOPS_INLINE Half to_halves(Vector<float> x) {
  return reinterpret_cast<Half>(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#else
constexpr bool kHalves = false;
template <class Half>
Vector<float> from_halves(Half bits);
template <class Half>
Half to_halves(Vector<float> x);
#endif

}  // namespace
}  // namespace reduceops::cpu
