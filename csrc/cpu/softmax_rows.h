// softmax_max of rows: a reduced dim is innermost.
//
// Short rows are read twice, the second time from L1: as many at once as a vector has lanes, whose
// lanes are combined together (row_kernel.h), first for the largest and then for the sums. Longer
// rows are read once: each lane of a vector has a largest element and a sum of its own, which are
// merged at the end. Bound by memory with wide vectors, by fifteen to twenty instructions for each
// vector with narrow ones.
#pragma once

#include "cpu/row_sources.h"
#include "cpu/softmax.h"

namespace reduceops::cpu {
namespace {

template <class Format>
struct SoftmaxRows : SoftmaxWalk<Format> {
  using Base = SoftmaxWalk<Format>;
  using Lanes = SoftmaxLanes<Format>;
  using Base::input, Base::job, Base::r;
  using Lanes::kLanes;
  using typename Base::Compute;
  using typename Base::Key;
  using typename Lanes::Bits;
  using typename Lanes::Index;
  using typename Lanes::Number;
  using typename Lanes::V;
  // Whose rows have lanes of this width, and whose elements are these.
  using Wide = RowKernel<Plain<Bits, true>>;
  using Plainly = RowKernel<typename Base::Ordered>;
  using Partial = typename Wide::Partial;

  static constexpr int64_t kShort = 32 * kLanes;  // elements of a row
  static constexpr int kBlockVectors = 8;
  static constexpr int64_t kBlock = kBlockVectors * kLanes;
  static constexpr int64_t kRun = int64_t(1) << 30;  // positions in it fit a lane
  static constexpr int64_t kCopied = 4096 / sizeof(Key);
  static constexpr int kAhead = 12288;   // bytes
  static constexpr int kAskedFirst = 4;  // one in so many

  const Plainly plainly;  // finds the first NaN

  explicit SoftmaxRows(const Job& job) : Base(job), plainly(this->element, job) {}

  // Every lane becomes combine() of all lanes.
  template <int kHalf = kLanes / 2, class T, class Combine>
  static REDUCEOPS_INLINE T across(T v, const Combine& combine) {
    if constexpr (kHalf == 0) {
      return v;
    } else {
      const T others = [&]<int... i>(std::integer_sequence<int, i...>) {
        return shuffled<(i ^ kHalf)...>(v, v);
      }(std::make_integer_sequence<int, kLanes>());
      return across<kHalf / 2>(combine(v, others), combine);
    }
  }

  // The position of the largest of n neighbours, a NaN being larger than others.
  REDUCEOPS_SMALL int64_t first_of(const Key* p, int64_t n) const {
    if (n < Plainly::kLanes) return first_in(p, n);
    int64_t best = 0;
    for (int64_t next = 0; next < n; next += Plainly::kRun) {
      const int64_t start = least(next, n - Plainly::kLanes);
      const Key* q = p + start;
      int64_t position;
      plainly.reduce(&q, 1, least(Plainly::kRun, n - start), &position, nullptr);
      const auto key = [&](int64_t at) { return plainly.element.key(get<Key>(p + at)); };
      if (key(start + position) < key(best)) best = start + position;
    }
    return best;
  }

  // Up to kRun neighbours; the index is the position. What lies behind them is read, but does not
  // count, where there are fewer than a vector has lanes.
  REDUCEOPS_NOINLINE Softmax run(const Key* p, int64_t n) const {
    const Index numbers = Wide::lane_numbers();
    typename Lanes::State lanes;
    const auto take = [&]<int kVectors>(const V* v, int64_t start) REDUCEOPS_INLINED {
      Lanes::template take<kVectors, false>(v, lanes, [&](auto improved, V, Index& at) {
        at = improved ? Index{} + static_cast<Number>(start) : at;
      });
    };
    int64_t i = 0;
    for (; i + kBlock <= n; i += kBlock) {
      V v[kBlockVectors];
      for (int u = 0; u < kBlockVectors; ++u) v[u] = Lanes::load(p + i + u * kLanes);
      for (int u = 0; asks_in_streams && u < kBlockVectors; ++u)
        prefetch<kIntoL2>(p + i + u * kLanes, kAhead);
      take.template operator()<kBlockVectors>(v, i);
    }
    for (; i + kLanes <= n; i += kLanes) {
      const V v = Lanes::load(p + i);
      take.template operator()<1>(&v, i);
    }
    if (i < n) {  // the last vector overlaps the one before, and does not count where it does
      const int64_t start = std::max<int64_t>(0, n - kLanes);
      const V last = Lanes::load(p + start);
      const auto from = static_cast<Number>(i - start), to = static_cast<Number>(n - start);
      const V v = (numbers >= from) & (numbers < to) ? last : Lanes::all(-Lanes::kInfinity);
      take.template operator()<1>(&v, start);
    }
    const auto most = [](V a, V b) { return larger(a, b); };
    const V largest = across(lanes.largest, most);
    // That of a lane with the largest: to which its exp() was added.
    const V bases = lanes.largest == largest ? lanes.base : Lanes::all(-Lanes::kInfinity);
    const V base = across(bases, most);
    const V sums = (lanes.sum - lanes.excess) * exp_of<Compute>(lanes.base - base);
    const V shares = exp_of<Compute>(largest - base);
    const V total =
        across(sums, [](V a, V b) { return a + b; }) + Lanes::more(largest, base, shares);
    Softmax group{largest[0], double{total[0]} / shares[0], 0};
    if (total[0] != total[0]) [[unlikely]] {  // a NaN, or an infinite largest
      group.index = first_of(p, n);
      group.largest = Format::decode(get<Key>(p + group.index));
      return group;
    }
    const Index starts = lanes.largest == largest ? lanes.at : ~Index{};
    const auto start =
        static_cast<int64_t>(across(starts, [](Index a, Index b) { return smaller(a, b); })[0]);
    group.index = find(p, start, n, largest);
    return group;
  }

  // Where the largest of the block that begins at `start` is. Somebody may have written there
  // since: it need not be there.
  static int64_t find(const Key* p, int64_t start, int64_t n, V largest) {
    for (int64_t i = start; i + kLanes <= n && i < start + kBlock; i += kLanes) {
      const auto here = Lanes::load(p + i) == largest;
      if (any(here)) return i + first<Compute>(here);
    }
    for (int64_t i = start; i < n; ++i)
      if (Format::decode(get<Key>(p + i)) == largest[0]) return i;
    return start;
  }

  // The first largest of a few.
  REDUCEOPS_NOINLINE int64_t first_in(const Key* p, int64_t n) const {
    int64_t best = 0;
    for (int64_t i = 1; i < n; ++i)
      if (plainly.element.key(get<Key>(p + i)) < plainly.element.key(get<Key>(p + best))) best = i;
    return best;
  }

  // n elements, stride apart.
  REDUCEOPS_SMALL Softmax run(const Key* p, int64_t n, int64_t stride) const {
    Key copied[kCopied];
    std::memset(copied, 0, kLanes * sizeof(Key));
    const bool copies = stride != 1 || n < kLanes;
    const int64_t step = copies ? kCopied : kRun;
    SoftmaxSum all;
    for (int64_t start = 0; start < n; start += step) {
      const int64_t m = least(step, n - start);
      const Key* q = p + start * stride;
      if (copies || m < kLanes) {
        copy_run(copied, q, m, stride);
        q = copied;
      }
      Softmax here = run(q, m);
      here.index += start;
      all.add(here);
    }
    return all.group();
  }

  // Positions [j, stop) of a group.
  REDUCEOPS_SMALL Softmax positions(const Key* base, int64_t j, int64_t stop) const {
    const Dim along = r.groups.reduced.dim[0];
    const int64_t n = stop - j;
    const Key* p = base + j * along.stride;
    Softmax part =
        along.stride == 1 && n >= kLanes && n <= kRun ? run(p, n) : run(p, n, along.stride);
    part.index += j;
    return part;
  }

  // The lanes of a short row that its largest is in, as rows.h has them: their negatives. Asks for
  // the first part of what lies `ahead` bytes behind, and the sums for the rest: for as much as
  // each leaves time for.
  static REDUCEOPS_INLINE Partial largest_lanes(const Key* p, int64_t n, int64_t ahead) {
    const Index numbers = Wide::lane_numbers();
    V best = Lanes::load(p);
    Index at = numbers;
    if (n < kLanes) {
      const auto inside = numbers < static_cast<Number>(n);
      best = inside ? best : Lanes::all(-Lanes::kInfinity);
      return {-best, inside ? at : Index{}};
    }
    const auto take = [&](int64_t i) REDUCEOPS_INLINED {
      const V v = Lanes::load(p + i);
      prefetch<kIntoL2>(p + i / kAskedFirst, ahead);
      at = v > best ? numbers + static_cast<Number>(i) : at;
      best = larger(best, v);
    };
    int64_t i = kLanes;
    for (; i + kLanes <= n; i += kLanes) take(i);
    if (i < n) take(n - kLanes);  // overlaps the one before
    return {-best, at};
  }

  // The sums of its lanes.
  static REDUCEOPS_INLINE V sum_lanes(const Key* p, int64_t n, Compute largest, int64_t ahead) {
    const Index numbers = Wide::lane_numbers();
    const V base = at_least_finite(Lanes::all(largest));
    const Key* next = p + n / kAskedFirst;
    prefetch<kIntoL2>(p + n - 1, ahead);
    if (n < kLanes) {
      const V v = Lanes::load(p), sum = sum_of_exp<Compute, 1>(&v, base);
      return numbers < static_cast<Number>(n) ? sum : V{};
    }
    V sum{}, excess{};  // by which the sum is too large: what rounding added (Kahan)
    int64_t i = 0;
    const auto next_sum =
        [&]<int kVectors>(std::integral_constant<int, kVectors>) REDUCEOPS_INLINED {
          V v[kVectors];
          for (int u = 0; u < kVectors; ++u) {
            v[u] = Lanes::load(p + i + u * kLanes);
            prefetch<kIntoL2>(next + (i + u * kLanes) / kAskedFirst * (kAskedFirst - 1), ahead);
          }
          i += kVectors * kLanes;
          return sum_of_exp<Compute, kVectors>(v, base);
        };
    while (i + 8 * kLanes <= n) {
      const V added = next_sum(std::integral_constant<int, 8>()) - excess, total = sum + added;
      excess = (total - sum) - added;
      sum = total;
    }
    V rest = V{} - excess;
    if (i + 4 * kLanes <= n) rest += next_sum(std::integral_constant<int, 4>());
    if (i + 2 * kLanes <= n) rest += next_sum(std::integral_constant<int, 2>());
    if (i + 1 * kLanes <= n) rest += next_sum(std::integral_constant<int, 1>());
    if (i < n) {
      const V v = Lanes::load(p + n - kLanes), last = sum_of_exp<Compute, 1>(&v, base);
      rest += numbers >= static_cast<Number>(kLanes - (n - i)) ? last : V{};
    }
    return sum + rest;
  }

  // Items are whole short rows.
  REDUCEOPS_NOINLINE void whole(int64_t begin, int64_t end) const {
    const Dims& kept = r.groups.kept;
    const int64_t n = r.groups.reduced.dim[0].size;
    const bool in_place = in_order(r.groups);
    StoredRows<Key> source(*this);
    Marks<false> unmarked(r, kept, 0, begin);
    Cursor cursor(kept, 0, begin);
    while (begin < end) {
      const Key* row[kLanes];
      Place at[kLanes];
      const int count = static_cast<int>(least<int64_t>(kLanes, end - begin));
      next_places(kept, begin, count, cursor, at);
      source.hand(at, unmarked, count, n, row);
      const int64_t ahead = count > 1 ? (row[1] - row[0]) * kLanes * sizeof(Key) : 0;
      const Partial bests = Wide::transposed(
          count, [&](int i) REDUCEOPS_INLINED { return largest_lanes(row[i], n, ahead); });
      Compute largest[kLanes], probability[kLanes];
      Number position[kLanes];
      put(largest, -bests.best);
      put(position, bests.at);
      const V sums = Wide::transposed(count, [&](int i) REDUCEOPS_INLINED {
                       return typename Wide::Sum{sum_lanes(row[i], n, largest[i], ahead)};
                     }).lanes;
      put(probability, Lanes::all(1) / sums);
      const V odd = bests.best - bests.best;  // NaN where the largest is not finite
      if (any(Wide::nan(sums + odd))) [[unlikely]] {
        for (int i = 0; i < count; ++i) {
          if (probability[i] != probability[i]) position[i] = first_of(row[i], n);
          if (std::isinf(largest[i])) probability[i] = NAN;
        }
      }
      if (in_place) {
        int64_t* indices = static_cast<int64_t*>(r.indices) + begin;
        Key* values = static_cast<Key*>(r.values) + begin;
        for (int i = 0; i < count; ++i) indices[i] = position[i];
        for (int i = 0; i < count; ++i) values[i] = Format::encode(probability[i]);
      } else {
        for (int i = 0; i < count; ++i)
          this->store(at[i], Format::encode(probability[i]), static_cast<int64_t>(position[i]));
      }
      begin += count;
    }
  }

  REDUCEOPS_SMALL void operator()(int64_t begin, int64_t end) const {
    const Dims& reduced = r.groups.reduced;
    if (reduced.count == 1 && reduced.dim[0].stride == 1 && reduced.dim[0].size <= kShort &&
        job.plan.parts == 1) {
      return whole(begin, end);
    }
    const int64_t walk = walk_extent(reduced);
    Item item(job.plan, begin);
    Cursor kept(r.groups.kept, 0, item.unit);
    for (; begin < end; ++begin) {
      const int64_t j = item.part * job.plan.part_extent;
      const int64_t stop = least(walk, j + job.plan.part_extent);
      const Place at = kept.place();
      const Softmax group = positions(input + at.offset, j, stop);
      if (job.candidates) {
        this->store_candidate(item.candidate(), group);
      } else {
        this->store(at, group);
      }
      if (item.next()) kept.next();
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
