// Groups of a few elements, wherever they lie: a thread loads all elements of an output itself, or
// of the neighbouring outputs whose elements share 4 bytes. Where results follow each other in
// another order than memory, a block takes a tile of both, and its threads exchange results. Longer
// groups of small inputs are shared by threads of a block, so that each waits for memory a few
// times.
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

struct GatherProblem {
  const char* input;
  Outputs out;
  uint32_t units;  // over `dims`
  uint32_t rows, row_stride, index_step;
  uint32_t neighbour_step;  // from a result to that of the next element of a pack
  bool row_loads;
  int count;
  GatherDim dims[kGatherDims];  // of units, as dims_of has them; of tiles without the last
  ShortDivisor by_size[kGatherDims];
  // Of tiles.
  GatherDim cross;
  uint32_t inner_side, cross_side, before_cross, inner_tiles;
  ShortDivisor by_before_cross, by_cross_side, by_inner_tiles;
  uint32_t results;  // of a tile
  uint32_t shares;

  GatherProblem(const Problem& p, const Groups& groups, int64_t bytes)
      : input(p.input),
        out(p.out),
        rows(static_cast<uint32_t>(p.walk)),
        row_stride(0),
        index_step(1) {
    if (p.reduced_count > 0) {
      row_stride = static_cast<uint32_t>(p.dims[p.kept_count].stride);
      index_step = static_cast<uint32_t>(p.dims[p.kept_count].step);
    }
    const Gather& plan = p.plan.gather;
    const int64_t width = plan.width(bytes);
    const Dims kept = dims_of(plan, groups);
    neighbour_step = static_cast<uint32_t>(kept.dim[0].step);
    row_loads = plan.row_loads;
    shares = static_cast<uint32_t>(plan.shares);
    count = kept.count - plan.tiled();
    const auto short_dim = [](const Dim& dim) {
      return GatherDim{static_cast<uint32_t>(dim.size), static_cast<uint32_t>(dim.stride),
                       static_cast<uint32_t>(dim.step)};
    };
    units = 1;
    for (int d = 0; d < count; ++d) {
      Dim dim = kept.dim[d];
      if (d == 0) dim = {dim.size / width, dim.stride * width, dim.step * width};
      dims[d] = short_dim(dim);
      by_size[d] = ShortDivisor(dim.size);
      units *= dims[d].size;
    }
    if (!plan.tiled()) return;
    cross = short_dim(kept.dim[count]);
    inner_side = static_cast<uint32_t>(plan.inner_side);
    cross_side = static_cast<uint32_t>(plan.cross_side);
    inner_tiles = static_cast<uint32_t>(ceil_div(units, inner_side));
    before_cross = static_cast<uint32_t>(plan.before_cross);
    by_before_cross = ShortDivisor(before_cross);
    by_cross_side = ShortDivisor(cross_side);
    by_inner_tiles = ShortDivisor(inner_tiles);
    results = static_cast<uint32_t>(plan.results_of_tile(bytes));
  }
};

// Where the elements of a unit begin, and where its results go.
struct GatherPlace {
  uint32_t from = 0, to = 0;

  __device__ void add(const GatherDim& dim, uint32_t digit) {
    from += digit * dim.stride;
    to += digit * dim.step;
  }
  // That of a unit by its number. Of the first dims, what it takes are constants of instructions,
  // not loads.
  __device__ void add(const GatherProblem& p, uint32_t unit) {
    constexpr int kUnrolled = 3;
#pragma unroll
    for (int d = 0; d < kUnrolled; ++d) {
      if (d + 1 == p.count) return add(p.dims[d], unit);
      unit = add_digit(p, d, unit);
    }
    REDUCEOPS_ROLLED
    for (int d = kUnrolled; d + 1 < p.count; ++d) unit = add_digit(p, d, unit);
    add(p.dims[p.count - 1], unit);
  }

 private:
  // What remains of the number for the dims after that.
  __device__ uint32_t add_digit(const GatherProblem& p, int d, uint32_t unit) {
    const uint32_t over = p.by_size[d].quotient(unit);
    add(p.dims[d], unit - over * p.dims[d].size);
    return over;
  }
};

// What orders an element: a float as such, negated for a maximum; else its key.
template <class Element, class Key = typename Element::Key>
__device__ auto ordered(Element element, Key bits) {
  if constexpr (kIsFloat<Element>) {
    return ordered_float(element, bits);
  } else if constexpr (kIsHalf<Element>) {
    return Element::Format::decode(element.value(bits)) * (element.order.flip ? -1.0f : 1.0f);
  } else {
    return element.key(bits);
  }
}
// Whether it comes before the best of those before it.
template <class T>
__device__ bool wins(T x, T best) {
  if constexpr (std::is_floating_point_v<T>) return !(x >= best) && best == best;
  return x < best;
}

// The rows of a unit, or those of one of the threads that share it.
struct Rows {
  uint32_t count, stride;
};

// What a unit has in a row, as T.
template <class T, class Key>
__device__ T element_of(const GatherProblem& p, Rows rows, GatherPlace at, uint32_t row) {
  const Key* from = reinterpret_cast<const Key*>(p.input) + at.from + int64_t(row) * rows.stride;
  return *reinterpret_cast<const T*>(from);
}

// Element number e of a slot.
template <class Key, class Slot>
__device__ Key element_in(Slot slot, int e) {
  return static_cast<Key>(slot >> (8 * int(sizeof(Key)) * e));
}

// The best of some elements, which come in the order of their rows.
template <class Element>
class Winner {
  using Key = typename Element::Key;
  using Ordered = decltype(ordered(std::declval<Element>(), Key()));

 public:
  // `first`: whether no element came before.
  __device__ void take(Element element, Key bits, uint32_t row, bool first) {
    const Ordered here = ordered(element, bits);
    if (!first && !wins(here, best_)) return;
    best_ = here;
    bits_ = bits;
    row_ = row;
  }
  __device__ uint32_t row() const { return row_; }
  __device__ Key bits() const { return bits_; }

 private:
  Ordered best_;
  Key bits_;
  uint32_t row_;
};

// The value of an element with this key, which lies there.
template <class Element, class Key>
__device__ Key value_at(const GatherProblem& p, Element element, Key key, int64_t at) {
  Key value;
  if (!element.value_of_key(key, value))
    value = element.value(reinterpret_cast<const Key*>(p.input)[at]);
  return value;
}

// The best of each output of some units, whose elements begin at places: of kRows elements, or of
// any number.
template <bool kPacked, int kUnits, int kRows, class Element>
class Bests {
  using S = Slots<Element>;
  using Key = typename S::Key;

 public:
  static constexpr int kWidth = kPacked ? S::kElements : 1;

  __device__ Bests(const GatherProblem& p, Element element, Rows all,
                   const GatherPlace (&at)[kUnits])
      : element_(element) {
    using Slot = std::conditional_t<kPacked, typename S::Slot, std::make_unsigned_t<Key>>;
    Slot slots[kRows][kUnits];
    if (may_load_rows(kRows, sizeof(Key)) && !kPacked && p.row_loads) {
      struct alignas(std::bit_ceil(kRows * sizeof(Key))) Row {
        std::make_unsigned_t<Key> at[kRows];
      } rows[kUnits];
      const auto* input = reinterpret_cast<const Key*>(p.input);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) rows[i] = *reinterpret_cast<const Row*>(input + at[i].from);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) slots[r][i] = rows[i].at[r];
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) slots[r][i] = element_of<Slot, Key>(p, all, at[i], r);
      }
    }
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
                   const GatherPlace (&at)[kUnits])
      : element_(element) {
    constexpr int kAtOnce = kRowsAtOnce<Key, kUnits>;
    for (uint32_t row = 0; row < rows.count; row += kAtOnce) {
      Slot slots[kAtOnce][kUnits];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (r > 0 && row + r >= rows.count) break;
#pragma unroll
        for (int i = 0; i < kUnits; ++i)
          slots[r][i] = element_of<Slot, Key>(p, rows, at[i], row + r);
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (r > 0 && row + r >= rows.count) break;
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
#pragma unroll
          for (int e = 0; e < kWidth; ++e)
            bests_[i][e].take(element, element_in<Key>(slots[r][i], e), row + r,
                              r == 0 && row == 0);
        }
      }
    }
  }
  __device__ uint32_t position(int unit, int e) const { return bests_[unit][e].row(); }
  __device__ Key key(int unit, int e) const { return element_.key(bests_[unit][e].bits()); }
  __device__ Key value(int unit, int e) const { return element_.value(bests_[unit][e].bits()); }

 private:
  const Element element_;
  Winner<Element> bests_[kUnits][kWidth];
};

// Of packs of bytes, which are compared two at once.
template <int kUnits, class Element>
  requires(sizeof(typename Element::Key) == 1)
class Bests<true, kUnits, kAnyRows, Element> {
  using S = Slots<Element>;
  using Key = typename S::Key;

 public:
  static constexpr int kWidth = S::kElements;

  __device__ Bests(const GatherProblem& p, Element element, Rows rows,
                   const GatherPlace (&at)[kUnits])
      : p_(p), element_(element), rows_(rows), at_(at) {
    constexpr int kAtOnce = kRowsAtOnce<Key, kUnits>, kCompared = std::min(kAtOnce, 4);
    for (uint32_t row = 0; row < rows.count; row += kAtOnce) {
      // Past the end there is the first of these again, which changes nothing.
      typename S::Slot slots[kAtOnce / kCompared][kUnits][kCompared];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        if (r > 0 && r % kCompared == 0 && row + r >= rows.count) break;
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          typename S::Slot& slot = slots[r / kCompared][i][r % kCompared];
          slot = slots[0][i][0];
          if (r == 0 || row + r < rows.count)
            slot = element_of<typename S::Slot, Key>(p, rows, at[i], row + r);
        }
      }
#pragma unroll
      for (int r = 0; r < kAtOnce; r += kCompared) {
        if (r == 0 || row + r < rows.count) tracker_.take(element, slots[r / kCompared], row + r);
      }
    }
    tracker_.finish();
  }
  __device__ uint32_t position(int unit, int e) const { return tracker_.turn(unit, e); }
  __device__ Key key(int unit, int e) const { return tracker_.key(element_, unit, e); }
  __device__ Key value(int unit, int e) const {
    return value_at(p_, element_, key(unit, e),
                    at_[unit].from + e + int64_t(position(unit, e)) * rows_.stride);
  }

 private:
  const GatherProblem& p_;
  const Element element_;
  const Rows rows_;
  const GatherPlace (&at_)[kUnits];
  Tracker<Element, kUnits> tracker_;
};

template <bool kPacked, int kRows, class Element>
__global__ void __launch_bounds__(kThreads)
    gather(const __grid_constant__ GatherProblem p, const Element element) {
  using Key = typename Element::Key;
  constexpr int kUnits = gather_units(kRows, kPacked);
  using Of = Bests<kPacked, kUnits, kRows, Element>;
  const uint32_t first = blockIdx.x * uint32_t(kUnits * kThreads) + threadIdx.x;
  GatherPlace at[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
    at[i].add(p, std::min<uint32_t>(first + i * kThreads, p.units - 1));
  const Of bests(p, element, {p.rows, p.row_stride}, at);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (first + i * kThreads >= p.units) continue;
    if constexpr (Of::kWidth > 1) {
      if (p.neighbour_step == 1 && !p.out.pairs.words) {
        uint32_t indices[Of::kWidth];
#pragma unroll
        for (int e = 0; e < Of::kWidth; ++e) indices[e] = bests.position(i, e) * p.index_step;
        if (p.out.indices) p.out.put_indices(at[i].to, Of::kWidth, indices);
        if (p.out.values)
          p.out.template put_values<Key, Of::kWidth>(at[i].to,
                                                     [&](int e) { return bests.value(i, e); });
        continue;
      }
    }
#pragma unroll
    for (int e = 0; e < Of::kWidth; ++e)
      p.out.put(at[i].to + e * p.neighbour_step, bests.position(i, e) * p.index_step,
                [&] { return bests.value(i, e); });
  }
}

// Blocks that shall find room in a multiprocessor: packs of bytes take more registers.
template <bool kPacked, class Key>
constexpr int tile_blocks = kPacked && sizeof(Key) == 1 ? 3 : 4;

// A tile to a block. Threads lie over units in the order of memory, and then over results in
// theirs.
template <bool kPacked, int kRows, class Element>
__global__ void __launch_bounds__(kThreads, tile_blocks<kPacked, typename Element::Key>)
    gather_tiles(const __grid_constant__ GatherProblem p, const Element element) {
  using Key = typename Element::Key;
  constexpr int kUnits = kGatherTile / kThreads;
  using Of = Bests<kPacked, kUnits, kRows, Element>;
  constexpr uint32_t kWidth = Of::kWidth;
  auto* places = reinterpret_cast<GatherPlace*>(dynamic_shared());  // [inner]
  auto* values = reinterpret_cast<Key*>(places + p.inner_side);     // [inner][cross]
  auto* positions = reinterpret_cast<uint8_t*>(values + p.results);
  const uint32_t pitch = p.cross_side + 1;
  const uint32_t cross_tile = p.by_inner_tiles.quotient(blockIdx.x);
  const uint32_t first = (blockIdx.x - cross_tile * p.inner_tiles) * p.inner_side;
  const uint32_t inners = std::min(p.inner_side, p.units - first);
  const uint32_t crosses = std::min(p.cross_side, p.cross.size - cross_tile * p.cross_side);
  for (uint32_t i = threadIdx.x; i < inners; i += kThreads) {
    GatherPlace at;
    at.add(p.cross, cross_tile * p.cross_side);
    at.add(p, first + i);
    places[i] = at;
  }
  __syncthreads();
  GatherPlace at[kUnits];
  uint32_t results[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const uint32_t unit = threadIdx.x + i * uint32_t(kThreads);
    const uint32_t rest = p.by_before_cross.quotient(unit), over = p.by_cross_side.quotient(rest);
    const uint32_t cross = rest - over * p.cross_side;
    const uint32_t inner = unit - (rest - over) * p.before_cross;
    const bool inside = inner < inners && cross < crosses;
    at[i] = places[inside ? inner : 0];
    at[i].add(p.cross, inside ? cross : 0);
    results[i] = inside ? inner * kWidth * pitch + cross : ~0u;
  }
  const Of bests(p, element, {p.rows, p.row_stride}, at);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (results[i] == ~0u) continue;
#pragma unroll
    for (uint32_t e = 0; e < kWidth; ++e) {
      positions[results[i] + e * pitch] = static_cast<uint8_t>(bests.position(i, e));
      if (p.out.values) values[results[i] + e * pitch] = bests.value(i, e);
    }
  }
  __syncthreads();
  // Not all at once, which would be a third more code.
#pragma unroll 2
  for (uint32_t i = 0; i < kUnits * kWidth; ++i) {
    const uint32_t number = threadIdx.x + i * uint32_t(kThreads);
    const uint32_t inner = p.by_cross_side.quotient(number), cross = number - inner * p.cross_side;
    if (inner >= inners * kWidth || cross >= crosses) continue;
    const uint32_t result = inner * pitch + cross;
    p.out.put(places[inner / kWidth].to + inner % kWidth * p.neighbour_step + cross * p.cross.step,
              positions[result] * p.index_step, [&] { return values[result]; });
  }
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
  at[0].add(p, std::min(first + (threadIdx.x & (lanes - 1)), p.units - 1));
  at[0].from += share * p.row_stride;
  const Rows rows{((p.rows - share - 1) >> shares_log2) + 1, p.row_stride << shares_log2};
  const Of bests(p, element, rows, at);
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
    of.add(p, first + lane);
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
        visit_rows<kTileRows>(problem.walk, [&](auto rows) {
          launch(gather_tiles<kPacked, rows.value, Element>, plan, p, element, stream,
                 plan.gather.shared_bytes(kBytes));
        });
      } else {
        visit_rows<kKnownRows>(problem.walk, [&](auto rows) {
          launch(gather<kPacked, rows.value, Element>, plan, p, element, stream);
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
