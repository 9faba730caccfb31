// Ways of folding (cuda/fold.h): which reduced positions columns.cu and bulk_columns.cu could take
// as further columns, and whole_rows.cu as further rows.
#pragma once

#include <numeric>

#include "cuda/fold.h"
#include "cuda/plan/price.h"
#include "cuda/repeat.h"

namespace reduceops::cuda {

class Folds {
 public:
  static bool fits(const PlanInput& in) {
    const int count = in.groups.reduced.count;
    return in.task == Task::kExtreme && in.tuning.fold > 0 && in.total >= in.tuning.fold_bytes &&
           count <= kMostFolds && (count > 1 || (count > 0 && in.groups.axes.count > 0)) &&
           !has_repeats_as_outputs(in.groups, in.task);
  }

  // Calls visit(fold, folded, factor of the price) for the fold of all reduced dims but those that
  // are one run of memory together, if there are both.
  template <class Visit>
  static void to_rows(const PlanInput& in, Visit visit) {
    const Dims in_memory = by_stride(in.groups.reduced);
    int64_t run = 1;
    Fold fold{};
    for (int m = 0; m < in_memory.count; ++m) {
      const Dim& dim = in_memory.dim[m];
      if (dim.stride == run) {
        run *= dim.size;
        continue;
      }
      for (int d = 0; d < in_memory.count; ++d) {
        if (in.groups.reduced.dim[d].step == dim.step) fold.add(d, dim.size);
      }
    }
    if (!has_room(in, fold)) return;
    const Folded folded(in.groups, fold);
    const bool mapped = folded.groups.reduced.count > 1;
    if (run * in.bytes >= (mapped ? kMappedRow : kRow)) visit(fold, folded, mapped ? kMapping : 1);
  }

  // Calls visit(fold, folded) for a few ways to fold to columns, those that are the best most often
  // first, until it returns true.
  template <class Visit>
  static void to_columns(const PlanInput& in, Visit visit) {
    const Dims& reduced = in.groups.reduced;
    if (in.groups.axes.count == 0) return;
    const Fold between = between_columns(in);
    int longest = -1;
    for (int d = 0; d < reduced.count; ++d) {
      if (!between.has(d) && (longest < 0 || reduced.dim[d].size > reduced.dim[longest].size))
        longest = d;
    }
    if (longest < 0) return;
    // Columns over one dim are faster than those over several.
    Fold others = between;
    for (int d = 0; d < reduced.count; ++d) {
      if (!between.has(d) && d != longest) others.add(d, reduced.dim[d].size);
    }
    const bool differ = others.count > between.count;
    if (take(in, others, visit) || (differ && take(in, between, visit))) return;
    if (with_more_rows(in, between, visit) || !differ) return;
    with_more_rows(in, others, visit);
  }

  // How many outputs leave no more candidates of their columns than the workspace has room for,
  // where something lies between these; else all.
  static int64_t outputs_with_room(const PlanInput& in) {
    if (!fits(in) || in.groups.axes.count == 0) return in.groups.outputs;
    const Fold between = between_columns(in);
    if (between.count == 0 || between.count == in.groups.reduced.count) return in.groups.outputs;
    return most_candidates(in) / between.columns();
  }

  // What a plan that does not fold is compared by: rows and columns over several dims take longer
  // than their prices say, by a quarter at least (median 1.3 of 66 random layouts on an H200), rows
  // by more beside what is folded, but for few outputs (39 layouts).
  static double price_without(const PlanInput& in, const Plan& plan, double price) {
    if (in.groups.reduced.count <= 1) return price;
    if (plan.walk == Walk::kRows && in.groups.outputs > kFewOutputs)
      return kSeveralDimsOfRows * price;
    return plan.walk == Walk::kRows || plan.walk == Walk::kColumns ? kSeveralDims * price : price;
  }

  // Microseconds of the second kernel, but for what parts cost that it combines anyway.
  static double combining(const PlanInput& in, const PlanInput& columns, const Plan& plan) {
    const int64_t candidates = columns.groups.outputs * plan.candidates();
    const double rounds =
        static_cast<double>(candidates / in.groups.outputs) / static_cast<double>(kCombiners);
    return (plan.split() ? 0 : price::kWorkspace) + kRound * rounds;
  }

 private:
  static constexpr double kSeveralDims = 1.25, kSeveralDimsOfRows = 1.57;
  static constexpr int64_t kFewOutputs = 16;
  // Bytes of a row that is worth a block of its own: sooner of a mapped one, whose elements would
  // be read one by one else. What such a row takes longer than its price says (100 random layouts
  // on an H200).
  static constexpr int64_t kRow = 4096, kMappedRow = 1024;
  static constexpr double kMapping = 1.1;
  static constexpr double kRound = 0.3;   // microseconds, of the threads that combine an output
  static constexpr int64_t kWide = 4096;  // bytes of a row of columns

  // Columns are wide only if they take in what lies between them.
  static Fold between_columns(const PlanInput& in) {
    const Dims& reduced = in.groups.reduced;
    Fold between{};
    for (int d = 0; d < reduced.count; ++d) {
      if (reduced.dim[d].stride < in.inner().stride) between.add(d, reduced.dim[d].size);
    }
    return between;
  }

  static int64_t most_candidates(const PlanInput& in) {
    return kWorkspaceBytes / in.bytes_of_candidate();
  }
  // Whether something is folded, and the workspace has room for its candidates.
  static bool has_room(const PlanInput& in, const Fold& fold) {
    return fold.count > 0 && in.groups.outputs * fold.columns() <= most_candidates(in);
  }

  template <class Visit>
  static bool take(const PlanInput& in, const Fold& fold, Visit visit) {
    if (!has_room(in, fold)) return false;
    const Folded folded(in.groups, fold);
    return is_of_columns(folded.groups) && visit(fold, folded);
  }

  // With a fold as many rows of narrow columns side by side as make them wide, or fill a load.
  template <class Visit>
  static bool with_more_rows(const PlanInput& in, const Fold& fold, Visit visit) {
    const Folded narrow(in.groups, fold);
    if (!is_of_columns(narrow.groups) || fold.count == kMostFolds) return false;
    const int64_t width = narrow.groups.axes.dim[0].size, width_bytes = width * in.bytes;
    if (width_bytes >= (in.groups.reduced.count > 1 ? kWide : kBurstBytes)) return false;
    for (int d = 0; d < in.groups.reduced.count; ++d) {
      const Dim& dim = in.groups.reduced.dim[d];
      if (dim.stride != width || fold.has(d)) continue;
      for (const int64_t bytes : {kWide, kLoadBytes}) {
        const int64_t rows = rows_for(dim.size, ceil_div(bytes, width_bytes),
                                      kLoadBytes / std::gcd(kLoadBytes, width_bytes));
        if (rows == 0) continue;
        Fold wide = fold;
        wide.add(d, rows);
        if (take(in, wide, visit)) return true;
      }
    }
    return false;
  }

  // Whether there are positions left to reduce, and the innermost dim of all is one of columns
  // side by side.
  static bool is_of_columns(const Groups& groups) {
    if (groups.axes.dim[0].stride != 1) return false;
    for (int d = 0; d < groups.reduced.count; ++d) {
      if (groups.reduced.dim[d].stride <= 1) return false;
    }
    return groups.reduced.count > 0;
  }

  // A divisor of so many rows, from `least` on: one that gives whole loads, if one is near.
  static int64_t rows_for(int64_t size, int64_t least, int64_t of_load) {
    for (const int64_t multiple : {of_load, int64_t(1)}) {
      int64_t rows = round_up(std::max<int64_t>(least, 2), multiple);
      for (int tries = 0; tries < 64 && 2 * rows <= size; ++tries, rows += multiple) {
        if (split(size, rows).remainder == 0) return rows;
      }
    }
    return 0;
  }
};

}  // namespace reduceops::cuda
