// The best of each element of a run of slots, which a thread takes in the order of their indices.
//
// A tracker numbers the slots of its run: the slot of turn t is the t-th. Several are taken at
// once, always as many or fewer at the end, so that an instruction compares more than one.
#pragma once

#include "cuda/keys.cuh"

namespace reduceops::cuda {

// Integers: compares keys.
template <class Element>
class SlotTracker {
  using Key = typename Element::Key;

 public:
  template <int kRows>
  __device__ void take(Element element, const typename Slots<Element>::Slot (&slots)[kRows],
                       uint32_t turn) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Key key = element.key(static_cast<Key>(slots[r]));
      if (key < key_) {
        key_ = key;
        turn_ = turn + r;
      }
    }
  }
  __device__ Key key(Element, int) const { return key_; }
  __device__ uint32_t turn(int) const { return turn_; }

 private:
  Key key_ = std::numeric_limits<Key>::max();
  uint32_t turn_ = 0;
};

// Floats: compares them as such, for a key costs five instructions. Which of several it was is
// asked only when one of them wins.
template <class Element>
  requires kIsFloat<Element>
class SlotTracker<Element> {
  using Key = typename Element::Key;
  using Float = decltype(ordered_float(std::declval<Element>(), 0));

 public:
  template <int kRows>
  __device__ void take(Element element, const typename Slots<Element>::Slot (&slots)[kRows],
                       uint32_t turn) {
    Float x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = ordered_float(element, static_cast<Key>(slots[r]));
    if constexpr (sizeof(Float) == 4) {
      Float smallest = x[0];
#pragma unroll
      for (int r = 1; r < kRows; ++r) smallest = min_or_nan(smallest, x[r]);
      if (smallest >= best_) return;
      if (smallest < best_) {
        uint32_t row = kRows - 1;
#pragma unroll
        for (int r = kRows - 2; r >= 0; --r) row = x[r] == smallest ? r : row;
        best_ = smallest;
        turn_ = turn + row;
        return;
      }
    } else {  // there is no instruction for the smaller of two
      bool none = true;
#pragma unroll
      for (int r = 0; r < kRows; ++r) none &= x[r] >= best_;
      if (none) return;
    }
    // Also where there is a NaN, here or in the best.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!(x[r] >= best_) && best_ == best_) {
        best_ = x[r];
        turn_ = turn + r;
      }
    }
  }
  __device__ Key key(Element element, int) const {
    return key_of_ordered(element, bits_as<Key>(best_));
  }
  __device__ uint32_t turn(int) const { return turn_; }

 private:
  Float best_ = std::numeric_limits<Float>::infinity();
  uint32_t turn_ = 0;
};

// 16-bit types: compares two side by side. An improvement is seen in the bits of their minimum;
// which row it was, too, but for a zero, whose sign does not count, and a NaN, whose bits do not.
template <class Element>
  requires(sizeof(typename Element::Key) == 2)
class SlotTracker<Element> {
  using Key = typename Element::Key;

 public:
  __device__ SlotTracker() {
    if constexpr (kIsHalf<Element>) {
      best_ = std::is_same_v<typename Element::Format, Float16> ? 0x7c007c00 : 0x7f807f80;
    }
  }

  template <int kRows>
  __device__ void take(Element element, const uint32_t (&slots)[kRows], uint32_t turn) {
    uint32_t x[kRows], smallest = best_;
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = slots[r];
    scale_pairs(element, x);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      x[r] = ordered_pair(of_values(element), x[r]);
      smallest = smaller_pair<Element>(smallest, x[r]);
    }
    if (smallest == best_) return;
    if constexpr (kIsHalf<Element>) {
      if (is_ambiguous<Element>(smallest) || is_ambiguous<Element>(smallest >> 16))
        return compare(x, smallest, turn);
    }
    const uint32_t changed = smallest ^ best_;
    best_ = smallest;
    uint32_t low = kRows - 1, high = kRows - 1;
#pragma unroll
    for (int r = kRows - 2; r >= 0; --r) {
      const uint32_t differs = x[r] ^ smallest;
      low = differs & 0xffffu ? low : r;
      high = differs >> 16 ? high : r;
    }
    turn_[0] = changed & 0xffffu ? turn + low : turn_[0];
    turn_[1] = changed >> 16 ? turn + high : turn_[1];
  }
  __device__ Key key(Element element, int e) const {
    return key_of_ordered(element, static_cast<Key>(best_ >> (16 * e)));
  }
  __device__ uint32_t turn(int e) const { return turn_[e]; }

 private:
  template <int kRows>
  __device__ void compare(const uint32_t (&x)[kRows], uint32_t smallest, uint32_t turn) {
    const auto decode = [](uint32_t pair, int e) {
      return Element::Format::decode(static_cast<Key>(pair >> (16 * e)));
    };
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float best = decode(best_, e);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float here = decode(x[r], e);
        if (!(here >= best) && best == best) {
          best = here;
          turn_[e] = turn + r;
        }
      }
    }
    best_ = smallest;
  }

  uint32_t best_ = 0x7fff7fff;
  uint32_t turn_[2] = {0, 0};
};

// Of 8-bit types: the keys of bytes kPair and kPair + 2 of a word, each above the turn.
template <int kPair, class Element>
__device__ uint32_t keys_and_turn(Element element, uint32_t word, uint32_t turn) {
  if constexpr (kHasWordKeys<Element>) {
    return __byte_perm(keys_of_word(element, word), turn, kPair ? 0x3414 : 0x2404);
  } else {
    return __byte_perm(pair_of_keys(element, word, kPair), turn, 0x3414);
  }
}

// 8-bit types: a key and its turn in one 16-bit integer, whose minimum needs no branch. It has room
// for so many turns; then the bests so far are put aside.
template <class Element>
  requires(sizeof(typename Element::Key) == 1)
class SlotTracker<Element> {
  using Key = int8_t;

 public:
  static constexpr uint32_t kWindow = 1 << 8;

  // `turn` counts from the begin of the window.
  template <int kRows>
  __device__ void take(Element element, const uint32_t (&slots)[kRows], uint32_t turn) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      smallest_[0] = __vmins2(smallest_[0], keys_and_turn<0>(element, slots[r], turn + r));
      smallest_[1] = __vmins2(smallest_[1], keys_and_turn<1>(element, slots[r], turn + r));
    }
  }
  // Ends the window that began with turn `begin`.
  __device__ void put_aside(uint32_t begin) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t smallest = smallest_[e % 2] >> (e / 2 * 16);
      const auto key = static_cast<Key>(smallest >> 8);
      if (key < key_[e]) {
        key_[e] = key;
        turn_[e] = begin + smallest % kWindow;
      }
    }
    smallest_[0] = smallest_[1] = 0x7fff7fff;
  }
  __device__ Key key(Element, int e) const { return key_[e]; }
  __device__ uint32_t turn(int e) const { return turn_[e]; }

 private:
  uint32_t smallest_[2] = {0x7fff7fff, 0x7fff7fff};
  Key key_[4] = {127, 127, 127, 127};
  uint32_t turn_[4] = {0, 0, 0, 0};
};

// Of kSlots runs side by side.
template <class Element, int kSlots = 1>
class Tracker {
  using Slot = typename Slots<Element>::Slot;
  static constexpr bool kWindows = requires { SlotTracker<Element>::kWindow; };

 public:
  // Windows begin with a batch of rows: `turn` is a multiple of kRows, a power of two.
  template <int kRows>
  __device__ void take(Element element, const Slot (&slots)[kSlots][kRows], uint32_t turn) {
    if constexpr (kWindows) {
      if (turn - window_ == SlotTracker<Element>::kWindow) end_window(turn);
    }
#pragma unroll
    for (int u = 0; u < kSlots; ++u) trackers_[u].take(element, slots[u], turn - window_);
  }
  // After the last slot.
  __device__ void finish() {
    if constexpr (kWindows) end_window(0);
  }
  __device__ typename Element::Key key(Element element, int u, int e) const {
    return trackers_[u].key(element, e);
  }
  __device__ uint32_t turn(int u, int e) const { return trackers_[u].turn(e); }

 private:
  __device__ void end_window(uint32_t next) {
#pragma unroll
    for (int u = 0; u < kSlots; ++u) trackers_[u].put_aside(window_);
    window_ = next;
  }

  SlotTracker<Element> trackers_[kSlots];
  uint32_t window_ = 0;  // where it begins
};

// Of a short run of words of 8- or 16-bit types, the best of all elements: key and index in one
// integer, whose minimum needs no branch. (Early in a run every word improves on something.)
template <class Element>
class ShortTracker {
  using Key = typename Element::Key;
  static constexpr int kElements = Slots<Element>::kElements;

 public:
  // Indices are below 2^16; number r of the words begins with `index + r * step`.
  template <int kWords>
  __device__ void take(Element element, const uint32_t (&words)[kWords], uint32_t index,
                       uint32_t step) {
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
#pragma unroll
      for (int pair = 0; pair < kElements / 2; ++pair) {
        const uint32_t keys = pair_of_keys(element, words[r], pair);
        const uint32_t first = index + r * step + pair, second = first + kElements / 2;
        best_ = std::min(best_, static_cast<int32_t>(__byte_perm(keys, first, 0x1054)));
        best_ = std::min(best_, static_cast<int32_t>(__byte_perm(keys, second, 0x3254)));
      }
    }
  }
  __device__ Near<Key> best() const {
    return {static_cast<Key>(best_ >> (32 - 8 * sizeof(Key))), uint32_t(best_) & 0xffff};
  }

 private:
  int32_t best_ = std::numeric_limits<int32_t>::max();
};

}  // namespace reduceops::cuda
