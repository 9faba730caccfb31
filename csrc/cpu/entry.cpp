// The CPU implementation of the operators: plans, runs in parallel and combines.
#ifdef __linux__
#include <sys/mman.h>
#endif
#include <torch/csrc/stable/ops.h>

#include <atomic>
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

void reduce_groups(Reduction& reduction, const Kernels& kernels, bool streams) {
  Groups& groups = reduction.groups;
  const int64_t walk = walk_extent(groups.reduced);
  const bool small = groups.outputs * walk <= kGrainBytes / reduction.dtype->bytes;
  const int64_t threads = small ? 1 : torch::stable::get_num_threads();
  const int64_t candidate_bytes = kCandidateBytes + (reduction.softmax ? sizeof(double) : 0);
  const Plan plan = make_plan(groups, walk, reduction.dtype->bytes, threads, candidate_bytes);
  if (!plan.rows || plan.joins) order_by_index(groups.reduced);
  if (plan.gathers) order_for_gather(groups);
  std::unique_ptr<Candidate[]> candidates;
  std::unique_ptr<double[]> sums;
  if (plan.parts > 1) {
    candidates = std::make_unique_for_overwrite<Candidate[]>(groups.outputs * plan.parts);
    if (reduction.softmax)
      sums = std::make_unique_for_overwrite<double[]>(groups.outputs * plan.parts);
  }
  const Job job{reduction, plan, candidates.get(), streams, sums.get()};
  in_parallel(plan.units * plan.parts, plan.grain,
              [&](int64_t begin, int64_t end) { kernels.run(job, begin, end); });
  if (candidates) kernels.combine(job);
}

void fill(const Reduction& reduction, const Kernels& kernels) {
  const Job job{reduction, {}, nullptr, false};
  in_parallel(reduction.groups.outputs * reduction.groups.copies, kGrainBytes / sizeof(int64_t),
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
  r.index_bytes = sizeof(int64_t);
  p.values = r.values = values.get();
  run(r);
  pack_pairs(p, *r.dtype);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(reduceops, CPU, m) {
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
