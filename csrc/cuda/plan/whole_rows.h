// whole_rows.cu: contiguous rows, held as a whole or in batches.
#pragma once

#include "cuda/plan/price.h"

namespace reduceops::cuda {

struct WholeRowsPlan {
  static bool fits(const PlanInput& in) {
    const Groups& groups = in.groups;
    if (!in.rows || groups.kept.count > kWholeDims || !is_run(groups.reduced) ||
        !in.tuning.whole_rows)
      return false;
    // Of other tasks there are kernels for rows that most loads of a thread are needed for.
    if (in.task != Task::kExtreme && (is_mapped(in) || in.has_few_loads())) return false;
    if (in.task == Task::kMasked && is_mask_sparse(in.along())) return false;
    // Bytes with bytes of the mask apart are no better in batches than in rows.
    if (in.task == Task::kMasked && in.bytes == 1 && in.along().mask_stride > 1 &&
        groups.outputs >= in.multiprocessors && !is_held(in))
      return false;
    if (is_mapped(in) && (groups.reduced.count > kMappedDims || groups.extent >> 32 != 0))
      return false;
    // From two vectors on, one is within the row wherever it begins; with its mask from three on.
    const int64_t least = in.task == Task::kMasked ? 3 : by_vectors(in) ? 1 : 2;
    if (in.walk * in.bytes < least * kLoadBytes) return false;
    return groups.outputs * (is_held(in) ? threads_of_row(in) : kWholeThreads) >> 32 == 0;
  }

  static bool usual(const PlanInput& in) {
    // Short rows are for boxes. Mapped ones that are no box would be read in their runs.
    if (!fits(in)) return false;
    const bool held = in.task != Task::kExtreme && in.along().mask_stride <= 1;
    return in.walk * in.bytes >= (held ? in.tuning.held_row_bytes : in.tuning.whole_row_bytes) ||
           in.rows_aligned() || (is_mapped(in) && !in.large());
  }

  static bool make(const PlanInput& in, Plan& plan) {
    plan = in.empty_plan(Walk::kWholeRows);
    plan.whole_rows = {};
    plan.whole_rows.mapped = is_mapped(in);
    plan.whole_rows.vector = by_vectors(in);
    const int64_t vectors = vectors_of_row(in), outputs = in.groups.outputs;
    // With a mask, or a sum, few rounds are sooner combined by few blocks: one to a multiprocessor,
    // if that keeps all of them busy.
    const int64_t rounds = vectors * outputs / (in.multiprocessors * batch(in));
    const bool one = in.task != Task::kExtreme && rounds <= in.tuning.held_batches &&
                     in.multiprocessors % outputs * 8 <= in.multiprocessors;
    const int64_t full = in.multiprocessors * (one ? 1 : in.tuning.whole_blocks);
    int64_t wanted = std::min(full / outputs, ceil_div(vectors, batch(in)));
    // A cluster combines its parts without a second kernel.
    if (in.bulk && wanted > kCluster && outputs * kCluster > in.multiprocessors) wanted = kCluster;
    // What is folded has that kernel in any case. So there are more parts, which even out what
    // multiprocessors do: of two batches, or of one where blocks would not fill the GPU.
    if (in.folded) {
      wanted = vectors / (2 * batch(in));
      if (outputs * wanted < full) wanted = vectors / batch(in);
      wanted = std::min(wanted, ceil_div(kRounds * full, outputs));
    } else if (in.task == Task::kExtreme) {
      plan.candidate_bytes = kHandInBytes;
    }
    cut(plan, in, wanted, kLineBytes / in.bytes);
    if (in.bulk && !in.folded && plan.parts <= kCluster)
      plan.cluster = static_cast<int>(plan.parts);
    if (is_held(in)) {
      plan.whole_rows.lanes = static_cast<int>(threads_of_row(in));
      // Where a row need not begin with a vector, there may be two.
      const int64_t least = plan.whole_rows.vector ? 1 : 2;
      plan.whole_rows.loads = static_cast<int>(
          plan.whole_rows.mapped ? kWholeLoads
                                 : std::max(least, ceil_div(vectors, plan.whole_rows.lanes)));
      plan.threads =
          plan.whole_rows.lanes > kMostSharing ? plan.whole_rows.lanes : static_cast<int>(kThreads);
      plan.blocks = ceil_div(outputs * plan.whole_rows.lanes, plan.threads);
    } else {
      // A block to a part, with as many threads as its batches are full with.
      const int64_t part_vectors = ceil_div(plan.part_extent * in.bytes, kLoadBytes);
      plan.whole_rows.batches = ceil_div(part_vectors, batch(in));
      plan.whole_rows.loads = static_cast<int>(loads(in));
      plan.whole_rows.lanes = plan.threads = static_cast<int>(
          round_up(ceil_div(part_vectors, plan.whole_rows.batches * plan.whole_rows.loads), 32));
      plan.blocks = outputs * plan.parts;
    }
    return true;
  }

  // Rows whose reduced dims are one run, but not in the order in which the index counts them.
  static bool is_mapped(const PlanInput& in) { return in.groups.reduced.count > 1; }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const double threads =
        traffic.outputs * static_cast<double>(plan.whole_rows.lanes * plan.parts);
    const int lanes_log2 = std::bit_width(static_cast<unsigned>(plan.whole_rows.lanes));
    const double of_thread = 55 + 8 * lanes_log2 + (plan.whole_rows.vector ? 0 : 25);
    const double edges = plan.whole_rows.vector ? 0 : edges_of_row(in);
    // Elements that the threads of a row compare: in place of vectors behind its end, its last one.
    const bool held = plan.whole_rows.batches == 0;
    const auto row = static_cast<double>(
        held ? plan.whole_rows.lanes * plan.whole_rows.loads * in.elements_of_load() : in.walk);
    return {
        .read = traffic.read,
        .sectors = traffic.bytes + (plan.whole_rows.vector ? 0 : traffic.outputs * kSectorBytes),
        .instructions = of_bytes(price::kHeldRow, in.bytes) * row * traffic.outputs +
                        of_thread * threads +
                        edges * traffic.outputs * static_cast<double>(plan.parts),
        .in_flight = in_flight(in, plan, 1536. / plan.threads, plan.whole_rows.loads * kLoadBytes),
        .share = in.task != Task::kExtreme && in.bytes == 1 ? kHeldBytes : 1};
  }

 private:
  static constexpr double kHeldBytes = 1.6;    // of the time of bytes, under a mask
  static constexpr int64_t kRounds = 4;        // of blocks, at most, of what is folded
  static constexpr int64_t kMostSharing = 64;  // threads of the longest row that shares a block

  // Of mapped rows there are no kernels for aligned ones alone.
  static bool by_vectors(const PlanInput& in) { return in.rows_aligned() && !is_mapped(in); }

  static bool is_short(const PlanInput& in) {
    return vectors_of_row(in) <= in.tuning.whole_few_vectors;
  }
  // Whole ones, wherever a row begins.
  static int64_t vectors_of_row(const PlanInput& in) { return in.walk * in.bytes / kLoadBytes; }
  // Of a thread and of a block, in batches.
  static int64_t loads(const PlanInput& in) {
    return in.task == Task::kExtreme ? kWholeLoads : held_loads(in.bytes);
  }
  static int64_t batch(const PlanInput& in) { return kWholeThreads * loads(in); }
  // Of a thread at most, of a whole row: more if half as many threads still fill the GPU.
  static int64_t most_loads(const PlanInput& in) {
    constexpr int64_t kShort = 16;  // vectors, for which two lanes would be left, or one
    const int64_t most = most_held_loads(in.bytes), vectors = vectors_of_row(in);
    const bool more =
        in.task != Task::kExtreme && in.along().mask_stride <= 1 && vectors > kShort &&
        in.groups.outputs * vectors >= in.multiprocessors * in.tuning.held_threads * most;
    return more ? most : loads(in);
  }
  static int64_t threads_of_row(const PlanInput& in) {
    const int64_t vectors = vectors_of_row(in);
    // What a lane does for the edges of a row that is not aligned costs more than it saves to have
    // fewer loads.
    const bool few = in.task == Task::kExtreme && is_short(in) && by_vectors(in);
    const int64_t threads = few ? ceil_div(vectors, 2) : ceil_div(vectors, most_loads(in));
    // A row of several warps has a block to itself, with as many of them as it takes.
    return threads > kMostSharing ? round_up(threads, 32) : ceil_pow2(threads);
  }
  // At once; only batches leave candidates.
  static bool is_held(const PlanInput& in) {
    if (in.folded) return false;
    const int64_t most = in.task == Task::kExtreme ? kBatch : kThreads * most_loads(in);
    return vectors_of_row(in) <= std::min(in.tuning.whole_vectors, most);
  }
};

}  // namespace reduceops::cuda
