// whole_columns.cu: columns of a few elements, of which a thread holds four, or two.
#pragma once

#include "cuda/plan/price.h"

namespace reduceops::cuda {

struct WholeColumnsPlan {
  static bool fits(const PlanInput& in) {
    const Groups& groups = in.groups;
    const int64_t columns = whole_columns_of_thread(in.bytes);
    if (in.task != Task::kExtreme || in.rows || groups.axes.count > kWholeDims ||
        groups.reduced.count != 1 || in.inner().stride != 1 || in.inner().size % columns != 0 ||
        (groups.outputs | groups.extent) >> 32 != 0)
      return false;
    if (in.walk < 2 || in.walk > std::min(in.tuning.whole_column, whole_column_rows(in.bytes)))
      return false;
    const int64_t alignment = columns * in.bytes;
    return in.address_aligned(alignment) && in.strides_aligned(groups.axes, 1, alignment) &&
           in.strides_aligned(groups.reduced, 0, alignment) && in_order(groups);
  }

  static bool usual(const PlanInput&) { return true; }

  static bool make(const PlanInput& in, Plan& plan) {
    plan = in.empty_plan(Walk::kWholeColumns);
    keep_whole(plan, in);
    plan.threads = kThreads;
    plan.blocks = ceil_div(in.groups.outputs, whole_columns_of_thread(in.bytes) * kThreads);
    return true;
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const int64_t load = whole_columns_of_thread(in.bytes) * in.bytes;
    return {.read = traffic.read,
            .sectors = traffic.bytes,
            .instructions =
                of_bytes(price::kColumn, in.bytes) * traffic.elements + 20 * traffic.outputs,
            .in_flight = in_flight(in, plan, 6, in.walk * load)};
  }
};

}  // namespace reduceops::cuda
