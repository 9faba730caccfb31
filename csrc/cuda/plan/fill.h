// fill.cu: every group is one element, or the same one over and over.
#pragma once

#include "cuda/plan/price.h"

namespace reduceops::cuda {

struct FillPlan {
  static bool fits(const PlanInput& in) { return is_single(in.groups); }
  static bool usual(const PlanInput&) { return true; }

  static bool make(const PlanInput& in, Plan& plan) {
    plan = in.empty_plan(Walk::kFill);
    plan.threads = kThreads;
    plan.blocks = plan.parts = plan.part_extent = 1;
    return true;
  }

  static Work work(const PlanInput&, const Plan&, const Traffic& traffic) {
    return {.instructions = 14 * traffic.outputs};
  }
};

}  // namespace reduceops::cuda
