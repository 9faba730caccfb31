// Keys of several elements at once: of a slot, the 4 or 8 bytes that a thread takes from shared
// memory, and of a vector, the 16 bytes it takes from global memory.
//
// 8- and 16-bit keys stand side by side in a word, each in the upper bits of its half, where one
// instruction maps, adds or compares two of them.
#pragma once

#include "cuda/device.cuh"

namespace reduceops::cuda {

// Instructions that have no function; the kernels' tests on a CPU (tests/cuda_on_cpu) have what
// they do.
#ifdef __CUDA_ARCH__
// The sign of each half in all of its bits.
__device__ inline uint32_t signs_of_halves(uint32_t x) {
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(x));
  return signs;
}
// The signs of bytes in all of their bits; each digit is 8 more than the number of a byte.
template <uint32_t kBytes>
__device__ uint32_t signs_of_bytes(uint32_t x) {
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(signs) : "r"(x), "n"(kBytes));
  return signs;
}
// The smaller, NaN if one is.
__device__ inline float min_or_nan(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}
template <class Format>
__device__ uint32_t min_or_nan_of_halves(uint32_t a, uint32_t b) {
  uint32_t smaller;
  if constexpr (std::is_same_v<Format, Float16>) {
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
  } else {
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
  }
  return smaller;
}
// All bits of the halves that are equal numbers.
__device__ inline uint32_t equal_halves(Float16, uint32_t a, uint32_t b) {
  return __heq2_mask(bits_as<__half2>(a), bits_as<__half2>(b));
}
__device__ inline uint32_t equal_halves(BFloat16, uint32_t a, uint32_t b) {
  return __heq2_mask(bits_as<__nv_bfloat162>(a), bits_as<__nv_bfloat162>(b));
}
// The same of those in which a is not greater than or equal to b: less, or one is NaN.
__device__ inline uint32_t not_ge_halves(Float16, uint32_t a, uint32_t b) {
  return __hltu2_mask(bits_as<__half2>(a), bits_as<__half2>(b));
}
__device__ inline uint32_t not_ge_halves(BFloat16, uint32_t a, uint32_t b) {
  return __hltu2_mask(bits_as<__nv_bfloat162>(a), bits_as<__nv_bfloat162>(b));
}
#else
uint32_t signs_of_halves(uint32_t x);
template <class Format>
uint32_t equal_halves(Format, uint32_t a, uint32_t b);
template <class Format>
uint32_t not_ge_halves(Format, uint32_t a, uint32_t b);
template <uint32_t kBytes>
uint32_t signs_of_bytes(uint32_t x) {
  uint32_t signs = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = kBytes >> (4 * i) & 7;
    signs |= (x >> (8 * byte + 7) & 1) * 0xffu << (8 * i);
  }
  return signs;
}
float min_or_nan(float a, float b);
template <class Format>
uint32_t min_or_nan_of_halves(uint32_t a, uint32_t b);
#endif

// A 16-bit float whose format is known. Its value is itself; or its product with a scale, whose
// order is that of the elements then.
template <class F>
struct Half {
  using Format = F;
  using Key = int16_t;
  Order<Key> order;
  float scale = 1;
  bool as_it_is = true;
  __device__ Key value(Key bits) const {
    return as_it_is ? bits : F::encode(F::decode(bits) * scale);
  }
  __device__ Key key(Key bits) const { return key_of<true>(bits, order); }
  __device__ bool value_of_key(Key key, Key& value) const {
    int32_t bits;  // in the width of a register, which has the sign at its top
    const Order<int32_t> wide{order.flip, order.bias, order.floor};
    const bool known = bits_of<true>(static_cast<int32_t>(key), wide, bits);
    value = this->value(static_cast<Key>(bits | (bits >> 16 & 0x8000)));
    return known;
  }
};

// Whether an element's value is its bits, or may be.
template <class Element>
constexpr bool kIsPlain = true;
template <class Format>
constexpr bool kIsPlain<Scaled<Format>> = false;
template <>
inline constexpr bool kIsPlain<Bool> = false;

// visit_element, with the formats of 16-bit floats.
template <class F>
void visit_device_element(const Reduction& r, F&& f) {
  visit_element(r, [&](auto element) {
    if constexpr (std::is_same_v<decltype(element), Plain<int16_t, true>>) {
      r.dtype->max_magnitude == 0x7c00 ? f(Half<Float16>{element.order})
                                       : f(Half<BFloat16>{element.order});
    } else {
      f(element);
    }
  });
}

// A float of 32 or 64 bits times a scale, or as it is: what is ordered is a product anyway, with 1
// (ordered_float), so one kernel is for both. (A NaN times 1 has other bits.)
template <class Format>
struct Product : Scaled<Format> {
  using typename Scaled<Format>::Key;
  bool as_it_is;
  __device__ Key value(Key bits) const { return as_it_is ? bits : Scaled<Format>::value(bits); }
};
template <class Format>
constexpr bool kIsPlain<Product<Format>> = false;

// Whether the value of an element is its bits.
template <class Element>
__device__ bool has_own_bits(Element) {
  return kIsPlain<Element>;
}
template <class Format>
__device__ bool has_own_bits(Product<Format> element) {
  return element.as_it_is;
}
template <class Format>
__device__ bool has_own_bits(Half<Format> element) {
  return element.as_it_is;
}

// visit_device_element for walks over the input alone. Where only values are wanted of products of
// 16 bits that keep the order, and of which none is zero for being small, they are made of the
// elements that are chosen.
template <class F>
void visit_input_element(const Reduction& r, F&& f) {
  visit_device_element(r, [&]<class Element>(Element element) {
    using Key = typename Element::Key;
    using Format = std::conditional_t<sizeof(Key) == 8, Float64, Float32>;
    if constexpr (std::is_same_v<Element, Scaled<Format>>) {
      f(Product<Format>{element, false});
    } else if constexpr (sizeof(Key) >= 4 && std::is_same_v<Element, Plain<Key, true>>) {
      f(Product<Format>{{element.order, 1}, true});
    } else if constexpr (sizeof(Key) == 2 && !kIsPlain<Element>) {
      using Chosen = Half<typename Element::Format>;
      const bool largest = r.largest != (element.scale < 0);
      if (r.value_alone && keeps_order(element, static_cast<Key>(r.dtype->max_magnitude)) &&
          magnitude_of_product(element, Key(1)) > 0) {
        f(Chosen{order_of<Key>(*r.dtype, largest), element.scale, false});
      } else {
        f(element);
      }
    } else {
      f(element);
    }
  });
}

// A key, or a constant like it, in the upper bits of both halves.
template <class Key>
__device__ uint32_t halves(Key key) {
  return (uint32_t(static_cast<uint16_t>(key)) << (16 - 8 * sizeof(Key)) & 0xffffu) * 0x10001u;
}

// The keys of two elements that stand so, above zeros; key_of (order.h) for both at once.
template <bool kFloat, class Key>
__device__ uint32_t pair_of_keys(uint32_t bits, Order<Key> order) {
  const uint32_t flipped = bits ^ halves(order.flip);
  if constexpr (!kFloat) {
    return flipped;
  } else {
    const uint32_t negative = signs_of_halves(flipped);
    const uint32_t magnitude = bits & 0x7fff7fffu;
    const uint32_t bias = halves(order.bias);
    const uint32_t moved = bias ^ (negative & (bias ^ (bias + 0x10001u)));  // bias - negative
    return __viaddmax_s16x2(magnitude ^ negative, moved, halves(order.floor));
  }
}

// Two 16-bit floats times the scale, each rounded.
#ifdef __CUDA_ARCH__
__device__ inline uint32_t rounded_pair(Float16, float low, float high) {
  return bits_as<uint32_t>(__floats2half2_rn(low, high));
}
__device__ inline uint32_t rounded_pair(BFloat16, float low, float high) {
  return bits_as<uint32_t>(__floats2bfloat162_rn(low, high));
}
__device__ inline uint32_t product_of_halves(Float16, uint32_t a, uint32_t b) {
  return bits_as<uint32_t>(__hmul2_rn(bits_as<__half2>(a), bits_as<__half2>(b)));
}
__device__ inline uint32_t product_of_halves(BFloat16, uint32_t a, uint32_t b) {
  return bits_as<uint32_t>(__hmul2_rn(bits_as<__nv_bfloat162>(a), bits_as<__nv_bfloat162>(b)));
}
template <class Format>
__device__ uint32_t pair_of_values(Scaled<Format> element, uint32_t bits) {
  return rounded_pair(Format(), Format::decode(static_cast<int16_t>(bits)) * element.scale,
                      Format::decode(static_cast<int16_t>(bits >> 16)) * element.scale);
}
// Of several pairs. A scale of the format itself takes one instruction for each, with the same
// result: a float has room for the whole product, so that is rounded once either way.
template <int kPairs, class Format>
__device__ void scale_pairs(Scaled<Format> element, uint32_t (&pairs)[kPairs]) {
  const auto factor = static_cast<uint16_t>(Format::encode(element.scale));
  if (Format::decode(static_cast<int16_t>(factor)) == element.scale) {
#pragma unroll
    for (uint32_t& pair : pairs) pair = product_of_halves(Format(), pair, factor * 0x10001u);
  } else {
#pragma unroll
    for (uint32_t& pair : pairs) pair = pair_of_values(element, pair);
  }
}
#else
template <class Format>
uint32_t pair_of_values(Scaled<Format> element, uint32_t bits) {
  const uint32_t low = static_cast<uint16_t>(element.value(static_cast<int16_t>(bits)));
  const uint32_t high = static_cast<uint16_t>(element.value(static_cast<int16_t>(bits >> 16)));
  return low | high << 16;
}
template <int kPairs, class Format>
void scale_pairs(Scaled<Format> element, uint32_t (&pairs)[kPairs]) {
  for (uint32_t& pair : pairs) pair = pair_of_values(element, pair);
}
#endif
template <int kPairs, class Element>
__device__ void scale_pairs(Element, uint32_t (&)[kPairs]) {}

// What orders the values of an element.
template <class Element>
__device__ Element of_values(Element element) {
  return element;
}
template <class Format>
  requires(sizeof(typename Format::Key) == 2)
__device__ Half<Format> of_values(Scaled<Format> element) {
  return {element.order};
}

template <class K, bool kFloat>
__device__ uint32_t pair_of_keys(Plain<K, kFloat> element, uint32_t bits) {
  return pair_of_keys<kFloat>(bits, element.order);
}
__device__ inline uint32_t pair_of_keys(Bool element, uint32_t bits) {
  const uint32_t any = (bits & 0x7f007f00u) + 0x7f007f00u | bits;
  return any & 0x80008000u ^ halves(element.order.flip);
}
template <class Format>
__device__ uint32_t pair_of_keys(Half<Format> element, uint32_t bits) {
  return pair_of_keys<true>(bits, element.order);
}
template <class Format>
__device__ uint32_t pair_of_keys(Scaled<Format> element, uint32_t bits) {
  return pair_of_keys<true>(pair_of_values(element, bits), element.order);
}

// A word of small elements as pairs: 16-bit ones are one pair, of 8-bit ones pair 0 holds elements
// 0 and 2, pair 1 elements 1 and 3.
template <class Element>
__device__ uint32_t pair_of_keys(Element element, uint32_t word, int pair) {
  if constexpr (sizeof(typename Element::Key) == 2) {
    return pair_of_keys(element, word);
  } else {
    return pair_of_keys(element, (pair ? word : word << 8) & 0xff00ff00u);
  }
}

// The same above whatever the rest of the word holds.
template <class Element>
__device__ uint32_t pair_above_rest(Element element, uint32_t word, int pair) {
  return pair_of_keys(element, word, pair);
}
// Four keys at once, of 8-bit types that are no floats: in place of the elements.
__device__ inline uint32_t keys_of_word(Plain<int8_t, false> element, uint32_t word) {
  return word ^ uint32_t(static_cast<uint8_t>(element.order.flip)) * 0x1010101u;
}
// The top bit of a byte comes from the sum where a lower one is set.
__device__ inline uint32_t keys_of_word(Bool element, uint32_t word) {
  const uint32_t any = (word & 0x7f7f7f7fu) + 0x7f7f7f7fu | word;
  return any & 0x80808080u ^ uint32_t(static_cast<uint8_t>(element.order.flip)) * 0x1010101u;
}
template <class Element>
constexpr bool kHasWordKeys = requires(Element element) { keys_of_word(element, 0); };

template <class Element>
  requires kHasWordKeys<Element>
__device__ uint32_t pair_above_rest(Element element, uint32_t word, int pair) {
  const uint32_t keys = keys_of_word(element, word);
  return pair ? keys : keys << 8;
}

// The slots of an element type in shared memory.
template <class Element>
struct Slots {
  using Key = typename Element::Key;
  static constexpr bool kPacked = sizeof(Key) < 4;
  using Slot = std::conditional_t<kPacked, uint32_t, std::make_unsigned_t<Key>>;
  static constexpr int kElements = sizeof(Slot) / sizeof(Key);

  // The slots from `offset` bytes past `base` on: those of small elements need not be aligned.
  // (Offsets stay apart from the pointer: made of a number, it would not be known to be shared.)
  struct Row {
    const Slot* slots;
    uint32_t shift;

    __device__ Row(const char* base, uint32_t offset)
        : slots(reinterpret_cast<const Slot*>(base + (kPacked ? offset & ~3u : offset))),
          shift(8 * offset) {}
    __device__ Slot operator[](uint32_t i) const {
      if constexpr (kPacked) return __funnelshift_r(slots[i], slots[i + 1], shift);
      return slots[i];
    }
  };
};

// A slot of elements that are all the same.
template <class Key>
__device__ uint32_t slot_of_all(Key element) {
  return sizeof(Key) == 2 ? 0x10001u * static_cast<uint16_t>(element)
                          : 0x1010101u * static_cast<uint8_t>(element);
}
// The slot of one element.
template <class Element, class Key = typename Element::Key>
__device__ typename Slots<Element>::Slot slot_of(Key element) {
  const auto bits = static_cast<std::make_unsigned_t<Key>>(element);
  return sizeof(Key) == 2 ? bits * 0x10001u : bits;  // twice: half a slot of zeros is a rare case
}

// A float as what is ordered, negated for a maximum. (A product leaves the integer units alone.)
__device__ inline double ordered_float(Plain<int64_t, true> element, int64_t bits) {
  return __longlong_as_double(bits) * (element.order.flip ? -1.0 : 1.0);
}
__device__ inline double ordered_float(Scaled<Float64> element, int64_t bits) {
  return __longlong_as_double(bits) * (element.order.flip ? -element.scale : element.scale);
}
__device__ inline float ordered_float(Plain<int32_t, true> element, int32_t bits) {
  return __int_as_float(bits) * (element.order.flip ? -1.0f : 1.0f);
}
__device__ inline float ordered_float(Scaled<Float32> element, int32_t bits) {
  return __int_as_float(bits) * (element.order.flip ? -element.scale : element.scale);
}
template <class Element>
constexpr bool kIsFloat = requires(Element element) { ordered_float(element, 0); };

// Two elements of 16 bits side by side in the same way: floats as such, integers as keys.
template <class Element>
constexpr bool kIsHalf =
    requires { typename Element::Format; } && sizeof(typename Element::Key) == 2;

template <class Element>
constexpr bool kIsShort = sizeof(typename Element::Key) == 2 && !kIsHalf<Element>;

template <class Format>
__device__ uint32_t ordered_pair(Half<Format> element, uint32_t bits) {
  return bits ^ (halves(element.order.flip) & 0x80008000u);
}
template <class Format>
__device__ uint32_t ordered_pair(Scaled<Format> element, uint32_t bits) {
  return pair_of_values(element, bits) ^ (halves(element.order.flip) & 0x80008000u);
}
__device__ inline uint32_t ordered_pair(Plain<int16_t, false> element, uint32_t bits) {
  return pair_of_keys(element, bits);
}

// The smaller of each, NaN if one is.
template <class Element>
__device__ uint32_t smaller_pair(uint32_t a, uint32_t b) {
  if constexpr (kIsHalf<Element>) {
    return min_or_nan_of_halves<typename Element::Format>(a, b);
  } else {
    return __vmins2(a, b);
  }
}

// Whether equal elements may have other bits than these: a float that is zero or NaN.
template <class Element>
__device__ bool is_ambiguous(uint32_t ordered) {
  const uint32_t magnitude = ordered & 0x7fffu;
  return kIsHalf<Element> && (magnitude == 0 || magnitude == 0x7fffu);
}

constexpr uint32_t kBoth = 0x10001;  // a number in both halves

__device__ inline uint32_t choose_halves(uint32_t mask, uint32_t a, uint32_t b) {
  return (mask & a) | (~mask & b);
}

// All bits of the halves that are equal to the smallest of all, or NaN as that is.
template <class Format>
__device__ uint32_t like(uint32_t pair, uint32_t smallest) {
  const uint32_t same = equal_halves(Format(), pair, smallest);
  const bool is_number = equal_halves(Format(), smallest, smallest) == ~0u;
  return is_number ? same : same | ~equal_halves(Format(), pair, pair);
}

// All bits of the halves of a pair that win against those of the best (`wins`).
template <class Format>
__device__ uint32_t winning_halves(uint32_t pair, uint32_t best) {
  return not_ge_halves(Format(), pair, best) & equal_halves(Format(), best, best);
}

// In each half, the number of the first of some pairs that is so; the last where none is.
template <class Format, int kSome>
__device__ uint32_t first_like(const uint32_t (&pairs)[kSome], uint32_t smallest) {
  uint32_t first = (kSome - 1) * kBoth;
#pragma unroll
  for (int i = kSome - 2; i >= 0; --i)
    first = choose_halves(like<Format>(pairs[i], smallest), i * kBoth, first);
  return first;
}

// What orders an element: a float as such, negated for a maximum; else its key.
template <class Format>
__device__ float ordered(Half<Format> element, int16_t bits) {
  return Format::decode(bits) * (element.order.flip ? -1.0f : 1.0f);
}
template <class Element, class Key = typename Element::Key>
__device__ auto ordered(Element element, Key bits) {
  if constexpr (kIsFloat<Element>) {
    return ordered_float(element, bits);
  } else if constexpr (kIsHalf<Element>) {
    return ordered(of_values(element), element.value(bits));
  } else {
    return element.key(bits);
  }
}
// Whether it comes before the best of those before it.
template <class T>
__device__ bool wins(T x, T best) {
  if constexpr (std::is_floating_point_v<T>) return !(x >= best) && best == best;
  return x < best;
}

constexpr uint32_t kNowhere = ~0u;

// The best of some elements, which come in the order of their rows; row() is kNowhere if there are
// none.
template <class Element>
class Winner {
  using Key = typename Element::Key;
  using Ordered = decltype(ordered(std::declval<Element>(), Key()));

 public:
  // `first`: whether none came before.
  __device__ void take(Element element, Key bits, uint32_t row, bool first) {
    const Ordered here = ordered(element, bits);
    if (!first && !wins(here, best_)) return;
    put(here, bits, row);
  }
  // The same of an element that may be absent, without a branch, for what is done for an element
  // under a mask bounds its kernel. The two forms say the same: the compiler waits for one load
  // after another with the second one where a thread has this winner alone (kAlone), and with the
  // first one where it has several (docs/notes/gpu.md).
  template <bool kAlone>
  __device__ void take_if(bool present, Element element, Key bits, uint32_t row) {
    const Ordered here = ordered(element, bits);
    const bool is_best = kAlone ? present & (row_ == kNowhere || wins(here, best_))
                                : present & ((row_ == kNowhere) | wins(here, best_));
    put(is_best ? here : best_, is_best ? bits : bits_, is_best ? row : row_);
  }
  __device__ uint32_t row() const { return row_; }
  __device__ Key bits() const { return bits_; }

 private:
  __device__ void put(Ordered best, Key bits, uint32_t row) {
    best_ = best;
    bits_ = bits;
    row_ = row;
  }

  Ordered best_{};
  Key bits_{};
  uint32_t row_ = kNowhere;
};

// The key of an ordered element: of a float that of its bits, without the flip.
template <class Element, class Key = typename Element::Key>
__device__ Key key_of_ordered(Element element, Key ordered) {
  if constexpr (sizeof(Key) == 2 && !kIsHalf<Element>) return ordered;
  return key_of<true>(ordered, Order<Key>{0, element.order.bias, element.order.floor});
}

// The value of an ordered element of 16 bits that is not ambiguous.
template <class Element, class Key = typename Element::Key>
__device__ Key value_of_ordered(const Element& element, Key ordered) {
  constexpr Key kSign = std::numeric_limits<Key>::min();
  return of_values(element).value(static_cast<Key>(ordered ^ (element.order.flip & kSign)));
}

// What rows are compared by: a float of 32 or 64 bits as such, which spares it a key; of other
// types, the key.
template <class Element, class Key = typename Element::Key>
__device__ auto comparable(Element element, Key bits) {
  if constexpr (kIsFloat<Element>) {
    return ordered_float(element, bits);
  } else {
    return element.key(bits);
  }
}
template <class Element>
using Comparable = decltype(comparable(std::declval<Element>(), typename Element::Key()));

// What nothing comes after: an infinity, or the largest key.
template <class T>
constexpr T kLast = std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity()
                                                : std::numeric_limits<T>::max();

// Whether two are the same in order: any two NaNs are.
template <class T>
__device__ bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a == b || (a != a && b != b);
  return a == b;
}
template <class T>
__device__ T lesser(T a, T b) {
  if constexpr (std::is_same_v<T, float>) return min_or_nan(a, b);
  return wins(b, a) ? b : a;
}

template <class Element, class Key = typename Element::Key>
__device__ Key key_of_comparable(Element element, Comparable<Element> x) {
  if constexpr (kIsFloat<Element>) {
    return key_of_ordered(element, bits_as<Key>(x));
  } else {
    return x;
  }
}

// The least of `lanes` neighbouring lanes, a power of two: each of them gets it.
template <class T>
__device__ T least_of_lanes(T x, uint32_t lanes) {
  if constexpr (std::is_floating_point_v<T>) {
#pragma unroll
    for (uint32_t d = 16; d > 0; d /= 2) {
      if (d < lanes) x = lesser(x, static_cast<T>(__shfl_xor_sync(~0u, x, d)));
    }
    return x;
  } else {
    return warp_min(x, lanes);
  }
}

// The least of some vectors.
template <int kVectors, class Element, class Key = typename Element::Key>
__device__ Comparable<Element> least_of(Element element, const Vector<Key> (&vectors)[kVectors]) {
  constexpr int kWords = kLoadBytes / 4, kWidth = Vector<Key>::kWidth;
  if constexpr (sizeof(Key) <= 2) {
    uint32_t smallest = 0x7fff7fffu;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      uint32_t words[kWords];
      memcpy(words, &vectors[v], kLoadBytes);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if constexpr (sizeof(Key) == 2) {
          const uint32_t pair = ordered_pair(element, words[i]);
          smallest = v + i == 0 ? pair : smaller_pair<Element>(smallest, pair);
        } else {
#pragma unroll
          for (int pair = 0; pair < Slots<Element>::kElements / 2; ++pair)
            smallest = __vmins2(smallest, pair_above_rest(element, words[i], pair));
        }
      }
    }
    if constexpr (sizeof(Key) == 2) {
      smallest = smaller_pair<Element>(smallest, smallest >> 16);
      return key_of_ordered(element, static_cast<Key>(smallest));
    }
    const int32_t both = std::min(int32_t(smallest << 16), int32_t(smallest & 0xffff0000u));
    return static_cast<Key>(both >> 24);
  } else if constexpr (kIsFloat<Element>) {
    auto least = ordered_float(element, vectors[0].at[0]);
    bool is_number = true;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const auto x = ordered_float(element, vectors[v].at[i]);
        if constexpr (sizeof(Key) == 4) {
          least = min_or_nan(least, x);
        } else {
          is_number &= x == x;
          least = x < least ? x : least;
        }
      }
    }
    return is_number ? least : std::numeric_limits<decltype(least)>::quiet_NaN();
  } else {
    Key key = element.key(vectors[0].at[0]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) key = std::min(key, element.key(vectors[v].at[i]));
    }
    return key;
  }
}

// The key of each element of a vector.
template <class Element, class Key = typename Element::Key>
__device__ Vector<Key> keys_of(Element element, Vector<Key> vector) {
  if constexpr (sizeof(Key) <= 2) {
    uint32_t words[kLoadBytes / 4];
    memcpy(words, &vector, kLoadBytes);
#pragma unroll
    for (uint32_t& word : words) {
      asm("" : "+r"(word));  // lest the compiler keep the keys of least_of in local memory
      if constexpr (kHasWordKeys<Element>) {
        word = keys_of_word(element, word);
        continue;
      }
      const uint32_t keys = pair_of_keys(element, word, 0);
      word = sizeof(Key) == 2 ? keys : __byte_perm(keys, pair_of_keys(element, word, 1), 0x7351);
    }
    memcpy(&vector, words, kLoadBytes);
  } else {
#pragma unroll
    for (Key& x : vector.at) x = element.key(x);
  }
  return vector;
}

// A bit to each element of a vector that has this key.
template <class Element, class Key = typename Element::Key>
__device__ uint32_t ties_of(Element element, const Vector<Key>& vector, Key key) {
  const Vector<Key> keys = keys_of(element, vector);
  uint32_t ties = 0;
  if constexpr (sizeof(Key) == 1) {
    constexpr uint32_t kOnes = 0x1010101u, kLow = 0x7f * kOnes;
    uint32_t words[kLoadBytes / 4];
    memcpy(words, &keys, kLoadBytes);
#pragma unroll
    for (int i = 0; i < kLoadBytes / 4; ++i) {
      const uint32_t differs = words[i] ^ kOnes * static_cast<uint8_t>(key);
      const uint32_t zeros = ~((differs & kLow) + kLow | differs | kLow);  // in its top bits
      ties |= (zeros >> 7) * 0x10204080u >> 28 << (4 * i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Vector<Key>::kWidth; ++i) ties |= uint32_t(keys.at[i] == key) << i;
  }
  return ties;
}

// The number of the first element of some vectors with these bits, which one of them has; bits
// where `care` is zero do not count.
template <int kVectors, class Key>
__device__ uint32_t first_with_bits(const Vector<Key> (&vectors)[kVectors], Key bits, Key care) {
  constexpr int kWords = kLoadBytes / 4, kWidth = Vector<Key>::kWidth;
  uint32_t first = kNowhere;
  if constexpr (sizeof(Key) == 2) {
    constexpr int kAtOnce = 16 / kWords;
    const uint32_t wanted = 0x10001u * static_cast<uint16_t>(bits);
    const uint32_t mask = 0x10001u * static_cast<uint16_t>(care);
#pragma unroll
    for (int v0 = (kVectors - 1) / kAtOnce * kAtOnce; v0 >= 0; v0 -= kAtOnce) {
      const int count = std::min(kAtOnce, kVectors - v0);
      uint32_t differ = 0;  // each half: a bit to a word, from the first down
#pragma unroll
      for (int v = v0; v < v0 + kAtOnce && v < kVectors; ++v) {
        uint32_t words[kWords];
        memcpy(words, &vectors[v], kLoadBytes);
#pragma unroll
        for (int i = 0; i < kWords; ++i)
          differ = differ * 2 + __vminu2((words[i] ^ wanted) & mask, 0x10001u);
      }
      const int shift = 16 - count * kWords;
      const uint32_t low = __clz(~(differ << (16 + shift))), high = __clz(~(differ << shift));
      const uint32_t here = std::min(2 * low, 2 * high + 1);
      if (kVectors <= kAtOnce || here < uint32_t(count * kWidth)) first = v0 * kWidth + here;
    }
  } else if constexpr (sizeof(Key) == 1) {
    // A zero is told by a borrow, without error up to the lowest. The top bits of a word's bytes
    // move aside for those of its neighbours: a bit to a word.
    constexpr uint32_t kOnes = 0x1010101u;
    constexpr int kAtOnce = kVectors < 2 ? 1 : 2;
    const uint32_t wanted = kOnes * static_cast<uint8_t>(bits);
    const uint32_t mask = kOnes * static_cast<uint8_t>(care);
#pragma unroll
    for (int v0 = (kVectors - 1) / kAtOnce * kAtOnce; v0 >= 0; v0 -= kAtOnce) {
      uint32_t found = 0;
#pragma unroll
      for (int v = v0; v < v0 + kAtOnce && v < kVectors; ++v) {
        uint32_t words[kWords];
        memcpy(words, &vectors[v], kLoadBytes);
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const uint32_t differs = (words[i] ^ wanted) & mask;
          found |= ((differs - kOnes) & ~differs & kOnes << 7) >> (7 - ((v - v0) * kWords + i));
        }
      }
      if (found == 0) continue;
      const uint32_t halves = found | found >> 16, any = (halves | halves >> 8) & 0xffu;
      const uint32_t word = __ffs(any) - 1, byte = (__ffs(found >> word & kOnes) - 1) / 8;
      first = v0 * kWidth + word * 4 + byte;
    }
  } else {
#pragma unroll
    for (int v = kVectors - 1; v >= 0; --v) {
#pragma unroll
      for (int i = kWidth - 1; i >= 0; --i) {
        if (((vectors[v].at[i] ^ bits) & care) == 0) first = v * kWidth + i;
      }
    }
  }
  return first;
}

// The number of the first element that is the same as the least of them.
template <int kVectors, class Element, class Key = typename Element::Key>
__device__ uint32_t first_of(Element element, const Vector<Key> (&vectors)[kVectors],
                             Comparable<Element> least) {
  if constexpr (kIsFloat<Element>) {
    constexpr int kWidth = Vector<Key>::kWidth;
    uint32_t first = kNowhere;
    const auto find = [&](auto is_it) {
#pragma unroll
      for (int i = kVectors * kWidth - 1; i >= 0; --i) {
        if (is_it(ordered_float(element, vectors[i / kWidth].at[i % kWidth]))) first = i;
      }
    };
    if (least == least) {
      find([&](auto x) { return x == least; });
    } else {
      find([](auto x) { return x != x; });
    }
    return first;
  } else {
    if (has_own_bits(element)) {
      Key bits;
      const bool known = element.value_of_key(least, bits);
      const Key magnitude = std::numeric_limits<Key>::max();
      // Zeros have either sign; a NaN, any of many bits.
      const bool is_zero = !known && (bits & magnitude) == 0;
      if (known || is_zero) return first_with_bits(vectors, bits, is_zero ? magnitude : Key(-1));
    }
    Vector<Key> keys[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) keys[v] = keys_of(element, vectors[v]);
    return first_with_bits(keys, least, Key(-1));
  }
}

}  // namespace reduceops::cuda
