// The tile kernel of columns: the smallest element of each of some columns, and its row, of
// pointers to the rows.
//
// A tile of columns keeps its best lanes and their rows in cache while whole row segments stream
// by, kRows of them to a pass. A pass takes the smallest of its rows first and compares it once
// with the best; only where that is better, or a NaN is the first of its column, does it ask which
// row it was.
// Once few vectors ask, as in all but the first rows of tall columns, each row is compared with the
// bests by itself: memory is then read in its order, not in kRows places at once. (Not wide
// rows on AMD, whose hardware reads kRows such places faster than one.) Three or four instructions
// for each vector read are few enough for the loads of later rows to start early.
#pragma once

#include "cpu/vector.h"
#include "cpu/walk.h"

namespace reduceops::cpu {
namespace {

// How many columns and rows the kernel takes at once.
template <class Key>
struct ColumnLimits {
  using Number = std::make_unsigned_t<Key>;  // of a row in its block, from 1, in a lane
  static constexpr int64_t kLanes = kVectorBytes / sizeof(Key);
  static constexpr int64_t kTile = tile_of(sizeof(Key));
  static constexpr int kRows = kPassRows;
  static constexpr int kGroup = 4;     // vectors of a row that are compared at once
  static constexpr int kAhead = 1024;  // bytes in each row of a pass
  static constexpr int64_t kMostPitch = 1 << 20;
  // Rows to a block, so that their numbers fit.
  static constexpr int64_t kBlock =
      sizeof(Key) <= 2 ? (int64_t(1) << 8 * sizeof(Key)) - kRows : int64_t(1) << 31;

  // In narrow rows, of at most `narrow` bytes, what is read next are those of the next pass: how
  // many bytes on, else -1. (Rows hidden by a mask lie elsewhere.) Fewer rows than kRows
  // are mostly all there are: then a later tile is there, if rows are neighbours.
  template <int n>
  static REDUCEOPS_INLINE int64_t next_pass(const Key* const* row, int64_t width, int64_t narrow) {
    const int64_t pitch = n > 1 ? (row[1] - row[0]) * int64_t(sizeof(Key)) : 0;
    const int64_t bytes = width * int64_t(sizeof(Key));
    const bool near = pitch >= 0 && pitch <= (n < kRows ? bytes + kLostBytes : kMostPitch);
    return bytes <= narrow && near ? pitch * kRows : -1;
  }
};

// The bests of some of a tile's columns, and the accumulators of all: the bits of their lanes.
template <class Key>
struct Part {
  Key* lane;
  typename ColumnLimits<Key>::Number* at;
  Part from(int64_t column) const { return {lane + column, at + column}; }
};

// What goes over the rows of a tile. The kernel is behind pointers, so that this is there once for
// all elements of a width.
template <class Key>
struct ColumnTile {
  using Limits = ColumnLimits<Key>;
  using Number = typename Limits::Number;
  static constexpr int64_t kLanes = Limits::kLanes, kAhead = Limits::kAhead;
  static constexpr int kRows = Limits::kRows, kGroup = Limits::kGroup;
  static constexpr int64_t kCalm = 4;  // where fewer than one in so many ask

  using Pass = bool (*)(const void* kernel, const Key* const* row, Number number, int64_t width,
                        Part<Key> bests, int64_t& asked);

  const void* kernel;
  Pass (*pass_of)(int rows, bool first);
  void (*take_row)(const void* kernel, const Key* row, const Key* next, Number number,
                   int64_t width, Part<Key> bests, int64_t& asked);

  // The best of `width` columns over positions [j, stop) of a walk and, unless `results` is null,
  // the results that `rows` gives for where they are. Rows have a vector of columns at least.
  template <class Rows>
  REDUCEOPS_NOINLINE void operator()(Rows& rows, int64_t width, int64_t j, int64_t stop,
                                     Part<Key> bests, int64_t* results) const {
    const int64_t lanes = std::max<int64_t>(width, kLanes);
    bool settled = false, changed = false;
    for (int64_t start = j, block; start < stop && !settled; start += block) {
      block = rows.most(stop - start);
      rows.begin(start, block);
      if (start != j && changed) std::fill_n(bests.at, lanes, Number(0));
      changed = false;
      int n = kRows;
      while (n > 2 && n / 2 >= block) n /= 2;
      using Row = typename Rows::Row;
      Row row[kRows];
      const int64_t bytes = lanes * int64_t(sizeof(Key));
      constexpr int64_t kMostOnAmd = 8192;
      const bool by_themselves = bytes >= kAhead && (asks_in_streams || bytes <= kMostOnAmd);
      bool calm = false;
      const Pass first_pass = pass_of(n, true), later_pass = pass_of(n, false);
      for (int64_t i = 0; i < block && !settled;) {
        // The last pass of a block overlaps the one before, and the last row of a short block comes
        // again: what is done twice changes nothing.
        const int taken = static_cast<int>(least<int64_t>(n, block - i));
        const int kept = i > 0 ? n - taken : 0;
        std::copy(row + n - kept, row + n, row);
        for (int u = kept; u < kept + taken; ++u) row[u] = rows.next();
        for (int u = kept + taken; u < n; ++u) row[u] = row[u - 1];
        const auto number = static_cast<Number>(i - kept + 1);
        const bool first = start == j && i == 0;
        i += taken;
        int64_t asked = 0;
        if (calm) {
          for (int u = kept; u < n; ++u) {
            const Row following = u + 1 < n ? row[u + 1] : rows.following(row, u);
            rows.hand(row + u, 1, lanes, following,
                      [&](auto* part, auto next, int64_t c, int64_t w) {
                        take_row(kernel, *part, next, static_cast<Number>(number + u), w,
                                 bests.from(c), asked);
                      });
          }
          calm = asked * kCalm * kGroup * kLanes < lanes * taken;
        } else {
          settled = true;
          const Pass pass = first ? first_pass : later_pass;
          rows.hand(row, n, lanes, row[0], [&](auto* part, auto, int64_t c, int64_t w) {
            settled &= pass(kernel, part, number, w, bests.from(c), asked);
          });
          calm = n == kRows && by_themselves && asked * kCalm * kLanes < lanes;
        }
        changed |= asked > 0;
      }
      if (changed && results) {
        const auto last = static_cast<Number>(block);
        find_results(rows, start, last, width, bests.at, results, start == j);
      }
    }
  }

  // The results of a block that begins at position `start` and has rows up to number `last`; those
  // of columns whose best is in it, or of all. (Where somebody writes to the input meanwhile, a row
  // that was read again may have won with a later number.)
  template <class Rows>
  REDUCEOPS_NOINLINE static void find_results(const Rows& rows, int64_t start, Number last,
                                              int64_t width, const Number* at, int64_t* results,
                                              bool all) {
    const auto of = rows.results(start);  // a copy, which no store changes
    if (all) {
      for (int64_t c = 0; c < width; ++c) results[c] = of(std::min(at[c], last));
    } else {
      for (int64_t c = 0; c < width; ++c) {  // without a branch, which would be a guess
        const Number number = std::min(at[c], last);
        const int64_t found = of(std::max(number, Number(1)));
        results[c] = number ? found : results[c];
      }
    }
  }
};

template <class Element>
struct ColumnKernel : Lanes<Element>, ColumnLimits<typename Element::Key> {
  using Vectors = Lanes<Element>;
  using typename Vectors::Bits;
  using typename Vectors::Index;
  using typename Vectors::Key;
  using typename Vectors::Lane;
  using typename Vectors::V;
  using Vectors::element, Vectors::kFloats, Vectors::kLanes;

  using Limits = ColumnLimits<Key>;
  using Limits::kAhead, Limits::kGroup, Limits::kMostPitch, Limits::kRows, Limits::kTile;
  using typename Limits::Number;
  // Of narrow floats, whose keys do not tell the sign of a zero.
  static constexpr bool kKeepsBlock = Vectors::kNarrowFloats && !kSmall;
  // The rows of a tile that is one block and at least a vector wide; of others it is null.
  struct Block {
    const Key* rows;
    int64_t pitch, count;
  };
  struct Bests {
    alignas(kVectorBytes) Lane lane[kTile + kLanes];
    alignas(kVectorBytes) Number at[kTile + kLanes];  // 0: not in this block
    Block block;                                      // of narrow floats
    Part<Key> part() { return {reinterpret_cast<Key*>(lane), at}; }
  };

  const bool knows_zeros = !kFloats || !flushes();  // else a denormal has become one

  explicit ColumnKernel(Element element) : Vectors{element} {}

  // Floats keep the first of equals, and with it the sign of a zero.
  REDUCEOPS_INLINE Bits elements(V lanes, Bits& unsure) const {
    return Vectors::elements(lanes, unsure, knows_zeros);
  }

  // Which lanes win against the best: a NaN against any number.
  static REDUCEOPS_INLINE auto beats(V v, V best) {
    auto wins = v < best;
    if constexpr (kFloats) wins |= (v != v) & (best == best);
    return wins;
  }

  // Takes n rows, the first of which is number `number` of its block, into the bests of `width`
  // columns, and counts the vectors that ask which row it was. True if no more rows can change
  // these: all are NaN.
  template <int n, bool kFirst>
  REDUCEOPS_NOINLINE static bool pass(const void* kernel, const Key* const* row, Number number,
                                      int64_t width, Part<Key> bests, int64_t& asked) {
    const Vectors lanes = *static_cast<const ColumnKernel*>(kernel);  // which no store changes
    bool settled = kFloats;
    const int64_t next_rows = Limits::template next_pass<n>(row, width, kAhead - 1);
    const int64_t ahead = next_rows >= 0 ? next_rows : kAhead;
    const bool asks_ahead = next_rows >= 0 || asks_in_streams;
    for (int64_t next = 0; next < width; next += kLanes) {
      // The last vector overlaps the one before: what it does twice changes nothing.
      const int64_t c = least(next, width - kLanes);
      V v[n];
      for (int u = 0; u < n; ++u) v[u] = lanes.load(row[u] + c);
      for (int u = 0; asks_ahead && u < n; ++u) prefetch(row[u] + c, ahead);
      const V smallest = smallest_of<n>(v);
      const V best = kFirst ? Vectors::all(Vectors::kLast) : get<V>(bests.lane + c);
      const auto improved = smallest < best;
      auto asks = Vectors::less(smallest, best);
      if constexpr (kFloats) {
        const auto nan = Vectors::nan(sum_of<n>(v));  // if one is
        asks |= nan;
        if ((kFirst || any(asks)) && any(nan)) [[unlikely]] {
          ++asked;  // in vain, too: a row by itself would be asked more often
          if (kFirst || any(nan & ~Vectors::nan(best))) {
            V b = best;
            Index a = kFirst ? Index{} + number : get<Index>(bests.at + c);
            for (int u = 0; u < n && any(b == b); ++u) {
              const auto wins = beats(v[u], b);
              b = wins ? v[u] : b;
              a = wins ? Index{} + static_cast<Number>(number + u) : a;
            }
            put(bests.lane + c, b);
            put(bests.at + c, a);
            settled &= !any(b == b);
            continue;
          }
          asks = Vectors::less(smallest, best);  // a NaN where the best is one changes nothing
        }
        settled = !kFirst && settled && !any(best == best);
      }
      if (kFirst || any(asks)) {
        ++asked;
        Index a = Index{} + static_cast<Number>(number + n - 1);
        for (int u = n - 2; u >= 0; --u)
          a = v[u] == smallest ? Index{} + static_cast<Number>(number + u) : a;
        put(bests.at + c, kFirst ? a : improved ? a : get<Index>(bests.at + c));
        put(bests.lane + c, kFirst ? smallest : smaller(smallest, best));
      }
    }
    return settled;
  }

  static typename ColumnTile<Key>::Pass pass_of(int rows, bool first) {
    switch (rows) {
      case 8:
        return first ? pass<8, true> : pass<8, false>;
      case 4:
        return first ? pass<4, true> : pass<4, false>;
      default:
        return first ? pass<2, true> : pass<2, false>;
    }
  }

  // Takes some vectors of row `number` into the bests of their columns; whether any element asks.
  template <int kVectors>
  static REDUCEOPS_INLINE bool take(Vectors lanes, const Key* row, int64_t c, Number number,
                                    Part<Key> bests) {
    V v[kVectors], best[kVectors];
    typename Vectors::Asked asks{};
    for (int g = 0; g < kVectors; ++g) {
      v[g] = lanes.load(row + c + g * kLanes);
      best[g] = get<V>(bests.lane + c + g * kLanes);
      // A NaN asks, and where the best is one everything does.
      asks |= Vectors::less_or_nan(v[g], best[g]);
    }
    if (!any(asks)) [[likely]]
      return false;
    for (int g = 0; g < kVectors; ++g) {
      const auto wins = beats(v[g], best[g]);
      const Index at = get<Index>(bests.at + c + g * kLanes);
      put(bests.lane + c + g * kLanes, wins ? v[g] : best[g]);
      put(bests.at + c + g * kLanes, wins ? Index{} + number : at);
    }
    return true;
  }

  // Takes a row by itself: of neighbouring columns, at least a vector of them. `next` is the row
  // that follows. Counts the groups of vectors that ask.
  REDUCEOPS_NOINLINE static void take_row(const void* kernel, const Key* row, const Key* next,
                                          Number number, int64_t width, Part<Key> bests,
                                          int64_t& asked) {
    constexpr int64_t kColumns = kGroup * kLanes;
    const Vectors lanes = *static_cast<const ColumnKernel*>(kernel);  // which no store changes
    const int64_t ahead = least<int64_t>(kRowAhead / sizeof(Key), width);
    const auto part = [&](int64_t c, int64_t stop, const Key* to) REDUCEOPS_INLINED {
      for (; c + kColumns <= stop; c += kColumns) {
        for (int g = 0; g < kGroup; ++g) prefetch<kIntoL2>(to + c + g * kLanes, 0);
        asked += take<kGroup>(lanes, row, c, number, bests);
      }
      return c;
    };
    int64_t c = part(0, width - ahead, row + ahead);
    c = part(c, width, next - (width - ahead));
    // Narrow rows: some further on. (Rows hidden by a mask lie elsewhere.)
    const int64_t pitch = (next - row) * int64_t(sizeof(Key));
    const bool narrow = width * int64_t(sizeof(Key)) < kAhead && pitch >= 0 && pitch <= kMostPitch;
    // The last vector overlaps the one before: what it does twice changes nothing.
    for (; c < width; c += kLanes) {
      if (narrow) prefetch<kIntoL2>(row + c, 2 * kRows * pitch);
      asked += take<1>(lanes, row, least(c, width - kLanes), number, bests);
    }
  }

  // What a tile calls for this kernel.
  template <class Rows>
  void tile(Rows& rows, int64_t width, int64_t j, int64_t stop, Bests& bests,
            int64_t* results) const {
    const ColumnTile<Key> all{this, pass_of, take_row};
    all(rows, width, j, stop, bests.part(), results);
  }

  // The value of an element; what scales 16-bit floats is long.
  REDUCEOPS_SMALL Key value(Key bits) const { return element.value(bits); }

  // Reads the elements of narrow floats again whose bits their bests do not tell: zeros, which may
  // be many, by vectors where they are in the first rows; all others one by one. Somebody may write
  // to the input meanwhile, so what is no zero any more is left to be read as it is, and numbers of
  // rows have a bound.
  REDUCEOPS_NOINLINE void read_again(int64_t width, const Bests& bests, Key* values) const {
    const auto [rows, pitch, count] = bests.block;
    constexpr Key kSign = std::numeric_limits<Key>::min();
    const Bits sign = Bits{} + value(0);  // a zero with the sign of the scale
    for (int64_t next = 0; next < width; next += kLanes) {
      const int64_t c = least(next, width - kLanes);
      const V best = get<V>(bests.lane + c), zero = Vectors::all(element.order.bias);
      Bits left{};
      elements(best, left);
      if (!any(left)) continue;
      const Index at = get<Index>(bests.at + c);
      Bits found = get<Bits>(values + c);
      const auto take = [&](int64_t u) {
        const Bits row = get<Bits>(rows + u * pitch + c);
        Bits here = reinterpret_cast<Bits>(at == static_cast<Number>(u + 1));
        here &= reinterpret_cast<Bits>((best == zero) & (Vectors::of(row) == zero));
        found = here ? (row ^ sign) & kSign : found;
        left &= ~here;
      };
      take(0);
      if (any(left)) {
        for (int64_t u = 1; u < least<int64_t>(count, kRows); ++u) take(u);
      }
      put(values + c, found);
      for (uint64_t lanes = bits_of_mask(left) & kOneBit<Key>; lanes; lanes &= lanes - 1) {
        const int64_t i = c + std::countr_zero(lanes) / (kBitsPerByte * int64_t(sizeof(Key)));
        const int64_t u = least<int64_t>(bests.at[i], count) - 1;
        values[i] = value(get<Key>(rows + u * pitch + i));
      }
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
