// Groups of a few elements, wherever they lie: a thread loads all elements of an output itself, or
// of a pack of neighbouring outputs, whose elements have 4 bytes. Where results follow each other
// in another order than memory, a block takes a tile of both, and its threads exchange results; or,
// if a warp's elements lie in few sectors even so, threads lie over results. Longer groups of small
// inputs are shared by threads of a block, so that each waits for memory a few times.
//
// Bound by memory; of small inputs by launch latency and by the chain of instructions from a
// thread's number to its result. So positions have 32 bits, divisors come from the host, and
// elements do not go by way of shared memory. Without this walk, inputs of 4 to 40 MB whose groups
// have up to 32 elements take 1.3 times as long (median of random layouts on an H100).
#include "cuda/gather.h"

#include "cuda/combine.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

struct GatherDim {
  uint32_t size, stride, step;
};

// Results that a thread of a tile stores at once, aligned: indices fill 16 bytes.
constexpr uint32_t kIndexRun = 2;
constexpr uint32_t run_of_values(int64_t bytes) { return bytes < 4 ? 4 : 2; }

struct GatherProblem {
  const char* input;
  Outputs out;
  uint32_t units;  // over `dims`; of a thread that has several, the first ones
  uint32_t rows, index_step;
  uint32_t row_stride;             // of one reduced dim
  uint32_t row_from[kGatherRows];  // where rows begin, of groups that a thread has by itself
  uint32_t neighbour_step;         // from a result to that of the next element of a pack
  bool row_loads, even_rows, realigned;
  int count, all;               // dims of units; with those across a tile
  GatherDim dims[kGatherDims];  // as dims_of has them
  // Of threads that have several units, that along which these lie, which dims leave out; where it
  // is among them, and from a unit to the next one.
  GatherDim along;
  int along_number;
  uint32_t spacing;
  uint32_t last_from, last_to;  // of the last pack of a row of neighbours, from the first on
  int64_t last_inside;  // of packs that begin anywhere: up to there, all words end in the input
  ShortDivisor by_size[kGatherDims];
  // Of tiles.
  uint32_t inner_side, cross_side;
  uint32_t inner_lanes, cross_lanes, tile_threads;
  uint32_t tile_units, next_inner, next_across;  // of a thread; from one of them to the next
  uint32_t whole_bands, last_band, band_blocks;  // tiles of the last band; blocks of a whole one
  uint32_t crosses;                              // positions across, of all tiles
  uint32_t pitch, next_cross;                    // in shared memory, from a result to others
  ShortDivisor by_inner_lanes, by_cross_lanes, by_cross_side, by_band_blocks, by_last_band;
  bool in_runs;  // whether the results across lie side by side, in whole runs: so many of them
  uint32_t index_runs, value_runs;
  ShortDivisor by_index_runs, by_value_runs;
  uint32_t shares;

  GatherProblem(const Problem& p, const Groups& groups, int64_t bytes)
      : input(p.input),
        out(p.out),
        rows(static_cast<uint32_t>(p.walk)),
        row_stride(0),
        index_step(1) {
    const Gather& plan = p.plan.gather;
    const Dims reduced = by_step(groups.reduced);
    if (reduced.count > 0) {
      row_stride = static_cast<uint32_t>(reduced.dim[0].stride);
      index_step = static_cast<uint32_t>(reduced.dim[0].step);
    }
    for (uint32_t row = 0; !plan.shared() && row < rows; ++row)
      row_from[row] = static_cast<uint32_t>(place(reduced.dim, reduced.count, row).offset);
    const int64_t width = plan.width(bytes);
    const Dims kept = dims_of(plan, groups);
    neighbour_step = static_cast<uint32_t>(kept.dim[0].step);
    row_loads = plan.row_loads;
    realigned = plan.realigned;
    last_inside = last_inside_of(groups);
    even_rows = reduced.count <= 1;
    shares = static_cast<uint32_t>(plan.shares);
    all = kept.count;
    count = all - (plan.tiled() ? dims_across(groups) : 0);
    const auto short_dim = [](const Dim& dim) {
      return GatherDim{static_cast<uint32_t>(dim.size), static_cast<uint32_t>(dim.stride),
                       static_cast<uint32_t>(dim.step)};
    };
    units = crosses = 1;
    in_runs = !out.pairs.words && is_aligned(out.indices) && is_aligned(out.values);
    for (int d = 0; d < all; ++d) {
      Dim dim = kept.dim[d];
      if (d == 0) {
        last_from = static_cast<uint32_t>(dim.size - width);
        last_to = last_from * neighbour_step;
        dim = {plan.units_of(dim, bytes), dim.stride * width, dim.step * width};
      }
      dims[d] = short_dim(dim);
      by_size[d] = ShortDivisor(dim.size);
      if (d >= count) in_runs &= dim.step == crosses;
      (d < count ? units : crosses) *= dims[d].size;
    }
    if (!plan.tiled() && !plan.shared()) {
      const UnitsAlong units_along = units_along_of(plan, groups, bytes);
      along_number = units_along.dim;
      spacing = static_cast<uint32_t>(units_along.spacing);
      along = dims[along_number];
      units = units / along.size * static_cast<uint32_t>(units_along.threads);
      dims[along_number] = {static_cast<uint32_t>(units_along.threads), 0, 0};
      by_size[along_number] = ShortDivisor(units_along.threads);
    }
    if (!plan.tiled()) return;
    inner_side = static_cast<uint32_t>(plan.inner_side);
    cross_side = static_cast<uint32_t>(plan.cross_side);
    const int64_t inner_tiles = ceil_div(units, inner_side);
    const int64_t cross_tiles = ceil_div(crosses, cross_side);
    whole_bands = static_cast<uint32_t>(inner_tiles / kGatherBand);
    last_band = static_cast<uint32_t>(inner_tiles % kGatherBand);
    band_blocks = static_cast<uint32_t>(std::min(inner_tiles, kGatherBand) * cross_tiles);
    by_band_blocks = ShortDivisor(band_blocks);
    by_last_band = ShortDivisor(std::max<int64_t>(last_band, 1));
    inner_lanes = static_cast<uint32_t>(plan.inner_lanes);
    cross_lanes = static_cast<uint32_t>(plan.cross_lanes);
    by_inner_lanes = ShortDivisor(inner_lanes);
    by_cross_lanes = ShortDivisor(cross_lanes);
    tile_threads = static_cast<uint32_t>(plan.tile_threads());
    tile_units = static_cast<uint32_t>(plan.units);
    next_across = plan.along_cross() ? cross_lanes : 0;
    next_inner = plan.along_cross() ? 0 : inner_side / tile_units;
    by_cross_side = ShortDivisor(cross_side);
    const uint32_t value_run = run_of_values(bytes);
    in_runs &= (!out.indices || has_runs(kIndexRun)) && (!out.values || has_runs(value_run));
    index_runs = cross_side / kIndexRun;
    value_runs = cross_side / value_run;
    by_index_runs = ShortDivisor(std::max(index_runs, 1u));
    by_value_runs = ShortDivisor(std::max(value_runs, 1u));
    pitch = static_cast<uint32_t>(plan.pitch(bytes));
    next_cross = plan.copied ? 0 : 1;
  }

 private:
  bool has_runs(uint32_t run) const {
    return crosses % run == 0 && (cross_side >= crosses || cross_side % run == 0);
  }
  static bool is_aligned(const void* results) {
    return reinterpret_cast<uintptr_t>(results) % kLoadBytes == 0;
  }
  // Of a unit's first byte, so that the word with the last one of any row ends where the input
  // does, or before.
  int64_t last_inside_of(const Groups& groups) const {
    int64_t reach = 0, last = 0;
    for (int d = 0; d < groups.reduced.count; ++d)
      reach += (groups.reduced.dim[d].size - 1) * groups.reduced.dim[d].stride;
    for (int d = 0; d < groups.kept.count; ++d)
      last += (groups.kept.dim[d].size - 1) * groups.kept.dim[d].stride;
    const int64_t end = last + reach + 1, behind = (reinterpret_cast<uintptr_t>(input) + end) % 4;
    return end - behind - 4 - reach;
  }
};

// Where the elements of a unit begin, and where its results go.
struct GatherPlace {
  uint32_t from = 0, to = 0;

  __device__ void add(const GatherDim& dim, uint32_t digit) {
    from += digit * dim.stride;
    to += digit * dim.step;
  }
  // That of a unit by its number, from nowhere.
  template <bool kPacked>
  __device__ void add_unit(const GatherProblem& p, uint32_t unit) {
    add_digits(p, unit, [&](int d, uint32_t) {
      if (!kPacked || d > 0) return;
      from = std::min(from, p.last_from);
      to = std::min(to, p.last_to);
    });
  }
  // The same, dim by dim, after each of which there is a call added(d, digit). Of the first dims,
  // what it takes are constants of instructions, not loads.
  template <class Added>
  __device__ void add_digits(const GatherProblem& p, uint32_t unit, Added added) {
    constexpr int kUnrolled = 3;
#pragma unroll
    for (int d = 0; d < kUnrolled; ++d) {
      const bool is_last = d + 1 == p.count;
      const uint32_t over = is_last ? 0 : p.by_size[d].quotient(unit);
      const uint32_t digit = is_last ? unit : unit - over * p.dims[d].size;
      add(p.dims[d], digit);
      added(d, digit);
      if (is_last) return;
      unit = over;
    }
    add_rest(p, kUnrolled, p.count, unit, added);
  }
  // That of a position across a tile.
  __device__ void add_across(const GatherProblem& p, uint32_t cross) {
    add_rest(p, p.count, p.all, cross, [](int, uint32_t) {});
  }

 private:
  template <class Added>
  __device__ void add_rest(const GatherProblem& p, int d, int end, uint32_t number, Added added) {
    REDUCEOPS_ROLLED
    for (; d + 1 < end; ++d) {
      const uint32_t over = p.by_size[d].quotient(number), digit = number - over * p.dims[d].size;
      add(p.dims[d], digit);
      added(d, digit);
      number = over;
    }
    add(p.dims[d], number);
    added(d, number);
  }
};

// The rows of a unit, or those of one of the threads that share it: every so many.
struct Rows {
  uint32_t count, stride;
  bool even;  // whether they lie so far apart; else the problem says where they begin

  __device__ uint32_t from(const GatherProblem& p, uint32_t row) const {
    return even ? row * stride : p.row_from[row];
  }
};

// What a unit has in a row that begins so far behind its first, as T.
template <class T, class Key>
__device__ T element_of(const GatherProblem& p, GatherPlace at, uint32_t behind) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const Key*>(p.input) + (at.from + behind));
}
// The same of a pack of bytes that begins anywhere, of the one or two words that have them.
__device__ inline uint32_t realigned_of(const GatherProblem& p, GatherPlace at, uint32_t behind) {
  const auto first = reinterpret_cast<uintptr_t>(p.input) + (at.from + behind);
  const auto word = [](uintptr_t byte) {
    return *reinterpret_cast<const uint32_t*>(byte & ~uintptr_t(3));
  };
  return __funnelshift_r(word(first), word(first + 3), 8 * static_cast<uint32_t>(first));
}
// The same, byte by byte.
__device__ inline uint32_t bytes_of(const GatherProblem& p, GatherPlace at, uint32_t behind) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(p.input) + (at.from + behind);
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | uint32_t(bytes[3]) << 24;
}

// Calls load(slot) with what loads a slot of these units, for no branch to come between loads.
template <class Slot, class Key, int kUnits, class Load>
__device__ void with_slots(const GatherProblem& p, const GatherPlace (&at)[kUnits], Load load) {
  if constexpr (sizeof(Key) == 1 && sizeof(Slot) > 1) {
    if (p.realigned) {
      bool inside = true;  // the words, too
#pragma unroll
      for (int i = 0; i < kUnits; ++i) inside &= at[i].from <= p.last_inside;
      return inside
                 ? load(
                       [&](GatherPlace at, uint32_t behind) { return realigned_of(p, at, behind); })
                 : load([&](GatherPlace at, uint32_t behind) { return bytes_of(p, at, behind); });
    }
  }
  load([&](GatherPlace at, uint32_t behind) { return element_of<Slot, Key>(p, at, behind); });
}

// Loads the slots of rows from number `first` on, kSome at a time as long as there are any: past
// the last row it is that one, and where no more are loaded, slots stay as they are. kWhole: all of
// them are there. (How rows lie is asked once, for no branch to come between loads.)
template <class Key, int kSome = 1, bool kWhole = false, int kRows, int kUnits, class Slot>
__device__ void load_rows(const GatherProblem& p, Rows rows, uint32_t first,
                          const GatherPlace (&at)[kUnits], Slot (&slots)[kRows][kUnits]) {
  const auto load = [&](auto from, auto slot) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!kWhole && r > 0 && r % kSome == 0 && first + r >= rows.count) break;
      const uint32_t row = !kWhole && kSome > 1 ? std::min(first + r, rows.count - 1) : first + r;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) slots[r][i] = slot(at[i], from(row));
    }
  };
  with_slots<Slot, Key>(p, at, [&](auto slot) {
    if (rows.even) {
      load([&](uint32_t row) { return row * rows.stride; }, slot);
    } else {
      load([&](uint32_t row) { return p.row_from[row]; }, slot);
    }
  });
}

// The same of all rows, whose number a kernel knows; perhaps in one load.
template <class Key, int kRows, int kUnits, class Slot>
__device__ void load_all_rows(const GatherProblem& p, const GatherPlace (&at)[kUnits],
                              Slot (&slots)[kRows][kUnits]) {
  if constexpr (may_load_rows(kRows, sizeof(Key)) && sizeof(Slot) == sizeof(Key)) {
    if (p.row_loads) {
      struct alignas(kRows * sizeof(Key)) Row {
        Slot at[kRows];
      } rows[kUnits];
      const auto* input = reinterpret_cast<const Key*>(p.input);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) rows[i] = *reinterpret_cast<const Row*>(input + at[i].from);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) slots[r][i] = rows[i].at[r];
      }
      return;
    }
  }
  with_slots<Slot, Key>(p, at, [&](auto slot) {
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

// The best of each output of some units, whose elements begin at places: of kRows elements, or of
// any number. The constructor's last argument: whether positions are asked for.
template <bool kPacked, int kUnits, int kRows, class Element>
class Bests {
  using S = Slots<Element>;
  using Key = typename S::Key;

 public:
  static constexpr int kWidth = kPacked ? S::kElements : 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows, const GatherPlace (&at)[kUnits],
                   bool)
      : element_(element) {
    using Slot = std::conditional_t<kPacked, typename S::Slot, std::make_unsigned_t<Key>>;
    Slot slots[kRows][kUnits];
    load_all_rows<Key>(p, at, slots);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          bests_[i][e].take(element, element_in<Key>(slots[r][i], e), r, r == 0);
      }
    }
  }
  __device__ uint32_t position(int unit, int e) const { return bests_[unit][e].row(); }
  __device__ Key value(int unit, int e) const { return element_.value(bests_[unit][e].bits()); }

 private:
  Element element_;
  Winner<Element> bests_[kUnits][kWidth];
};

// Of rows of four 16-bit floats: two at once, those of two units, or where a row comes in one load,
// two of its own. Which row the best is of is found where positions are asked for, or where its
// value does not follow from its order (a zero, a NaN).
template <int kUnits, int kRows, class Element>
  requires(kIsHalf<Element> && kRows == 4)
class Bests<false, kUnits, kRows, Element> {
  static_assert(kUnits % 2 == 0);
  using Key = typename Element::Key;
  using Format = typename Element::Format;
  static constexpr int kPairs = kUnits / 2;

 public:
  static constexpr int kWidth = 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows, const GatherPlace (&at)[kUnits],
                   bool positions)
      : element_(element) {
    if (p.row_loads) {
      struct alignas(kRows * sizeof(Key)) Row {
        uint32_t pairs[kRows / 2];
      } rows[kUnits];
#pragma unroll
      for (int i = 0; i < kUnits; ++i) rows[i] = element_of<Row, Key>(p, at[i], 0);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) along(rows[i].pairs, positions, i);
    } else {
      uint16_t slots[kRows][kUnits];
      load_all_rows<Key>(p, at, slots);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        uint32_t pairs[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) pairs[r] = word_of<2>(slots[r], i);
        across(pairs, positions, i);
      }
    }
  }
  __device__ uint32_t position(int unit, int) const { return half_of(found_, unit) & 0xffff; }
  __device__ Key value(int unit, int) const {
    const auto best = static_cast<Key>(half_of(best_, unit));
    return is_ambiguous<Element>(best) ? element_.value(static_cast<Key>(half_of(bits_, unit)))
                                       : value_of_ordered(element_, best);
  }

 private:
  template <int kSome>
  __device__ void order(const uint32_t (&elements)[kSome], uint32_t (&pairs)[kSome]) const {
#pragma unroll
    for (int i = 0; i < kSome; ++i) pairs[i] = elements[i];
    scale_pairs(element_, pairs);
#pragma unroll
    for (uint32_t& pair : pairs) pair = ordered_pair(of_values(element_), pair);
  }
  // Pairs of which each half is of a unit.
  __device__ void across(const uint32_t (&elements)[kRows], bool positions, int i) {
    uint32_t pairs[kRows];
    order(elements, pairs);
    uint32_t smallest = pairs[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) smallest = smaller_pair<Element>(smallest, pairs[r]);
    best_[i] = smallest;
    if (!positions && !is_ambiguous<Element>(smallest) && !is_ambiguous<Element>(smallest >> 16))
      return;
    found_[i] = (kRows - 1) * kBoth;
    bits_[i] = elements[kRows - 1];
#pragma unroll
    for (int r = kRows - 2; r >= 0; --r) {
      const uint32_t same = like<Format>(pairs[r], smallest);
      found_[i] = choose_halves(same, r * kBoth, found_[i]);
      bits_[i] = choose_halves(same, elements[r], bits_[i]);
    }
  }
  // Those of a unit.
  __device__ void along(const uint32_t (&elements)[kRows / 2], bool positions, int unit) {
    uint32_t pairs[kRows / 2];
    order(elements, pairs);
    uint32_t smallest = pairs[0];
#pragma unroll
    for (int i = 1; i < kRows / 2; ++i) smallest = smaller_pair<Element>(smallest, pairs[i]);
    smallest = smaller_pair<Element>(smallest, __funnelshift_r(smallest, smallest, 16));
    put(best_, unit, smallest);
    if (!positions && !is_ambiguous<Element>(smallest)) return;
    uint32_t found = 0, bits = 0;
#pragma unroll
    for (int r = kRows - 1; r >= 0; --r) {
      const uint32_t same = like<Format>(pairs[r / 2], smallest) >> (r % 2 * 16) & 1;
      if (r < kRows - 1 && !same) continue;
      found = r;
      bits = elements[r / 2] >> (r % 2 * 16);
    }
    put(found_, unit, found);
    put(bits_, unit, bits);
  }
  static __device__ uint32_t half_of(const uint32_t (&pairs)[kPairs], int unit) {
    return pairs[unit / 2] >> (16 * (unit % 2));
  }
  static __device__ void put(uint32_t (&pairs)[kPairs], int unit, uint32_t half) {
    uint32_t& pair = pairs[unit / 2];
    pair = __byte_perm(pair, half, unit % 2 ? 0x5410 : 0x3254);
  }

  const Element element_;
  uint32_t best_[kPairs] = {}, bits_[kPairs] = {}, found_[kPairs] = {};  // found: rows
};

// The number of a row that a thread has finds room in 16 bits.
static_assert(std::max(kGatherRows, kSharedGatherRows) < 1 << 16);

// Loads of a unit at once, where there are any number: as many as find room in registers beside
// places.
template <class Key, int kUnits>
constexpr int kRowsAtOnce = loads_at_once(sizeof(Key)) / (kUnits > 1 ? 2 : 1);

template <bool kPacked, int kUnits, class Element>
class Bests<kPacked, kUnits, kAnyRows, Element> {
  using S = Slots<Element>;
  using Key = typename S::Key;
  using Slot = std::conditional_t<kPacked, typename S::Slot, std::make_unsigned_t<Key>>;

 public:
  static constexpr int kWidth = sizeof(Slot) / sizeof(Key);

  __device__ Bests(const GatherProblem& p, Element element, Rows rows,
                   const GatherPlace (&at)[kUnits], bool)
      : element_(element) {
    uint32_t row = 0;
    REDUCEOPS_ROLLED
    for (; row + kAtOnce <= rows.count; row += kAtOnce) take<true>(p, rows, row, at);
    if (row < rows.count) take<false>(p, rows, row, at);
  }
  __device__ uint32_t position(int unit, int e) const { return bests_[unit][e].row(); }
  __device__ Key key(int unit, int e) const { return element_.key(bests_[unit][e].bits()); }
  __device__ Key value(int unit, int e) const { return element_.value(bests_[unit][e].bits()); }

 private:
  static constexpr int kAtOnce = kRowsAtOnce<Key, kUnits>;

  // Rows from number `row` on, as many as are loaded at once, or what is left of them: of whole
  // ones, nothing is asked between loads.
  template <bool kWhole>
  __device__ void take(const GatherProblem& p, Rows rows, uint32_t row,
                       const GatherPlace (&at)[kUnits]) {
    Slot slots[kAtOnce][kUnits];
    load_rows<Key, 1, kWhole>(p, rows, row, at, slots);
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (!kWhole && r > 0 && row + r >= rows.count) break;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
#pragma unroll
        for (int e = 0; e < kWidth; ++e)
          bests_[i][e].take(element_, element_in<Key>(slots[r][i], e), row + r, r == 0 && row == 0);
      }
    }
  }

  const Element element_;
  Winner<Element> bests_[kUnits][kWidth];
};

// Of 16-bit integers: a key above the row that it is of, in one integer, of which the smallest is
// the best of any.
template <bool kPacked, int kUnits, int kRows, class Element>
class BestsOfShorts {
  using Key = typename Element::Key;
  using Slot = std::conditional_t<kPacked, uint32_t, uint16_t>;

 public:
  static constexpr int kWidth = kPacked ? 2 : 1;

  __device__ BestsOfShorts(const GatherProblem& p, Element element, Rows rows,
                           const GatherPlace (&at)[kUnits], bool)
      : element_(element) {
#pragma unroll
    for (auto& bests : bests_) {
#pragma unroll
      for (int32_t& best : bests) best = std::numeric_limits<int32_t>::max();
    }
    if constexpr (kRows != kAnyRows) {
      Slot slots[kRows][kUnits];
      load_all_rows<Key>(p, at, slots);
      take(slots, 0, kRows);
    } else {
      constexpr int kAtOnce = kRowsAtOnce<Key, kUnits>;
      for (uint32_t row = 0; row < rows.count; row += kAtOnce) {
        Slot slots[kAtOnce][kUnits];
        load_rows<Key>(p, rows, row, at, slots);
        take(slots, row, rows.count);
      }
    }
  }
  __device__ uint32_t position(int unit, int e) const { return bests_[unit][e] & 0xffff; }
  __device__ Key key(int unit, int e) const { return static_cast<Key>(bests_[unit][e] >> 16); }
  __device__ Key value(int unit, int e) const {
    Key value;
    element_.value_of_key(key(unit, e), value);
    return value;
  }

 private:
  // Rows from number `row` on, as far as they are before `end`.
  template <int kSome>
  __device__ void take(const Slot (&slots)[kSome][kUnits], uint32_t row, uint32_t end) {
#pragma unroll
    for (int r = 0; r < kSome; ++r) {
      if (r > 0 && row + r >= end) break;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const uint32_t keys = pair_of_keys(element_, uint32_t(slots[r][i]));
        take(bests_[i][0], __byte_perm(keys, row + r, 0x1054));
        if constexpr (kPacked) take(bests_[i][1], __byte_perm(keys, row + r, 0x3254));
      }
    }
  }
  static __device__ void take(int32_t& best, uint32_t other) {
    best = std::min(best, static_cast<int32_t>(other));
  }

  const Element element_;
  int32_t bests_[kUnits][kWidth];
};

template <bool kPacked, int kUnits, int kRows, class Element>
  requires(kIsShort<Element> && kRows != kAnyRows)
class Bests<kPacked, kUnits, kRows, Element>
    : public BestsOfShorts<kPacked, kUnits, kRows, Element> {
  using BestsOfShorts<kPacked, kUnits, kRows, Element>::BestsOfShorts;
};
template <bool kPacked, int kUnits, class Element>
  requires(kIsShort<Element>)
class Bests<kPacked, kUnits, kAnyRows, Element>
    : public BestsOfShorts<kPacked, kUnits, kAnyRows, Element> {
  using BestsOfShorts<kPacked, kUnits, kAnyRows, Element>::BestsOfShorts;
};

// 16-bit floats. A word holds a pack, the elements of two units, or one element. Which row the best
// is of is found where positions are asked for; else a value that does not follow from its order (a
// zero, a NaN) is looked for in the end.
template <bool kPacked, int kUnits, class Element>
  requires(kIsHalf<Element>)
class Bests<kPacked, kUnits, kAnyRows, Element> {
  static_assert(kPacked || kUnits == 1 || kUnits % 2 == 0);
  using Key = typename Element::Key;
  using Format = typename Element::Format;
  using Slot = std::conditional_t<kPacked, uint32_t, uint16_t>;
  static constexpr bool kPaired = !kPacked && kUnits > 1;
  static constexpr int kPairs = kPaired ? kUnits / 2 : kUnits;
  // Rows that are taken together. Two at least: a NaN gets the bits that `is_ambiguous` knows where
  // it is compared, if with itself.
  static constexpr int kCompared = 2;

 public:
  static constexpr int kWidth = kPacked ? 2 : 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows rows,
                   const GatherPlace (&at)[kUnits], bool positions)
      : p_(p), element_(element), rows_(rows), at_(at), positions_(positions) {
    constexpr int kAtOnce = kRowsAtOnce<Key, kUnits>;
    for (uint32_t row = 0; row < rows.count; row += kAtOnce) {
      // Past the end there is the last row again, which changes nothing.
      Slot slots[kAtOnce][kUnits];
      load_rows<Key, kCompared>(p, rows, row, at, slots);
      row > 0 ? take_some<false>(slots, row) : take_some<true>(slots, 0);
    }
  }
  // Should somebody have written to the last row while it was read twice, it is that one.
  __device__ uint32_t position(int unit, int e) const {
    return std::min(half_of(found_, unit, e) & 0xffff, rows_.count - 1);
  }
  __device__ Key key(int unit, int e) const {
    return key_of_ordered(element_, static_cast<Key>(half_of(best_, unit, e)));
  }
  __device__ Key value(int unit, int e) const {
    const auto best = static_cast<Key>(half_of(best_, unit, e));
    // Of zeros the smaller is the negative one, so where that is +0 there is no other.
    if (!is_ambiguous<Element>(best) || best == 0) return value_of_ordered(element_, best);
    return element_.value(bits(unit, e, positions_ ? position(unit, e) : row_like(best, unit, e)));
  }

 private:
  __device__ Key bits(int unit, int e, uint32_t row) const {
    return reinterpret_cast<const Key*>(p_.input)[at_[unit].from + e + rows_.from(p_, row)];
  }
  // The first row that has a zero, or a NaN, as `best` is.
  __device__ uint32_t row_like(Key best, int unit, int e) const {
    constexpr Key kSign = std::numeric_limits<Key>::min();
    const bool is_zero = (best & ~kSign) == 0;
    uint32_t row = 0;
    REDUCEOPS_ROLLED
    for (; row + 1 < rows_.count; ++row) {
      const float here = Format::decode(element_.value(bits(unit, e, row)));
      if (is_zero ? here == 0 : here != here) break;
    }
    return row;
  }
  template <class Pairs>
  static __device__ uint32_t half_of(const Pairs& pairs, int unit, int e) {
    return kPaired ? pairs[unit / 2] >> (16 * (unit % 2)) : pairs[unit] >> (16 * e);
  }
  // Rows from number `row` on; at the end of an odd number of them, the last one twice.
  template <bool kFirst, int kSome>
  __device__ void take_some(const Slot (&slots)[kSome][kUnits], uint32_t row) {
#pragma unroll
    for (int r = 0; r < kSome; r += kCompared) {
      if (r > 0 && row + r >= rows_.count) break;
      uint32_t pairs[kCompared][kPairs];
#pragma unroll
      for (int c = 0; c < kCompared; ++c) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) pairs[c][i] = word_of<kPaired ? 2 : 1>(slots[r + c], i);
        scale_pairs(element_, pairs[c]);
#pragma unroll
        for (uint32_t& pair : pairs[c]) pair = ordered_pair(of_values(element_), pair);
      }
      const bool first = kFirst && r == 0;
      positions_ ? take<true>(pairs, row + r, first) : take<false>(pairs, row + r, first);
    }
  }
  template <bool kPositions>
  __device__ void take(const uint32_t (&pairs)[kCompared][kPairs], uint32_t row, bool first) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int c = 0; c < kCompared; ++c) {
        const uint32_t here = pairs[c][i];
        if (first && c == 0) {
          best_[i] = here;
          continue;
        }
        if (kPositions)
          found_[i] =
              choose_halves(winning_halves<Format>(here, best_[i]), (row + c) * kBoth, found_[i]);
        best_[i] = smaller_pair<Element>(best_[i], here);
      }
    }
  }

  const GatherProblem& p_;
  const Element element_;
  const Rows rows_;
  const GatherPlace (&at_)[kUnits];
  const bool positions_;
  uint32_t best_[kPairs], found_[kPairs] = {};  // rows
};

// Of bytes, those of a pack, or of four units, which are compared two at once.
template <bool kPacked, int kUnits, class Element>
  requires(sizeof(typename Element::Key) == 1 && (kPacked || kUnits % 4 == 0))
class Bests<kPacked, kUnits, kAnyRows, Element> {
  using Key = typename Element::Key;
  using Slot = std::conditional_t<kPacked, uint32_t, uint8_t>;
  static constexpr int kUnitsOfWord = kPacked ? 1 : 4, kWords = kUnits / kUnitsOfWord;

 public:
  static constexpr int kWidth = kPacked ? 4 : 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows rows,
                   const GatherPlace (&at)[kUnits], bool)
      : p_(p), element_(element), rows_(rows), at_(at) {
    constexpr int kAtOnce = kRowsAtOnce<Key, kUnits>, kCompared = std::min(kAtOnce, 4);
    for (uint32_t row = 0; row < rows.count; row += kAtOnce) {
      // Past the end there is the last row again, which changes nothing.
      Slot slots[kAtOnce][kUnits];
      load_rows<Key, kCompared>(p, rows, row, at, slots);
#pragma unroll
      for (int r = 0; r < kAtOnce; r += kCompared) {
        uint32_t compared[kWords][kCompared];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
#pragma unroll
          for (int c = 0; c < kCompared; ++c)
            compared[i][c] = word_of<kUnitsOfWord>(slots[r + c], i);
        }
        if (r == 0 || row + r < rows.count) tracker_.take(element, compared, row + r);
      }
    }
    tracker_.finish();
  }
  // Should somebody have written to the last row while it was read twice, it is that one.
  __device__ uint32_t position(int unit, int e) const {
    return std::min(tracker_.turn(unit / kUnitsOfWord, e + unit % kUnitsOfWord), rows_.count - 1);
  }
  __device__ Key key(int unit, int e) const {
    return tracker_.key(element_, unit / kUnitsOfWord, e + unit % kUnitsOfWord);
  }
  __device__ Key value(int unit, int e) const {
    return value_at(p_, element_, key(unit, e),
                    at_[unit].from + e + rows_.from(p_, position(unit, e)));
  }

 private:
  const GatherProblem& p_;
  const Element element_;
  const Rows rows_;
  const GatherPlace (&at_)[kUnits];
  Tracker<Element, kWords> tracker_;
};

// Blocks that shall find room in a multiprocessor: as many as there are threads for, but words of
// bytes, of any number of rows, take more registers.
template <class Key>
constexpr int gather_blocks(int rows, bool words) {
  return rows == kAnyRows && words && sizeof(Key) == 1 ? 5 : 8;
}

template <bool kPacked, int kUnits, int kRows, class Element>
__global__ void __launch_bounds__(kThreads,
                                  gather_blocks<typename Element::Key>(kRows,
                                                                       kPacked || kUnits > 1))
    gather(const __grid_constant__ GatherProblem p, const Element element) {
  using Key = typename Element::Key;
  using Of = Bests<kPacked, kUnits, kRows, Element>;
  const uint32_t number = blockIdx.x * uint32_t(kThreads) + threadIdx.x;
  GatherPlace first, at[kUnits];
  uint32_t along = 0;
  first.add_digits(p, std::min(number, p.units - 1),
                   [&](int d, uint32_t digit) { along = d == p.along_number ? digit : along; });
  along = (along & -p.spacing) * kUnits | (along & (p.spacing - 1));
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    at[i] = first;
    at[i].add(p.along, std::min(along + i * p.spacing, p.along.size - 1));
  }
  const bool indices = p.out.indices || p.out.pairs.words;
  const Of bests(p, element, {p.rows, p.row_stride, p.even_rows}, at, indices);
  if (number >= p.units) return;
  // There are threads beyond a dim that they do not divide.
  const auto has = [&](int i) { return along + i * p.spacing < p.along.size; };
  if constexpr (Of::kWidth > 1) {
    if (p.neighbour_step == 1 && !p.out.pairs.words) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (!has(i)) continue;
        uint32_t indices[Of::kWidth];
#pragma unroll
        for (int e = 0; e < Of::kWidth; ++e) indices[e] = bests.position(i, e) * p.index_step;
        if (p.out.indices) p.out.put_indices(at[i].to, Of::kWidth, indices);
        if (p.out.values)
          p.out.template put_values<Key, Of::kWidth>(at[i].to,
                                                     [&](int e) { return bests.value(i, e); });
      }
      return;
    }
  }
  p.out.template put_each<Key>(
      [&](auto put) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          if (!has(i)) continue;
#pragma unroll
          for (int e = 0; e < Of::kWidth; ++e) put(at[i].to + e * p.neighbour_step, i, e);
        }
      },
      [&](int i, int e) { return bests.position(i, e) * p.index_step; },
      [&](int i, int e) { return bests.value(i, e); });
}

// Blocks that shall find room in a multiprocessor: packs of bytes take more registers.
template <bool kPacked, class Key>
constexpr int tile_blocks = kPacked && sizeof(Key) == 1 ? 3 : 4;

// The tile of a block in shared memory: where units and positions across lie, and where their
// results go; of each result its value and position. Of copies there is one.
template <class Key, uint32_t kWidth>
struct GatherTile {
  const GatherProblem& p;
  uint32_t *from, *to;  // [inner, then cross]
  Key* values;          // [inner][width][cross]
  uint8_t* positions;   // the same
  uint32_t inners, first_cross, crosses;

  __device__ explicit GatherTile(const GatherProblem& p)
      : p(p),
        from(reinterpret_cast<uint32_t*>(dynamic_shared())),
        to(from + p.inner_side + p.cross_side),
        values(reinterpret_cast<Key*>(to + p.inner_side + p.cross_side)),
        positions(reinterpret_cast<uint8_t*>(values + p.inner_side * kWidth * p.pitch)) {
    const uint32_t band = p.by_band_blocks.quotient(blockIdx.x);
    const uint32_t in_band = blockIdx.x - band * p.band_blocks;
    const bool is_whole = band < p.whole_bands;
    const uint32_t tiles = is_whole ? uint32_t(kGatherBand) : p.last_band;
    const uint32_t cross_tile = is_whole ? in_band / kGatherBand : p.by_last_band.quotient(in_band);
    const uint32_t first = (band * kGatherBand + in_band - cross_tile * tiles) * p.inner_side;
    inners = std::min(p.inner_side, p.units - first);
    first_cross = cross_tile * p.cross_side;
    crosses = std::min(p.cross_side, p.crosses - first_cross);
    for (uint32_t i = threadIdx.x; i < p.inner_side + p.cross_side; i += kThreads) {
      GatherPlace at;
      if (i < p.inner_side) {
        at.template add_unit<(kWidth > 1)>(p, std::min(first + i, p.units - 1));
      } else {
        at.add_across(p, std::min(first_cross + i - p.inner_side, p.crosses - 1));
      }
      from[i] = at.from;
      to[i] = at.to;
    }
    __syncthreads();
  }

  // Threads lie over the results in their order.
  __device__ void store() const {
    if (p.in_runs) {
      if (p.out.indices) store_indices();
      if (p.out.values) store_values();
    } else if (p.out.index_bytes != 8 || p.out.pairs.words) {
      each([&](uint32_t to, uint32_t slot) { p.out.put(to, index(slot), value_in(slot)); });
    } else if (p.out.values) {
      each([&](uint32_t to, uint32_t slot) {
        static_cast<Key*>(p.out.values)[to] = values[slot];
        if (p.out.indices) put_index(to, slot);
      });
    } else {
      each([&](uint32_t to, uint32_t slot) { put_index(to, slot); });
    }
  }

 private:
  // Where the results of a row go, and where they lie in shared memory.
  __device__ uint32_t result_of_row(uint32_t row) const {
    return to[row / kWidth] + row % kWidth * p.neighbour_step;
  }
  __device__ uint32_t slot(uint32_t row, uint32_t cross) const {
    return row * p.pitch + cross * p.next_cross;
  }
  __device__ uint32_t index(uint32_t slot) const { return positions[slot] * p.index_step; }
  __device__ auto value_in(uint32_t slot) const {
    return [this, slot] { return values[slot]; };
  }
  __device__ void put_index(uint32_t to, uint32_t slot) const {
    reinterpret_cast<int64_t*>(p.out.indices)[to] = index(slot);
  }

  // Calls put(to, slot) of each result, which a thread finds from its last one without a division.
  template <class Put>
  __device__ void each(Put put) const {
    const uint32_t rows_on = p.by_cross_side.quotient(kThreads);
    const uint32_t cross_on = kThreads - rows_on * p.cross_side;
    uint32_t row = p.by_cross_side.quotient(threadIdx.x);
    uint32_t cross = threadIdx.x - row * p.cross_side;
    REDUCEOPS_ROLLED
    while (row < inners * kWidth) {
      if (cross < crosses) put(result_of_row(row) + to[p.inner_side + cross], slot(row, cross));
      row += rows_on;
      cross += cross_on;
      if (cross < p.cross_side) continue;
      cross -= p.cross_side;
      ++row;
    }
  }
  // Calls put(to, slot) of the first result of each run.
  template <uint32_t kRun, class Put>
  __device__ void each_run(uint32_t runs, ShortDivisor by_runs, Put put) const {
    for (uint32_t number = threadIdx.x; number < inners * kWidth * runs; number += kThreads) {
      const uint32_t row = by_runs.quotient(number), cross = (number - row * runs) * kRun;
      if (cross < crosses) put(result_of_row(row) + first_cross + cross, slot(row, cross));
    }
  }
  __device__ void store_indices() const {
    each_run<kIndexRun>(p.index_runs, p.by_index_runs, [&](uint32_t to, uint32_t slot) {
      uint32_t indices[kIndexRun];
#pragma unroll
      for (uint32_t i = 0; i < kIndexRun; ++i) indices[i] = index(slot + i * p.next_cross);
      p.out.put_indices(to, indices);
    });
  }
  __device__ void store_values() const {
    constexpr uint32_t kRun = run_of_values(sizeof(Key));
    each_run<kRun>(p.value_runs, p.by_value_runs, [&](uint32_t to, uint32_t slot) {
      p.out.template put_values<Key, kRun>(
          to, [&](uint32_t i) { return values[slot + i * p.next_cross]; });
    });
  }
};

// A tile to a block. Threads lie over units in the order of memory, and then over results in
// theirs.
template <bool kPacked, int kRows, class Element>
__global__ void __launch_bounds__(kThreads, tile_blocks<kPacked, typename Element::Key>)
    gather_tiles(const __grid_constant__ GatherProblem p, const Element element) {
  using Key = typename Element::Key;
  using Of = Bests<kPacked, kTileUnits, kRows, Element>;
  constexpr uint32_t kWidth = Of::kWidth;
  const GatherTile<Key, kWidth> tile(p);
  const uint32_t number = std::min(threadIdx.x, p.tile_threads - 1);
  const uint32_t rest = p.by_inner_lanes.quotient(number), over = p.by_cross_lanes.quotient(rest);
  uint32_t cross = rest - over * p.cross_lanes;
  uint32_t inner = number - (rest - over) * p.inner_lanes;
  uint32_t slot = inner * kWidth * p.pitch + cross;
  const uint32_t next_slot = p.next_inner * kWidth * p.pitch + p.next_across;
  const bool indices = p.out.indices || p.out.pairs.words;
  const auto take = [&] {
    GatherPlace at[kTileUnits];
    uint32_t slots[kTileUnits];
#pragma unroll
    for (int i = 0; i < kTileUnits; ++i) {
      at[i].from = tile.from[inner] + tile.from[p.inner_side + cross];
      slots[i] = slot;
      inner += p.next_inner;
      cross += p.next_across;
      slot += next_slot;
    }
    const Of bests(p, element, {p.rows, p.row_stride, p.even_rows}, at, indices);
    if (indices) {
#pragma unroll
      for (int i = 0; i < kTileUnits; ++i) {
#pragma unroll
        for (uint32_t e = 0; e < kWidth; ++e)
          tile.positions[slots[i] + e * p.pitch] = static_cast<uint8_t>(bests.position(i, e));
      }
    }
    if (p.out.values) {
#pragma unroll
      for (int i = 0; i < kTileUnits; ++i) {
#pragma unroll
        for (uint32_t e = 0; e < kWidth; ++e)
          tile.values[slots[i] + e * p.pitch] = bests.value(i, e);
      }
    }
  };
  take();
  if constexpr (kRows != kAnyRows) {
    REDUCEOPS_ROLLED
    for (uint32_t unit = kTileUnits; unit < p.tile_units; unit += kTileUnits) {
      if (inner < tile.inners && cross < tile.crosses) take();
    }
  }
  __syncthreads();
  tile.store();
}

// Threads of a block lie over units, and shares of them.
template <bool kPacked, class Element>
__global__ void __launch_bounds__(kSharedGatherThreads,
                                  room_for(kSharedGatherBlocks, kSharedGatherThreads))
    gather_shared(const __grid_constant__ GatherProblem p, const Element element) {
  using Key = typename Element::Key;
  using Of = Bests<kPacked, 1, kAnyRows, Element>;
  using State = Near<Key>;
  constexpr uint32_t kWidth = Of::kWidth;
  auto* states = reinterpret_cast<State*>(dynamic_shared());  // [width][threads and one]
  const uint32_t pitch = blockDim.x + 1;
  const int shares_log2 = log2_of(p.shares), lanes_log2 = log2_of(blockDim.x) - shares_log2;
  const uint32_t lanes = 1u << lanes_log2, first = blockIdx.x << lanes_log2;
  const uint32_t share = threadIdx.x >> lanes_log2;
  GatherPlace at[1];
  at[0].template add_unit<kPacked>(p, std::min(first + (threadIdx.x & (lanes - 1)), p.units - 1));
  at[0].from += share * p.row_stride;
  const Rows rows{((p.rows - share - 1) >> shares_log2) + 1, p.row_stride << shares_log2, true};
  const Of bests(p, element, rows, at, true);
#pragma unroll
  for (uint32_t e = 0; e < kWidth; ++e)
    states[e * pitch + threadIdx.x] = {bests.key(0, e),
                                       share + (bests.position(0, e) << shares_log2)};
  __syncthreads();
  const uint32_t takers = std::clamp<uint32_t>(p.shares / kWidth, 1, 32);  // of an output
  REDUCEOPS_ROLLED
  for (uint32_t begin = 0; begin < lanes * kWidth * takers; begin += blockDim.x) {
    const uint32_t number = (begin + threadIdx.x) >> log2_of(takers), e = number % kWidth;
    const uint32_t lane = number / kWidth, taker = threadIdx.x & (takers - 1);
    const State state =
        merge_slots(states + e * pitch + lane, lane < lanes ? p.shares : 0, lanes, taker, takers);
    if (taker > 0 || lane >= lanes || first + lane >= p.units) continue;
    GatherPlace of;
    of.template add_unit<kPacked>(p, first + lane);
    p.out.put(of.to + e * p.neighbour_step, state.index * p.index_step, [&] {
      return value_at(p, element, state.key, of.from + e + int64_t(state.index) * p.row_stride);
    });
  }
}

// Calls f with the number of rows that a kernel is compiled for, which is at most kMost. (One row
// is a value that is copied: fill.cu.)
template <int kMost, class F>
void visit_rows(int64_t rows, F&& f) {
  if constexpr (kMost > 0) {
    rows == kMost ? f(std::integral_constant<int, kMost>()) : visit_rows<kMost - 1>(rows, f);
  } else {
    f(std::integral_constant<int, kAnyRows>());
  }
}

}  // namespace

void launch_gather(const Reduction& r, const Problem& problem, void* stream) {
  const Plan& plan = problem.plan;
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    constexpr int64_t kBytes = sizeof(typename Element::Key);
    const GatherProblem p(problem, r.groups, kBytes);
    const auto run = [&](auto packed) {
      constexpr bool kPacked = decltype(packed)::value;
      if (plan.gather.shared()) {
        const auto states = static_cast<int64_t>(sizeof(Near<typename Element::Key>));
        launch(gather_shared<kPacked, Element>, plan, p, element, stream,
               plan.gather.width(kBytes) * (plan.threads + 1) * states);
      } else if (plan.gather.tiled()) {
        visit_rows<kKnownRows>(problem.walk, [&](auto rows) {
          launch(gather_tiles<kPacked, rows.value, Element>, plan, p, element, stream,
                 plan.gather.shared_bytes(kBytes));
        });
      } else {
        visit_rows<kKnownRows>(problem.walk, [&](auto rows) {
          constexpr int kRows = rows.value, kUnits = gather_units(kRows, kPacked, kBytes);
          auto kernel = gather<kPacked, kUnits, kRows, Element>;
          if constexpr (kRows == kAnyRows && kUnits > 1) {
            if (plan.gather.units == 1) kernel = gather<kPacked, 1, kRows, Element>;
          }
          launch(kernel, plan, p, element, stream);
        });
      }
    };
    if constexpr (kBytes < 4) {
      if (plan.gather.packed) return run(std::true_type());
    }
    run(std::false_type());
  });
}

}  // namespace reduceops::cuda
