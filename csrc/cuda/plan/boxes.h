// boxes.cu: small groups, by tiles of many in shared memory, whatever lies between them.
#pragma once

#include "cuda/box.h"
#include "cuda/plan/price.h"

namespace reduceops::cuda {

struct BoxesPlan {
  static bool fits(const PlanInput& in) {
    return in.task == Task::kExtreme && in.groups.reduced.count == 1;
  }
  static bool usual(const PlanInput& in) { return in.large(); }

  static bool make(const PlanInput& in, Plan& plan) {
    const int64_t most = in.rows ? in.tuning.short_row_bytes : in.tuning.small_group_bytes;
    const auto box = make_box(in.groups, in.bytes, in.rows, most, in.tuning.tile_bytes);
    if (!box) return false;
    plan = in.empty_plan(Walk::kBoxes);
    keep_whole(plan, in);
    plan.box = *box;
    plan.threads = kGroupThreads;
    plan.lanes = box->lanes;
    plan.tile = box->tile;
    plan.tiles = plan.blocks = box->tiles;
    return true;
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const Box& box = plan.box;
    // A span is copied with its gaps.
    const double copied =
        traffic.outputs / static_cast<double>(box.columns) *
        (box.pieces ? box.group_bytes + kLoadBytes : std::max(box.group_pitch, box.group_bytes));
    const PerBytes of_element = in.rows ? price::kBoxRow : price::kBoxColumn;
    return {.read = std::max(traffic.read, box.pieces ? 0 : copied),
            .sectors = copied,
            .instructions = of_bytes(of_element, in.bytes) * traffic.elements +
                            75 * traffic.outputs + 12 * copied / kLoadBytes,
            .extra = 0.8};
  }
};

}  // namespace reduceops::cuda
