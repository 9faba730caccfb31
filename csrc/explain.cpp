// The plans, asked for without running anything: for tests and bug reports (customops/explain.py).
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>

#include "cpu/plan.h"
#include "cuda/make_plan.h"
#include "cuda/plan_check.h"
#include "make_groups.h"

namespace {

reduceops::Groups groups_of(int64_t ndim, const int64_t* sizes, const int64_t* strides,
                            uint64_t reduced_mask, const int64_t* mask_strides = nullptr) {
  reduceops::Groups groups;
  reduceops::make_groups(ndim, sizes, strides, reduced_mask, groups, mask_strides);
  return groups;
}

}  // namespace

#define REDUCEOPS_EXPORT extern "C" __attribute__((visibility("default")))

// The name of the i-th constant of the GPU's plan and its default; null past the last.
REDUCEOPS_EXPORT const char* reduceops_cuda_constant(int64_t i, int64_t* value) {
  using reduceops::cuda::kTunables;
  if (i >= std::ssize(kTunables)) return nullptr;
  *value = reduceops::cuda::Tuning{}.*kTunables[i].value;
  return kTunables[i].name;
}

// mask_strides: of a mask in the shape of the input; null if there is none
// constants: the value of each, in that order
// out: of the plan walk, vector, lanes, loads, batches, shares, threads, cluster, blocks, parts,
// part_extent, candidate_bytes, tile, tiles, across, subtile, contiguous, stage_rows, stage_pitch,
// stage_bytes, stages, scratch_bytes, runs, reading, pieces, mapped, realigned, spaced, flat; then
// how many walks fit, and of each those fields, its price in nanoseconds, and whether it is the
// usual one. Up to 216 numbers. Returns what the plan promises to its kernel and does not keep,
// which is a bug; null if there is nothing.
REDUCEOPS_EXPORT const char* reduceops_cuda_plan(int64_t ndim, const int64_t* sizes,
                                                 const int64_t* strides, uint64_t reduced_mask,
                                                 int64_t bytes, int64_t address,
                                                 int64_t multiprocessors, int64_t bulk,
                                                 const int64_t* mask_strides, int64_t softmax,
                                                 const int64_t* constants, int64_t* out) {
  using namespace reduceops::cuda;
  Tuning tuning;
  for (const auto& tunable : kTunables) set(tuning, tunable, *constants++);
  const Task task = mask_strides ? Task::kMasked : softmax ? Task::kSoftmax : Task::kExtreme;
  auto groups = groups_of(ndim, sizes, strides, reduced_mask, mask_strides);
  arrange(groups, bytes);
  const Limits limits{multiprocessors, bulk != 0};
  const Plan plan = make_plan(groups, bytes, address, limits, tuning, task);
  const auto write = [&out](std::initializer_list<int64_t> numbers) {
    out = std::copy(numbers.begin(), numbers.end(), out);
  };
  const auto write_plan = [&](const Plan& p) {
    write({static_cast<int64_t>(p.walk),
           p.vector,
           p.lanes,
           p.loads,
           p.batches,
           p.shares,
           p.threads,
           p.cluster,
           p.blocks,
           p.parts,
           p.part_extent,
           p.candidate_bytes,
           p.tile,
           p.tiles,
           p.across,
           p.subtile,
           p.contiguous,
           p.stage_rows,
           p.stage_pitch,
           p.stage_bytes,
           p.stages,
           p.scratch_bytes,
           p.runs,
           p.box.reading,
           p.box.pieces,
           p.mapped,
           p.realigned,
           p.spaced,
           p.flat});
  };
  write_plan(plan);
  const PlanInput in(groups, bytes, address, limits, tuning, task);
  Choice choice(in);
  choice.set_prices();
  write({choice.count()});
  for (int i = 0; i < choice.count(); ++i) {
    write_plan(choice[i].plan);
    write({std::llround(choice[i].price * 1e3), i == choice.usual()});
  }
  return broken_promise(plan, groups, bytes, address, limits, task);
}

// out: rows, tile, tiles, units, parts, part_extent, grain
// Returns null.
REDUCEOPS_EXPORT const char* reduceops_cpu_plan(int64_t ndim, const int64_t* sizes,
                                                const int64_t* strides, uint64_t reduced_mask,
                                                int64_t bytes, int64_t threads, int64_t* out) {
  auto groups = groups_of(ndim, sizes, strides, reduced_mask);
  if (!reduceops::is_rows(groups)) reduceops::order_by_index(groups.reduced);
  const auto plan = reduceops::cpu::make_plan(groups, walk_extent(groups.reduced), bytes, threads);
  const int64_t fields[] = {plan.rows,  plan.tile,        plan.tiles, plan.units,
                            plan.parts, plan.part_extent, plan.grain};
  std::copy(std::begin(fields), std::end(fields), out);
  return nullptr;
}
