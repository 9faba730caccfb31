// How long kernels take over the price of what they do (price.h), by the bytes of an element.
// Fitted so that of two walks that are nearly as fast the faster one is the cheaper: to 5 700
// random layouts (bench --suite random --peers=) with each walk of about the least price
// (REDUCEOPS_CUDA_TUNING=walk) on an H200. The time lost by what the plan chose halved, from 2.0
// to 1.1 % in the geometric mean. Of several reduced dims, and of other tasks, too little was
// measured.
#pragma once

#include "cuda/plan/price.h"

namespace reduceops::cuda {

inline double measured(const PlanInput& in, const Plan& plan) {
  constexpr PerBytes kRows = {1.11, 1.16, 1.19, 1.17};
  constexpr PerBytes kWholeRows = {0.86, 0.70, 0.89, 0.96},
                     kUnalignedWholeRows = {0.97, 0.98, 0.95, 1.06};
  constexpr PerBytes kBoxes = {1.06, 1.20, 0.93, 0.95},
                     kWideBoxes = {0.81, 0.83, 0.87, 0.86};  // a group for each thread
  constexpr PerBytes kColumns = {0.81, 0.84, 0.97, 1.09},
                     kRealignedColumns = {0.94, 1.13, 1.00, 1.00};
  constexpr PerBytes kColumnsByElement = {0.88, 1.28, 1.26, 1.17};
  constexpr PerBytes kBulkColumns = {0.91, 0.99, 1.02, 1.02},
                     kWholeColumns = {0.81, 0.79, 0.81, 0.87};
  constexpr PerBytes kSmall = {0.88, 0.97, 0.94, 1.02}, kTiles = {1.11, 1.51, 1.55, 1.08};
  constexpr PerBytes kGather = {0.97, 0.81, 0.80, 0.77},
                     kRealignedGather = {1.07, 1.00, 1.00, 1.00};
  constexpr PerBytes kSharedGather = {1.28, 1.02, 0.92, 0.92},
                     kRealignedSharedGather = {1.64, 1.00, 1.00, 1.00};
  const auto of = [&](const PerBytes& values) { return of_bytes(values, in.bytes); };
  if (in.task != Task::kExtreme || in.groups.reduced.count > 1) return 1;
  switch (plan.walk) {
    case Walk::kRows:
      return of(kRows);
    case Walk::kWholeRows:
      return of(plan.whole_rows.vector ? kWholeRows : kUnalignedWholeRows);
    case Walk::kBoxes:
      return of(plan.box.tile < kGroupThreads ? kBoxes : kWideBoxes);
    case Walk::kColumns:
      return of(plan.columns.vector      ? kColumns
                : plan.columns.realigned ? kRealignedColumns
                                         : kColumnsByElement);
    case Walk::kBulkColumns:
      return of(kBulkColumns);
    case Walk::kWholeColumns:
      return of(kWholeColumns);
    case Walk::kSmall:
      return of(kSmall);
    case Walk::kTiles:
      return of(kTiles);
    case Walk::kGather:
      if (plan.gather.shared())
        return of(plan.gather.realigned ? kRealignedSharedGather : kSharedGather);
      return of(plan.gather.realigned ? kRealignedGather : kGather);
    case Walk::kFill:
      break;
  }
  return 1;
}

}  // namespace reduceops::cuda
