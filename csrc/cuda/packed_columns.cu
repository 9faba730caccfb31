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
#include "cuda/combine.cuh"
#include "cuda/source.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

// The best of neighbouring columns, as one thread takes them: turn t is position `first + t *
// step`.
//
//   take(source, loads, turn, first, step)   of some turns from `turn` on
//   packed(element, column, first, step)     a Packed: the key above the position
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
  template <int kRows, class Source>
  __device__ void take(const Source& source, const typename Source::Pack (&loads)[kRows],
                       uint32_t turn, uint32_t first, uint32_t step) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t at = sizeof(Key) == 2 ? first + (turn + r) * step : turn + r;
      take_row(source.element, source.bits(loads[r]), at);
    }
  }
  __device__ void finish() {}
  __device__ uint32_t packed(Element, int column, uint32_t first, uint32_t step) const {
    if constexpr (sizeof(Key) == 2) return best_[column];
    // In a word they are those of columns 0 and 2, or 1 and 3.
    const uint32_t both = best_[column / 4 * 2 + column % 2] >> (column % 4 / 2 * 16);
    return both << 16 & 0xff000000u | (first + (both & 0xff) * step);
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

  template <int kRows, class Source>
  __device__ void take(const Source& source, const typename Source::Pack (&loads)[kRows],
                       uint32_t turn, uint32_t, uint32_t) {
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
  __device__ int64_t packed(Element element, int column, uint32_t first, uint32_t step) const {
    const uint32_t position = first + tracker_.turn(column, 0) * step;
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

// From one share of a column to the next in shared memory.
__host__ __device__ inline uint32_t packed_pitch(const Plan& plan, uint32_t width) {
  return plan.columns.lanes * width + 4;  // aligned for stores of a load's size, and other banks
}

template <bool kRealigned, class Source>
__global__ void __launch_bounds__(kThreads, packed_blocks(kRealigned))
    packed_columns(const __grid_constant__ Problem p, const Source source) {
  using Element = typename Source::Element;
  using Key = typename Element::Key;
  using Columns = PackedColumns<Element>;
  using Packed = typename Columns::Packed;
  constexpr uint32_t kWidth = Columns::kWidth;
  auto* staged = reinterpret_cast<Packed*>(dynamic_shared());  // [groups][shares][pitch]
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
  {
    const uint32_t column_of = threadIdx.x / lanes, lane = threadIdx.x - column_of * lanes;
    const int shares_log2 = log2_of(shares);
    const uint32_t share = column_of & (shares - 1), group = column_of >> shares_log2;
    const auto [outer, across] = place_of(group);
    const int64_t column = (across * lanes + lane) * int64_t(kWidth);
    const bool inside = group < present && column < inner.size;
    Columns best;
    if (inside && share < extent) {
      const auto first =
          source.along(source.along(columns_of(outer), inner, column), along, begin + share);
      const Dim turn_dim{0, shares * along.stride, 0, 0};
      const uint32_t turns = ((extent - share - 1) >> shares_log2) + 1;
      uint32_t turn = 0;
      const auto take = [&]<int kTaken>(std::integral_constant<int, kTaken>) {
        typename Source::Pack loads[kTaken];
#pragma unroll
        for (int r = 0; r < kTaken; ++r)
          loads[r] = source.pack(source.along(first, turn_dim, turn + r), inner);
        best.take(source, loads, turn, share, shares);
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
          several.at[i] = inside && share < extent
                              ? best.packed(source.element, c + i, share, shares)
                              : Columns::kNothing;
        to[c / kSeveral] = several;
      }
    }
  }
  __syncthreads();
  const uint32_t columns = lanes * kWidth;
  const auto value_of = [&](Packed found, int64_t outer, int64_t column) {
    Key value;
    if (!source.element.value_of_key(Columns::key(found), value)) {
      const auto at = source.along(source.along(columns_of(outer), inner, column), along,
                                   begin + Columns::position(found));
      value = source.element.value(source.bits(source.item(at)));
    }
    return value;
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
      const Packed found = staged[group * pitch + here];
      if (p.out.values)
        static_cast<Key*>(p.out.values)[output + i] =
            value_of(found, first_outer + group, first_column + here);
      if (p.out.indices)
        p.out.put_index(output + i, (begin + Columns::position(found)) * along.step);
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
      REDUCEOPS_ROLLED
      for (uint32_t share = taker; share < shares; share += takers)
        found = Columns::lesser(found, of_column[share * pitch]);
    }
    REDUCEOPS_ROLLED
    for (uint32_t d = takers / 2; d > 0; d /= 2)
      found = Columns::lesser(found, __shfl_xor_sync(~0u, found, d));
    if (taker > 0 || !wanted) continue;
    const auto [outer, across] = place_of(group);
    const int64_t column = across * columns + here, output = outer * inner.size + column;
    if (column >= inner.size) continue;
    const int64_t index = (begin + Columns::position(found)) * along.step;
    if (p.candidates) {
      p.candidates.put(output * p.plan.candidates() + part, {Columns::key(found), index});
    } else {
      p.out.put(p.result(output), index, [&] { return value_of(found, outer, column); });
    }
  }
}

template <bool kRealigned, class Source>
void launch_of(const Problem& p, const Source& source, void* stream) {
  constexpr uint32_t kWidth = Vector<typename Source::Key>::kWidth;
  const int64_t rows = kThreads / p.plan.columns.lanes;  // of shares
  enqueue(packed_columns<kRealigned, Source>, p.plan, stream,
          rows * packed_pitch(p.plan, kWidth) *
              int64_t(sizeof(typename PackedColumns<typename Source::Element>::Packed)),
          p, source);
}

}  // namespace

void launch_packed_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    constexpr size_t kBytes = sizeof(typename Element::Key);
    const Stored<Element> source{element};
    if constexpr (kBytes <= 2) {
      if (problem.plan.columns.realigned)
        return launch_of<true>(problem, Realigned<Element>{source, problem.end}, stream);
    }
    if constexpr (kBytes <= 4) launch_of<false>(problem, source, stream);
  });
}

}  // namespace reduceops::cuda
