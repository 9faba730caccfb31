// The plans, asked for without running anything: for tests and bug reports (customops/plans.py).
#include <cmath>
#include <iterator>

#include "cpu/plan.h"
#include "cuda/plan/copies.h"
#include "cuda/plan_check.h"
#include "cuda/steps.h"
#include "make_groups.h"

namespace {

reduceops::Groups groups_of(int64_t ndim, const int64_t* sizes, const int64_t* strides,
                            uint64_t reduced_mask, const int64_t* mask_strides = nullptr) {
  reduceops::Groups groups;
  reduceops::make_groups(ndim, sizes, strides, reduced_mask, groups, mask_strides);
  return groups;
}

// What a plan says of itself, by name: the one list of it, which Python asks for.
template <class Plan>
struct Field {
  const char* name;
  int64_t (*of)(const Plan& plan);
};

using CudaPlan = reduceops::cuda::FoldedPlan;
using CpuPlan = reduceops::cpu::Plan;

#define REDUCEOPS_FIELD(Plan, field) \
  {#field, [](const Plan& plan) { return static_cast<int64_t>(plan.field); }}

// What some walks decide for themselves; 0 where this one does not.
#define REDUCEOPS_CUT_FIELD(field)                               \
  {#field, [](const CudaPlan& plan) {                            \
     int64_t value = 0;                                          \
     reduceops::cuda::visit_cut(plan, [&](const auto& cut) {     \
       if constexpr (requires { cut.field; }) value = cut.field; \
     });                                                         \
     return value;                                               \
   }}

constexpr Field<CudaPlan> kCudaFields[] = {
    REDUCEOPS_FIELD(CudaPlan, walk),
    REDUCEOPS_FIELD(CudaPlan, threads),
    REDUCEOPS_FIELD(CudaPlan, cluster),
    REDUCEOPS_FIELD(CudaPlan, blocks),
    REDUCEOPS_FIELD(CudaPlan, parts),
    REDUCEOPS_FIELD(CudaPlan, part_extent),
    REDUCEOPS_FIELD(CudaPlan, candidate_bytes),
    {"folded", [](const CudaPlan& plan) { return plan.fold.columns(); }},
    REDUCEOPS_CUT_FIELD(vector),
    REDUCEOPS_CUT_FIELD(realigned),
    REDUCEOPS_CUT_FIELD(shifted),
    REDUCEOPS_CUT_FIELD(spaced),
    REDUCEOPS_CUT_FIELD(flat),
    REDUCEOPS_CUT_FIELD(pairs),
    REDUCEOPS_CUT_FIELD(mapped),
    REDUCEOPS_CUT_FIELD(staged),
    REDUCEOPS_CUT_FIELD(listed),
    REDUCEOPS_CUT_FIELD(contiguous),
    REDUCEOPS_CUT_FIELD(pieces),
    REDUCEOPS_CUT_FIELD(packed),
    REDUCEOPS_CUT_FIELD(row_loads),
    REDUCEOPS_CUT_FIELD(outer_rows),
    REDUCEOPS_CUT_FIELD(reading),
    REDUCEOPS_CUT_FIELD(lanes),
    REDUCEOPS_CUT_FIELD(loads),
    REDUCEOPS_CUT_FIELD(batches),
    REDUCEOPS_CUT_FIELD(runs),
    REDUCEOPS_CUT_FIELD(units),
    REDUCEOPS_CUT_FIELD(cross_side),
    REDUCEOPS_CUT_FIELD(inner_side),
    REDUCEOPS_CUT_FIELD(inner_lanes),
    REDUCEOPS_CUT_FIELD(cross_lanes),
    REDUCEOPS_CUT_FIELD(copied),
    REDUCEOPS_CUT_FIELD(masked),
    REDUCEOPS_CUT_FIELD(shares),
    REDUCEOPS_CUT_FIELD(tile),
    REDUCEOPS_CUT_FIELD(tiles),
    REDUCEOPS_CUT_FIELD(across),
    REDUCEOPS_CUT_FIELD(subtile),
    REDUCEOPS_CUT_FIELD(stage_rows),
    REDUCEOPS_CUT_FIELD(stage_pitch),
    REDUCEOPS_CUT_FIELD(stage_bytes),
    REDUCEOPS_CUT_FIELD(stages),
    REDUCEOPS_CUT_FIELD(scratch_bytes),
};

constexpr Field<CpuPlan> kCpuFields[] = {
    {"rows",
     [](const CpuPlan& plan) -> int64_t { return plan.walk == reduceops::cpu::Walks::kRows; }},
    {"gathers",
     [](const CpuPlan& plan) -> int64_t { return plan.walk == reduceops::cpu::Walks::kGather; }},
    REDUCEOPS_FIELD(CpuPlan, tile),
    REDUCEOPS_FIELD(CpuPlan, tiles),
    REDUCEOPS_FIELD(CpuPlan, units),
    REDUCEOPS_FIELD(CpuPlan, parts),
    REDUCEOPS_FIELD(CpuPlan, part_extent),
    REDUCEOPS_FIELD(CpuPlan, grain),
    REDUCEOPS_FIELD(CpuPlan, slices),
    REDUCEOPS_FIELD(CpuPlan, copies),
    REDUCEOPS_FIELD(CpuPlan, columns),
    REDUCEOPS_FIELD(CpuPlan, by_parts),
    REDUCEOPS_FIELD(CpuPlan, folds),
    REDUCEOPS_FIELD(CpuPlan, hides),
    REDUCEOPS_FIELD(CpuPlan, orders),
    REDUCEOPS_FIELD(CpuPlan, stays),
};

#undef REDUCEOPS_CUT_FIELD
#undef REDUCEOPS_FIELD

template <class Plan, size_t count>
const char* name_of(const Field<Plan> (&fields)[count], int64_t i) {
  return i < static_cast<int64_t>(count) ? fields[i].name : nullptr;
}

template <class Plan, size_t count>
int64_t* write(const Field<Plan> (&fields)[count], const Plan& plan, int64_t* out) {
  for (const Field<Plan>& field : fields) *out++ = field.of(plan);
  return out;
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

// The name of the i-th field of a plan; null past the last.
REDUCEOPS_EXPORT const char* reduceops_cuda_plan_field(int64_t i) {
  return name_of(kCudaFields, i);
}
REDUCEOPS_EXPORT const char* reduceops_cpu_plan_field(int64_t i) { return name_of(kCpuFields, i); }

// Of outputs that are cut in slices.
static const char* broken_promise_of_slices(const reduceops::Groups& all,
                                            const reduceops::cuda::Slices& slices) {
  const reduceops::Dim& dim = all.kept.dim[slices.dim];
  if (slices.size * dim.step % reduceops::cuda::kLoadBytes != 0 && all.reduced.count <= 1)
    return "results of columns held whole begin where 16-byte stores may";
  if ((slices.count - 1) * slices.size >= dim.size) return "each slice has outputs";
  int64_t outputs = 0;
  for (int64_t i = 0; i < slices.count; ++i) outputs += slices.groups(all, i).outputs;
  return outputs == all.outputs ? nullptr : "the slices cover the outputs once";
}

// The steps of a call; of what is carried out in slices, those of the first. `broken` is what these
// promise and do not keep; `slices` is multiplied by their number.
[[gnu::noinline]] static reduceops::cuda::Steps first_steps(
    const reduceops::Groups& all, int64_t bytes, int64_t address, reduceops::cuda::Limits limits,
    const reduceops::cuda::Tuning& tuning, reduceops::cuda::Task task,
    reduceops::cuda::Stores stores, const char*& broken, int64_t& slices) {
  using namespace reduceops::cuda;
  const Steps steps = steps_of(all, bytes, address, limits, tuning, task, stores);
  if (steps.slices.count == 1) return steps;
  if (!broken) broken = broken_promise_of_slices(all, steps.slices);
  slices *= steps.slices.count;
  return first_steps(steps.slices.groups(all, 0), bytes, address, limits, tuning, task, stores,
                     broken, slices);
}

// Of the tiles by which so many values are transposed.
static const char* broken_promise_of_tiles(const reduceops::cuda::Transposition& tiles,
                                           int64_t values) {
  using namespace reduceops::cuda;
  for (const auto& run : {tiles.memory, tiles.results}) {
    if (run.tiles != ceil_div(run.size, int64_t{run.side})) return "the tiles cover a run once";
  }
  if (tiles.memory.side * tiles.results.side != kTransposeTile) return "a tile is full of places";
  if (tiles.outers * tiles.memory.size * tiles.results.size != values)
    return "the runs have all values";
  return tiles.blocks() <= kMaxBlocks ? nullptr : "the blocks fit a grid";
}

// Of the plan by which the values of groups of one element are copied, if there is one.
static const char* broken_promise_of_copies(const reduceops::Groups& groups, int64_t bytes,
                                            int64_t address) {
  using namespace reduceops::cuda;
  const auto outputs = repeats_as_outputs(groups);
  for (const int index_bytes : {0, 4, 8}) {
    const CopiesPlan copies(outputs, bytes, address, index_bytes);
    if (copies.transposition) {
      const char* promise = broken_promise_of_tiles(*copies.transposition, outputs.outputs);
      if (promise) return promise;
    }
    if (!copies.gather) continue;
    const FoldedPlan plan{*copies.gather};
    if (const char* promise = broken_promise(plan, outputs, bytes, address, CopiesPlan::kLimits))
      return promise;
  }
  return nullptr;
}

// mask_strides: of a mask in the shape of the input; null if there is none
// stores: of each result: 1 of its index, 2 of its value, 3 of both
// constants: the value of each, in that order
// out: the fields of the plan, of how many slices it is that of the first, how many walks fit, and
// of each its fields, its price in nanoseconds and whether it is the usual one.
// Returns what the plan promises to its kernel and does not keep, which is a bug; null if there is
// nothing.
REDUCEOPS_EXPORT const char* reduceops_cuda_plan(int64_t ndim, const int64_t* sizes,
                                                 const int64_t* strides, uint64_t reduced_mask,
                                                 int64_t bytes, int64_t address,
                                                 int64_t multiprocessors, int64_t bulk,
                                                 const int64_t* mask_strides, int64_t softmax,
                                                 int64_t stores, const int64_t* constants,
                                                 int64_t* out) {
  using namespace reduceops::cuda;
  Tuning tuning;
  for (const auto& tunable : kTunables) set(tuning, tunable, *constants++);
  const Task asked = mask_strides ? Task::kMasked : softmax ? Task::kSoftmax : Task::kExtreme;
  const Limits limits{multiprocessors, bulk != 0};
  const Stores stored{(stores & 1) != 0, (stores & 2) != 0};
  const char* broken = nullptr;
  int64_t slices = 1;
  const Steps steps = first_steps(groups_of(ndim, sizes, strides, reduced_mask, mask_strides),
                                  bytes, address, limits, tuning, asked, stored, broken, slices);
  const reduceops::Groups& groups = steps.groups;
  const FoldedPlan& plan = steps.plan;
  const Task task = steps.task;
  out = write(kCudaFields, plan, out);
  *out++ = slices;
  const PlanInput in(groups, bytes, address, limits, tuning, task, stored);
  FittingWalks walks(in);
  walks.set_prices();
  *out++ = walks.count();
  for (int i = 0; i < walks.count(); ++i) {
    out = write(kCudaFields, walks[i].plan, out);
    *out++ = std::llround(walks[i].price * 1e3);
    *out++ = i == walks.usual();
  }
  if (!broken) broken = broken_promise(plan, groups, bytes, address, limits, task);
  if (broken) return broken;
  const bool copies = plan.walk == Walk::kFill && stored.value;
  return copies ? broken_promise_of_copies(groups, bytes, address) : nullptr;
}

// mask_strides: of a mask in the shape of the input; null if there is none
// stores: as of the GPU's plan
// Returns null. Of what is carried out in slices, the plan is that of the first.
REDUCEOPS_EXPORT const char* reduceops_cpu_plan(int64_t ndim, const int64_t* sizes,
                                                const int64_t* strides, uint64_t reduced_mask,
                                                int64_t bytes, int64_t threads,
                                                const int64_t* mask_strides, int64_t bools,
                                                int64_t softmax, int64_t stores, int64_t* out) {
  using namespace reduceops::cpu;
  const auto groups = groups_of(ndim, sizes, strides, reduced_mask, mask_strides);
  const int64_t written =
      (stores & 1) * static_cast<int64_t>(sizeof(int64_t)) + (stores > 1 ? bytes : 0);
  const Plan plan =
      plan_of(groups, bytes, threads, mask_strides != nullptr, bools != 0, softmax != 0, written);
  write(kCpuFields, plan, out);
  return nullptr;
}
