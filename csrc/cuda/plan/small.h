// small.cu: few elements, whatever their order; and short rows under a mask, or of softmax_max,
// that are not gathered, rows there that lie apart, and columns under a mask that are not aligned.
#pragma once

#include "cuda/plan/fill.h"
#include "cuda/plan/gather.h"
#include "cuda/plan/price.h"
#include "cuda/plan/whole_columns.h"
#include "cuda/plan/whole_rows.h"

namespace reduceops::cuda {

struct SmallPlan {
  static bool fits(const PlanInput& in) {
    const Groups& groups = in.groups;
    const Dims &kept = groups.kept, &reduced = groups.reduced;
    if (FillPlan::fits(in)) return false;
    const int most_kept = is_for_any_size(in) ? kSmallDims : 2;
    if (kept.count > most_kept || reduced.count > 1 || groups.outputs * in.walk > kMaxPartExtent)
      return false;
    // Of larger inputs, what it costs has not been measured, and cannot be the least.
    if (in.task == Task::kExtreme && groups.outputs * in.walk > 16 * in.tuning.small_elements)
      return false;
    return in.has_short_places();
  }

  // Rows that come here in inputs of any size.
  static bool is_for_any_size(const PlanInput& in) {
    return in.has_short_rows() || in.has_rows_of_packs();
  }

  static bool usual(const PlanInput& in) {
    const bool whole =
        in.task == Task::kExtreme && (WholeRowsPlan::usual(in) || WholeColumnsPlan::fits(in));
    const int64_t most =
        std::min(in.tuning.small_elements, whole ? in.tuning.small_whole_elements : kMaxPartExtent);
    const int64_t longest = in.rows ? in.tuning.small_row : lanes(in) * in.tuning.small_loads;
    if (in.groups.outputs * in.walk <= most && in.walk <= longest) return true;
    return is_for_any_size(in) && !(GatherPlan::fits(in) && GatherPlan::usual(in));
  }

  // Of which the time on the GPU matters less than that of planning.
  static bool is_tiny(const PlanInput& in) {
    return in.groups.outputs * in.walk <= in.tuning.tiny_elements;
  }

  // Under a mask, or of softmax_max, where rows.cu would load element by element.
  static constexpr int64_t kLongestRow = 4096;

  static constexpr int64_t kFewLanes = 512;  // of a multiprocessor

  // More than a warp only where every multiprocessor has a block at most.
  static int lanes(const PlanInput& in) {
    if (in.has_rows_of_packs()) {  // few to a row, but of small inputs one to each pack
      const int64_t packs = std::min<int64_t>(32, ceil_div(in.walk, in.elements_of_load()));
      int lanes = in.lanes_of(packs, in.tuning.row_loads);
      while (lanes < packs && in.groups.outputs * lanes < in.multiprocessors * kFewLanes)
        lanes *= 2;
      return lanes;
    }
    const bool apart = in.task != Task::kExtreme && in.rows && in.groups.reduced.count > 0 &&
                       in.along().stride > 1;
    const int64_t of_lane = apart ? in.tuning.row_loads : in.tuning.lane_loads;
    int lanes = in.lanes_of(in.walk, of_lane, kSmallThreads);
    while (lanes > 32 && in.groups.outputs * lanes > in.multiprocessors * kSmallThreads) lanes /= 2;
    return lanes;
  }

  static bool make(const PlanInput& in, Plan& plan) {
    plan = in.empty_plan(Walk::kSmall);
    keep_whole(plan, in);
    plan.small.vector = in.has_rows_of_packs();
    plan.small.lanes = lanes(in);
    plan.threads = kSmallThreads;
    plan.blocks = ceil_div(in.groups.outputs * plan.small.lanes, kSmallThreads);
    return true;
  }

  static constexpr double kAcross =
      1.15;  // of the time, where lanes of a column load from other rows

  // Single elements, a few in flight; little before the loads and after them.
  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const auto pitch = [&](const Dim& dim) { return static_cast<double>(dim.stride * in.bytes); };
    double sector = kSectorBytes;
    if (in.groups.reduced.count > 0)
      sector = sectors_of(plan.small.lanes, pitch(in.along()), in.bytes);
    if (in.groups.axes.count > 0)
      sector = std::min(sector, sectors_of(32. / plan.small.lanes, pitch(in.inner()), in.bytes));
    const int64_t loads = std::min(kSmallLoads, ceil_div(in.walk, plan.small.lanes));
    return {.read = price::kScattered * traffic.read,
            .sectors = traffic.elements * sector,
            .instructions = price::kScalarRow * traffic.elements +
                            (40 * plan.small.lanes + 50) * traffic.outputs,
            .in_flight = in_flight(in, plan, 16, static_cast<double>(loads) * sector),
            .extra = -0.5,
            .share = !in.rows && plan.small.lanes >= 8 ? kAcross : 1};
  }
};

}  // namespace reduceops::cuda
