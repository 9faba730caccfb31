// What a call launches, found from its groups alone: a walk over groups whose results do not
// repeat, then copies of those that do (repeat.h), then what a mask hides (mask_groups.h).
#pragma once

#include "cuda/make_plan.h"
#include "cuda/mask_groups.h"
#include "cuda/repeat.h"

namespace reduceops::cuda {

struct Steps {
  Groups groups;  // that the walk goes over
  FoldedPlan plan;
  Task task;
  bool repeats;  // whether results are copied along kept dims of stride 0,
  bool packed;   // from where they lie one behind the other
  bool hides;    // whether the walk goes without the mask, for it hides whole groups or nothing
};

// Whether threads that gather groups of a few elements store the copies of a result, which spares a
// kernel: of those side by side a tile computes one; others are computed once more, which pays for
// few elements, or of small inputs.
inline bool gathers_repeats(const Groups& outputs, int64_t bytes, int64_t address, Limits limits,
                            const Tuning& tuning, int64_t stores) {
  constexpr int64_t kFewElements = 4, kSmallBytes = 64 << 20;
  const bool may = tuning.walk == 0 || tuning.walk == static_cast<int>(Walk::kGather) + 1;
  const PlanInput in(outputs, bytes, address, limits, tuning, Task::kExtreme, stores);
  const Dim innermost = by_step(outputs.kept).dim[0];
  const int64_t computed = in.total / (innermost.stride == 0 ? innermost.size : 1);
  const int64_t most = computed <= kSmallBytes ? kGatherRows : kFewElements;
  return may && in.walk <= most && GatherPlan::fits(in);
}

inline Steps steps_of(const Groups& asked, int64_t bytes, int64_t address, Limits limits,
                      const Tuning& tuning, Task task, int64_t stores,
                      int64_t few_repeats = kFewRepeats) {
  Steps steps;
  const auto plan = [&](const Groups& all, Task task) {
    steps.task = task;
    steps.repeats = has_repeats(all, task);
    steps.packed = steps.repeats && all.outputs * all.copies > few_repeats;
    steps.groups = all;
    if (steps.packed) steps.groups = without_repeats(all);
    arrange(steps.groups, bytes);
    order_by_mask(steps.groups);
    if (steps.repeats && task == Task::kExtreme) {
      const Groups outputs = repeats_as_outputs(all);
      if (gathers_repeats(outputs, bytes, address, limits, tuning, stores)) {
        steps.groups = outputs;
        steps.repeats = steps.packed = false;
      }
    }
    steps.plan = make_plan(steps.groups, bytes, address, limits, tuning, task, stores);
  };
  plan(asked, task);
  // On small inputs one kernel is faster than two.
  steps.hides =
      task == Task::kMasked && steps.plan.walk != Walk::kSmall && is_mask_of_groups(asked);
  if (steps.hides) plan(without_mask(asked), Task::kExtreme);
  return steps;
}

}  // namespace reduceops::cuda
