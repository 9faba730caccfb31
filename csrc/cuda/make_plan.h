// Which kernel a reduction runs on a GPU, and how it is cut: host code without CUDA calls, so that
// it is tested without a GPU (tests/test_plan.py).
#pragma once

#include "cuda/plan/boxes.h"
#include "cuda/plan/bulk_columns.h"
#include "cuda/plan/columns.h"
#include "cuda/plan/fill.h"
#include "cuda/plan/rows.h"
#include "cuda/plan/small.h"
#include "cuda/plan/whole_columns.h"
#include "cuda/plan/whole_rows.h"

namespace reduceops::cuda {

// The first walk of these that fits and is the usual one for such an input.
template <class Walk, class... Rest>
bool make_usual(const PlanInput& in, Plan& plan) {
  if (Walk::fits(in) && Walk::usual(in) && Walk::make(in, plan)) return true;
  if constexpr (sizeof...(Rest) > 0) return make_usual<Rest...>(in, plan);
  return false;
}

inline Plan make_plan(const Groups& groups, int64_t bytes, int64_t address, Limits limits,
                      const Tuning& tuning = {}, Task task = Task::kExtreme) {
  const PlanInput in(groups, bytes, address, limits, tuning, task);
  Plan plan;
  if (task != Task::kExtreme) {
    make_usual<SmallPlan, RowsPlan, ColumnsPlan>(in, plan);
    return plan;
  }
  make_usual<FillPlan, SmallPlan, WholeRowsPlan, WholeColumnsPlan, BoxesPlan, BulkColumnsPlan,
             RowsPlan, ColumnsPlan>(in, plan);
  return plan;
}

}  // namespace reduceops::cuda
