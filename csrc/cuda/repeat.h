// Kept dims of stride 0, along which results repeat: they are computed once, and copied to their
// other positions; or, where that costs less, they are computed for each (steps.h). Few are
// computed where the first of their copies goes. Many are packed, one behind the other, for a
// sector of memory is written as a whole, and copied in several steps.
#pragma once

#include "cuda/plan.h"
#include "make_groups.h"
#include "reduction.h"

namespace reduceops::cuda {

// Results for which several steps would take longer than a sector to each.
constexpr int64_t kFewRepeats = 1 << 19;

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

// The groups with each copy of a result as an output of its own, of the same elements.
inline Groups repeats_as_outputs(const Groups& repeated) {
  Groups groups = repeated;
  groups.repeats.count = 0;
  groups.copies = 1;
  groups.outputs *= repeated.copies;
  for (int d = 0; d < repeated.repeats.count; ++d)
    groups.kept.dim[groups.kept.count++] = repeated.repeats.dim[d];
  groups.axes = groups.kept;
  return groups;
}

inline bool has_repeats_as_outputs(const Groups& groups, Task task) {
  const Dims& kept = groups.kept;
  return task == Task::kExtreme && kept.count > 0 && kept.dim[kept.count - 1].stride == 0;
}

// Of how many different results the first `count` of all are copies. These are the first, if they
// are numbered without repeats.
inline int64_t sources_of(const Dims& repeats, int64_t count) {
  for (int d = repeats.count - 1; d >= 0; --d) {
    const Dim& repeat = repeats.dim[d];
    const auto [over, rest] = split(count - 1, repeat.step * repeat.size);
    count = over * repeat.step + std::min(rest, repeat.step - 1) + 1;
  }
  return count;
}

// Copies results that `once` has packed to those of `r` from number `begin` on and before `end`.
// Both may be of the same memory if the former are not among the latter. `early`: it may begin
// before what the stream does before it has ended, for which it then waits.
void launch_repeat(const Reduction& r, const Reduction& once, int64_t begin, int64_t end,
                   bool early, void* stream);

// Copies results from where the first of their copies are.
void launch_repeat(const Reduction& r, bool early, void* stream);

// Copies results that are packed at the begin of the memory of all. No result comes before the one
// that it is a copy of, so results may be stored behind their sources while these are read; then
// those where the sources were, whose own sources are fewer, and so on, until all are where they
// belong. Where no more than `most` sources are left, `hold(some, count)` copies them to other
// memory, which it gives `some`.
template <class Hold>
void repeat_packed(const Reduction& r, int64_t most, Hold hold, bool early, void* stream) {
  const Groups& groups = r.groups;
  int64_t sources = groups.outputs, end = groups.outputs * groups.copies;
  while (sources > most) {
    launch_repeat(r, r, sources, end, early, stream);
    end = sources;
    sources = sources_of(groups.repeats, end);
    if (sources == end) return;
  }
  Reduction some = r;
  hold(some, sources);
  launch_repeat(r, some, 0, end, early, stream);
}

}  // namespace reduceops::cuda
