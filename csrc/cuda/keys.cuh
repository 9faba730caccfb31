// Keys of several elements at once: of a slot, the 4 or 8 bytes that a thread takes from shared
// memory, and of a vector, the 16 bytes it takes from global memory.
//
// 8- and 16-bit keys stand side by side in a word, each in the upper bits of its half, where one
// instruction maps, adds or compares two of them.
#pragma once

#include "cuda/device.cuh"

namespace reduceops::cuda {

// A 16-bit float whose format is known.
template <class F>
struct Half {
  using Format = F;
  using Key = int16_t;
  Order<Key> order;
  __device__ Key value(Key bits) const { return bits; }
  __device__ Key key(Key bits) const { return key_of<true>(bits, order); }
  __device__ bool value_of_key(Key key, Key& value) const {
    return bits_of<true>(key, order, value);
  }
};

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
    uint32_t negative;  // the sign of each half in all of its bits
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(negative) : "r"(flipped));
    const uint32_t magnitude = bits & 0x7fff7fffu;
    const uint32_t bias = halves(order.bias);
    const uint32_t moved = bias ^ (negative & (bias ^ (bias + 0x10001u)));  // bias - negative
    return __viaddmax_s16x2(magnitude ^ negative, moved, halves(order.floor));
  }
}

template <class K, bool kFloat>
__device__ uint32_t pair_of_keys(Plain<K, kFloat> element, uint32_t bits) {
  return pair_of_keys<kFloat>(bits, element.order);
}
template <class Format>
__device__ uint32_t pair_of_keys(Half<Format> element, uint32_t bits) {
  return pair_of_keys<true>(bits, element.order);
}
template <class Format>
__device__ uint32_t pair_of_keys(Scaled<Format> element, uint32_t bits) {
  using Key = typename Format::Key;
  const uint32_t low = static_cast<uint16_t>(element.value(static_cast<Key>(bits)));
  const uint32_t high = static_cast<uint16_t>(element.value(static_cast<Key>(bits >> 16)));
  return pair_of_keys<true>(low | high << 16, element.order);
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

// The smaller of two floats, NaN if one is.
__device__ inline float min_or_nan(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}

// A float as what is ordered, negated for a maximum. (A product leaves the integer units alone.)
__device__ inline float ordered_float(Plain<int32_t, true> element, int32_t bits) {
  return __int_as_float(bits) * (element.order.flip ? -1.0f : 1.0f);
}
__device__ inline float ordered_float(Scaled<Float32> element, int32_t bits) {
  return __int_as_float(bits) * (element.order.flip ? -element.scale : element.scale);
}
template <class Format>
__device__ float ordered_float(Half<Format> element, int16_t bits) {
  return Format::decode(bits) * (element.order.flip ? -1.0f : 1.0f);
}
template <class Format>
  requires(sizeof(typename Format::Key) == 2)
__device__ float ordered_float(Scaled<Format> element, int16_t bits) {
  return Format::decode(element.value(bits)) * (element.order.flip ? -1.0f : 1.0f);
}
template <class Element>
constexpr bool kIsFloat = requires(Element element) { ordered_float(element, 0); };

// The key of an ordered float: that of its format, without the flip.
template <class Element, class Key = typename Element::Key>
__device__ Key key_of_ordered(Element element, float ordered) {
  const Order<Key> order{0, element.order.bias, element.order.floor};
  if constexpr (sizeof(Key) == 4) {
    return key_of<true>(static_cast<Key>(__float_as_int(ordered)), order);
  } else {
    return key_of<true>(Element::Format::encode(ordered), order);
  }
}

// The best of a run of keys or floats, taken in the order of their indices from `first` on. Of
// several at once, number r has index + r * step.
template <class Key>
class KeyTracker {
 public:
  KeyTracker() = default;
  __device__ explicit KeyTracker(uint32_t first) : index_(first) {}

  template <int kRows>
  __device__ void take(const Key (&keys)[kRows], uint32_t index, uint32_t step) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (keys[r] < key_) {
        key_ = keys[r];
        index_ = index + r * step;
      }
    }
  }
  __device__ Key key() const { return key_; }
  __device__ uint32_t index() const { return index_; }

 private:
  Key key_ = std::numeric_limits<Key>::max();
  uint32_t index_;
};

// Compares floats as such, for a key costs five instructions. Which of several it was is asked only
// when one of them wins.
class FloatTracker {
 public:
  FloatTracker() = default;
  __device__ explicit FloatTracker(uint32_t first) : index_(first) {}

  template <int kRows>
  __device__ void take(const float (&x)[kRows], uint32_t index, uint32_t step) {
    float smallest = x[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) smallest = min_or_nan(smallest, x[r]);
    if (smallest >= best_) return;
    if (smallest < best_) {
      uint32_t row = kRows - 1;
#pragma unroll
      for (int r = kRows - 2; r >= 0; --r) row = x[r] == smallest ? r : row;
      best_ = smallest;
      index_ = index + row * step;
    } else {  // there is a NaN, here or in the best
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (!(x[r] >= best_) && best_ == best_) {
          best_ = x[r];
          index_ = index + r * step;
        }
      }
    }
  }
  __device__ float best() const { return best_; }
  __device__ uint32_t index() const { return index_; }

 private:
  float best_ = std::numeric_limits<float>::infinity();
  uint32_t index_;
};

// Two keys side by side.
class PairTracker {
 public:
  PairTracker() = default;
  __device__ explicit PairTracker(uint32_t first) : low_(first), high_(first) {}

  template <int kRows>
  __device__ void take(const uint32_t (&keys)[kRows], uint32_t index, uint32_t step) {
    uint32_t smallest = best_;
#pragma unroll
    for (int r = 0; r < kRows; ++r) smallest = __vmins2(smallest, keys[r]);
    if (smallest == best_) return;
    const uint32_t changed = smallest ^ best_;
    best_ = smallest;
    uint32_t low = kRows - 1, high = kRows - 1;
#pragma unroll
    for (int r = kRows - 2; r >= 0; --r) {
      const uint32_t differs = keys[r] ^ smallest;
      low = differs & 0xffffu ? low : r;
      high = differs >> 16 ? high : r;
    }
    low_ = changed & 0xffffu ? index + low * step : low_;
    high_ = changed >> 16 ? index + high * step : high_;
  }
  __device__ uint32_t best() const { return best_; }
  __device__ uint32_t index(bool high) const { return high ? high_ : low_; }

 private:
  uint32_t best_ = 0x7fff7fffu;
  uint32_t low_, high_;
};

// The best of each element of a run of slots.
template <class Element>
class Tracker {
  using Key = typename Element::Key;
  using Slot = typename Slots<Element>::Slot;

 public:
  Tracker() = default;
  __device__ explicit Tracker(uint32_t first) : tracker_(first) {}

  template <int kRows>
  __device__ void take(Element element, const Slot (&slots)[kRows], uint32_t index, uint32_t step) {
    Key keys[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) keys[r] = element.key(static_cast<Key>(slots[r]));
    tracker_.take(keys, index, step);
  }
  __device__ Key key(Element, int) const { return tracker_.key(); }
  __device__ uint32_t index(int) const { return tracker_.index(); }

 private:
  KeyTracker<Key> tracker_;
};

template <class Element>
  requires kIsFloat<Element>
class Tracker<Element> {
  using Key = typename Element::Key;
  static constexpr int kElements = Slots<Element>::kElements;

 public:
  Tracker() = default;
  __device__ explicit Tracker(uint32_t first) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) trackers_[e] = FloatTracker(first);
  }

  template <int kRows>
  __device__ void take(Element element, const uint32_t (&slots)[kRows], uint32_t index,
                       uint32_t step) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      float x[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        x[r] = ordered_float(element, static_cast<Key>(slots[r] >> (16 * e)));
      trackers_[e].take(x, index, step);
    }
  }
  __device__ Key key(Element element, int e) const {
    return key_of_ordered(element, trackers_[e].best());
  }
  __device__ uint32_t index(int e) const { return trackers_[e].index(); }

 private:
  FloatTracker trackers_[kElements];
};

template <class Element>
  requires(Slots<Element>::kPacked && !kIsFloat<Element>)
class Tracker<Element> {
  using Key = typename Element::Key;
  static constexpr int kPairs = Slots<Element>::kElements / 2;

 public:
  Tracker() = default;
  __device__ explicit Tracker(uint32_t first) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) trackers_[pair] = PairTracker(first);
  }

  template <int kRows>
  __device__ void take(Element element, const uint32_t (&slots)[kRows], uint32_t index,
                       uint32_t step) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t keys[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) keys[r] = pair_of_keys(element, slots[r], pair);
      trackers_[pair].take(keys, index, step);
    }
  }
  __device__ Key key(Element, int e) const {
    const uint32_t best = trackers_[e % kPairs].best();
    return static_cast<Key>(int32_t(e / kPairs ? best : best << 16) >> (32 - 8 * sizeof(Key)));
  }
  __device__ uint32_t index(int e) const { return trackers_[e % kPairs].index(e / kPairs); }

 private:
  PairTracker trackers_[kPairs];
};

// The smallest key of a vector.
template <class Element, class Key = typename Element::Key>
__device__ Key smallest_of(Element element, const Vector<Key>& vector) {
  if constexpr (Slots<Element>::kPacked) {
    uint32_t words[kLoadBytes / 4], smallest = 0x7fff7fffu;
    memcpy(words, &vector, kLoadBytes);
#pragma unroll
    for (uint32_t word : words) {
#pragma unroll
      for (int pair = 0; pair < Slots<Element>::kElements / 2; ++pair)
        smallest = __vmins2(smallest, pair_of_keys(element, word, pair));
    }
    const int32_t both = std::min(int32_t(smallest << 16), int32_t(smallest & 0xffff0000u));
    return static_cast<Key>(both >> (32 - 8 * sizeof(Key)));
  } else if constexpr (kIsFloat<Element>) {
    // Any of the smallest will do: equal floats have equal keys.
    float smallest = ordered_float(element, vector.at[0]);
#pragma unroll
    for (int i = 1; i < Vector<Key>::kWidth; ++i)
      smallest = min_or_nan(smallest, ordered_float(element, vector.at[i]));
    return key_of_ordered(element, smallest);
  } else {
    Key key = element.key(vector.at[0]);
#pragma unroll
    for (int i = 1; i < Vector<Key>::kWidth; ++i) key = std::min(key, element.key(vector.at[i]));
    return key;
  }
}

// Where in a vector its smallest key is first.
template <class Element, class Key = typename Element::Key>
__device__ int position_of(Element element, const Vector<Key>& vector, Key smallest) {
  int position = 0;
#pragma unroll
  for (int i = Vector<Key>::kWidth - 1; i >= 0; --i) {
    if (element.key(vector.at[i]) == smallest) position = i;
  }
  return position;
}

}  // namespace reduceops::cuda
