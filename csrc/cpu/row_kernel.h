// The tile kernel of rows: where the smallest element of each of a few rows is, of pointers to
// contiguous elements.
//
// A row ends as one vector of best lanes and one of their positions; as many such rows as a vector
// has lanes are transposed while they are combined, as they come, which leaves one row to a lane.
// Long rows are read in blocks: the smallest of a block is compared once with the best, and where
// in the winning block it is is looked up at the end. Nothing depends on the data, except that a
// long row ends at its first NaN, and one of bools at the first that no other beats. What is read
// twice may have changed meanwhile: a position never depends on finding an element again.
#pragma once

#include "cpu/vector.h"
#include "cpu/walk.h"

namespace reduceops::cpu {
namespace {

template <class Key>
struct RowLimits {
  // Rows up to here are not read in blocks; positions in them fit a lane.
  static constexpr int64_t kVectors = sizeof(Key) == 8 ? 40 : 24;
  static constexpr int64_t kShort =
      sizeof(Key) == 1 ? 256 : kVectors * (kVectorBytes / int64_t(sizeof(Key)));
};

// How many bytes ahead of a row's end (of all of it, where it is shorter than kRowAhead) to ask for
// what comes next. Where gaps between rows are so large that hardware sees no stream, that is as
// much of the rows that follow, and nothing of the gaps. 0 where it does not pay: of a few lines in
// a page of their own, looking that up would cost more than is gained.
REDUCEOPS_NOINLINE inline int64_t ahead_of(int64_t pitch, int64_t row_bytes) {
  if (pitch < row_bytes + kCopyBytes / 2) return kRowAhead;
  if (row_bytes > kRowAhead) return kRowAhead + pitch - row_bytes;
  constexpr int64_t kWorthAPage = 512;
  if (pitch >= kPageBytes && row_bytes < kWorthAPage) return 0;
  return ceil_div(kRowAhead, row_bytes) * pitch;
}

template <class Element>
struct RowKernel : Lanes<Element> {
  using Vectors = Lanes<Element>;
  using typename Vectors::Asked;
  using typename Vectors::Index;
  using typename Vectors::Key;
  using typename Vectors::Lane;
  using typename Vectors::V;
  using Vectors::element, Vectors::kFloats, Vectors::kLanes;
  using Number = std::make_unsigned_t<Key>;  // of an element or a block, in a lane

  static constexpr int64_t kShort = RowLimits<Key>::kShort;
  static constexpr int64_t kBlock = least<int64_t>(8 * kLanes, kShort);
  static constexpr int kBlockVectors = kBlock / kLanes;
  static constexpr int kGroupsAhead = 8;  // of rows that are decided at once
  static constexpr bool kBools = std::is_same_v<Element, Bool>;
  // Longer runs are cut up, so that the blocks' numbers fit a lane.
  static constexpr int64_t kRun =
      sizeof(Key) > 2 || kBools ? int64_t(1) << 34 : (int64_t(1) << 8 * sizeof(Key)) * kBlock;

  // The lanes of a row that is being reduced: their bests, and the positions (of short rows) or
  // blocks these are from.
  struct Partial {
    V best;
    Index at;
  };

  const bool has_unbeaten;                 // elements that no other beats are likely: NaNs, bools
  const bool asks_for_rows, asks_into_l2;  // Job's
  const int64_t pitch;                     // Job's, too

  RowKernel(Element element, const Job& job)
      : Vectors{element},
        has_unbeaten(job.reduction.dtype->max_magnitude != 0),
        asks_for_rows(job.asks_for_rows),
        asks_into_l2(job.asks_into_l2),
        pitch(job.pitch) {}

  static Index lane_numbers() {
    return []<Number... i>(std::integer_sequence<Number, i...>) {
      return Index{i...};
    }(std::make_integer_sequence<Number, kLanes>());
  }

  // Where the first NaN of n elements is, n if there is none.
  int64_t first_nan(const Key* p, int64_t n) const {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const V v = this->load(p + i);
      const auto nan = Vectors::nan(v);
      if (any(nan)) return i + first<Key>(nan);
    }
    while (i < n && this->lane(get<Key>(p + i)) == this->lane(get<Key>(p + i))) ++i;
    return i;
  }

  // Asks for the lines of a short row that lies ahead of this one.
  REDUCEOPS_INLINE void ask_ahead_of_row(const Key* p, int64_t n, int64_t ahead) const {
    const auto* line = reinterpret_cast<const char*>(p);
    for (const auto* end = line + n * sizeof(Key); line < end; line += kCopyBytes)
      prefetch<kIntoL2>(line, ahead);
    if (ahead != kRowAhead) prefetch<kIntoL2>(p + n - 1, ahead);
  }

  // The lanes of a row of up to kShort elements, of which kLanes are read at least. Where a NaN is
  // among them `nan` says so, and where infinities of both signs may have made one of their sum.
  REDUCEOPS_INLINE Partial reduce_short(const Key* p, int64_t n, Asked& nan) const {
    const Index numbers = lane_numbers();
    if (n < kLanes) {
      const auto inside = numbers < static_cast<Number>(n);
      const V v = inside ? this->load(p) : Vectors::all(Vectors::kLast);
      if constexpr (kFloats) nan |= Vectors::nan(v);
      return {v, inside ? numbers : Index{}};
    }
    // Two halves of whole vectors, which overlap in the middle, in turns: neither waits for the
    // other. The second loses ties.
    const int64_t half = (n + 2 * kLanes - 1) / (2 * kLanes) * kLanes;
    const Key* const q = p + (n - half);
    Partial row{this->load(p), numbers}, second{this->load(q), numbers};
    V elements{};
    if constexpr (kFloats) elements = row.best + second.best;
    const auto take = [&](Partial& half, const Key* at, Index positions) REDUCEOPS_INLINED {
      const V v = this->load(at);
      half.at = v >= half.best ? half.at : positions;
      half.best = smaller(v, half.best);
      if constexpr (kFloats) elements += v;
    };
    Index positions = numbers;
    for (int64_t i = kLanes; i < half; i += kLanes) {
      positions += Number(kLanes);
      take(row, p + i, positions);
      take(second, q + i, positions);
    }
    if constexpr (kFloats) nan |= Vectors::nan(elements);
    row.at = second.best >= row.best ? row.at : second.at + Number(n - half);
    row.best = smaller(second.best, row.best);
    return row;
  }

  // Asks for the lines of some vectors that lie ahead of these.
  template <int kVectors>
  REDUCEOPS_INLINE void ask_ahead(const Key* p, int64_t ahead, bool into_l2) const {
    if (asks_in_streams && ahead) {
      asm("" : "+r"(p));  // else those vectors' addresses are computed where nothing is asked for
      for (int u = 0; u < kVectors; ++u) prefetch(p + u * kLanes, ahead);
    } else if (into_l2) {
      for (int i = 0; i < kVectors * kVectorBytes; i += 256)
        ask_into_l2(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + i + ahead));
    }
  }

  // The first of n bools, of which kLanes are read at least, that no other beats; the first of all
  // if there is none.
  template <bool kTrue>
  int64_t first_bool(const Key* p, int64_t n) const {
    using Bytes = Vector<uint8_t>;
    constexpr int kVectors = 8;
    constexpr int64_t kTogether = kVectors * kLanes;
    int64_t i = 0;
    for (int64_t next = 0; n >= kTogether; next += kTogether) {
      if (next >= n) return 0;
      i = least(next, n - kTogether);  // the last overlaps the one before
      Bytes all = get<Bytes>(p + i);
      for (int u = 1; u < kVectors; ++u) {
        const Bytes v = get<Bytes>(p + i + u * kLanes);
        all = kTrue ? all | v : smaller(all, v);
      }
      ask_ahead<kVectors>(p + i, kRowAhead, asks_into_l2);
      if (kTrue ? any_marked(all) : any(all == 0)) break;
    }
    for (; i < n; i += kLanes) {
      const int64_t start = least<int64_t>(i, std::max<int64_t>(0, n - kLanes));
      const Bytes v = get<Bytes>(p + start);
      prefetch<kIntoL2>(p + start, kRowAhead);
      const auto found = kTrue ? v != 0 : v == 0;
      if (!any(found)) continue;
      const int64_t at = start + first<uint8_t>(found);
      return at < n ? at : 0;
    }
    return 0;
  }

  static int64_t block_start(int64_t block, int64_t n) {
    return least(block * kBlock, n - kBlock);  // the last block overlaps the one before
  }

  // Where the first vector of a row decides it, by an element that no other beats; n if it does
  // not.
  int64_t decided(const Key* p, int64_t n) const {
    const V v = this->load(p);
    if constexpr (kFloats) {
      const auto nan = Vectors::nan(v);
      return any(nan) ? first<Key>(nan) : n;
    } else {
      const auto unbeaten = v == Vectors::all(element.order.floor);
      return any(unbeaten) ? first<Key>(unbeaten) : n;
    }
  }

  // The lanes of a row of at least kBlock elements and at most kRun; those before its first NaN,
  // where there is one. Returns where that is, n if there is none. Asks so far `ahead` of its end.
  REDUCEOPS_INLINE int64_t reduce_long(const Key* p, int64_t n, int64_t ahead, Partial& row) const {
    const int64_t end = n - least<int64_t>(n, kRowAhead / sizeof(Key));
    // Of 16 bits without gaps, asking takes longer.
    const bool into_l2 = asks_into_l2 && ahead && (sizeof(Key) != 2 || ahead != kRowAhead);
    V best = Vectors::all(Vectors::kLast);
    Index at{};
    for (int64_t block = 0; block * kBlock < n; ++block) {
      const Key* q = p + block_start(block, n);
      V v[kBlockVectors];
      for (int u = 0; u < kBlockVectors; ++u) v[u] = this->load_unlevelled(q + u * kLanes);
      ask_ahead<kBlockVectors>(q, q < p + end ? kRowAhead : ahead, into_l2);
      const V smallest = this->level(smallest_of<kBlockVectors>(v));
      if constexpr (kFloats) {
        const V sum = sum_of<kBlockVectors>(v);  // NaN if one is
        if (any(Vectors::nan(sum))) [[unlikely]] {
          const int64_t i = first_nan(q, kBlock);
          if (i < kBlock) {
            row = {best, at};
            return q - p + i;
          }
        }
      }
      at = smallest >= best ? at : Index{} + static_cast<Number>(block);
      best = smaller(smallest, best);
    }
    row = {best, at};
    return n;
  }

  // Positions at which the kBlock elements from q on are `lane`; the smallest of all lanes is the
  // first, or the last element where none is: somebody may have written there since.
  REDUCEOPS_INLINE Index find(const Key* q, Lane lane) const {
    const Index none = Index{} + static_cast<Number>(kBlock - 1);
    Index found = none;
    for (int u = 0; u < kBlockVectors; ++u) {
      const Index numbers = lane_numbers() + static_cast<Number>(u * kLanes);
      found = smaller(found, this->load(q + u * kLanes) == Vectors::all(lane) ? numbers : none);
    }
    return found;
  }

  // Lanes of a and of b in turns of kHalf, and their partners: the lanes of the same row, kHalf
  // away.
  template <int kHalf, class T>
  static REDUCEOPS_INLINE Vector<T> in_turns(Vector<T> a, Vector<T> b) {
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      return shuffled<(i & kHalf ? kLanes + i : i)...>(a, b);
    }(std::make_integer_sequence<int, kLanes>());
  }
  template <int kHalf, class T>
  static REDUCEOPS_INLINE Vector<T> partners(Vector<T> a, Vector<T> b) {
    const Vector<T> others = in_turns<kHalf, T>(b, a);
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      return shuffled<(i ^ kHalf)...>(others, others);
    }(std::make_integer_sequence<int, kLanes>());
  }

  // Halves the lanes of two rows, or of two groups of rows.
  template <int kHalf>
  static REDUCEOPS_INLINE Partial merge(const Partial& a, const Partial& b) {
    const V x = in_turns<kHalf, Lane>(a.best, b.best), y = partners<kHalf, Lane>(a.best, b.best);
    const Index i = in_turns<kHalf, Number>(a.at, b.at), j = partners<kHalf, Number>(a.at, b.at);
    return {smaller(y, x), x == y ? smaller(i, j) : y >= x ? i : j};
  }
  template <int kHalf>
  static REDUCEOPS_INLINE Index merge(const Index& a, const Index& b) {
    return smaller(in_turns<kHalf, Number>(a, b), partners<kHalf, Number>(a, b));
  }

  // The sums of a row's lanes, for softmax_rows.h.
  struct Sum {
    V lanes;
  };
  template <int kHalf>
  static REDUCEOPS_INLINE Sum merge(const Sum& a, const Sum& b) {
    return {in_turns<kHalf, Lane>(a.lanes, b.lanes) + partners<kHalf, Lane>(a.lanes, b.lanes)};
  }

  // Combines the lanes of each of `count` rows: lane i is left with that of row i, `reduced(i)`.
  // Two rows are merged as soon as they are there, then two pairs, as a binary counter carries, so
  // that this hides behind reading the rows that follow.
  template <class Reduced>
  static REDUCEOPS_INLINE auto transposed(int count, const Reduced& reduced) {
    decltype(reduced(0)) pending[std::bit_width(unsigned(kLanes))], row;
    int i = 0;
    for (; i < count; ++i) carry<1>(pending, row = reduced(i), i);
    for (; i & (i - 1); ++i) carry<1>(pending, row, i);  // as if the last row came again
    return widened<1>(pending[std::countr_zero(unsigned(i | kLanes))], i);
  }
  template <int kHalf, class Row>
  static REDUCEOPS_INLINE void carry(Row* pending, const Row& row, int i) {
    if constexpr (kHalf < kLanes) {
      if (i & kHalf) return carry<2 * kHalf>(pending + 1, merge<kHalf>(*pending, row), i);
    }
    *pending = row;
  }
  template <int kHalf, class Row>
  static REDUCEOPS_INLINE Row widened(const Row& rows, int count) {
    if constexpr (kHalf < kLanes) {
      return widened<2 * kHalf>(kHalf < count ? rows : merge<kHalf>(rows, rows), count);
    } else {
      return rows;
    }
  }

  // Where the smallest of each of `count` (up to kLanes) rows of n elements is and, unless `values`
  // is null, the result's value.
  void reduce(const Key* const* row, int count, int64_t n, int64_t* positions, Key* values) const {
    return n > kShort ? reduce<true>(row, count, n, positions, values)
                      : reduce<false>(row, count, n, positions, values);
  }
  template <bool kLong>
  REDUCEOPS_NOINLINE void reduce(const Key* const* row, int count, int64_t n, int64_t* positions,
                                 Key* values) const {
    const auto read_values = [&] {
      for (int i = 0; i < count; ++i) values[i] = element.value(get<Key>(row[i] + positions[i]));
    };
    if constexpr (kBools) {
      const bool largest = element.order.flip == 0;
      for (int i = 0; i < count; ++i)
        positions[i] = largest ? first_bool<true>(row[i], n) : first_bool<false>(row[i], n);
      if (values) read_values();
      return;
    }
    // Masked bools often are decided at once, and all rows where one begins with a NaN. The other
    // rows are asked only where the first is: their beginnings are no stream.
    constexpr bool kDecides = kLong && (kFloats || sizeof(Key) == 1);
    if (kDecides && has_unbeaten && decided(row[0], n) < n) {
      bool all = true;
      const int64_t ahead = kGroupsAhead * (reinterpret_cast<intptr_t>(row[count - 1]) -
                                            reinterpret_cast<intptr_t>(row[0]));
      for (int i = 0; i < count; ++i) {
        all &= (positions[i] = decided(row[i], n)) < n;
        prefetch<kIntoL2>(row[i], ahead);
      }
      if (all) {
        if (values) read_values();
        return;
      }
    }
    int64_t nans[kLanes];
    bool any_nan = false;
    int64_t ahead = 0;
    if (kLong || asks_for_rows) ahead = ahead_of(count > 1 ? pitch : 0, n * int64_t(sizeof(Key)));
    Asked nan{};
    const Partial best = transposed(count, [&](int i) REDUCEOPS_INLINED {
      if constexpr (!kLong) {
        if (ahead) ask_ahead_of_row(row[i], n, ahead);
        return reduce_short(row[i], n, nan);
      }
      Partial partial;
      nans[i] = reduce_long(row[i], n, ahead, partial);
      any_nan |= kFloats && nans[i] < n;
      return partial;
    });
    if (kFloats && !kLong && any(nan)) [[unlikely]] {
      any_nan = true;
      for (int i = 0; i < count; ++i) nans[i] = first_nan(row[i], n);
    }
    Number at[kLanes];
    std::memcpy(at, &best.at, sizeof(at));
    if constexpr (kLong) {
      Lane lane[kLanes];
      std::memcpy(lane, &best.best, sizeof(lane));
      // No branch on what is found where, so that reading the next rows starts meanwhile.
      const Index found = transposed(count, [&](int i) REDUCEOPS_INLINED {
        positions[i] = block_start(at[i], n);
        return find(row[i] + positions[i], lane[i]);
      });
      std::memcpy(at, &found, sizeof(at));
      for (int i = 0; i < count; ++i) positions[i] += at[i];
    } else {
      for (int i = 0; i < count; ++i) positions[i] = at[i];
    }
    if (any_nan) [[unlikely]] {
      for (int i = 0; i < count; ++i) positions[i] = nans[i] < n ? nans[i] : positions[i];
    }
    if (!values) return;
    typename Vectors::Bits unsure{};
    const auto elements = this->elements(best.best, unsure);
    std::memcpy(values, &elements, count * sizeof(Key));
    if (any_nan || any(unsure)) read_values();
  }
};

}  // namespace
}  // namespace reduceops::cpu
