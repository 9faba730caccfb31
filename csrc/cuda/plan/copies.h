// fill.cu: how values are copied that lie in another order than their results, or apart.
#pragma once

#include <limits>
#include <optional>

#include "cuda/plan/gather.h"
#include "cuda/transposition.h"

namespace reduceops::cuda {

// Either is there, or none.
struct CopiesPlan {
  std::optional<Transposition> transposition;
  std::optional<Plan> gather;  // of groups of one element, by tiles or in the order of the results
  bool indices_apart = false;  // by another kernel, which fills whole sectors

  static constexpr Limits kLimits{int64_t(price::kMultiprocessors), false};

  // `outputs` has no repeats; `index_bytes` are 0 where no indices are wanted.
  CopiesPlan(const Groups& outputs, int64_t bytes, int64_t address, int index_bytes) {
    const Tuning tuning;
    const auto input = [&](bool indices) {
      return PlanInput(outputs, bytes, address, kLimits, tuning, Task::kExtreme, {indices, true});
    };
    const int64_t all_index_bytes = outputs.outputs * index_bytes;
    indices_apart = all_index_bytes >= kManyIndices;
    double least = std::numeric_limits<double>::infinity();
    const PlanInput alone = input(index_bytes > 0 && !indices_apart);
    const Traffic traffic(alone);
    const auto consider = [&]<class WalkPlan>(WalkPlan*) {
      Plan plan;
      if (!WalkPlan::fits(alone) || !WalkPlan::make(alone, plan)) return;
      const double price = microseconds(alone, plan, traffic, WalkPlan::work(alone, plan, traffic));
      if (price >= least) return;
      gather = plan;
      least = price;
    };
    consider(static_cast<GatherPlan*>(nullptr));
    consider(static_cast<GatherByResultsPlan*>(nullptr));
    if (indices_apart) least += static_cast<double>(all_index_bytes) * 1e-6 / price::kMemory;
    Transposition tiles;
    if (!tiles.make(result_dims(outputs), bytes)) return;
    if (gather && microseconds_of(tiles, input(false), all_index_bytes) >= least) return;
    transposition = tiles;
    gather.reset();
  }

 private:
  static constexpr int64_t kManyIndices = 8 << 20;  // bytes
  // Of a place in a tile, used or not, as measured (an H200): of square tiles, and of others.
  static constexpr double kSquare = 31, kLong = 40;

  // `in` is of the values alone; the indices are written in the same kernel.
  static double microseconds_of(const Transposition& tiles, const PlanInput& in,
                                int64_t index_bytes) {
    Traffic traffic(in);
    traffic.written += static_cast<double>(index_bytes) * 1e-6;
    const double places = static_cast<double>(tiles.blocks() * kTransposeTile) * 1e-6;
    const Work work{.read = traffic.bytes,
                    .sectors = traffic.bytes,
                    .instructions = places * (tiles.is_square() ? kSquare : kLong),
                    .in_order = true};
    return microseconds(in, in.empty_plan(Walk::kFill), traffic, work);
  }
};

}  // namespace reduceops::cuda
