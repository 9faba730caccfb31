// Corrects the prices of kernels (price.h) by what they take, by the bytes of an element. Fitted so
// that of two walks that are nearly as fast the faster one is the cheaper: to 5 700 random layouts
// (bench --suite random --peers=) with each walk of about the least price
// (REDUCEOPS_CUDA_TUNING=walk) on an H200, and to 1 500 small ones. The time lost by what the plan
// chose fell from 2.0 to 1.2 % in the geometric mean. (Of gathered bytes and 16 bits, to 49 layouts
// on an H200 after their kernels had changed.) Of several reduced dims, and of other tasks, too
// little was measured.
#pragma once

#include "cuda/plan/price.h"

namespace reduceops::cuda {

inline double measured(const PlanInput& in, const Plan& plan) {
  constexpr PerBytes kRows = {1.11, 1.24, 1.20, 1.17};
  constexpr PerBytes kWholeRows = {0.91, 0.85, 0.87, 0.96},
                     kUnalignedWholeRows = {0.97, 1.09, 0.96, 1.06};
  constexpr PerBytes kBoxes = {1.05, 1.15, 0.93, 0.96},
                     kManyBoxes = {0.87, 0.99, 0.85, 0.87};  // a group to each thread of a block
  constexpr PerBytes kColumns = {0.78, 0.78, 0.99, 1.09},
                     kShiftedColumns = {0.90, 0.72, 1.02, 1.00},
                     kRealignedColumns = {0.90, 1.04, 1.00, 1.00};
  constexpr PerBytes kColumnsByElement = {0.86, 1.21, 1.28, 1.16};
  constexpr PerBytes kBulkColumns = {0.88, 0.91, 1.04, 1.02},
                     kWholeColumns = {0.79, 0.73, 0.82, 0.87};
  constexpr PerBytes kSmall = {0.87, 1.07, 0.96, 1.02}, kTiles = {1.07, 1.15, 1.35, 1.09};
  constexpr PerBytes kGather = {0.79, 0.69, 0.84, 0.78},
                     kRealignedGather = {0.92, 1.00, 1.00, 1.00};
  constexpr PerBytes kGatherRows = {0.78, 0.97, 0.73, 0.81};
  constexpr PerBytes kSharedGather = {1.00, 0.93, 0.93, 0.92},
                     kRealignedSharedGather = {1.25, 1.00, 1.00, 1.00};
  const auto of = [&](const PerBytes& values) { return of_bytes(values, in.bytes); };
  if (in.task != Task::kExtreme || in.groups.reduced.count > 1) return 1;
  switch (plan.walk) {
    case Walk::kRows:
      return of(kRows);
    case Walk::kWholeRows:
      return of(plan.whole_rows.vector ? kWholeRows : kUnalignedWholeRows);
    case Walk::kBoxes:
      return of(plan.box.tile < kGroupThreads ? kBoxes : kManyBoxes);
    case Walk::kColumns:
      return of(plan.columns.vector      ? kColumns
                : plan.columns.shifted   ? kShiftedColumns
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
      return of(in.rows ? kGatherRows : plan.gather.realigned ? kRealignedGather : kGather);
    case Walk::kFill:
      break;
  }
  return 1;
}

// No more than that of any columns.
inline double least_measured_of_columns(const PlanInput& in) {
  return in.groups.reduced.count > 1 ? 1 : 0.75;
}

}  // namespace reduceops::cuda
