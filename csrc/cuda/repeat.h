// Kept dims of stride 0, along which results repeat: they are computed once, one behind the other
// in memory of their own, and copied from there to all their positions.
#pragma once

#include "cuda/plan.h"
#include "make_groups.h"
#include "reduction.h"

namespace reduceops::cuda {

// Whether results are copied; what stores groups of one element stores them at all positions.
inline bool has_repeats(const Groups& groups, Task task) {
  return groups.copies > 1 && !(task == Task::kExtreme && is_single(groups));
}

// The groups with each result once.
inline Groups without_repeats(const Groups& repeated) {
  Groups groups = repeated;
  groups.repeats.count = 0;
  groups.copies = 1;
  for (int d = 0; d < groups.kept.count; ++d) {
    for (int i = 0; i < repeated.repeats.count; ++i) {
      const Dim& repeat = repeated.repeats.dim[i];
      if (repeat.step < repeated.kept.dim[d].step) groups.kept.dim[d].step /= repeat.size;
    }
  }
  merge_kept(groups);
  return groups;
}

// Copies the results of `once`, whose groups have no repeats, to where those of `r` go.
void launch_repeat(const Reduction& r, const Reduction& once, void* stream);

}  // namespace reduceops::cuda
