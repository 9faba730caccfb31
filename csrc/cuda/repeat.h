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

// Of how many results, numbered without repeats, the first `count` with repeats are.
inline int64_t sources_of(const Dims& repeats, int64_t count) {
  for (int d = repeats.count - 1; d >= 0; --d) {
    const Dim& repeat = repeats.dim[d];
    const auto [over, rest] = split(count - 1, repeat.step * repeat.size);
    count = over * repeat.step + std::min(rest, repeat.step - 1) + 1;
  }
  return count;
}

// Copies the results of `once`, whose groups have no repeats, to those of `r` from number `begin`
// on and before `end`. Both may be of the same memory if the former are not among the latter.
void launch_repeat(const Reduction& r, const Reduction& once, int64_t begin, int64_t end,
                   void* stream);

// The same where the results are the first of the memory of all. Of those that are their own
// sources, `hold(some, count)` copies the first `count`, `most` of them, to memory that it gives
// `some`.
template <class Hold>
void repeat_in_place(const Reduction& r, int64_t most, Hold hold, void* stream) {
  const Groups& groups = r.groups;
  int64_t begin = groups.outputs, end = groups.outputs * groups.copies;
  for (; begin > most; begin = sources_of(groups.repeats, end)) {
    launch_repeat(r, r, begin, end, stream);
    if (sources_of(groups.repeats, begin) == begin) return;
    end = begin;
  }
  Reduction some = r;
  hold(some, begin);
  launch_repeat(r, some, 0, end, stream);
}

}  // namespace reduceops::cuda
