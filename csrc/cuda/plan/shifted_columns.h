// packed_columns.cuh: columns that are not aligned, in packs that are, where threads share them.
#pragma once

#include <cmath>
#include <limits>

#include "cuda/plan/price.h"

namespace reduceops::cuda {

class ShiftedColumns {
 public:
  // Of large inputs a ring reads as fast or faster, by a twentieth.
  static bool fits(const PlanInput& in) {
    if (in.task != Task::kExtreme || in.bytes > 4 || in.groups.reduced.count != 1) return false;
    return in.inner().stride == 1 && in.inner().size * in.bytes >= kLineBytes &&
           !in.columns_aligned(kLoadBytes) && in.tuning.realigned != 0 &&
           !(in.bulk && in.total >= kLarge) &&
           in.walk >= in.rows_of_shift() * in.tuning.shifted_loads &&
           fewest_parts(in, kThreads / kFewestLanes) <= most_parts(in);
  }

  // False where there are more blocks than a grid has.
  static bool make(const PlanInput& in, Plan& plan) {
    const ShiftedColumns columns(in);
    const Cut fastest = columns.fastest();
    plan = in.empty_plan(Walk::kColumns);
    plan.columns = {};
    plan.columns.shifted = true;
    plan.threads = kThreads;
    cut(plan, in, fastest.parts, 1);
    plan.columns.lanes = static_cast<int>(fastest.lanes);
    plan.columns.shares = static_cast<int>(fastest.shares);
    plan.columns.across = columns.tiles(fastest.lanes) / columns.outer_;
    plan.columns.tiles = columns.tiles(fastest.lanes);
    plan.blocks = columns.units(fastest) * plan.parts;
    return has_room_for_pairs(plan, 1, in.bytes);
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const ShiftedColumns columns(in);
    const Cut cut{plan.columns.lanes, plan.columns.shares, plan.parts};
    return {.read = std::max(traffic.read, columns.reading(cut, 0) * price::kMemory),
            .sectors = columns.loads(cut) * kLoadBytes,
            .instructions = columns.instructions(cut) + price::kPackedResult * traffic.outputs,
            .extra = plan.columns.shares > 1 ? 2. : 1.};
  }

 private:
  static constexpr int64_t kLarge = 900 << 20, kFewestLanes = 8;

  // How threads lie over columns.
  struct Cut {
    int64_t lanes, shares, parts;
  };

  explicit ShiftedColumns(const PlanInput& in)
      : in_(in),
        outer_(in.groups.outputs / in.inner().size),
        packs_(ceil_div(in.inner().size * in.bytes, kLoadBytes)),
        room_(in.multiprocessors * packed_blocks(false)),
        most_parts_(most_parts(in)) {}

  // Beside a key there is room for so many positions, or loads of a thread.
  static int64_t fewest_parts(const PlanInput& in, int64_t shares) {
    return in.bytes > 2 ? 1 : ceil_div(in.walk, in.bytes == 1 ? shares << 8 : 1 << 16);
  }
  static int64_t most_parts(const PlanInput& in) {
    return std::max<int64_t>(1, kWorkspaceBytes / (in.bytes_of_candidate() * in.groups.outputs));
  }

  // Each has one pack more than its columns fill.
  int64_t tiles(int64_t lanes) const { return outer_ * ceil_div(packs_, lanes - 1); }
  int64_t units(const Cut& cut) const {
    return ceil_div(tiles(cut.lanes), kThreads / (cut.lanes * cut.shares));
  }
  // Millions of packs, and of instructions.
  double loads(const Cut& cut) const {
    return static_cast<double>(tiles(cut.lanes) * cut.lanes) * 1e-6 * static_cast<double>(in_.walk);
  }
  double instructions(const Cut& cut) const {
    const PerBytes& of_element = in_.bytes == 4 ? price::kColumn : price::kPackedColumn;
    return loads(cut) *
           (of_bytes(of_element, in_.bytes) * static_cast<double>(in_.elements_of_load()) +
            price::kPackedShare * static_cast<double>(cut.shares * cut.parts) /
                static_cast<double>(in_.walk));
  }

  // Microseconds of blocks, which are as fast as memory if as many as find room at once keep it
  // busy, and wait for their loads else: those that are left in the end, too. `beside`: the share
  // of the shorter of what they do that does not overlap.
  double reading(const Cut& cut, double beside) const {
    constexpr double kBlock = 1.5;
    const int64_t blocks = units(cut) * cut.parts, rounds = blocks / room_;
    const int64_t turns = ceil_div(ceil_div(in_.walk, cut.parts), cut.shares);
    const double waiting =
        static_cast<double>(ceil_div(turns, kPackedLoads)) * price::kLatency + kBlock;
    const double candidates =
        cut.parts > 1 ? static_cast<double>(in_.groups.outputs * cut.parts) * 1e-6 * price::kStoreL2
                      : 0;
    const double memory = static_cast<double>(in_.total) * 1e-6 / price::kMemory;
    const double l2 = (loads(cut) * kLoadBytes + candidates) / price::kL2;
    const double computing = instructions(cut) / price::kInstructions;
    const double longest = std::max({memory, l2, computing});
    const double all = longest + beside * (memory + l2 + computing - longest);
    const auto of = [&](int64_t some) {  // near the longer of both
      const double busy = all * static_cast<double>(some) / static_cast<double>(blocks);
      const double busy2 = busy * busy, waiting2 = waiting * waiting;
      return std::sqrt(std::sqrt(busy2 * busy2 + waiting2 * waiting2));
    };
    const int64_t left = blocks - rounds * room_;
    return (rounds > 0 ? static_cast<double>(rounds) * of(room_) : 0) + (left > 0 ? of(left) : 0);
  }

  Cut fastest() const {
    constexpr int64_t kTried = 3;
    constexpr double kBeside = 0.3;
    const int64_t fewest_lanes = in_.bytes == 4 ? 2 * kFewestLanes : kFewestLanes;
    Cut best{};
    double least = std::numeric_limits<double>::infinity();
    const auto consider = [&](const Cut& cut) {
      const double time = reading(cut, kBeside) + (cut.parts > 1 ? price::kWorkspace : 0);
      if (time >= least) return;
      least = time;
      best = cut;
    };
    // All rows of a thread begin as far behind a block of 16 bytes.
    for (int64_t shares = in_.rows_of_shift(); shares * fewest_lanes <= kThreads; shares *= 2) {
      if (best.lanes > 0 && in_.walk < in_.tuning.column_loads * shares) break;
      if (fewest_parts(in_, shares) > most_parts_) continue;
      const int64_t most = kThreads / shares, fewest = ceil_div(packs_, most - 1);
      for (int64_t tiles = fewest; tiles < fewest + kTried; ++tiles) {
        Cut cut{ceil_div(packs_, tiles) + 1, shares, fewest_parts(in_, shares)};
        if (tiles > fewest && cut.lanes < fewest_lanes) break;
        // Where threads are alone with their columns, the results of a block follow each other.
        if (shares == 1 && tiles > 1 && 2 * cut.lanes <= kThreads) break;
        consider(cut);
        const int64_t parts = std::min(room_ / units(cut), most_parts_);
        if (parts <= cut.parts || in_.walk < in_.tuning.part_loads * shares * parts) continue;
        cut.parts = parts;
        consider(cut);
      }
    }
    return best;
  }

  const PlanInput& in_;
  const int64_t outer_, packs_;  // rows of columns, and loads that one fills
  const int64_t room_;           // blocks of the GPU at once
  const int64_t most_parts_;
};

}  // namespace reduceops::cuda
