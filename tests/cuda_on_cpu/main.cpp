// Runs every walk, thread for thread, on random inputs with random constants, input and shared
// memory being buffers of exactly their size, and compares with a loop over the keys. Prints how
// many reductions took each walk, and how many of the plans were of some kinds; then how many that
// were masked, and how many of softmax_max, took each walk, were in parts, were in clusters, and
// were gathered by threads that share groups, those in packs that begin anywhere once more.
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "cuda/choices.h"
#include "cuda/device.cuh"
#include "cuda/finish.h"
#include "cuda/keys.cuh"
#include "cuda/layout.h"
#include "cuda/pack.h"
#include "cuda/plan/copies.h"
#include "cuda/plan_check.h"
#include "cuda/ring.cuh"
#include "cuda/steps.h"
#include "make_groups.h"

namespace reduceops::cuda {

uint32_t signs_of_halves(uint32_t x) {
  return of_halves<int16_t>(x, x, [](int16_t half, int16_t) { return half < 0 ? -1 : 0; });
}

float min_or_nan(float a, float b) {
  if (a != a || b != b) return std::numeric_limits<float>::quiet_NaN();
  return a < b || (a == b && std::signbit(a)) ? a : b;
}

template <class Format>
uint32_t min_or_nan_of_halves(uint32_t a, uint32_t b) {
  return of_halves<int16_t>(a, b, [](int16_t x, int16_t y) {
    const float smaller = min_or_nan(Format::decode(x), Format::decode(y));
    return smaller != smaller ? int16_t(0x7fff) : Format::encode(smaller);
  });
}
template uint32_t min_or_nan_of_halves<Float16>(uint32_t, uint32_t);
template uint32_t min_or_nan_of_halves<BFloat16>(uint32_t, uint32_t);

template <class Format>
uint32_t equal_halves(Format, uint32_t a, uint32_t b) {
  return of_halves<int16_t>(
      a, b, [](int16_t x, int16_t y) { return Format::decode(x) == Format::decode(y) ? -1 : 0; });
}
template <class Format>
uint32_t not_ge_halves(Format, uint32_t a, uint32_t b) {
  return of_halves<int16_t>(
      a, b, [](int16_t x, int16_t y) { return Format::decode(x) >= Format::decode(y) ? 0 : -1; });
}
template uint32_t not_ge_halves(Float16, uint32_t, uint32_t);
template uint32_t not_ge_halves(BFloat16, uint32_t, uint32_t);
template uint32_t equal_halves(Float16, uint32_t, uint32_t);
template uint32_t equal_halves(BFloat16, uint32_t, uint32_t);

void init_barrier(uint32_t barrier, int count) {
  const auto threads = static_cast<uint16_t>(count);
  Barrier::at(barrier) = {threads, threads, 0, 0};
}
void show_barriers() {}
void arrive(uint32_t barrier) { arrive_and_expect(barrier, 0); }
void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  Barrier& at = Barrier::at(barrier);
  at.bytes += static_cast<int32_t>(bytes);
  --at.pending;
  at.end();
}
void wait_for(uint32_t barrier, uint32_t phase) {
  running::wait_until([&] { return Barrier::at(barrier).phase != phase; });
}
void bulk_copy(uint32_t to, const char* from, uint32_t bytes, uint32_t barrier) {
  char* into = running::shared() + to;
  if ((to | reinterpret_cast<uintptr_t>(from) | bytes) % kLoadBytes != 0) {
    std::puts("a bulk copy is not of aligned blocks");
    std::exit(1);
  }
  std::memcpy(into, from, bytes);
  Barrier& at = Barrier::at(barrier);
  at.bytes -= static_cast<int32_t>(bytes);
  at.end();
}
void order_before_copies() {}
void sync_threads(uint32_t threads) { running::sync(threads); }

void fail(cudaError_t) { std::abort(); }

}  // namespace reduceops::cuda

namespace {

using namespace reduceops;
using namespace reduceops::cuda;

const DType kDTypes[] = {{"bool", Kind::kUnsigned, 1, 1},
                         {"int8", Kind::kSigned, 1, 0},
                         {"uint8", Kind::kUnsigned, 1, 0},
                         {"float8_e5m2", Kind::kFloat, 1, 0x7c},
                         {"int16", Kind::kSigned, 2, 0},
                         {"float16", Kind::kFloat, 2, 0x7c00},
                         {"bfloat16", Kind::kFloat, 2, 0x7f80},
                         {"int32", Kind::kSigned, 4, 0},
                         {"float32", Kind::kFloat, 4, 0x7f800000},
                         {"int64", Kind::kSigned, 8, 0},
                         {"float64", Kind::kFloat, 8, 0x7ff0000000000000}};

// Any bits, four values, zeros of either sign, numbers of which none is far from the others.
enum class Fill { kBits, kFew, kZeros, kNumbers };

constexpr int kDims = 4;

struct Mask {
  bool given = false;
  int64_t strides[kDims] = {};  // 0: the mask is the same along this dim
  int64_t offset = 0;           // elements before the first
  int64_t one_in = 2;           // of so many elements one is absent, or present
  bool mostly = true;           // present
};

struct Case {
  DType dtype;
  int64_t sizes[kDims];
  int64_t gap;       // elements after each dim, and
  int64_t offset;    // before the first
  uint64_t reduced;  // dims
  bool largest, scaled, indices, values;
  Fill fill;
  Tuning tuning;
  int64_t multiprocessors = 4;
  bool bulk = false;
  int order[kDims] = {3, 2, 1, 0};  // of the dims in memory, the innermost first
  int64_t step = 1;                 // between neighbours of the innermost
  uint64_t repeated = 0;            // dims of stride 0
  int index_bytes = 8;
  Mask mask;
  bool softmax = false;
};

std::mt19937_64 random_bits(1);
int taken[10], in_batches, in_parts, in_clusters, in_subtiles, mapped, mapped_batches,
    pairs_written;
int mapped_columns, scattered, staged, listed, listed_in_parts, groups_hidden, repeated,
    repeated_packed, short_lasts, shifted, long_tiles;
int wrong;
int folds, folds_in_parts, folds_of_several, folds_bulk, rows_folded, rows_folded_in_parts,
    mapped_folded;
struct Counts {
  int taken[10], in_parts, in_clusters, shared, shared_anywhere;
} with_mask, of_softmax;

struct Free {
  void operator()(char* memory) const { operator delete(memory, std::align_val_t(kLoadBytes)); }
};

// The probability is right to 4 units of its last place, and to one where it is rounded to 16 bits.
bool is_near(const DType& dtype, uint64_t bits, double expected) {
  const auto close = [&](double value, int digits, int units, double smallest) {
    if (value != value || expected != expected) return value != value && expected != expected;
    return std::abs(value - expected) <= units * std::ldexp(expected, 1 - digits) + smallest;
  };
  switch (dtype.bytes) {
    case 8:
      return close(Float64::decode(static_cast<int64_t>(bits)), 53, 4, 0);
    case 4:
      return close(Float32::decode(static_cast<int32_t>(bits)), 24, 4, 1e-44);
    default:
      return dtype.max_magnitude == 0x7c00
                 ? close(Float16::decode(static_cast<int16_t>(bits)), 11, 1, 1e-7)
                 : close(BFloat16::decode(static_cast<int16_t>(bits)), 8, 1, 1e-40);
  }
}

double number_of(const DType& dtype, uint64_t bits) {
  if (dtype.bytes == 8) return Float64::decode(static_cast<int64_t>(bits));
  if (dtype.bytes == 4) return Float32::decode(static_cast<int32_t>(bits));
  return dtype.max_magnitude == 0x7c00 ? Float16::decode(static_cast<int16_t>(bits))
                                       : BFloat16::decode(static_cast<int16_t>(bits));
}

// The value of no element: the largest there is, or the smallest.
template <class Key>
Key identity(const DType& dtype, bool largest) {
  using Limits = std::numeric_limits<Key>;
  const auto magnitude = static_cast<Key>(dtype.max_magnitude);
  if (dtype.is_bool()) return !largest;
  if (dtype.kind == Kind::kFloat) return largest ? Key(magnitude | Limits::min()) : magnitude;
  if (dtype.kind == Kind::kUnsigned) return largest ? Key(0) : Key(-1);
  return largest ? Limits::min() : Limits::max();
}

template <class Element>
void check(const Case& c, const Reduction& r, Element element, const int64_t (&strides)[kDims]) {
  using Key = typename Element::Key;
  const auto* x = static_cast<const Key*>(r.input);
  const auto* mask = static_cast<const uint8_t*>(r.mask);
  // Where the first element of each output is, and from there that of each index.
  const auto places_of = [&](const int64_t (&of)[kDims], bool reduced) {
    std::vector<int64_t> places{0};
    for (int d = 0; d < kDims; ++d) {
      if ((c.reduced >> d & 1) != reduced) continue;
      std::vector<int64_t> inner;
      for (const int64_t outer : places)
        for (int64_t i = 0; i < c.sizes[d]; ++i) inner.push_back(outer + i * of[d]);
      places = std::move(inner);
    }
    return places;
  };
  const auto kept = places_of(strides, false), along = places_of(strides, true);
  const auto mask_kept = places_of(c.mask.strides, false);
  const auto mask_along = places_of(c.mask.strides, true);
  const auto outputs = static_cast<int64_t>(kept.size());
  const auto extent = static_cast<int64_t>(along.size());
  const auto index_of = [&](int64_t output) {
    int64_t index = 0;  // unsigned but for those of 8 bytes
    std::memcpy(&index, static_cast<char*>(r.indices) + output * r.index_bytes, r.index_bytes);
    return index;
  };
  for (int64_t output = 0; output < outputs; ++output) {
    const Key* of_output = x + kept[output];
    int64_t best = -1;
    auto least = element.key(0);
    for (int64_t i = 0; i < extent; ++i) {
      if (mask && !mask[mask_kept[output] + mask_along[i]]) continue;
      const auto key = element.key(of_output[along[i]]);
      if (best >= 0 && least <= key) continue;
      best = i;
      least = key;
    }
    const Key value =
        best < 0 ? identity<Key>(c.dtype, c.largest) : element.value(of_output[along[best]]);
    if (best < 0) best = 0;
    bool right = !r.indices || index_of(output) == best;
    if (c.softmax) {
      const double largest = number_of(c.dtype, static_cast<uint64_t>(value));
      long double sum = 0;
      for (const int64_t at : along)
        sum += std::exp(static_cast<long double>(number_of(c.dtype, of_output[at]) - largest));
      right &= is_near(c.dtype, static_cast<Key*>(r.values)[output], static_cast<double>(1 / sum));
    } else if (r.values) {
      right &= std::memcmp(&value, static_cast<Key*>(r.values) + output, sizeof value) == 0;
    }
    if (right || ++wrong > 5) continue;
    std::printf("%s (%ld, %ld, %ld, %ld), dims %lu%s%s: output %ld is %ld, not %ld\n", c.dtype.name,
                long(c.sizes[0]), long(c.sizes[1]), long(c.sizes[2]), long(c.sizes[3]), c.reduced,
                mask ? ", masked" : "", c.softmax ? ", softmax_max" : "", long(output),
                r.indices ? long(index_of(output)) : -1, long(best));
  }
}

// Puts the pairs where values and indices are looked for.
template <class Key>
void take_apart(const Words& pairs, const Reduction& r) {
  wrong += pairs.words[0] != pairs.header;
  for (int64_t i = 0; i < pairs.count; ++i) {
    const auto word = [&](int64_t at) { return pairs.words[1 + at]; };
    const auto pair = Pair<Key>::get(word, pairs.count, pairs.wide, i);
    static_cast<Key*>(r.values)[i] = pair.bits;
    std::memcpy(static_cast<char*>(r.indices) + i * r.index_bytes, &pair.index, r.index_bytes);
  }
}

// Aligned, and exactly so long.
std::unique_ptr<char, Free> buffer(int64_t bytes) {
  return std::unique_ptr<char, Free>(
      static_cast<char*>(operator new(bytes, std::align_val_t(kLoadBytes))));
}

void run(const Case& c) {
  const int64_t bytes = c.dtype.bytes;
  int64_t strides[kDims], stride = c.step, elements = 1 + c.offset;
  for (const int d : c.order) {
    strides[d] = c.repeated >> d & 1 ? 0 : stride;
    elements += (c.sizes[d] - 1) * strides[d];
    if (strides[d]) stride = stride * c.sizes[d] + c.gap;
  }
  const auto memory = buffer(elements * bytes);
  for (int64_t i = 0; i < elements; ++i) {
    uint64_t bits = random_bits();
    if (c.fill == Fill::kFew) bits %= 4;
    if (c.fill == Fill::kZeros) bits = bits % 3 == 0 ? uint64_t(1) << (8 * bytes - 1) : 0;
    if (c.fill == Fill::kNumbers) {
      const double x = std::ldexp(double(bits >> 11), -51) * 8 - 16;
      if (bytes == 8) bits = Float64::encode(x);
      if (bytes == 4) bits = Float32::encode(static_cast<float>(x));
      if (bytes == 2) {
        bits = c.dtype.max_magnitude == 0x7c00 ? Float16::encode(static_cast<float>(x))
                                               : BFloat16::encode(static_cast<float>(x));
      }
    }
    std::memcpy(memory.get() + i * bytes, &bits, bytes);
  }
  int64_t mask_bytes = 1 + c.mask.offset;
  for (int d = 0; d < kDims; ++d) mask_bytes += (c.sizes[d] - 1) * c.mask.strides[d];
  const auto mask = buffer(mask_bytes);
  for (int64_t i = 0; i < mask_bytes; ++i) {
    const bool present = (random_bits() % c.mask.one_in != 0) == c.mask.mostly;
    mask.get()[i] = static_cast<char>(present ? 1 << random_bits() % 8 : 0);
  }
  Reduction r{};
  r.dtype = &c.dtype;
  r.largest = c.largest;
  r.scaled = c.scaled;
  // By the first, products have the reverse order of elements; by the second, small ones vanish.
  r.scale = random_bits() % 3 ? -1.5 : 0.25;
  r.input = memory.get() + c.offset * bytes;
  r.softmax = c.softmax;
  r.mask = c.mask.given ? mask.get() + c.mask.offset : nullptr;
  make_groups(kDims, c.sizes, strides, c.reduced, r.groups, r.mask ? c.mask.strides : nullptr);
  const auto address = reinterpret_cast<int64_t>(r.input);
  const Limits limits{c.multiprocessors, c.bulk};
  const Steps steps = steps_of(r.groups, bytes, address, limits, c.tuning,
                               r.mask      ? Task::kMasked
                               : r.softmax ? Task::kSoftmax
                                           : Task::kExtreme,
                               {c.indices, c.values}, elements % 2 == 0 ? 0 : kFewRepeats);
  const FoldedPlan& plan = steps.plan;
  const Task task = steps.task;
  const Groups asked = r.groups;
  if (steps.hides) r.groups = without_mask(asked);
  Reduction once = r;  // with results that do not repeat
  once.groups = steps.groups;
  groups_hidden += steps.hides;
  if (const char* promise = broken_promise(plan, once.groups, bytes, address, limits, task)) {
    std::printf("a plan breaks '%s'\n", promise);
    ++wrong;
    return;
  }
  if (task != Task::kExtreme) {
    Counts& counts = task == Task::kMasked ? with_mask : of_softmax;
    ++counts.taken[static_cast<int>(plan.walk)];
    counts.in_parts += plan.split();
    counts.in_clusters += plan.cluster > 1;
    const bool is_shared = plan.walk == Walk::kGather && plan.gather.shared();
    counts.shared += is_shared;
    counts.shared_anywhere += is_shared && plan.gather.realigned;
    staged += plan.walk == Walk::kColumns && plan.columns.staged;
    const bool is_listed = plan.walk == Walk::kColumns && plan.columns.listed;
    listed += is_listed;
    listed_in_parts += is_listed && plan.split();
  }
  ++taken[static_cast<int>(plan.walk)];
  const bool batched = plan.walk == Walk::kWholeRows && plan.whole_rows.batches > 1;
  in_batches += batched;
  in_parts += plan.split();
  in_clusters += plan.cluster > 1;
  if (plan.is_folded()) {
    ++folds;
    folds_in_parts += plan.parts > 1;
    folds_of_several += plan.fold.count > 1;
    folds_bulk += plan.walk == Walk::kBulkColumns;
    if (plan.walk == Walk::kWholeRows) {
      ++rows_folded;
      rows_folded_in_parts += plan.parts > 1;
      mapped_folded += plan.whole_rows.mapped;
    }
  }
  if (plan.walk == Walk::kWholeRows && plan.parts > 1) {
    const int64_t last = walk_extent(once.groups.reduced) - (plan.parts - 1) * plan.part_extent;
    short_lasts += last * bytes < kLoadBytes;
  }
  in_subtiles +=
      plan.walk == Walk::kBulkColumns && plan.bulk_columns.tile > plan.bulk_columns.subtile;
  mapped += plan.walk == Walk::kWholeRows && plan.whole_rows.mapped;
  shifted += plan.walk == Walk::kColumns && plan.columns.shifted;
  mapped_columns += plan.walk == Walk::kBulkColumns && plan.bulk_columns.mapped;
  mapped_batches += batched && plan.whole_rows.mapped;
  scattered += plan.walk == Walk::kBoxes && plan.box.reading == Box::kScattered;
  const int64_t results = r.groups.outputs * r.groups.copies;
  r.index_bytes = c.index_bytes;
  std::vector<char> indices(results * r.index_bytes, -1);
  std::vector<char> values(results * bytes);
  r.indices = c.indices ? indices.data() : nullptr;
  r.values = c.values ? values.data() : nullptr;
  r.value_alone = once.value_alone = !c.indices;
  repeated += steps.repeats && !steps.packed;
  repeated_packed += steps.packed;
  once.index_bytes = r.index_bytes;
  once.indices = r.indices;
  once.values = r.values;
  const Folded folded(once.groups, plan.fold);
  Reduction walked = once;
  if (plan.is_folded()) walked.groups = folded.groups;
  std::vector<char> workspace(once.groups.outputs * plan.workspace_of_output());
  char* candidates = workspace.empty() ? nullptr : workspace.data();
  Problem problem = make_problem(once, plan, candidates);
  std::vector<int64_t> words(1 + 2 * results, -1);
  const Words pairs{words.data(), 17, results, bytes == 8 || results % 3 == 0};
  const bool in_pairs = c.indices && c.values && elements % 2 == 0 && task == Task::kExtreme &&
                        !r.mask && stores_pairs(plan.walk) && r.groups.copies == 1;
  if (in_pairs) {
    problem.out.pairs = pairs;
    once.indices = walked.indices = problem.out.indices = nullptr;
  }
  constexpr decltype(&launch_rows) kLaunch[] = {
      launch_rows,          launch_columns, launch_boxes, launch_bulk_columns, launch_whole_rows,
      launch_whole_columns, launch_small,   nullptr,      launch_tiles,        launch_gather};
  if (task != Task::kExtreme) {
    (task == Task::kMasked ? launch_masked : launch_softmax)(once, problem, true, nullptr);
  } else if (plan.walk == Walk::kFill) {
    launch_fill(once, nullptr);
    const CopiesPlan copies(repeats_as_outputs(once.groups), bytes,
                            reinterpret_cast<int64_t>(once.input),
                            once.indices ? once.index_bytes : 0);
    long_tiles += once.values && copies.transposition && !copies.transposition->is_square();
  } else {
    const bool folds = plan.is_folded();
    kLaunch[static_cast<int>(plan.walk)](
        walked, folds ? make_problem(walked, plan, candidates) : problem, nullptr);
    if (plan.is_folded() || plan.has_combine())
      launch_combine(once, problem, folded.columns, true, nullptr);
  }
  std::vector<char> some_indices, some_values;
  const auto hold = [&](Reduction& some, int64_t count) {
    if (r.indices) {
      some_indices.assign(indices.data(), indices.data() + count * r.index_bytes);
      some.indices = some_indices.data();
    }
    if (r.values) {
      some_values.assign(values.data(), values.data() + count * bytes);
      some.values = some_values.data();
    }
  };
  if (steps.packed) {
    repeat_packed(r, 1 + results % 5, hold, true, nullptr);
  } else if (steps.repeats) {
    launch_repeat(r, true, nullptr);
  }
  r.groups = asked;
  if (steps.hides) launch_hide(r, true, nullptr);
  visit_element(r, [&](auto element) {
    if (in_pairs) take_apart<typename decltype(element)::Key>(pairs, r);
    check(c, r, element, strides);
  });
  pairs_written += in_pairs;
}

int64_t below(int64_t end) { return static_cast<int64_t>(random_bits() % end); }

// Some at any values, and those that keep small inputs from most walks often at zero.
Tuning random_tuning() {
  Tuning tuning;
  const int64_t often = below(3) == 0 ? 4 : 40;
  for (const Tunable& tunable : kTunables) {
    if (below(often)) continue;
    const int64_t near = tuning.*tunable.value << 4 >> below(9);
    set(tuning, tunable, below(2) ? near : below(8) << below(40));
  }
  tuning.walk = below(3) ? 0 : 1 + below(8);
  if (below(2)) tuning.margin = 0;  // the usual walks, which the rest sends to all
  if (below(4)) tuning.small_elements = 0;
  if (below(2)) tuning.whole_rows = tuning.whole_column = 0;
  if (below(2)) tuning.whole_vectors = 0;
  if (below(2)) tuning.whole_row_bytes = tuning.held_threads = 0;
  if (below(8)) tuning.bulk_bytes = 0;
  if (below(4)) tuning.mapped_part_bytes = below(1000);
  if (below(2)) {  // short rings of narrow tiles
    tuning.stage_bytes = 64 << below(10);
    tuning.tile_bytes = 64 << below(10);
    tuning.segment_bytes = 32 << below(6);
    tuning.least_segment_bytes = tuning.split_segment_bytes = 16;
  }
  if (below(4) == 0) tuning.walk = 1 + below(10);
  if (below(2)) tuning.short_row_bytes = tuning.small_group_bytes = 0;  // no boxes
  if (below(2)) tuning.column_walk_8 = tuning.column_walk_16 = tuning.column_walk_32 = 1 << 20;
  if (below(6) == 0) {  // boxes, tiles, gather
    const int64_t tiled[] = {3, 9, 10};
    tuning.walk = tiled[below(3)];
    tuning.bulk_bytes = 0;
    tuning.small_group_bytes = 12 << 10;
  }
  return tuning;
}

Case random_case() {
  const int64_t extents[] = {1, 2, 3, 4, 6, 8, 12, 21, 64, 100, 257, 1028, 4100};
  Case c{};
  c.dtype = kDTypes[below(std::size(kDTypes))];
  for (int64_t& size : c.sizes) size = extents[below(std::size(extents))];
  const auto elements = [&] {
    return std::accumulate(c.sizes, c.sizes + kDims, int64_t(1), std::multiplies());
  };
  while (elements() > 3'000) *std::max_element(c.sizes, c.sizes + kDims) /= 3;
  const int64_t gaps[] = {0, 0, 1, 16}, offsets[] = {0, 0, 3, 4};
  c.gap = gaps[below(4)];
  c.offset = offsets[below(4)];
  const uint64_t reduced[] = {1, 2, 4, 4, 8, 8, 6, 9, 10, 15};
  c.reduced = reduced[below(std::size(reduced))];
  const int64_t kind = below(8);
  const bool permuted = kind == 4 || kind == 5, large = permuted && below(2);
  if (kind == 0) {  // long rows
    std::fill_n(c.sizes, kDims, 1);
    c.sizes[0] = 1 + below(12);
    c.sizes[3] = 5'000 + below(60'000);
    c.reduced = 8;
  } else if (kind <= 2) {  // short columns
    c.sizes[0] = 1 + below(5);
    c.sizes[1] = 1 + below(2);
    c.sizes[2] = 2 + below(4);
    c.sizes[3] = 4 + 4 * below(100);
    c.reduced = 4;
  } else if (kind == 3) {  // short groups in any order
    for (int64_t& size : c.sizes) size = 1 + below(30);
    const int64_t d = below(kDims);
    c.sizes[d] = 2 + below(5);
    c.reduced = 1 << d;
    std::shuffle(c.order, c.order + kDims, random_bits);
  } else if (permuted) {  // reduced dims side by side, in any order
    const int64_t longest[] = {1, 6, 40, 40};
    for (int d = 0; d < kDims; ++d) c.sizes[d] = 1 + (d > 0) + below(longest[d]);
    if (large) c.sizes[2 + below(2)] += 500 + below(1000);
    const uint64_t side_by_side[] = {12, 14, 6};
    c.reduced = side_by_side[below(3)];
    c.gap = below(2) ? 0 : 1 + below(4);
  }
  if (kind == 6 && below(2)) {  // groups of one element, in runs of memory
    for (int d = 0; d < kDims; ++d) c.sizes[d] = d == 2 ? 1 : 1 + below(d == 3 ? 900 : 3);
    c.reduced = 4;
  }
  const bool transposed = kind == 7 && below(2);  // groups of one element, in another order
  if (transposed) {
    c.sizes[0] = 1 + below(3);
    c.sizes[1] = 33 + below(100);
    c.sizes[2] = 1;
    c.sizes[3] = 40 + below(100);
    c.reduced = 4;
  }
  c.largest = below(2);
  c.scaled = c.dtype.max_magnitude && c.dtype.bytes > 1 && below(4) == 0;
  c.values = below(2) || transposed;
  c.indices = !c.values || below(2);
  int64_t extent = 1;
  for (int d = 0; d < kDims; ++d) extent *= c.reduced >> d & 1 ? c.sizes[d] : 1;
  c.index_bytes = 1 << below(4);
  while (c.index_bytes < 8 && (extent - 1) >> 8 * c.index_bytes) c.index_bytes *= 2;
  c.fill = static_cast<Fill>(below(3));
  c.bulk = below(2);
  if (permuted) {
    std::shuffle(c.order + (c.reduced == 6), c.order + (c.reduced == 12 ? 2 : 3), random_bits);
    c.offset = below(2) ? below(16) : 0;
  } else {
    if (below(3) == 0) std::shuffle(c.order, c.order + kDims, random_bits);
    if (below(4) == 0) c.step = 2 + below(3);
    if (transposed) std::swap(c.order[0], c.order[2]);
  }
  if (below(8) == 0) c.repeated = below(1 << kDims);
  c.multiprocessors = large ? 1 : 1 + below(8);
  c.tuning = random_tuning();
  if (large) c.tuning.whole_rows = 1;
  return c;
}

// With strides like the input's, or in an order of its own, and some dims that it does not have.
Mask random_mask(const Case& c) {
  Mask mask;
  mask.given = true;
  int order[kDims];
  std::copy_n(c.order, kDims, order);
  const int64_t kind = below(4);
  if (kind == 0) std::shuffle(order, order + kDims, random_bits);
  const uint64_t broadcast = kind <= 1 ? below(1 << kDims) : 0;
  int64_t stride = kind == 0 ? 1 + below(2) : c.step;
  for (const int d : order) {
    mask.strides[d] = broadcast >> d & 1 ? 0 : stride;
    if (mask.strides[d]) stride = stride * c.sizes[d] + (kind == 3 ? c.gap : 0);
  }
  const int64_t offsets[] = {0, 0, 1, 4};
  mask.offset = kind == 3 ? c.offset : offsets[below(4)];
  const int64_t rates[] = {2, 2, 10, 1000, 1'000'000};
  mask.one_in = rates[below(5)];
  mask.mostly = below(2);
  return mask;
}

// Columns that warps copy ahead, if their mask ends with a block.
void widen_columns(Case& c) {
  std::iota(c.order, c.order + kDims, 0);
  std::reverse(c.order, c.order + kDims);
  c.dtype = kDTypes[7 + below(2)];
  c.sizes[0] = 1 + below(3);
  c.sizes[1] = 1 + below(3);
  c.sizes[2] = 2 + below(60);
  c.sizes[3] = below(2) ? 128 + below(200) : 16 * (8 + below(12));
  c.reduced = below(3) ? 4 : 6;
  c.step = 1;
  c.repeated = 0;
  c.index_bytes = 8;
  c.tuning.walk = c.tuning.staged_walk = c.tuning.bulk_bytes = c.tuning.small_elements = 0;
}

// Columns under a mask that those of a row have in common.
Case listed_columns() {
  Case c = random_case();
  widen_columns(c);
  c.scaled = false;
  c.dtype = kDTypes[below(std::size(kDTypes))];
  c.sizes[2] = 1 + below(below(2) ? 200 : 2000);
  c.sizes[3] = 9 + below(300);
  c.reduced = 4;
  c.tuning.split_loads = c.tuning.part_loads = 1;
  c.mask = random_mask(c);
  c.mask.strides[3] = 0;
  return c;
}

// A mask, or softmax_max, of what is a case of anything.
Case random_task(Case c, bool masked) {
  c.scaled = false;
  if (masked) {
    if (below(4) == 0) widen_columns(c);
    c.mask = random_mask(c);
    return c;
  }
  constexpr int kFormats[] = {5, 6, 8, 10};
  c.dtype = kDTypes[kFormats[below(4)]];
  c.softmax = c.largest = c.values = c.indices = true;
  c.reduced &= -c.reduced;  // of one dim
  if (below(3)) c.fill = Fill::kNumbers;
  return c;
}

// Columns that are gathered, and shared by threads, under a mask or of softmax_max.
Case shared_columns(bool masked) {
  Case c = random_case();
  widen_columns(c);
  c.dtype = kDTypes[below(std::size(kDTypes))];
  c.reduced = 4;
  c = random_task(c, masked);
  c.sizes[2] = 33 + below(200);
  c.sizes[3] = 1 + below(100);
  c.reduced = 4;
  c.multiprocessors = 1;
  c.tuning.walk = static_cast<int64_t>(Walk::kGather) + 1;
  c.tuning.share_loads = 1 + below(16);
  c.tuning.share_threads = 1 << below(14);
  if (masked) c.mask = random_mask(c);
  return c;
}

// Reduced dims that are one in memory, in any order: of rows in batches, or of columns.
Case mapped_case(bool columns) {
  Case c = random_case();
  c.sizes[0] = 1;
  c.sizes[1] = 2 + below(6);
  c.sizes[2] = 2 + below(columns ? 200 : 40);
  c.sizes[3] = columns ? 9 + below(60) : 500 + below(1000);
  c.reduced = columns ? 6 : 14;
  c.gap = c.repeated = 0;
  c.index_bytes = 8;
  c.step = 1;
  std::iota(c.order, c.order + kDims, 0);
  std::reverse(c.order, c.order + kDims);
  columns ? std::swap(c.order[1], c.order[2]) : std::shuffle(c.order, c.order + 3, random_bits);
  c.bulk = columns || c.bulk;
  c.multiprocessors = 1;
  c.tuning = Tuning{};
  Tuning& t = c.tuning;
  t.small_elements = t.whole_vectors = t.whole_column = t.bulk_bytes = 0;
  t.small_group_bytes = t.mapped_part_bytes = t.margin = 0;
  t.column_walk_8 = t.column_walk_16 = t.column_walk_32 = 1 << 20;
  return c;
}

// Reduced dims on either side of kept ones, or columns that are narrow, folded wherever they can
// be.
Case folded_case() {
  Case c = random_case();
  const int64_t sizes[] = {1, 2, 3, 4, 6, 7, 9, 16, 24, 33, 64};
  for (int64_t& size : c.sizes) size = sizes[below(std::size(sizes))];
  c.sizes[below(kDims)] = 2 + below(80);
  const uint64_t reduced[] = {1, 2, 4, 5, 9, 10, 11, 13};
  c.reduced = reduced[below(std::size(reduced))];
  c.step = 1;
  c.repeated = below(8) ? 0 : c.repeated;
  c.index_bytes = 8;
  if (below(2)) c.gap = 0;
  if (below(2)) c.fill = Fill::kFew;
  c.bulk = below(4) > 0;
  Tuning& t = c.tuning;
  t.walk = t.fold_bytes = t.small_elements = t.bulk_bytes = t.ring_fill = 0;
  t.fold = 1 << 20;
  t.margin = 100;
  if (below(2)) {  // in parts
    c.sizes[below(kDims)] *= 1 + below(20);
    t.split_loads = t.part_loads = t.column_loads = 1;
  }
  return c;
}

// Rows of several runs of memory, each of which is a row of its own, in parts where they are long.
Case folded_rows(bool mapped) {
  Case c = random_case();
  const int64_t bytes = below(2) ? 64 << 10 : mapped ? 16 << 10 : 4 << 10;
  c.sizes[0] = 2 + below(3);
  c.sizes[1] = 2 + below(2);
  c.sizes[2] = mapped ? 2 + below(5) : 1;
  c.sizes[3] = (bytes + below(64 << 10)) / c.dtype.bytes / c.sizes[2] + 1;
  c.reduced = 13;
  c.gap = c.repeated = 0;
  c.step = 1;
  c.index_bytes = 8;
  c.multiprocessors = 132;
  c.fill = below(2) ? Fill::kFew : Fill::kNumbers;
  std::iota(c.order, c.order + kDims, 0);
  std::reverse(c.order, c.order + kDims);
  if (mapped) std::swap(c.order[0], c.order[1]);
  c.tuning = Tuning{};
  c.tuning.small_elements = c.tuning.fold_bytes = 0;
  c.tuning.fold = 1 << 20;
  return c;
}

// One row in parts, the last of which is shorter than a vector, that begin between vectors.
Case short_last_part() {
  Case c{kDTypes[7], {1, 1, 1, 263 * 8320 + 1}, 0, 1, 8, false, false, true, true, Fill::kFew, {}};
  c.multiprocessors = 132;
  return c;
}

// The same of a sum, of which no block may read a vector that the last part does not have.
Case short_last_sum() {
  Case c{kDTypes[10], {1, 1, 1, 263 * 4160 + 1}, 0, 0, 8, true, false, true, true, Fill::kNumbers,
         {}};
  c.multiprocessors = 132;
  c.tuning.held_batches = 0;
  c.softmax = true;
  return c;
}

// Rows of 16 bits of as few vectors as the kernels of most loads are for.
Case held_by_few_lanes(bool masked, int64_t size, int64_t mask_offset) {
  Case c{kDTypes[6], {1, 1, 5, size}, 0, 0, 8, true, false, true, true, Fill::kNumbers, {}};
  c.tuning.small_elements = c.tuning.held_threads = 0;
  c.softmax = !masked;
  c.mask.given = masked;
  c.mask.offset = mask_offset;
  c.mask.strides[3] = 1;
  c.mask.strides[2] = size;
  return c;
}

// Rows of which one begins elsewhere in a vector, a vector longer than half of the loads of a power
// of two of threads: the fewest that a kernel of most loads is for.
Case longer_than_half(bool masked) {
  Case c{kDTypes[8], {1, 1, 3, 2049}, 0, 0, 8, true, false, true, true, Fill::kNumbers, {}};
  c.multiprocessors = 132;
  c.softmax = !masked;
  c.mask.given = masked;
  c.mask.strides[3] = 1;
  c.mask.strides[2] = 2049;
  return c;
}

// A tile under a mask whose two sides are an odd number together, before values of 8 bytes.
Case odd_sides() {
  Case c{kDTypes[10], {1, 400, 3, 8}, 0, 0, 8, true, false, true, true, Fill::kNumbers, {}};
  const int order[] = {1, 2, 3, 0};
  std::copy_n(order, kDims, c.order);
  c.tuning.walk = static_cast<int64_t>(Walk::kGather) + 1;
  c.tuning.small_elements = 0;
  c.mask.given = true;
  c.mask.strides[3] = 1;
  c.mask.strides[2] = 8;
  c.mask.strides[1] = 24;
  return c;
}

// Wide columns, of which a thread takes several subtiles.
Case subtiles() {
  Case c{kDTypes[0], {1, 4, 2, 600}, 0, 0, 4, false, false, true, true, Fill::kFew, {}};
  c.multiprocessors = 1;
  c.bulk = true;
  Tuning& t = c.tuning;
  t.margin = t.small_elements = t.whole_rows = t.whole_column = t.bulk_bytes = 0;
  t.small_group_bytes = 0;
  t.column_walk_8 = 1 << 20;
  t.stage_bytes = 4096;
  t.segment_bytes = 128;
  t.least_segment_bytes = t.split_segment_bytes = 16;
  return c;
}

// Values in another order than their results, which tiles transpose that are longer on one side.
Case transposed_by_long_tiles(bool along_memory) {
  Case c{kDTypes[7], {1, 15, 1, 70001}, 0, 0, 4, false, false, false, true, Fill::kBits, {}};
  if (along_memory) {
    c.dtype = kDTypes[8];
    std::swap(c.sizes[1], c.sizes[3]);
  }
  std::swap(c.order[0], c.order[2]);
  return c;
}

// Images of any strides go to channels_last, and nothing beyond their elements is touched.
template <class T>
void check_channels_last() {
  for (int i = 0; i < 40; ++i) {
    const auto size = [](int64_t most) { return 1 + static_cast<int64_t>(random_bits() % most); };
    Images images{};
    images.images = size(3);
    images.channels = i % 2 ? 8 * size(20) : size(150);
    images.positions = i % 3 ? 4 * size(80) : size(300);
    images.channel_stride = images.positions + size(3) - 1;
    images.image_stride = images.channels * images.channel_stride + size(3) - 1;
    const int64_t skipped = size(3) - 1;
    const int64_t last = (images.images - 1) * images.image_stride +
                         (images.channels - 1) * images.channel_stride + images.positions;
    std::vector<T> from(skipped + last);
    std::iota(from.begin(), from.end(), T(1));
    const int64_t count = images.images * images.channels * images.positions;
    std::vector<T> to(count);
    images.from = from.data() + skipped;
    images.to = to.data();
    launch_channels_last(images, sizeof(T), nullptr);
    for (int64_t at = 0; at < count; ++at) {
      const int64_t channel = at % images.channels, rest = at / images.channels;
      const int64_t position = rest % images.positions, image = rest / images.positions;
      const int64_t place =
          image * images.image_stride + channel * images.channel_stride + position;
      if (to[at] != from[skipped + place]) {
        std::puts("channels_last: an element is not where it belongs");
        std::exit(1);
      }
    }
  }
}

// A fused convolution over a row of two channels with two filters, and what its kernels leave.
struct SmallConvolution {
  static constexpr int kPositions = 5;
  float input[2 * kPositions], weight[4] = {1, 1, 1, -1}, bias[2] = {0, 0.5f};
  float extremes[kPositions], channels[kPositions];
  Unfinished left{};

  SmallConvolution(bool largest, std::initializer_list<float> pixels) {
    std::copy(pixels.begin(), pixels.end(), input);
    FusedConvolution& c = left.convolution;
    c.input = {1, 2, 1, kPositions};
    c.weight = {2, 2, 1, 1};
    c.output = {1, 2, 1, kPositions};
    c.stride = c.dilation = {1, 1};
    c.largest = largest;
    left.operands = {input, weight, bias, extremes, channels};
    left.count = kPositions;
  }
};

// What is infinite, or the last finite number, is computed again; all is rounded and then scaled.
void check_finish() {
  const float infinity = std::numeric_limits<float>::infinity(),
              most = std::numeric_limits<float>::max();
  const DType float16{"float16", Kind::kFloat, 2, 0x7c00}, float32{"float32", Kind::kFloat, 4, 0};
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  for (const bool largest : {false, true}) {
    const float worst = largest ? infinity : -infinity, sign = largest ? -1 : 1;
    // Filters give (sum, difference + 0.5) of the two channels.
    SmallConvolution c(largest, {worst, 1, 1, worst, 3, 2, -worst, 1, sign * most, 0});
    const float left[] = {worst, worst, sign * 1.5f, sign * most};
    const float found[] = {0, 0, 1, infinity};
    set_undecided(c.left, nullptr);  // the last position's channel
    c.left.operands.channels = nullptr;
    set_undecided(c.left, nullptr);  // and extreme
    c.left.operands.channels = c.channels;
    std::copy(left, left + 4, c.extremes);
    std::copy(found, found + 4, c.channels);
    const float expected[] = {worst, worst, sign * 1.5f, -worst, sign * most};
    const int64_t chosen[] = {0, 0, 1, 0, 0};
    float to[5];
    int64_t channels[5];
    launch_finish(c.left, 1, float32, to, nullptr);
    launch_finish_channels(c.left, float32, channels, nullptr);
    for (int i = 0; i < 5; ++i) {
      if (!same(to[i], expected[i]) || channels[i] != chosen[i]) {
        std::printf("finish: %g and channel %d at %d\n", to[i], int(channels[i]), i);
        std::exit(1);
      }
    }
    c.input[1] = NAN;
    launch_finish(c.left, -0.5f, float32, c.extremes, nullptr);  // in its place
    if (!std::isnan(c.extremes[0]) || c.extremes[2] != sign * -0.75f) {
      std::puts("finish: a wrong value");
      std::exit(1);
    }

    // 70000 is infinite before it is scaled.
    const float wide[] = {1.0009765f, 70000, sign * 1.5f, 0, -1};
    std::copy(wide, wide + 5, c.extremes);
    int16_t halves[5];
    launch_finish(c.left, -0.5f, float16, halves, nullptr);
    if (Float16::decode(halves[0]) != -0.50048828f || Float16::decode(halves[1]) != -infinity ||
        Float16::decode(halves[2]) != sign * -0.75f) {
      std::puts("finish: a wrong half");
      std::exit(1);
    }
  }
}

// All positions of images are undecided, of more filters than a block has warps. Whole numbers, so
// that the order of sums does not matter.
void check_all_undecided() {
  const DType float32{"float32", Kind::kFloat, 4, 0};
  constexpr int64_t kImages = 2, kChannels = 33, kRows = 6, kColumns = 7, kFilters = 19, kSide = 3;
  std::vector<float> input(kImages * kRows * kColumns * kChannels), bias(kFilters);
  std::vector<float> weight(kFilters * kSide * kSide * kChannels);
  for (auto* numbers : {&input, &weight, &bias}) {
    for (float& x : *numbers) x = static_cast<float>(random_bits() % 3) - 1;
  }
  input[100] = NAN;
  input[input.size() - 50] = INFINITY;
  constexpr int64_t kCount = kImages * kRows * kColumns;  // padding keeps the size
  float extremes[kCount], values[kCount], channels[kCount] = {};
  int64_t found[kCount];
  Unfinished left{};
  FusedConvolution& c = left.convolution;
  c.input = {kImages, kChannels, kRows, kColumns};
  c.weight = {kFilters, kChannels, kSide, kSide};
  c.output = {kImages, kFilters, kRows, kColumns};
  c.stride = c.dilation = c.padding = {1, 1};
  left.operands = {input.data(), weight.data(), bias.data(), extremes, channels};
  left.count = kCount;
  const auto sum_of = [&](int64_t position, int64_t k) {
    const int64_t image = position / (kRows * kColumns);
    float sum = bias[k];
    for (int64_t at = 0; at < kSide * kSide; ++at) {
      const int64_t y = position / kColumns % kRows + at / kSide - 1;
      const int64_t x = position % kColumns + at % kSide - 1;
      const bool inside = y >= 0 && y < kRows && x >= 0 && x < kColumns;
      for (int64_t i = 0; i < kChannels; ++i) {
        const int64_t pixel = ((image * kRows + y) * kColumns + x) * kChannels + i;
        sum += (inside ? input[pixel] : 0) * weight[(k * kSide * kSide + at) * kChannels + i];
      }
    }
    return sum;
  };
  for (const bool largest : {false, true}) {
    c.largest = largest;
    std::fill_n(extremes, kCount, largest ? INFINITY : -INFINITY);
    launch_finish(left, 1, float32, values, nullptr);
    launch_finish_channels(left, float32, found, nullptr);
    for (int64_t i = 0; i < kCount; ++i) {
      float best = sum_of(i, 0);
      int64_t channel = 0;
      for (int64_t k = 1; k < kFilters && best == best; ++k) {
        const float sum = sum_of(i, k);
        if (!(sum != sum || (largest ? sum > best : sum < best))) continue;
        best = sum;
        channel = k;
      }
      const bool same = values[i] == best || (values[i] != values[i] && best != best);
      if (same && found[i] == channel) continue;
      std::printf("undecided: %g and channel %d at %d, not %g and %d\n", values[i], int(found[i]),
                  int(i), best, int(channel));
      std::exit(1);
    }
  }
}

// Convolutions without a kernel take the room of none, and are not known without end.
void check_choices() {
  struct Kernel : FusedKernel {
    const FusedConfiguration& configuration() const override { std::abort(); }
    int64_t workspace_bytes() const override { return 0; }
    void enqueue(const FusedOperands&, void*, void*) const override {}
  };
  for (const bool fused : {false, true}) {
    Choices choices;
    ConvolutionKey key{};
    const auto keep_another = [&] {
      ++key.device;
      choices.keep(key, fused ? std::make_shared<Kernel>() : nullptr);
    };
    const size_t most = fused ? Choices::kMostFused : Choices::kMostKnown;
    for (size_t i = 1; i < most; ++i) keep_another();
    const bool had_room = choices.has_room(key);
    keep_another();
    if (had_room && !choices.has_room(key)) continue;
    std::printf("choices: room of another number than %d\n", int(most));
    std::exit(1);
  }
}

}  // namespace

// Arguments: how many cases, and the seed.
int main(int count, char** arguments) {
  check_channels_last<uint16_t>();
  check_channels_last<uint32_t>();
  check_finish();
  check_all_undecided();
  check_choices();
  run(short_last_part());
  run(short_last_sum());
  if (short_lasts != 2) {
    std::puts("there is no last part shorter than a vector");
    return 1;
  }
  run(transposed_by_long_tiles(false));
  run(transposed_by_long_tiles(true));
  if (long_tiles != 2) {
    std::puts("there are no long tiles of values in another order");
    return 1;
  }
  for (const int64_t vectors : {33, 49}) {
    run(held_by_few_lanes(false, 8 * vectors + 3, 0));
    for (const int64_t offset : {0, 1}) run(held_by_few_lanes(true, 8 * vectors + 3, offset));
  }
  run(longer_than_half(true));
  run(longer_than_half(false));
  run(odd_sides());
  run(subtiles());
  const int cases = count > 1 ? std::atoi(arguments[1]) : 600;
  if (count > 2) random_bits.seed(std::atoi(arguments[2]));
  for (int i = 0; i < cases; ++i) {
    run(random_case());
    run(random_task(random_case(), true));
    run(random_task(random_case(), false));
    if (i % 20 == 0) run(mapped_case(false));
    if (i % 20 == 0) run(mapped_case(true));
    if (i % 2 == 0) run(folded_case());
  }
  // Few folds are in parts; after the others, so that the random inputs of these stay the same.
  for (int i = 0; i < cases / 2; ++i) run(folded_case());
  for (int i = 0; i < cases / 10; ++i) run(folded_rows(i % 2));
  for (int i = 0; i < cases / 4; ++i) run(listed_columns());
  for (int i = 0; i < cases / 2; ++i) run(shared_columns(i % 4 != 0));
  for (int count : taken) std::printf("%d ", count);
  for (int count : {in_batches,     in_parts,       in_clusters,
                    mapped,         mapped_batches, scattered,
                    mapped_columns, shifted,        pairs_written,
                    staged,         listed,         groups_hidden,
                    folds,          folds_in_parts, folds_of_several,
                    folds_bulk,     rows_folded,    rows_folded_in_parts,
                    mapped_folded,  repeated,       repeated_packed,
                    in_subtiles})
    std::printf("%d ", count);
  std::puts("");
  for (const Counts& counts : {with_mask, of_softmax}) {
    for (int count : counts.taken) std::printf("%d ", count);
    std::printf("%d %d ", counts.in_parts, counts.in_clusters);
    std::printf("%d %d\n", counts.shared, counts.shared_anywhere);
  }
  return wrong > 0;
}
