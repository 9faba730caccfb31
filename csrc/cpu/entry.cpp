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
#include "cpu/pack.h"
#include "cpu/parallel.h"
#include "cpu/repeat.h"
#include "cpu/results.h"
#include "cpu/settings.h"
#include "distributed.h"
#include "operators.h"
#include "registration.h"
#include "switch.h"

namespace reduceops::cpu {
namespace {

// True if the output is large and has been touched before; what has not is cleared when it is, and
// is in cache then. Asks for huge pages under a large output, if that is wanted: only a hint.
bool prepare(void* data, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kHuge = uintptr_t(2) << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHuge * kHuge;
  if (data && begin < end) {
    if (settings.huge_pages) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
    unsigned char resident = 0;
    return mincore(reinterpret_cast<void*>(end - kHuge), 1, &resident) == 0 && (resident & 1);
  }
#endif
  return false;
}

// In this thread if there are few items, each of which is worth 1 / grain of a thread.
template <class Body>
void in_parallel(int64_t items, int64_t grain, Body body) {
  if (items <= grain) {
    body(0, items);
  } else {
    parallel(items, grain, body);
  }
}

std::unique_ptr<Candidate[]> room_for_candidates(int64_t count) {
  return std::make_unique_for_overwrite<Candidate[]>(count);
}

// The part of a reduction that is positions [begin, begin + size) of kept dim d.
Reduction slice(const Reduction& reduction, int d, int64_t begin, int64_t size) {
  Reduction part = reduction;
  Dims& kept = part.groups.kept;
  Dim& outer = kept.dim[d];
  const auto moved = [&](auto* data, int64_t bytes) {
    using Bytes = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>,
                                     const char, char>;
    return data ? static_cast<Bytes*>(data) + begin * bytes : nullptr;
  };
  part.input = moved(part.input, outer.stride * part.dtype->bytes);
  part.mask = moved(part.mask, outer.mask_stride);
  part.indices = moved(part.indices, outer.step * part.index_bytes);
  part.values = moved(part.values, outer.step * part.dtype->bytes);
  part.groups.outputs = part.groups.outputs / outer.size * size;
  outer.size = size;
  if (size == 1) std::copy(kept.dim + d + 1, kept.dim + kept.count--, kept.dim + d);
  part.groups.axes = kept;
  merge(part.groups.axes, true);
  return part;
}

// Calls f with slices of at most so many positions of kept dim d.
template <class F>
void in_slices(const Reduction& reduction, int d, int64_t most, F f) {
  const int64_t size = reduction.groups.kept.dim[d].size;
  most = std::max<int64_t>(1, most);
  for (int64_t begin = 0; begin < size; begin += most) {
    Reduction part = slice(reduction, d, begin, std::min(most, size - begin));
    f(part);
  }
}

// Reduces over all but the innermost `count` of the reduced dims first. All candidates are there at
// once: of many outputs, some are done after the others.
void reduce_crossed(const Reduction& reduction, const Kernels& kernels, int count) {
  Reduction columns = reduction;
  const Groups& groups = reduction.groups;
  columns.groups = crossed_groups(groups, count);
  Groups& crossed = columns.groups;
  constexpr int64_t kMost = kWorkspaceBytes / kCandidateBytes;
  if (crossed.outputs > kMost) {
    const int outer = groups.kept.count - 1;
    const int64_t size = groups.kept.dim[outer].size;
    return in_slices(reduction, outer, kMost / (crossed.outputs / size),
                     [&](Reduction& part) { reduce_crossed(part, kernels, count); });
  }
  const int64_t walk = walk_extent(crossed.reduced);
  const int64_t threads = torch::stable::get_num_threads();
  const Plan plan =
      make_plan(crossed, walk, reduction.dtype->bytes, threads, kCandidateBytes, true);
  if (plan.gathers) order_for_gather(crossed);
  const auto candidates = room_for_candidates(crossed.outputs * plan.parts);
  Dims inner = groups.reduced;
  inner.count = count;
  Job job{columns, plan, candidates.get(), false};
  job.crossed = &inner;
  in_parallel(plan.units * plan.parts, plan.grain,
              [&](int64_t begin, int64_t end) { kernels.run(job, begin, end); });
  Job all{reduction, plan, candidates.get(), false};
  all.crossed = &inner;
  kernels.combine(all);
}

void reduce_groups(Reduction& reduction, const Kernels& kernels, bool streams) {
  Groups& groups = reduction.groups;
  if (const int crossed = crossed_dims(groups, reduction.dtype->bytes))
    return reduce_crossed(reduction, kernels, crossed);
  const int64_t walk = walk_extent(groups.reduced);
  const bool small = groups.outputs * walk <= kGrainBytes / reduction.dtype->bytes;
  const int64_t threads = small ? 1 : torch::stable::get_num_threads();
  const int64_t candidate_bytes = reduction.softmax ? kSoftmaxBytes : kCandidateBytes;
  const Plan plan = make_plan(groups, walk, reduction.dtype->bytes, threads, candidate_bytes);
  if (plan.gathers) {
    const int64_t along = gathered_along(groups);
    if (groups.kept.dim[0].size > 2 * along)
      return in_slices(reduction, 0, along,
                       [&](Reduction& part) { reduce_groups(part, kernels, streams); });
  }
  if (!plan.rows || plan.copies) order_by_index(groups.reduced);
  if (plan.gathers) order_for_gather(groups);
  std::unique_ptr<Candidate[]> candidates;
  std::unique_ptr<double[]> sums;
  if (plan.parts > 1) {
    candidates = room_for_candidates(groups.outputs * plan.parts);
    if (reduction.softmax)
      sums = std::make_unique_for_overwrite<double[]>(groups.outputs * plan.parts);
  }
  Job job{reduction, plan, candidates.get(), streams, sums.get()};
  std::atomic<int64_t> decided{std::numeric_limits<int64_t>::max()};
  if (groups.outputs == 1 && plan.parts > 1 && is_ordered(groups.reduced)) job.decided = &decided;
  in_parallel(plan.units * plan.parts, plan.grain,
              [&](int64_t begin, int64_t end) { kernels.run(job, begin, end); });
  if (candidates) kernels.combine(job);
}

void fill(const Reduction& reduction, const Kernels& kernels) {
  const Groups& groups = reduction.groups;
  if (reduction.indices) {
    const int64_t bytes = groups.outputs * groups.copies * reduction.index_bytes;
    in_parallel(bytes, kGrainBytes, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(reduction.indices) + begin, 0, end - begin);
    });
  }
  if (!reduction.values) return;
  const bool plain = !reduction.mask && !reduction.softmax;
  const Filling filling = make_filling(groups, plain, reduction.dtype->bytes);
  Job job{reduction, {}, nullptr, false};
  job.filling = &filling;
  in_parallel(filling.units, filling.grain,
              [&](int64_t begin, int64_t end) { kernels.fill(job, begin, end); });
}

void repeat(void* data, int bytes, const Groups& groups) {
  if (!data) return;
  in_parallel(groups.outputs * groups.copies, kGrainBytes / bytes, [&](int64_t begin, int64_t end) {
    visit_results(data, bytes,
                  [&](auto* results) { repeat_results(results, groups.repeats, begin, end); });
  });
}

void run(Reduction& reduction) {
  if (!settings.error.empty()) [[unlikely]]
    throw std::runtime_error("reduceops: " + settings.error);
  const Kernels& kernels = *settings.variant->kernels;
  const Groups& groups = reduction.groups;
  const int64_t results = groups.outputs * groups.copies;
  bool streams = prepare(reduction.indices, results * reduction.index_bytes);
  streams |= prepare(reduction.values, results * reduction.dtype->bytes);
  if (is_single(groups)) return fill(reduction, kernels);
  reduce_groups(reduction, kernels, streams);
  if (groups.copies == 1) return;
  repeat(reduction.indices, reduction.index_bytes, groups);
  repeat(reduction.values, reduction.dtype->bytes, groups);
}

// Indices where the pairs will be, and values beside them.
void run_pairs(Reduction& r, Packing& p) {
  if (r.groups.extent == 0 || r.groups.outputs == 0) return pack_pairs(p, *r.dtype);
  const auto values = std::make_unique_for_overwrite<int64_t[]>(
      (p.to.count * r.dtype->bytes + sizeof(int64_t) - 1) / sizeof(int64_t));
  r.indices = p.to.words + 1;
  p.indices = p.to.words + 1;
  r.index_bytes = sizeof(int64_t);
  p.values = r.values = values.get();
  run(r);
  pack_pairs(p, *r.dtype);
}

}  // namespace

REDUCEOPS_LIBRARY_IMPL(CPU, m) {
  Operators<run>::implement(m);
  DistributedOperators<run_pairs, unpack_pairs>::implement(m);
  Conv2dOperators<run, run_conv2d>::implement(m);
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
