// The CPU implementation of the operators: plans, runs in parallel and combines.
#ifdef __linux__
#include <sys/mman.h>
#endif
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>

#include "cpu/conv2d.h"
#include "cpu/kernels.h"
#include "cpu/mask_order.h"
#include "cpu/pack.h"
#include "cpu/parallel.h"
#include "cpu/products.h"
#include "cpu/repeat.h"
#include "cpu/results.h"
#include "cpu/scratch.h"
#include "cpu/settings.h"
#include "distributed.h"
#include "element.h"
#include "operators.h"
#include "registration.h"
#include "switch.h"

namespace reduceops::cpu {
namespace {

enum class Memory { kSmall, kFresh, kTouched };

// Whether an output is large, and has been touched before; what has not is cleared by the system
// when it is first written to, and is in cache then. Asks for huge pages under a large output, if
// that is wanted: only a hint.
Memory prepare(void* data, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kHuge = uintptr_t(2) << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHuge * kHuge;
  if (data && begin < end) {
    if (settings.huge_pages) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
    unsigned char resident = 0;
    const int failed = mincore(reinterpret_cast<void*>(end - kHuge), 1, &resident);
    return !failed && (resident & 1) ? Memory::kTouched : Memory::kFresh;
  }
#endif
  return Memory::kSmall;
}

ThreadWork work_of(const Reduction& r, const Choice& choice, int64_t walk) {
  const bool unpriced = r.mask || r.softmax || (r.scaled && r.dtype->bytes == 2);
  return thread_work(r.groups, choice, walk, r.dtype->bytes, unpriced);
}

// Those worth asking for.
int64_t threads_for(int64_t elements, ThreadWork work) {
  return elements < work.of_several ? 1 : torch::stable::get_num_threads();
}

// Leaves a slice, the innermost positions first.
void cut(Reduction& reduction, const Slices& slices, int64_t number) {
  const Dims& kept = reduction.groups.kept;
  if (slices.dim == kept.count) return;
  const Dim dim = kept.dim[slices.dim];
  const int64_t cuts = ceil_div(dim.size, slices.most), begin = number % cuts * slices.most;
  number /= cuts;
  while (kept.count > slices.dim + 1) {
    const int outer = slices.dim + 1;
    const int64_t size = kept.dim[outer].size;
    narrow(reduction, outer, number % size, 1);
    number /= size;
  }
  narrow(reduction, slices.dim, begin, std::min(slices.most, dim.size - begin));
}

// Whether rows are read where they lie: neither copied nor with a mark for each element. (Under a
// mask bools always are.)
bool reads_rows(const Reduction& r, const Plan& plan) {
  const Dims& reduced = r.groups.reduced;
  const bool marked =
      r.mask && (r.dtype->is_bool() || (reduced.count && reduced.dim[0].mask_stride != 0));
  return !plan.copies && !marked;
}
// The same in more memory than a core's cache may hold.
bool asks_for_rows(const Reduction& r, const Plan& plan) {
  return reads_rows(r, plan) &&
         reach(r.groups.kept) + reach(r.groups.reduced) >= kCacheBytes / r.dtype->bytes;
}
// Bytes from a row to the next that is read there; 0 where none is.
int64_t pitch_of(const Reduction& r, const Plan& plan) {
  const Dims& kept = r.groups.kept;
  return reads_rows(r, plan) && kept.count ? kept.dim[0].stride * r.dtype->bytes : 0;
}

bool uses_scratch(const Job& job) { return job.plan.walk != Walks::kRows || job.reduction.mask; }

void run_items(const Kernels& kernels, const Job& job) {
  in_parallel(job.plan.units * job.plan.parts, job.plan.grain, [&](int64_t begin, int64_t end) {
    if (uses_scratch(job)) make_scratch();
    kernels.run(job, begin, end);
  });
}

void combine(const Kernels& kernels, const Job& job) {
  const int64_t outputs = job.reduction.groups.outputs;
  const int64_t candidates = job.plan.parts * (job.crossed ? walk_extent(*job.crossed) : 1);
  in_parallel(outputs, std::max<int64_t>(1, kCombinedOfThread / candidates),
              [&](int64_t begin, int64_t end) { kernels.combine(job, begin, end); });
}

// Reduces over all but the innermost `count` of the reduced dims first. All candidates of a slice
// are there at once.
void reduce_slice(const Reduction& reduction, const Kernels& kernels, int count, int64_t room) {
  Reduction columns = reduction;
  Groups& crossed = columns.groups;
  crossed = crossed_groups(reduction.groups, count);
  const int64_t walk = walk_extent(crossed.reduced), bytes = reduction.dtype->bytes;
  const bool masked = reduction.mask != nullptr;
  const Choice choice = order_crossed(crossed, bytes, masked);
  const int64_t elements = crossed.outputs * walk;
  const ThreadWork work = work_of(columns, choice, walk);
  const Plan plan = make_plan(crossed, choice, walk, bytes, threads_for(elements, work), work,
                              masked, false, room);
  const auto candidates = allocate<Candidate>(crossed.outputs * plan.parts);
  Dims inner = reduction.groups.reduced;
  inner.count = count;
  run_items(kernels, {.reduction = columns,
                      .plan = plan,
                      .candidates = candidates.get(),
                      .asks_for_rows = asks_for_rows(columns, plan),
                      .pitch = pitch_of(columns, plan),
                      .crossed = &inner});
  combine(
      kernels,
      {.reduction = reduction, .plan = plan, .candidates = candidates.get(), .crossed = &inner});
}

void reduce_crossed(const Reduction& reduction, const Kernels& kernels, int count, int64_t room) {
  const Slices slices = slices_of(reduction.groups, count, room);
  for (int64_t number = 0; number < slices.count; ++number) {
    Reduction slice = reduction;
    cut(slice, slices, number);
    reduce_slice(slice, kernels, count, room);
  }
}

// May leave other groups in `reduction`: those of a part of the input, in another order. `room`:
// bytes for candidates.
void reduce_groups(Reduction& reduction, const Kernels& kernels, bool streams, int64_t room) {
  Groups& groups = reduction.groups;
  const int64_t bytes = reduction.dtype->bytes;
  const int64_t walk = walk_extent(groups.reduced);
  const bool masked = reduction.mask != nullptr;
  const Choice choice = choose(groups, walk, bytes, reduction.softmax);
  if (const int count = crossed_dims(groups, bytes, reduction.dtype->is_bool(), choice.price, room))
    return reduce_crossed(reduction, kernels, count, room);
  if (choice.walk == Walks::kGather) {
    const GatherOrder order = gather_order(groups, walk, bytes, masked || reduction.softmax);
    const int last = order.dims - 1;
    if (const int64_t size = order.dims ? groups.kept.dim[last].size : 0; size % order.along) {
      const int64_t whole = whole_runs(size, order);
      Reduction rest = reduction;
      narrow(rest, last, whole, size - whole);
      reduce_groups(rest, kernels, streams, room);
      shorten(groups, last, whole);
    }
    order_for_gather(groups, order);
  }
  const int64_t elements = groups.outputs * walk;
  const ThreadWork work = work_of(reduction, choice, walk);
  const Plan plan = make_plan(groups, choice, walk, bytes, threads_for(elements, work), work,
                              masked, reduction.softmax, room);
  if (choice.walk != Walks::kRows || plan.copies) order_by_index(groups.reduced);
  std::unique_ptr<Candidate[]> candidates;
  std::unique_ptr<double[]> sums;
  if (plan.parts > 1) {
    candidates = allocate<Candidate>(groups.outputs * plan.parts);
    if (reduction.softmax) sums = allocate<double>(groups.outputs * plan.parts);
  }
  std::unique_ptr<std::atomic<int64_t>[]> decided;
  if (plan.parts > 1 && !plan.by_parts && plan.walk == Walks::kRows && !reduction.softmax &&
      is_ordered(groups.reduced)) {
    decided = allocate<std::atomic<int64_t>>(groups.outputs);
    std::fill_n(decided.get(), groups.outputs, std::numeric_limits<int64_t>::max());
  }
  const Job job{.reduction = reduction,
                .plan = plan,
                .candidates = candidates.get(),
                .streams = streams,
                .asks_for_rows = asks_for_rows(reduction, plan),
                .asks_into_l2 = reads_rows(reduction, plan) && elements >= kFarBytes / bytes,
                .pitch = pitch_of(reduction, plan),
                .sums = sums.get(),
                .decided = decided.get()};
  run_items(kernels, job);
  if (candidates) combine(kernels, job);
}

void fill_values(const Reduction& reduction, const Kernels& kernels) {
  const Filling filling = make_filling(reduction.groups, !reduction.mask, reduction.dtype->bytes);
  const Job job{.reduction = reduction, .plan = {}, .filling = &filling};
  in_parallel(filling.units, filling.grain,
              [&](int64_t begin, int64_t end) { kernels.fill(job, begin, end); });
}

struct OrderedMarks {
  std::unique_ptr<uint8_t[]> marks;
  int64_t count = 0;
};

// Gives the reduction a mask in the order of its elements, where it has another; what is returned
// holds it.
OrderedMarks order_mask(Reduction& reduction, const Kernels& kernels) {
  if (!reduction.mask || !are_marks_apart(reduction.groups)) return {};
  Reduction copy{};
  copy.dtype = &dtype_of(aoti_torch_dtype_uint8());
  copy.input = reduction.mask;
  copy.groups = order_marks(reduction.groups);
  auto marks = allocate<uint8_t>(copy.groups.outputs);
  copy.values = marks.get();
  fill_values(copy, kernels);
  reduction.mask = marks.get();
  return {std::move(marks), copy.groups.outputs};
}

void fill(Reduction& reduction, const Kernels& kernels, Memory indices) {
  const Groups& groups = reduction.groups;
  if (reduction.indices) {
    constexpr int64_t kWord = sizeof(uint64_t);
    const int64_t bytes = groups.outputs * groups.copies * reduction.index_bytes;
    auto* words = static_cast<uint64_t*>(reduction.indices);
    in_parallel(bytes / kWord, kZeroBytes / kWord, [&](int64_t begin, int64_t end) {
      if (indices == Memory::kSmall) {
        std::memset(words + begin, 0, (end - begin) * kWord);
      } else if (indices == Memory::kTouched && bytes >= kStreamedBytes) {
        kernels.write_past(words + begin, end - begin, 0);
      } else {
        kernels.write(words + begin, end - begin, 0);
      }
    });
    std::memset(words + bytes / kWord, 0, bytes % kWord);
  }
  if (!reduction.values) return;
  const auto marks = order_mask(reduction, kernels);
  fill_values(reduction, kernels);
}

void repeat(void* data, int bytes, const Dims& repeats, int64_t results) {
  if (!data) return;
  in_parallel(results, kGrainBytes / bytes, [&](int64_t begin, int64_t end) {
    visit_results(data, bytes, [&](auto* first) { repeat_results(first, repeats, begin, end); });
  });
}

// The results as groups of one element each, which are to be filled in their place.
[[gnu::cold]] Reduction of_results(const Reduction& reduction) {
  Reduction results = reduction;
  Groups& groups = results.groups;
  groups.kept = result_dims(groups);
  for (int d = 0; d < groups.kept.count; ++d) groups.kept.dim[d].stride = groups.kept.dim[d].step;
  merge(groups.kept);
  groups.repeats.count = 0;
  groups.outputs *= groups.copies;
  groups.copies = 1;
  results.input = results.values;
  return results;
}

// Index 0 and the identity for results that the mask hides; they are there already.
[[gnu::cold]] void hide(const Reduction& reduction, const Kernels& kernels) {
  Reduction hidden = of_results(reduction);
  const auto ordered = order_mask(hidden, kernels);
  const Groups& groups = hidden.groups;
  if (hidden.values) fill_values(hidden, kernels);
  if (!hidden.indices || is_single(reduction.groups)) return;
  Dims marks = groups.kept;
  for (int d = 0; d < marks.count; ++d) marks.dim[d].stride = marks.dim[d].mask_stride;
  const Dim inner = marks.dim[0], next = marks.count > 1 ? marks.dim[1] : Dim{1, 0, 0};
  in_parallel(groups.outputs, kGrainBytes / hidden.index_bytes, [&](int64_t begin, int64_t end) {
    visit_results(hidden.indices, hidden.index_bytes, [&]<class Index>(Index* indices) {
      // The two innermost dims at once, for the first may be short.
      for (int64_t n; begin < end; begin += n) {
        int64_t at = begin % inner.size;
        const int64_t row = begin / inner.size % next.size;
        n = std::min(end - begin, inner.size * (next.size - row) - at);
        const auto* present =
            static_cast<const uint8_t*>(hidden.mask) + place(marks.dim, marks.count, begin).offset;
        for (int64_t i = begin; i < begin + n; ++i) {
          indices[i] &= -static_cast<Index>(*present != 0);  // a branch could not be foreseen
          present += inner.stride;
          if (++at < inner.size) continue;
          at = 0;
          present += next.stride - inner.size * inner.stride;
        }
      }
    });
  });
}

void run(Reduction& reduction);

// Where only values are wanted of products that keep the order, and multiplying takes longer than
// comparing, that of the extreme element is enough. Else, or where that does not tell, false.
bool multiply_extremes(const Reduction& reduction, const Kernels& kernels) {
  // To be worth going over results again; more where these are many.
  constexpr int64_t kLeastElements = 2048, kFewInGroup = 8, kLeastOfFew = 4096;
  constexpr int64_t kLeastWithZeros = 32;  // elements of a group, where products may vanish
  if (!reduction.scaled || reduction.indices || reduction.dtype->bytes != 2) return false;
  const Groups& groups = reduction.groups;
  const int64_t walk = walk_extent(groups.reduced);
  const int64_t least = walk < kFewInGroup ? kLeastOfFew : kLeastElements;
  if (is_single(groups) || groups.outputs * walk < least) return false;
  if (groups.copies > 1 && groups.copies * kFewInGroup > walk) return false;  // all are gone over
  const Products products = products_of(reduction);
  if (!products.ordered || (products.vanishing && walk < kLeastWithZeros)) return false;
  Reduction elements = reduction;
  elements.scaled = false;
  elements.largest ^= products.zero < 0;
  run(elements);
  fill_values(of_results(reduction), kernels);
  return !products.vanishing || settle_zeros(reduction, products);
}

void run(Reduction& reduction) {
  if (!settings.error.empty()) [[unlikely]]
    throw std::runtime_error("reduceops: " + settings.error);
  const Kernels& kernels = *settings.variant->kernels;
  const int64_t bytes = reduction.dtype->bytes;
  const int64_t written =
      (reduction.indices ? reduction.index_bytes : 0) + (reduction.values ? bytes : 0);
  if (reduction.mask && hides_groups(reduction.groups, bytes, written)) {
    Reduction all = reduction;
    all.mask = nullptr;
    all.groups = without_mask(reduction.groups);
    run(all);
    return hide(reduction, kernels);
  }
  if (multiply_extremes(reduction, kernels)) return;
  const Groups& groups = reduction.groups;
  const int64_t results = groups.outputs * groups.copies;
  const Memory indices = prepare(reduction.indices, results * reduction.index_bytes);
  const Memory values = prepare(reduction.values, results * bytes);
  const bool streams = indices != Memory::kFresh && values != Memory::kFresh &&
                       (indices == Memory::kTouched || values == Memory::kTouched);
  if (is_single(groups)) return fill(reduction, kernels, indices);
  OrderedMarks ordered;
  if (reduction.mask && orders_mask(reduction.groups, bytes))
    ordered = order_mask(reduction, kernels);
  if (reduction.mask) put_unread_outermost(reduction.groups);
  reduce_groups(reduction, kernels, streams, kWorkspaceBytes - ordered.count);
  if (groups.copies == 1) return;
  repeat(reduction.indices, reduction.index_bytes, groups.repeats, results);
  repeat(reduction.values, reduction.dtype->bytes, groups.repeats, results);
}

// Indices where the pairs will be, and values beside them: of 8 bytes, where theirs will be.
void run_pairs(Reduction& r, Packing& p) {
  if (r.groups.extent == 0 || r.groups.outputs == 0) return pack_pairs(p, *r.dtype);
  int64_t* const words = p.to.words + 1;
  const bool in_place = r.dtype->bytes == sizeof(int64_t);
  std::unique_ptr<int64_t[]> scratch;
  if (!in_place)
    scratch = allocate<int64_t>(ceil_div(p.to.count * r.dtype->bytes, int64_t{sizeof(int64_t)}));
  int64_t* const indices = in_place ? words + p.to.count : words;
  p.indices = indices;
  r.indices = indices;
  r.index_bytes = sizeof(int64_t);
  p.values = r.values = in_place ? words : scratch.get();
  run(r);
  pack_pairs(p, *r.dtype);
}

}  // namespace

REDUCEOPS_LIBRARY_IMPL(CPU, m) {
  Operators<run>::implement(m);
  DistributedOperators<run_pairs, unpack_pairs>::implement(m);
  Conv2dOperators<run, run_conv2d, run_conv2d_and_keep, find_channels>::implement(m);
}

}  // namespace reduceops::cpu

// For customops.enable(): null, or what went wrong.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cpu_switch(bool on) {
  return reduceops::Switch<reduceops::cpu::run>::set(on, "CPU", "cpu");
}

// Reads `bytes` bytes with all threads: the ceiling that customops/bench measures against.
extern "C" __attribute__((visibility("default"))) void reduceops_cpu_read(const void* data,
                                                                          int64_t bytes) {
  static std::atomic<uint64_t> sink;  // keeps the reads from being optimised away
  torch::stable::parallel_for(0, bytes / 8, reduceops::cpu::kGrainBytes / 8,
                              [&](int64_t begin, int64_t end) {
                                sink |= reduceops::cpu::settings.variant->kernels->read(
                                    static_cast<const uint64_t*>(data) + begin, end - begin);
                              });
}
