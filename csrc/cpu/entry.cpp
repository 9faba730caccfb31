// The CPU implementation of the operators: plans, runs in parallel and combines.
#ifdef __linux__
#include <sys/mman.h>
#endif
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <memory>
#include <stdexcept>

#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "cpu/settings.h"
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

void run(Reduction& reduction) {
  if (!settings.error.empty()) [[unlikely]]
    throw std::runtime_error("reduceops: " + settings.error);
  const Kernels& kernels = *settings.variant->kernels;
  Groups& groups = reduction.groups;
  bool streams = prepare(reduction.indices, groups.outputs * sizeof(int64_t));
  streams |= prepare(reduction.values, groups.outputs * reduction.dtype->bytes);
  if (!is_rows(groups)) order_by_index(groups.reduced);
  const bool small = groups.outputs * groups.extent * reduction.dtype->bytes <= kGrainBytes;
  const int64_t threads = small ? 1 : torch::stable::get_num_threads();
  const Plan plan = make_plan(groups, walk_extent(groups.reduced), reduction.dtype->bytes, threads);
  std::unique_ptr<Candidate[]> candidates;
  if (plan.parts > 1)
    candidates = std::make_unique_for_overwrite<Candidate[]>(groups.outputs * plan.parts);
  const Job job{reduction, plan, candidates.get(), streams};
  const int64_t items = plan.units * plan.parts;
  if (items <= plan.grain) {
    kernels.run(job, 0, items);
  } else {
    parallel(items, plan.grain, [&](int64_t begin, int64_t end) { kernels.run(job, begin, end); });
  }
  if (candidates) kernels.combine(job);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(reduceops, CPU, m) { Operators<run>::implement(m); }

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
