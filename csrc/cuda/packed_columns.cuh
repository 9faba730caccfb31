// Columns of types of up to 32 bits over one reduced dim, as pairs of key and position in one
// integer, whose minimum is all there is to combining threads. 8- and 16-bit types are such pairs
// from the load on, in a word: early in a column nearly every row wins, and where threads share a
// column they have little else, so it pays that the minimum needs no branch.
//
// Threads lie over columns as for `columns` (columns.cuh). Results go by way of shared memory, from
// where neighbouring threads store neighbouring ones: by the threads that have them, every store
// would touch a sector of its own.
//
// Bound by memory; by instructions per result where columns are very short. Without it columns of
// 16 bits take 1.2 times as long, those of a few rows with values 1.4 times (medians of random
// layouts on an H200).
//
// Where rows of columns are not aligned, those of a thread all begin as far behind a block of 16
// bytes if it has every so many. Then it reads blocks (`shifted`), which begin up to as many
// elements before its columns; other threads that share these begin elsewhere, and where a column's
// candidates lie in shared memory follows from that. So no load is joined of two: by plain loads of
// elements, joined ones or a ring, long columns take 1.2 to 1.3 times as long.
//
// Under a mask that is the same for all columns of a row, only rows that take part are read, of
// which a block makes a list first.
#pragma once

#include "cuda/combine.cuh"
#include "cuda/source.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {

// The best of neighbouring columns, as one thread takes them; `rows` says which position a turn is.
//
//   take(source, loads, turn, rows)   of some turns from `turn` on
//   packed(element, column, rows)     a Packed: the key above the position
template <class Element, int kBytes = sizeof(typename Element::Key)>
class PackedColumns {
  using Key = typename Element::Key;
  static constexpr int kWords = kLoadBytes / 4;

 public:
  static constexpr int kWidth = Vector<Key>::kWidth;

  __device__ PackedColumns() {
#pragma unroll
    for (uint32_t& best : best_) best = sizeof(Key) == 2 ? kNothing : 0x7fff7fff;
  }
  template <int kRows, class Source, class Rows>
  __device__ void take(const Source& source, const typename Source::Pack (&loads)[kRows],
                       uint32_t turn, const Rows& rows) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t at = sizeof(Key) == 2 ? rows.position(turn + r) : turn + r;
      take_row(source.element, source.bits(loads[r]), at);
    }
  }
  __device__ void finish() {}
  template <class Rows>
  __device__ uint32_t packed(Element, int column, const Rows& rows) const {
    if constexpr (sizeof(Key) == 2) return best_[column];
    // In a word they are those of columns 0 and 2, or 1 and 3.
    const uint32_t both = best_[column / 4 * 2 + column % 2] >> (column % 4 / 2 * 16);
    return both << 16 & 0xff000000u | rows.position(both & 0xff);
  }

  using Packed = uint32_t;
  static constexpr Packed kNothing = 0x7fffffff;
  static __device__ Packed lesser(Packed a, Packed b) {
    return std::min(static_cast<int32_t>(a), static_cast<int32_t>(b));
  }
  static __device__ Key key(Packed packed) {
    return static_cast<Key>(packed >> (32 - 8 * sizeof(Key)));
  }
  static __device__ uint32_t position(Packed packed) {
    return packed & (sizeof(Key) == 2 ? 0xffff : 0xffffff);
  }

 private:
  // `at`: the position of a 16-bit element, the turn of an 8-bit one.
  __device__ void take_row(Element element, const Vector<Key>& vector, uint32_t at) {
    uint32_t words[kWords];
    memcpy(words, &vector, kLoadBytes);
    if constexpr (sizeof(Key) == 2) scale_pairs(element, words);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      uint32_t &first = best_[2 * i], &second = best_[2 * i + 1];
      if constexpr (sizeof(Key) == 2) {
        const uint32_t keys = pair_of_keys(of_values(element), words[i]);
        first = lesser(first, __byte_perm(keys, at, 0x1054));
        second = lesser(second, __byte_perm(keys, at, 0x3254));
      } else {
        first = __vmins2(first, keys_and_turn<0>(element, words[i], at));
        second = __vmins2(second, keys_and_turn<1>(element, words[i], at));
      }
    }
  }
  uint32_t best_[2 * kWords];
};

// Of 32-bit types the minimum of 64 bits would cost more than what it saves until threads combine.
template <class Element>
class PackedColumns<Element, 4> {
  using Key = typename Element::Key;

 public:
  static constexpr int kWidth = Vector<Key>::kWidth;

  template <int kRows, class Source, class Rows>
  __device__ void take(const Source& source, const typename Source::Pack (&loads)[kRows],
                       uint32_t turn, const Rows&) {
    typename Slots<Element>::Slot slots[kWidth][kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto vector = source.bits(loads[r]);
#pragma unroll
      for (int c = 0; c < kWidth; ++c) slots[c][r] = vector.at[c];
    }
    tracker_.take(source.element, slots, turn);
  }
  __device__ void finish() { tracker_.finish(); }
  template <class Rows>
  __device__ int64_t packed(Element element, int column, const Rows& rows) const {
    const uint32_t position = rows.position(tracker_.turn(column, 0));
    return int64_t(tracker_.key(element, column, 0)) << 32 | position;
  }

  using Packed = int64_t;
  static constexpr Packed kNothing = std::numeric_limits<int64_t>::max();
  static __device__ Packed lesser(Packed a, Packed b) { return std::min(a, b); }
  static __device__ Key key(Packed packed) { return static_cast<Key>(packed >> 32); }
  static __device__ uint32_t position(Packed packed) { return static_cast<uint32_t>(packed); }

 private:
  Tracker<Element, kWidth> tracker_;
};

// The rows of one of the threads that share columns: every so many of all, or of those of a list.
struct EveryRow {
  uint32_t first, step;
  __device__ uint32_t position(uint32_t turn) const { return first + turn * step; }
};
struct ListedRows {
  EveryRow every;
  const uint16_t* list;
  __device__ uint32_t position(uint32_t turn) const { return list[every.position(turn)]; }
};

// Which rows of its groups a block reads, in shared memory: their numbers, in order, `extent` apart
// for each group, and how many there are; before that a bit for each row, 32 to a word. (Numbers
// have 16 bits, for there are kMostListed of them at most.)
struct RowLists {
  uint32_t groups, extent, words;  // words of a group
  uint32_t* bits;
  uint32_t* counts;
  uint16_t* list;

  __device__ RowLists(char* shared, uint32_t groups, uint32_t extent)
      : groups(groups),
        extent(extent),
        words((extent + 31) / 32),
        bits(reinterpret_cast<uint32_t*>(shared)),
        counts(bits + groups * words),
        list(reinterpret_cast<uint16_t*>(counts + groups)) {}
  __host__ __device__ static int64_t bytes(int64_t groups, int64_t extent) {
    return groups * (((extent + 31) / 32 + 1) * 4 + extent * 2);
  }

  // By all threads of a block; mask_of(group): where the bytes of its rows begin, `stride` apart.
  template <class MaskOf>
  __device__ void make(MaskOf mask_of, int64_t stride) const {
    constexpr uint32_t kWarps = kThreads / 32, kAtOnce = 4;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = groups * words;
    const uint8_t* const of_first = mask_of(0);
    REDUCEOPS_ROLLED
    for (uint32_t first = warp * kAtOnce; first < all; first += kWarps * kAtOnce) {
      bool present[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t group = (first + i) / words, row = (first + i - group * words) * 32 + lane;
        present[i] = first + i < all && row < extent &&
                     load_global((group == 0 ? of_first : mask_of(group)) + row * stride) != 0;
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t word = __ballot_sync(~0u, present[i]);
        if (lane == 0 && first + i < all) bits[first + i] = word;
      }
    }
    __syncthreads();
    REDUCEOPS_ROLLED
    for (uint32_t number = warp; number < all; number += kWarps) {
      const uint32_t group = number / words, word = number - group * words;
      uint32_t before = 0;
      for (uint32_t i = lane; i < word; i += 32) before += __popc(bits[group * words + i]);
      before = __reduce_add_sync(~0u, before);
      const uint32_t here = bits[number];
      const uint32_t at = before + __popc(here & ((1u << lane) - 1));
      if (here >> lane & 1) list[group * extent + at] = static_cast<uint16_t>(word * 32 + lane);
      if (lane == 0 && word + 1 == words) counts[group] = before + __popc(here);
    }
    __syncthreads();
  }
};

// From one share of a column to the next in shared memory.
__host__ __device__ inline uint32_t packed_pitch(const Plan& plan, uint32_t width) {
  return plan.columns.lanes * width + 4;  // aligned for stores of a load's size, and other banks
}

// kListed: by lists of rows. `none`: the value of a group without elements.
template <bool kRealigned, bool kListed, class Source>
__global__ void __launch_bounds__(kThreads, packed_blocks(kRealigned))
    packed_columns(const Source source, const typename Source::Key none,
                   const __grid_constant__ Problem p) {
  using Element = typename Source::Element;
  using Key = typename Element::Key;
  using Columns = PackedColumns<Element>;
  using Packed = typename Columns::Packed;
  constexpr uint32_t kWidth = Columns::kWidth;
  if (p.candidates) let_next_launch();
  const uint32_t lanes = p.plan.columns.lanes,
                 shares = p.plan.columns.shares;  // shares: a power of two
  const uint32_t pitch = packed_pitch(p.plan, kWidth), groups = kThreads / (lanes * shares);
  const Dim inner = p.axes()[0], along = p.reduced()[0];
  const auto [unit, part] = split(blockIdx.x, p.plan.parts);
  const int64_t first_tile = unit * groups;
  const auto [first_outer, first_across] = split(first_tile, p.plan.columns.across);
  const int64_t begin = part * p.plan.part_extent;
  const auto extent = static_cast<uint32_t>(std::min(p.plan.part_extent, p.walk - begin));
  const auto present =
      static_cast<uint32_t>(std::min<int64_t>(groups, p.plan.columns.tiles - first_tile));
  // Of a block's groups, most often one, or each the only one in its rows of columns.
  const auto place_of = [&](uint32_t group) -> Split {
    if (group == 0) return {first_outer, first_across};
    if (p.plan.columns.across == 1) return {first_outer + group, 0};
    return split(first_tile + group, p.plan.columns.across);
  };
  const auto columns_of = [&](int64_t outer) {
    return source.move(source.begin(p), p.axes() + 1, p.axis_count - 1, outer).at;
  };
  // [groups][shares][pitch], then the lists, or how much before its columns each group begins
  auto* staged = reinterpret_cast<Packed*>(dynamic_shared());
  char* behind = reinterpret_cast<char*>(staged + kThreads / lanes * pitch);
  const RowLists lists(behind, groups, extent);
  auto* shifts = reinterpret_cast<uint32_t*>(behind);
  const uint32_t care = p.plan.columns.shifted ? kWidth - 1 : 0;
  // The same of a share of a group, in elements.
  const auto shift_of = [&](uint32_t of_first, uint32_t share) {
    return (of_first + share * static_cast<uint32_t>(along.stride)) & care;
  };
  if constexpr (kListed) {
    using Mask = Masked<Element, MaskOf::kApart>;
    const auto mask_of = [&](uint32_t group) {
      const int64_t outer = place_of(std::min(group, present - 1)).quotient;
      const auto at = Mask::move(Mask::begin(p), p.axes() + 1, p.axis_count - 1, outer).at;
      return at.mask + begin * along.mask_stride;
    };
    lists.make(mask_of, along.mask_stride);
  }
  {
    const uint32_t column_of = threadIdx.x / lanes, lane = threadIdx.x - column_of * lanes;
    const int shares_log2 = log2_of(shares);
    const uint32_t share = column_of & (shares - 1), group = column_of >> shares_log2;
    const auto [outer, across] = place_of(group);
    const int64_t column = (across * p.plan.columns.full_lanes() + lane) * int64_t(kWidth);
    auto first = source.along(source.along(columns_of(outer), inner, column), along, begin);
    const uint32_t of_first = Source::past_block(first) & care, shift = shift_of(of_first, share);
    const bool inside = group < present && column < inner.size + shift;
    if (care && share == 0 && lane == 0 && group < groups) shifts[group] = of_first;
    Columns best;
    uint32_t count = extent;
    if constexpr (kListed) count = group < groups ? lists.counts[group] : 0;
    const EveryRow every{share, shares};
    const auto rows = [&] {
      if constexpr (kListed) {
        return ListedRows{every, lists.list + group * extent};
      } else {
        return every;
      }
    }();
    const bool any = inside && share < count;
    if (any) {
      if (!kListed) first = source.along(first, along, share);
      first.input -= shift;
      const Dim turn_dim{0, (kListed ? 1 : shares) * along.stride, 0, 0};
      uint32_t turns = ((count - share - 1) >> shares_log2) + 1, turn = 0;
      // The input may end within the last block.
      const auto* last = source.along(first, turn_dim, turns - 1).input;
      const bool cut =
          !kRealigned && !kListed && care && reinterpret_cast<const char*>(last + kWidth) > p.end;
      turns -= cut;
      const auto take = [&]<int kTaken>(std::integral_constant<int, kTaken>) {
        typename Source::Pack loads[kTaken];
#pragma unroll
        for (int r = 0; r < kTaken; ++r)
          loads[r] = source.pack(
              source.along(first, turn_dim, kListed ? rows.position(turn + r) : turn + r), inner);
        best.take(source, loads, turn, rows);
        turn += kTaken;
      };
      static_assert(kPackedLoads == 4);
      while (turn + 4 <= turns) take(std::integral_constant<int, 4>());
      if (turn + 3 == turns) {
        take(std::integral_constant<int, 3>());
      } else if (turn + 2 == turns) {
        take(std::integral_constant<int, 2>());
      } else if (turn < turns) {
        take(std::integral_constant<int, 1>());
      }
      if constexpr (!kRealigned && !kListed) {
        const typename Source::Pack load[1] = {cut ? load_before(last, p.end) : uint4{}};
        if (cut) best.take(source, load, turns, rows);
      }
    }
    best.finish();
    if (group < groups) {
      struct alignas(kLoadBytes) Several {
        Packed at[kLoadBytes / sizeof(Packed)];
      };
      constexpr uint32_t kSeveral = kLoadBytes / sizeof(Packed);
      auto* to = reinterpret_cast<Several*>(staged + column_of * pitch + lane * kWidth);
#pragma unroll
      for (uint32_t c = 0; c < kWidth; c += kSeveral) {
        Several several;
#pragma unroll
        for (uint32_t i = 0; i < kSeveral; ++i)
          several.at[i] = any ? best.packed(source.element, c + i, rows) : Columns::kNothing;
        to[c / kSeveral] = several;
      }
    }
  }
  __syncthreads();
  const uint32_t columns = p.plan.columns.full_lanes() * kWidth;
  const auto value_of = [&](Packed found, int64_t outer, int64_t column) {
    if (kListed && found == Columns::kNothing) return source.element.value(none);
    Key value;
    if (!source.element.value_of_key(Columns::key(found), value)) {
      const auto at = source.along(source.along(columns_of(outer), inner, column), along,
                                   begin + Columns::position(found));
      value = source.element.value(source.bits(source.item(at)));
    }
    return value;
  };
  // Of what has no element, the first one, if it is not to be combined with others.
  const auto index_of = [&](Packed found) -> int64_t {
    if (kListed && found == Columns::kNothing)
      return p.candidates ? std::numeric_limits<int64_t>::max() : 0;
    return (begin + Columns::position(found)) * along.step;
  };
  if (shares == 1 && p.in_order && !p.candidates && !p.out.pairs.words) {
    // The results of the block follow each other: of one group, or of groups that have all columns.
    const int64_t first_column = first_across * columns;
    const int64_t output = first_outer * inner.size + first_column;
    const auto of_group =
        static_cast<uint32_t>(std::min<int64_t>(columns, inner.size - first_column));
    REDUCEOPS_ROLLED
    for (uint32_t i = threadIdx.x; i < present * of_group; i += kThreads) {
      const uint32_t group = groups > 1 ? i / of_group : 0, here = i - group * of_group;
      const Packed found = staged[group * pitch + here + (care ? shifts[group] : 0)];
      if (p.out.values)
        static_cast<Key*>(p.out.values)[output + i] =
            value_of(found, first_outer + group, first_column + here);
      if (p.out.indices) p.out.put_index(output + i, index_of(found));
    }
    return;
  }
  // Several lanes combine the shares of a column where these are many.
  const uint32_t takers = std::clamp<uint32_t>(shares / kWidth, 1, 32);
  const int takers_log2 = log2_of(takers);
  REDUCEOPS_ROLLED
  for (uint32_t number = 0; number < groups * columns * takers; number += kThreads) {
    const uint32_t item = number + threadIdx.x, taker = item & (takers - 1);
    uint32_t here = item >> takers_log2, group = 0;
    if (groups > 1) {
      group = here / columns;
      here -= group * columns;
    }
    Packed found = Columns::kNothing;
    const bool wanted = group < present && here < columns;
    if (wanted) {
      const Packed* of_column = staged + group * shares * pitch + here;
      const uint32_t of_first = care ? shifts[group] : 0;
      REDUCEOPS_ROLLED
      for (uint32_t share = taker; share < shares; share += takers)
        found = Columns::lesser(found, of_column[share * pitch + shift_of(of_first, share)]);
    }
    REDUCEOPS_ROLLED
    for (uint32_t d = takers / 2; d > 0; d /= 2)
      found = Columns::lesser(found, __shfl_xor_sync(~0u, found, d));
    if (taker > 0 || !wanted) continue;
    const auto [outer, across] = place_of(group);
    const int64_t column = across * columns + here, output = outer * inner.size + column;
    if (column >= inner.size) continue;
    const int64_t index = index_of(found);
    if (p.candidates) {
      p.candidates.put(output * p.plan.candidates() + part, {Columns::key(found), index});
    } else {
      p.out.put(p.result(output), index, [&] { return value_of(found, outer, column); });
    }
  }
}

template <bool kRealigned, bool kListed = false, class Source>
void launch_packed_columns_of(const Problem& p, const Source& source, void* stream,
                              typename Source::Key none = 0) {
  using Packed = typename PackedColumns<typename Source::Element>::Packed;
  const ColumnsCut& cut = p.plan.columns;
  const int64_t rows = kThreads / cut.lanes;  // of shares
  const int64_t groups = kThreads / (cut.lanes * cut.shares);
  const int64_t behind = kListed       ? RowLists::bytes(groups, p.plan.part_extent)
                         : cut.shifted ? groups * int64_t(sizeof(uint32_t))
                                       : 0;
  enqueue(
      packed_columns<kRealigned, kListed, Source>, p.plan, stream,
      rows * packed_pitch(p.plan, Vector<typename Source::Key>::kWidth) * int64_t(sizeof(Packed)) +
          behind,
      source, none, p);
}

}  // namespace reduceops::cuda
