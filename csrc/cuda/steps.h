// What a call launches, found from its groups alone: a walk over groups whose results do not
// repeat, then copies of those that do (repeat.h), then what a mask hides (mask_groups.h). Or all
// that for one slice of the outputs after the other.
#pragma once

#include "cuda/make_plan.h"
#include "cuda/mask_groups.h"
#include "cuda/repeat.h"
#include "cuda/slices.h"

namespace reduceops::cuda {

struct Steps {
  Groups groups;  // that the walk goes over
  FoldedPlan plan;
  Task task;      // of the walk
  bool repeats;   // whether results are copied along kept dims of stride 0,
  bool packed;    // from where they lie one behind the other
  bool hides;     // whether the walk goes without the mask, for it hides whole groups or nothing
  Slices slices;  // if there are several, each has steps of its own
};

// Whether threads that gather groups of a few elements could store the copies of a result, which
// spares a kernel: of those side by side a tile computes one; others are computed once more.
inline bool may_gather_repeats(const PlanInput& outputs) {
  const int64_t walk = outputs.tuning.walk;
  return (walk == 0 || walk == static_cast<int64_t>(Walk::kGather) + 1) &&
         outputs.walk <= kGatherRows && GatherPlan::fits(outputs);
}

// Microseconds to copy results to their other positions, fitted to 220 random layouts on an H200;
// GPUs with fewer multiprocessors take longer by their number.
inline double price_of_copying(const Groups& repeated, const PlanInput& in) {
  constexpr double kLaunch = 3.5, kLonger = 1.2;  // than the prices say
  constexpr double kPack = 30, kResult = 12;      // instructions of a lane
  const auto copies = static_cast<double>(repeated.copies);
  const double results = static_cast<double>(repeated.outputs) * copies * 1e-6;
  const double of_result = price::of_result(in);
  const double moved = results * (1 + 1 / copies) * of_result / price::kMemory;
  const double of_pack = kLoadBytes / price::kIndexBytes;
  const double computed = results * (kPack / of_pack + kResult) / price::kInstructions;
  const double share = price::kMultiprocessors / static_cast<double>(in.multiprocessors);
  return kLaunch + kLonger * std::max(moved, computed) * share;
}

// Finds steps of a call for its groups.
struct StepsFinder {
  const int64_t bytes, address;
  const Limits limits;
  const Tuning& tuning;
  const Stores stores;
  const int64_t few_repeats;

  PlanInput input_of(const Groups& groups, Task task) const {
    return PlanInput(groups, bytes, address, limits, tuning, task, stores);
  }

  // Of the walk, in microseconds.
  double price_of(const Steps& steps) const {
    return make_plan(input_of(steps.groups, steps.task), true).price;
  }

  // Of all outputs at once, unless candidates find no room.
  Steps find_all(const Groups& asked, Task task) const {
    Steps steps = find(asked, task, false);
    // On small inputs one kernel is faster than two, if it has no long groups.
    const Plan& masked = steps.plan;
    const bool is_long =
        masked.has_combine() || (masked.walk == Walk::kGather && masked.gather.shared());
    const int64_t most = masked.walk == Walk::kSmall ? tuning.small_elements
                         : is_long                   ? 0
                                                     : tuning.small_whole_elements;
    const bool is_small = asked.outputs * walk_extent(asked.reduced) <= most;
    // The same holds where groups of a few elements are gathered. (Indices of single ones need no
    // mask. Of bytes other walks take several at once.)
    const int64_t elements = walk_extent(asked.reduced) * (bytes == 1 ? 2 : 1);
    const bool is_gathered = steps.plan.walk == Walk::kGather &&
                             (stores.value || !is_single(asked)) &&
                             elements <= tuning.gathered_masks;
    // A single byte, of many elements, is looked at once.
    constexpr int64_t kMany = 8 << 20;
    const bool is_byte = reach(asked.kept, &Dim::mask_stride) == 0 &&
                         asked.outputs * walk_extent(asked.reduced) >= kMany;
    if (task == Task::kMasked && !is_small && !(is_gathered && !is_byte) &&
        is_mask_of_groups(asked))
      steps = find(without_mask(asked), Task::kExtreme, true);
    return steps;
  }

  // `hides` is that of the steps.
  Steps find(const Groups& all, Task task, bool hides) const {
    Steps steps;
    steps.task = task;
    steps.hides = hides;
    steps.repeats = has_repeats(all, task);
    steps.packed = steps.repeats && all.outputs * all.copies > few_repeats;
    steps.groups = all;
    if (steps.packed) steps.groups = without_repeats(all);
    arrange(steps.groups, bytes, task);
    order_by_mask(steps.groups);
    Groups outputs;
    bool may_gather = steps.repeats && task == Task::kExtreme;
    if (may_gather) {
      outputs = repeats_as_outputs(all);
      may_gather = may_gather_repeats(input_of(outputs, task));
    }
    const PlanInput walked = input_of(steps.groups, task);
    const bool may_slice = !steps.repeats && !hides && task == Task::kExtreme && tuning.walk == 0;
    const int64_t most = may_slice ? Folds::outputs_with_room(walked) : all.outputs;
    const Slices slices = most < all.outputs ? Slices::of_outputs(all, most) : Slices{};
    const Priced planned = make_plan(walked, may_gather || slices.count > 1);
    steps.plan = planned.plan;
    if (slices.count > 1 && pays_in_slices(all, slices, planned)) steps.slices = slices;
    if (may_gather) gather_repeats(all, outputs, planned.price, steps);
    return steps;
  }

 private:
  // Unlike folding (plan/folds.h), this is not taken where other walks take longer than their
  // prices say: of 42 random layouts on an H200, eight took longer in slices then.
  bool pays_in_slices(const Groups& all, const Slices& slices, const Priced& uncut) const {
    if (uncut.plan.is_folded()) return false;
    Groups slice = slices.groups(all, 0);
    arrange(slice, bytes, Task::kExtreme);
    const Priced of_slice = make_plan(input_of(slice, Task::kExtreme), true);
    return of_slice.plan.is_folded() &&
           static_cast<double>(slices.count) * of_slice.price < uncut.price;
  }

  // Has all of `outputs` computed where that costs less than to copy results of walks at a price.
  void gather_repeats(const Groups& all, const Groups& outputs, double price, Steps& steps) const {
    const PlanInput repeated = input_of(outputs, Task::kExtreme);
    const Priced gathered = make_plan(repeated, true);
    if (tuning.walk == 0 && gathered.price > price + price_of_copying(all, repeated)) return;
    steps.groups = outputs;
    steps.plan = gathered.plan;
    steps.repeats = steps.packed = false;
  }
};

inline Steps steps_of(const Groups& asked, int64_t bytes, int64_t address, Limits limits,
                      const Tuning& tuning, Task task, Stores stores,
                      int64_t few_repeats = kFewRepeats) {
  const StepsFinder finder{bytes, address, limits, tuning, stores, few_repeats};
  Steps steps = finder.find_all(asked, task);
  if (steps.slices.count > 1 || asked.copies > 1 || tuning.walk > 0 ||
      finder.input_of(asked, task).has_short_places())
    return steps;
  // Slices of the outputs may fit walks whose places have 31 bits, and cost less. (What hides
  // results relies on their order. Where they lie apart, slices take longer than their prices say.)
  constexpr double kApart = 1.5;
  const bool may_hide = task == Task::kMasked && is_mask_of_groups(asked);
  const Slices slices = Slices::with_short_places(asked, may_hide);
  if (slices.count == 1) return steps;
  const Steps of_slice = finder.find_all(slices.groups(asked, 0), task);
  if (of_slice.plan.walk != Walk::kGather && of_slice.plan.walk != Walk::kSmall) return steps;
  const double factor = slices.are_dense(asked) ? 1 : kApart;
  if (factor * static_cast<double>(slices.count) * finder.price_of(of_slice) <
      finder.price_of(steps))
    steps.slices = slices;
  return steps;
}

}  // namespace reduceops::cuda
