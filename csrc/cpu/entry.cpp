// The CPU implementation of the operators: picks the instruction set once, then plans, runs in
// parallel and combines.
#ifdef __linux__
#include <sys/mman.h>
#endif
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>

#include "cpu/kernels.h"
#include "cpu/repeat.h"
#include "operators.h"
#include "switch.h"

namespace reduceops::cpu {
namespace {

struct Variant {
  const char* name;
  const Kernels* kernels;
  bool runs_here;
};

#ifdef __x86_64__
// What -march=x86-64-v3 and -v4 let the compiler use.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

// Best first.
const Variant variants[] = {
#ifdef __x86_64__
    {"avx512", &kernels_avx512, has_avx512()},
    {"avx2", &kernels_avx2, has_avx2()},
#endif
    {"baseline", &kernels_baseline, true},
};

// REDUCEOPS_CPU_ISA names a variant, for testing; one that this CPU lacks or that does not exist is
// ignored.
const Variant& choose() {
  const char* wanted = std::getenv("REDUCEOPS_CPU_ISA");
  const Variant* best = nullptr;
  for (const Variant& variant : variants) {
    if (!variant.runs_here) continue;
    if (wanted && std::string(wanted) == variant.name) return variant;
    if (!best) best = &variant;
  }
  return *best;
}

const Variant& chosen = choose();

// Asks for huge pages under a large output: touching it for the first time would otherwise cost
// more than the reduction (a page fault per 4 KiB). Only a hint. True if the output is large and
// has been touched before; what has not is cleared when it is, and is in cache then.
bool prepare(void* data, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kHuge = uintptr_t(2) << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHuge * kHuge;
  if (data && begin < end) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
    unsigned char resident = 0;
    return mincore(reinterpret_cast<void*>(end - kHuge), 1, &resident) == 0 && (resident & 1);
  }
#endif
  return false;
}

template <class Body>
void in_parallel(int64_t items, int64_t grain, Body body) {
  if (items <= grain) {
    body(0, items);
  } else {
    torch::stable::parallel_for(0, items, grain, body);
  }
}

void reduce_groups(Reduction& reduction, bool streams) {
  Groups& groups = reduction.groups;
  if (!is_rows(groups)) order_by_index(groups.reduced);
  const bool small = groups.outputs * groups.extent * reduction.dtype->bytes <= kGrainBytes;
  const int64_t threads = small ? 1 : torch::stable::get_num_threads();
  const Plan plan = make_plan(groups, walk_extent(groups.reduced), reduction.dtype->bytes, threads);
  std::unique_ptr<Candidate[]> candidates;
  if (plan.parts > 1)
    candidates = std::make_unique_for_overwrite<Candidate[]>(groups.outputs * plan.parts);
  const Job job{reduction, plan, candidates.get(), streams};
  in_parallel(plan.units * plan.parts, plan.grain,
              [&](int64_t begin, int64_t end) { chosen.kernels->run(job, begin, end); });
  if (candidates) chosen.kernels->combine(job);
}

void fill(const Reduction& reduction) {
  const Job job{reduction, {}, nullptr, false};
  in_parallel(reduction.groups.outputs * reduction.groups.copies, kGrainBytes / sizeof(int64_t),
              [&](int64_t begin, int64_t end) { chosen.kernels->fill(job, begin, end); });
}

template <class T>
void repeat(void* results, const Groups& groups) {
  in_parallel(groups.outputs * groups.copies, kGrainBytes / sizeof(T),
              [&](int64_t begin, int64_t end) {
                repeat_results(static_cast<T*>(results), groups.repeats, begin, end);
              });
}

void repeat(const Reduction& reduction) {
  if (reduction.indices) repeat<int64_t>(reduction.indices, reduction.groups);
  if (!reduction.values) return;
  switch (reduction.dtype->bytes) {
    case 1:
      return repeat<int8_t>(reduction.values, reduction.groups);
    case 2:
      return repeat<int16_t>(reduction.values, reduction.groups);
    case 4:
      return repeat<int32_t>(reduction.values, reduction.groups);
    default:
      return repeat<int64_t>(reduction.values, reduction.groups);
  }
}

void run(Reduction& reduction) {
  const Groups& groups = reduction.groups;
  const int64_t results = groups.outputs * groups.copies;
  bool streams = prepare(reduction.indices, results * sizeof(int64_t));
  streams |= prepare(reduction.values, results * reduction.dtype->bytes);
  if (is_single(groups)) return fill(reduction);
  reduce_groups(reduction, streams);
  if (groups.copies > 1) repeat(reduction);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(reduceops, CPU, m) { Operators<run>::implement(m); }

}  // namespace reduceops::cpu

// For `python -m customops`.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cpu_isa() {
  return reduceops::cpu::chosen.name;
}

extern "C" __attribute__((visibility("default"))) const char* reduceops_cpu_isas() {
  static const std::string names = [] {
    std::string all;
    for (const auto& variant : reduceops::cpu::variants) {
      if (variant.runs_here) all.append(all.empty() ? "" : ",").append(variant.name);
    }
    return all;
  }();
  return names.c_str();
}

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
                                sink |= reduceops::cpu::chosen.kernels->read(
                                    static_cast<const uint64_t*>(data) + begin, end - begin);
                              });
}
