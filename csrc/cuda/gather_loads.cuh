// How threads of gather.cuh load the elements of their units: one by one, as packs of neighbouring
// outputs, or all of a group at once; for as many rows at a time as registers have room for.
#pragma once

#include "cuda/gather.cuh"
#include "cuda/keys.cuh"

namespace reduceops::cuda {

// What a unit has in a row that begins so far behind its first, as T. kByRow: where the compiler
// knows the number of the row, whose address is the same for all threads then.
template <class T, class Key, bool kByRow = false>
__device__ T element_of(const GatherProblem& p, GatherPlace at, uint32_t behind) {
  const auto* input = reinterpret_cast<const Key*>(p.input);
  return *reinterpret_cast<const T*>(kByRow ? input + behind + at.from
                                            : input + (at.from + behind));
}
// Four bytes that begin anywhere, of the one or two words that have them.
__device__ inline uint32_t realigned_word(const void* bytes) {
  const auto first = reinterpret_cast<uintptr_t>(bytes);
  const auto word = [](uintptr_t byte) {
    return *reinterpret_cast<const uint32_t*>(byte & ~uintptr_t(3));
  };
  return __funnelshift_r(word(first), word(first + 3), 8 * static_cast<uint32_t>(first));
}
// The same of a pack of bytes.
__device__ inline uint32_t realigned_of(const GatherProblem& p, GatherPlace at, uint32_t behind) {
  return realigned_word(p.input + (at.from + behind));
}
// The same, byte by byte.
__device__ inline uint32_t bytes_of(const GatherProblem& p, GatherPlace at, uint32_t behind) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(p.input) + (at.from + behind);
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | uint32_t(bytes[3]) << 24;
}

// Calls load(slot) with what loads a slot of these units, for no branch to come between loads.
// `behind`: that of their rows.
template <class Slot, class Key, bool kByRow = false, int kUnits, class Load>
__device__ void with_slots(const GatherProblem& p, const GatherPlace (&at)[kUnits], uint32_t behind,
                           Load load) {
  if constexpr (sizeof(Key) == 1 && sizeof(Slot) > 1) {
    if (p.realigned) {
      bool inside = true;  // the words, too
#pragma unroll
      for (int i = 0; i < kUnits; ++i) inside &= at[i].from - behind <= p.last_inside;
      return inside
                 ? load(
                       [&](GatherPlace at, uint32_t behind) { return realigned_of(p, at, behind); })
                 : load([&](GatherPlace at, uint32_t behind) { return bytes_of(p, at, behind); });
    }
  }
  load([&](GatherPlace at, uint32_t behind) {
    return element_of<Slot, Key, kByRow>(p, at, behind);
  });
}

// Loads the slots of rows from number `first` on; past the last row there is that one. (How rows
// lie is asked once, for no branch to come between loads.)
template <class Key, int kRows, int kUnits, class Slot>
__device__ void load_rows(const GatherProblem& p, Rows rows, uint32_t first,
                          const GatherPlace (&at)[kUnits], Slot (&slots)[kRows][kUnits]) {
  const uint32_t last = rows.count - 1;
  with_slots<Slot, Key>(p, at, rows.behind, [&](auto slot) {
    if (rows.even) {
      uint32_t from = first * rows.stride;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) slots[r][i] = slot(at[i], from);
        from = std::min(from + rows.stride, last * rows.stride);
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint32_t from = p.row_from[std::min(first + r, last)];
#pragma unroll
        for (int i = 0; i < kUnits; ++i) slots[r][i] = slot(at[i], from);
      }
    }
  });
}

// Loads of a unit at once, where there are any number: as many as find room in registers beside
// places.
template <class Key, int kUnits>
constexpr int kRowsAtOnce = loads_at_once(sizeof(Key)) / (kUnits > 1 ? 2 : 1);

// Calls batch(how many, number of the first) for all rows, kAtOnce at a time, and in the end a half
// or a quarter of them where these are enough, kLeast at least.
template <int kAtOnce, int kLeast = 1, class Batch>
__device__ void in_batches(uint32_t rows, Batch batch) {
  constexpr int kHalf = kAtOnce / 2, kQuarter = std::max(kHalf / 2, kLeast);
  uint32_t row = 0;
  REDUCEOPS_ROLLED
  for (; row + kHalf < rows; row += kAtOnce) batch(std::integral_constant<int, kAtOnce>(), row);
  if (row >= rows) return;
  if constexpr (kQuarter < kHalf) {
    if (row + kQuarter >= rows) return batch(std::integral_constant<int, kQuarter>(), row);
  }
  batch(std::integral_constant<int, kHalf>(), row);
}

// Calls take(slots, number of the first row) with so many rows at a time; past the last row there
// is that one.
template <class Key, class Slot, int kLeast = 1, int kUnits, class Take>
__device__ void take_batches(const GatherProblem& p, Rows rows, const GatherPlace (&at)[kUnits],
                             Take take) {
  in_batches<kRowsAtOnce<Key, kUnits>, kLeast>(
      rows.count, [&]<int kSome>(std::integral_constant<int, kSome>, uint32_t row) {
        Slot slots[kSome][kUnits];
        load_rows<Key>(p, rows, row, at, slots);
        take(slots, row);
      });
}

// The elements of a group that come in one load.
template <class Slot, int kRows>
struct alignas(kRows * sizeof(Slot)) RowLoad {
  Slot at[kRows];
};

// Loads the slots of all rows, whose number a kernel knows; perhaps in one load.
template <class Key, int kRows, int kUnits, class Slot>
__device__ void load_all_rows(const GatherProblem& p, const GatherPlace (&at)[kUnits],
                              Slot (&slots)[kRows][kUnits]) {
  if constexpr (may_load_rows(kRows, sizeof(Key)) && sizeof(Slot) == sizeof(Key)) {
    if (p.row_loads) {
      RowLoad<Slot, kRows> rows[kUnits];
#pragma unroll
      for (int i = 0; i < kUnits; ++i) rows[i] = element_of<RowLoad<Slot, kRows>, Key>(p, at[i], 0);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) slots[r][i] = rows[i].at[r];
      }
      return;
    }
  }
  with_slots<Slot, Key, true>(p, at, 0, [&](auto slot) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t from = r > 0 ? p.row_from[r] : 0;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) slots[r][i] = slot(at[i], from);
    }
  });
}

// Element number e of a slot.
template <class Key, class Slot>
__device__ Key element_in(Slot slot, int e) {
  return static_cast<Key>(slot >> (8 * int(sizeof(Key)) * e));
}

// Word number i of the slots of units: a slot, or the elements of so many units, side by side.
template <int kOfWord, int kUnits, class Slot>
__device__ uint32_t word_of(const Slot (&slots)[kUnits], int i) {
  uint32_t word = 0;
#pragma unroll
  for (int e = 0; e < kOfWord; ++e) word |= uint32_t(slots[i * kOfWord + e]) << (32 / kOfWord * e);
  return word;
}

// The value of an element with this key, which lies there.
template <class Element, class Key>
__device__ Key value_at(const GatherProblem& p, Element element, Key key, int64_t at) {
  Key value;
  if (!element.value_of_key(key, value))
    value = element.value(reinterpret_cast<const Key*>(p.input)[at]);
  return value;
}

}  // namespace reduceops::cuda
