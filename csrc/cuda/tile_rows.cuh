// Short rows of neighbouring elements in a tile of shared memory, wherever in a word they begin.
#pragma once

#include "cuda/trackers.cuh"

namespace reduceops::cuda {

// The best of a row of n neighbouring elements `row` bytes into `tile`, in more than kSure vectors
// and at most kVectors, the last of which may go past its end: one thread holds it.
template <int kVectors, int kSure, class Element, class Key = typename Element::Key>
__device__ Near<Key> hold_row(Element element, const char* tile, uint32_t row, uint32_t n) {
  using S = Slots<Element>;
  constexpr int kSlots = kLoadBytes / sizeof(typename S::Slot), kAll = kVectors * kSlots;
  constexpr int kWhole = kSure * kSlots;
  const typename S::Row slots(tile, row);
  const uint32_t last = (n - 1) / S::kElements;
  typename S::Slot slot[kAll];
#pragma unroll
  for (int i = 0; i < kAll; ++i) slot[i] = slots[i < kWhole ? i : std::min<uint32_t>(i, last)];
  if constexpr (S::kPacked) {
    // In place of elements past the end there are some of the last slot again.
    const uint32_t bytes = (n - last * S::kElements) * sizeof(Key);
    const uint32_t kept = bytes == 1 ? 0x0000 : bytes == 2 ? 0x1010 : bytes == 3 ? 0x2210 : 0x3210;
#pragma unroll
    for (int i = kWhole; i < kAll; ++i) slot[i] = __byte_perm(slot[i], 0, i < last ? 0x3210 : kept);
  }
  Vector<Key> held[kVectors];
  memcpy(held, slot, sizeof(held));
  const auto least = least_of(element, held);
  return {key_of_comparable(element, least), first_of(element, held, least)};
}

// The same; of a row of few small elements word by word.
template <int kVectors, int kSure, class Element, class Key = typename Element::Key>
__device__ Near<Key> short_row(Element element, const char* tile, uint32_t row, uint32_t n) {
  using S = Slots<Element>;
  if constexpr (S::kPacked && kVectors == 1) {
    const typename S::Row words(tile, row);
    ShortTracker<Element> tracker;
    const uint32_t whole = n / S::kElements, rest = n % S::kElements;
    for (uint32_t i = 0; i < whole; ++i) tracker.take(element, {words[i]}, i * S::kElements, 0);
    // In place of elements past the end there is the first of the rest again.
    if (rest > 0) {
      const uint32_t kept = sizeof(Key) == 2 ? 0x1010
                            : rest == 1      ? 0x0000
                            : rest == 2      ? 0x0010
                                             : 0x0210;
      tracker.take(element, {__byte_perm(words[whole], 0, kept)}, whole * S::kElements, 0);
    }
    return tracker.best();
  } else {
    return hold_row<kVectors, kSure>(element, tile, row, n);
  }
}

}  // namespace reduceops::cuda
