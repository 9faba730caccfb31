// rows.cu: the reduced dim is innermost; any rows.
#pragma once

#include "cuda/plan/price.h"

namespace reduceops::cuda {

struct RowsPlan {
  static bool fits(const PlanInput& in) { return in.rows; }

  static bool usual(const PlanInput&) { return true; }

  static bool make(const PlanInput& in, Plan& plan) {
    plan = in.empty_plan(Walk::kRows);
    plan.rows = {};
    plan.rows.runs = 1;
    plan.threads = kThreads;
    const auto& reduced = in.groups.reduced;
    const int64_t width = in.elements_of_load(), outputs = in.groups.outputs;
    const bool packed = is_packed(in);
    // (Under a mask, loads that are not full are faster than a load of each element.)
    const int64_t least = in.task == Task::kMasked ? width : in.tuning.min_vector_run;
    const bool long_runs = reduced.count <= 1 ? in.rows_aligned() || !in.has_short_rows()
                                              : packed || in.along().size >= least;
    plan.rows.spaced = reduced.count > 0 && in.along().stride == 2 && long_runs && in.bytes <= 4 &&
                       in.task == Task::kExtreme;
    plan.rows.vector =
        plan.rows.spaced || (reduced.count > 0 && in.along().stride == 1 && long_runs);
    const int64_t full = in.multiprocessors * in.tuning.blocks_per_multiprocessor;
    const int64_t loads = plan.rows.vector ? ceil_div(in.walk, width) : in.walk;
    // A warp to a row or a block, whichever has fewer rounds of loads to wait for. Of small
    // elements that are loaded one by one, a block takes about half a round to combine its warps.
    const auto rounds = [&](int64_t lanes) {
      const int64_t rows_at_once = in.multiprocessors * kRowLoads / (kLaneLoads * lanes);
      const int64_t combining = !plan.rows.vector && in.bytes <= 2 && lanes > 32;
      return ceil_div(outputs, rows_at_once) *
             (2 * ceil_div(loads, lanes * kLaneLoads) + combining);
    };
    // Neighbouring threads read a mask that lies across the rows in neighbouring rows.
    const bool across = is_mask_across_rows(in) && in.walk <= kMaxPartExtent;
    // A row of several parts has a block to each: only such are combined by clusters.
    const bool whole_block = in.walk > kMaxPartExtent || (!across && rounds(kThreads) < rounds(32));
    plan.rows.lanes = whole_block ? kThreads : in.lanes_of(loads, in.tuning.row_loads);
    if (across) {  // more of few rows, which would leave most of a block without one
      const int64_t lanes = std::max<int64_t>(kLanesAcross, kThreads / ceil_pow2(outputs));
      plan.rows.lanes = static_cast<int>(std::min<int64_t>(plan.rows.lanes, lanes));
    }
    const int64_t units = ceil_div(outputs, kThreads / plan.rows.lanes);
    int64_t wanted = 1, at_once = full;  // blocks
    // Of loads of an element as many in flight as find room.
    if (!plan.rows.vector && in.task == Task::kExtreme)
      at_once = std::max(full, in.multiprocessors * kRowLoads / (kThreads * kLaneLoads));
    if (units < full && (whole_block || across)) {
      const int64_t parts = std::max(ceil_div(full, units), at_once / units);
      wanted = std::min(parts, loads / (plan.rows.lanes * in.tuning.part_loads));
      // A cluster combines its parts without a second kernel; but too few blocks take up to 2.6
      // times as long.
      if (in.bulk && whole_block && plan.rows.vector && units * kCluster > in.multiprocessors)
        wanted = std::min(wanted, kCluster);
    }
    cut(plan, in, wanted, packed ? in.along().size : plan.rows.vector ? 2048 / in.bytes : 1);
    // The blocks of a cluster begin together, which takes longer where not all find room at once.
    // (Rows that are too long for one part have several however many rows there are, and their
    // candidates might exceed the workspace.)
    if (in.bulk && whole_block && plan.parts <= kCluster &&
        (units * plan.parts <= at_once || in.walk > kMaxPartExtent))
      plan.cluster = static_cast<int>(plan.parts);
    // Runs that are shorter than what the lanes load at once would leave them waiting.
    plan.rows.flat = packed || (!plan.rows.vector && in.has_flat_positions() &&
                                in.along().size < plan.rows.lanes * kLaneLoads);
    plan.rows.realigned = packed && !runs_aligned(in);
    if (reduced.count > 1 && !plan.rows.flat) {
      const int64_t of_run = plan.rows.vector ? ceil_div(in.along().size, width) : in.along().size;
      // Warps side by side read what lies side by side in a mask that lies across the runs, if a
      // part has enough of these.
      const int64_t warps = plan.rows.lanes / 32;
      const bool mask_across = in.task == Task::kMasked &&
                               is_mask_across(in.along(), reduced.dim[1]) &&
                               2 * plan.part_extent >= warps * in.along().size;
      const bool by_all = of_run > kLongRun && !mask_across;
      const int64_t most = by_all ? plan.rows.lanes : std::min(plan.rows.lanes, 32);
      const int64_t lanes = std::min(most, ceil_pow2(ceil_div(of_run, in.tuning.run_loads)));
      plan.rows.runs = static_cast<int>(plan.rows.lanes / lanes);
    }
    plan.blocks = units * plan.parts;
    return true;
  }

  static constexpr int64_t kLongRun = 512;  // loads of a run that more lanes than a warp's share

  static bool is_mask_across_rows(const PlanInput& in) {
    return in.groups.axes.count > 0 && in.groups.reduced.count > 0 && in.task == Task::kMasked &&
           is_mask_across(in.along(), in.inner());
  }

  // Several runs, each of a pack at least, but so short that the lanes would wait for each.
  static bool is_packed(const PlanInput& in) {
    if (in.task != Task::kExtreme || !in.has_flat_positions() || in.walk > kMaxPartExtent)
      return false;
    const bool aligned = runs_aligned(in);
    const int64_t run = in.along().size * in.bytes;
    if (in.along().stride != 1 || run < kLoadBytes || (in.bytes == 8 && !aligned)) return false;
    // (Of 27 random layouts on an H200 aligned runs of 32 and 64 bits of up to 8 KiB are up to 1.4
    // times as fast so, and others of more than 256 bytes slower.)
    return run <= in.tuning.packed_run_bytes * (aligned && in.bytes >= 4 ? 32 : 1);
  }
  // Whether each run begins and ends where loads of 16 bytes do.
  static bool runs_aligned(const PlanInput& in) {
    return in.address_aligned(kLoadBytes) && in.along().size * in.bytes % kLoadBytes == 0 &&
           in.strides_aligned(in.groups.axes, 0, kLoadBytes) &&
           in.strides_aligned(in.groups.reduced, 1, kLoadBytes);
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const double threads = traffic.outputs * static_cast<double>(plan.rows.lanes * plan.parts);
    const Dim run = in.groups.reduced.count > 0 ? in.along() : Dim{1, 0, 0, 0};
    const double runs = traffic.elements / static_cast<double>(run.size);
    const double resident = static_cast<double>(kRowLoads) / (kThreads * kLaneLoads);
    const double overhead =
        200 * threads + (plan.rows.flat ? 0 : 60 * runs * plan.rows.lanes / plan.rows.runs);
    if (plan.rows.vector && plan.rows.flat) {
      const double packs = runs * std::ceil(static_cast<double>(run.size) /
                                            static_cast<double>(in.elements_of_load()));
      return {.read = 1.04 * traffic.read,
              .sectors = packs * kLoadBytes * (plan.rows.realigned ? 2 : 1),
              .instructions = of_bytes(price::kLoopedRow, in.bytes) * traffic.elements +
                              packs * (plan.rows.realigned ? 50 : 30) + overhead,
              .in_flight = in_flight(in, plan, 4, 4 * kLoadBytes),
              .extra = 0.6};
    }
    if (plan.rows.vector)
      return {.read = 1.04 * traffic.read,  // each round of loads waits for the last
              .sectors = traffic.bytes * (plan.rows.spaced ? 2 : 1) + runs * kSectorBytes,
              .instructions = of_bytes(price::kLoopedRow, in.bytes) * traffic.elements +
                              (runs_aligned(in) ? 0 : edges_of_row(in)) * runs + overhead,
              .in_flight = in_flight(in, plan, resident, kLaneLoads * kLoadBytes),
              .extra = 0.6,
              .share = (plan.rows.lanes < 32 ? kShortRow : 1) * of_task(in)};
    // A thread's elements lie side by side with those of its neighbours, or of its next loads.
    const double count = static_cast<double>(
        std::min(std::max<int64_t>(plan.rows.lanes / plan.rows.runs, kLaneLoads), run.size));
    const double sector = sectors_of(count, static_cast<double>(run.stride * in.bytes), in.bytes);
    return {.read = traffic.read,
            .sectors = traffic.elements * sector,
            .instructions = (price::kScalarRow +
                             price::kFlatDim * (in.groups.reduced.count - 1) * plan.rows.flat) *
                                traffic.elements +
                            overhead,
            .in_flight = in_flight(in, plan, resident, kLaneLoads * sector),
            .extra = 0.6,
            .share = of_task(in)};
  }

  static constexpr double kShortRow = 1.15;  // of the time, as measured
  // Of the time, where there is a mask to read, or a sum to take.
  static double of_task(const PlanInput& in) { return in.task == Task::kExtreme ? 1 : 1.3; }
};

}  // namespace reduceops::cuda
