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

// The kernels for the oldest machines of an architecture are small and not fast.
#ifdef __OPTIMIZE_SIZE__
#define REDUCEOPS_INLINED
constexpr bool kSmall = true;
#else
#define REDUCEOPS_INLINED __attribute__((always_inline))  // of a lambda
constexpr bool kSmall = false;
#endif
#define REDUCEOPS_INLINE inline REDUCEOPS_INLINED
// NOINLINE is for what is called once for many elements: fast code, and one copy for all callers.
// SMALL is for what only calls such functions: as little code as possible. (GCC takes what always
// calls a `cold` function, and what only that calls, for cold too; `hot` keeps it from that.)
#define REDUCEOPS_NOINLINE __attribute__((noinline, hot))
#define REDUCEOPS_SMALL __attribute__((noinline, cold))

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

// The vector, but the compiler no longer knows how it was made: of a minimum of floats whose bits
// were integers before, GCC 12 makes a comparison and a blend.
template <class V>
REDUCEOPS_INLINE V opaque(V v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

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

// One bit of those that a lane has in a mask.
template <class T>
constexpr uint64_t kOneBit = ~uint64_t(0) / ((uint64_t(2) << (kBitsPerByte * sizeof(T) - 1)) - 1);

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

// Lanes of v where the marks, a byte for each lane, are not zero, and those of `other` where they
// are; and whether any of a vector of marks is. The compiler makes scalars of vectors so narrow.
#if defined(__AVX512BW__)
template <class Key>
REDUCEOPS_INLINE Vector<Key> marked_lanes(const uint8_t* marks, Vector<Key> v, Vector<Key> other) {
  const auto x = reinterpret_cast<__m512i>(v), y = reinterpret_cast<__m512i>(other);
  if constexpr (sizeof(Key) == 1) {
    const __m512i m = _mm512_loadu_si512(marks);
    return reinterpret_cast<Vector<Key>>(_mm512_mask_blend_epi8(_mm512_test_epi8_mask(m, m), y, x));
  } else if constexpr (sizeof(Key) == 2) {
    const __m256i m = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(marks));
    return reinterpret_cast<Vector<Key>>(
        _mm512_mask_blend_epi16(_mm256_test_epi8_mask(m, m), y, x));
  } else if constexpr (sizeof(Key) == 4) {
    const __m128i m = _mm_loadu_si128(reinterpret_cast<const __m128i*>(marks));
    return reinterpret_cast<Vector<Key>>(_mm512_mask_blend_epi32(_mm_test_epi8_mask(m, m), y, x));
  } else {
    const __m128i m = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(marks));
    return reinterpret_cast<Vector<Key>>(
        _mm512_mask_blend_epi64(static_cast<__mmask8>(_mm_test_epi8_mask(m, m)), y, x));
  }
}
REDUCEOPS_INLINE bool any_marked(Vector<uint8_t> marks) {
  const auto m = reinterpret_cast<__m512i>(marks);
  return _mm512_test_epi8_mask(m, m) != 0;
}
#else
template <class Key>
REDUCEOPS_INLINE Vector<Key> marked_lanes(const uint8_t* marks, Vector<Key> v, Vector<Key> other) {
  constexpr int kLanes = kVectorBytes / sizeof(Key);
#if defined(__AVX2__)
  __m256i set;
  if constexpr (sizeof(Key) == 1) {
    set = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(marks));
  } else if constexpr (sizeof(Key) == 2) {
    set = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(marks)));
  } else if constexpr (sizeof(Key) == 4) {
    set = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(marks)));
  } else {
    int32_t few;
    std::memcpy(&few, marks, kLanes);
    set = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(few));
  }
  return reinterpret_cast<Vector<Key>>(set) == 0 ? other : v;
#elif defined(__SSE2__)
  uint64_t few[2] = {};
  std::memcpy(few, marks, kLanes);
  __m128i set = _mm_set_epi64x(static_cast<int64_t>(few[1]), static_cast<int64_t>(few[0]));
  // Each mark becomes all bytes of its lane.
  if constexpr (sizeof(Key) >= 2) set = _mm_unpacklo_epi8(set, set);
  if constexpr (sizeof(Key) >= 4) set = _mm_unpacklo_epi16(set, set);
  if constexpr (sizeof(Key) >= 8) set = _mm_unpacklo_epi32(set, set);
  const auto unset = reinterpret_cast<Vector<Key>>(_mm_cmpeq_epi8(set, _mm_setzero_si128()));
  return (unset & other) | (~unset & v);
#else
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  std::memcpy(&bytes, marks, sizeof(bytes));
  return __builtin_convertvector(bytes, Vector<Key>) == 0 ? other : v;
#endif
}
REDUCEOPS_INLINE bool any_marked(Vector<uint8_t> marks) { return any(marks != 0); }
#endif

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

// a * b + c, rounded once where the instruction set can.
#ifdef __FMA__
constexpr bool kFuses = true;
#else
constexpr bool kFuses = false;
#endif
REDUCEOPS_INLINE Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
#if defined(__AVX512BW__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
REDUCEOPS_INLINE Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
#if defined(__AVX512BW__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

// The larger of both, or x if that is NaN: one instruction, of which GCC makes two; where it is
// masked, GCC does not warn of its own headers.
REDUCEOPS_INLINE Vector<float> at_least(Vector<float> least, Vector<float> x) {
#if defined(__AVX512BW__)
  return _mm512_maskz_max_ps(0xffff, least, x);
#else
  return x < least ? least : x;
#endif
}
REDUCEOPS_INLINE Vector<double> at_least(Vector<double> least, Vector<double> x) {
#if defined(__AVX512BW__)
  return _mm512_maskz_max_pd(0xff, least, x);
#else
  return x < least ? least : x;
#endif
}

// Entries of a table that is looked up by the lowest bits of each lane; 1 where that takes longer
// than what it saves.
#if defined(__AVX512BW__)
template <class T>
constexpr int kLookedUp = 2 * kVectorBytes / sizeof(T);
REDUCEOPS_INLINE Vector<uint32_t> looked_up(const uint32_t* table, Vector<uint32_t> lanes) {
  const __m512i low = _mm512_loadu_si512(table), high = _mm512_loadu_si512(table + 16);
  return reinterpret_cast<Vector<uint32_t>>(
      _mm512_permutex2var_epi32(low, reinterpret_cast<__m512i>(lanes), high));
}
REDUCEOPS_INLINE Vector<uint64_t> looked_up(const uint64_t* table, Vector<uint64_t> lanes) {
  const __m512i low = _mm512_loadu_si512(table), high = _mm512_loadu_si512(table + 8);
  return reinterpret_cast<Vector<uint64_t>>(
      _mm512_permutex2var_epi64(low, reinterpret_cast<__m512i>(lanes), high));
}
#else
template <class T>
constexpr int kLookedUp = 1;
#if defined(__AVX2__)
template <>
constexpr int kLookedUp<float> = 8;
REDUCEOPS_INLINE Vector<uint32_t> looked_up(const uint32_t* table, Vector<uint32_t> lanes) {
  const __m256i entries = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
  return reinterpret_cast<Vector<uint32_t>>(
      _mm256_permutevar8x32_epi32(entries, reinterpret_cast<__m256i>(lanes)));
}
#endif
template <class Bits>
Vector<Bits> looked_up(const Bits* table, Vector<Bits> lanes);
#endif

}  // namespace
}  // namespace reduceops::cpu
