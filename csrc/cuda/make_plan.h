// Which kernel a reduction runs on a GPU, and how it is cut: host code without CUDA calls, so that
// it is tested without a GPU (tests/test_plan.py).
//
// Of each walk, plan/<walk>.h says whether it fits, how it is cut, what that costs, and where it is
// the usual one: where measurements found it best. The cheapest is taken; but prices are estimates,
// so another than the usual one must be cheaper by a margin.
#pragma once

#include <cassert>

#include "cuda/plan/boxes.h"
#include "cuda/plan/bulk_columns.h"
#include "cuda/plan/columns.h"
#include "cuda/plan/fill.h"
#include "cuda/plan/folds.h"
#include "cuda/plan/gather.h"
#include "cuda/plan/measured.h"
#include "cuda/plan/rows.h"
#include "cuda/plan/small.h"
#include "cuda/plan/tiles.h"
#include "cuda/plan/whole_columns.h"
#include "cuda/plan/whole_rows.h"
#include "cuda/repeat.h"

namespace reduceops::cuda {

struct Priced {
  FoldedPlan plan;
  double price;  // microseconds
};

// A plan of each walk, two that gather, and one that is folded. (plans.py has room for as many.)
constexpr int kMostPlans = 12;

// The walks that an input could take.
class FittingWalks {
 public:
  explicit FittingWalks(const PlanInput& in) : in_(in) {
    // The usual one is the first that is usual, and of these one always fits.
    add<FillPlan>();
    if (count_ > 0) return;
    if (has_repeats_as_outputs(in.groups, in.task)) {  // of which other walks know nothing
      add<SmallPlan>();
      add<GatherPlan>();
      assert(count_ > 0);  // nobody asks for copies that are not gathered
      if (usual_ < 0) usual_ = count_ - 1;
      return;
    }
    add<SmallPlan>();
    add<TilesPlan>();
    add<GatherPlan>();
    add<GatherByResultsPlan>();
    add<WholeRowsPlan>();
    add<WholeColumnsPlan>();
    add<BoxesPlan>();
    add<BulkColumnsPlan>();
    add<RowsPlan>();
    add<ColumnsPlan>();
  }

  int count() const { return count_; }
  int usual() const { return usual_; }
  const Priced& operator[](int i) const { return walks_[i]; }

  void set_prices() {
    const Traffic traffic(in_);
    for (int i = 0; i < count_; ++i) {
      Priced& walk = walks_[i];
      walk.price = measured(in_, walk.plan) *
                   microseconds(in_, walk.plan, traffic, works_[i](in_, walk.plan, traffic));
    }
    add_folded(traffic);
  }

  // Where it does not take prices to know, no prices need to be set.
  bool is_clear() const {
    if (in_.tuning.margin == 0 || in_.tuning.walk > 0) return true;
    // Where columns read the rows that take part alone, only few elements are gathered sooner.
    constexpr int64_t kFewRows = 8;
    const Plan& usual = walks_[usual_].plan;
    const bool small = usual.walk == Walk::kSmall;
    const bool columns =
        usual.walk == Walk::kColumns && (!usual.columns.listed || in_.walk <= kFewRows);
    if (in_.task != Task::kExtreme) return !small && !columns && usual.walk != Walk::kRows;
    return (count_ == 1 && !Folds::fits(in_)) || (small && SmallPlan::is_tiny(in_));
  }
  int chosen() const {
    for (int i = 0; i < count_; ++i) {
      if (static_cast<int>(walks_[i].plan.walk) + 1 == in_.tuning.walk) return i;
    }
    if (is_clear()) return usual_;
    return folded_ >= 0 ? folded_ : cheapest();
  }

 private:
  // Of other tasks than extremes, prices are good enough for some walks only: they do not know how
  // bytes of a mask lie.
  bool is_compared(const Plan& plan) const {
    if (in_.task == Task::kExtreme) return true;
    const Plan& usual = walks_[usual_].plan;
    const bool rows = usual.walk == Walk::kRows;
    switch (plan.walk) {
      case Walk::kGather:
        if (plan.gather.shared())
          return !(is_mask_sparse_beside(plan) && !is_mask_read_along(plan)) &&
                 !GatherPlan::is_better_as_columns(in_, usual);
        if (GatherPlan::has_rows_apart(in_)) return false;
        return rows ? !(usual.rows.vector && GatherPlan::is_better_as_rows(in_))
                    : in_.bytes > 1 || !is_mask_sparse_beside(plan);
      case Walk::kWholeRows:
        return rows || (usual.walk == Walk::kSmall && in_.bytes > 1 && !in_.has_few_elements());
      case Walk::kSmall:
        return rows ? !usual.rows.vector && !RowsPlan::is_mask_across_rows(in_) &&
                          in_.walk <= SmallPlan::kLongestRow
                    : in_.task == Task::kMasked && usual.walk == Walk::kColumns &&
                          !usual.columns.vector && !usual.columns.staged && in_.walk > kGatherRows;
      default:
        return false;
    }
  }
  // Whether neighbouring threads that gather each read a sector of a mask.
  bool is_mask_sparse_beside(const Plan& plan) const {
    const Dims& kept = in_.groups.kept;
    const bool in_memory = plan.gather.tiled() || plan.gather.shared();
    const Dim& beside = in_memory ? kept.dim[0] : by_step(kept).dim[0];
    return in_.task == Task::kMasked && (is_mask_sparse(kept.dim[0]) || is_mask_sparse(beside));
  }
  // Whether threads that share groups find their next bytes of the mask in the sectors that they
  // have read: where L1 still has them. Of sectors that are a multiple of so many bytes apart it
  // keeps only a few.
  bool is_mask_read_along(const Plan& plan) const {
    constexpr int64_t kNear = 3, kPlaces = 256;
    const int64_t along = in_.along().mask_stride, beside = in_.groups.kept.dim[0].mask_stride;
    return plan.gather.shared() && 0 < along && along <= kNear && beside % kPlaces != 0;
  }

  int cheapest() const {
    int best = usual_;
    double least = walks_[usual_].price * static_cast<double>(in_.tuning.margin) / 100;
    for (int i = 0; i < count_; ++i) {
      if (is_compared(walks_[i].plan) && walks_[i].price < least) {
        best = i;
        least = walks_[i].price;
      }
    }
    return best;
  }

  template <class WalkPlan>
  bool add() {
    assert(count_ + 1 < kMostPlans);
    if (!WalkPlan::fits(in_) || !WalkPlan::make(in_, walks_[count_].plan)) return false;
    if (usual_ < 0 && WalkPlan::usual(in_)) usual_ = count_;
    works_[count_++] = WalkPlan::work;
    return true;
  }

  // Takes a walk over what is folded if its price, times `factor`, is below the least so far.
  template <class WalkPlan>
  bool consider(const Fold& fold, const PlanInput& folded, double factor, double& least) {
    FoldedPlan plan;
    if (!WalkPlan::fits(folded) || !WalkPlan::make(folded, plan)) return false;
    plan.fold = fold;
    const Traffic traffic(folded);
    const Work work = WalkPlan::work(folded, plan, traffic);
    const double price = factor * measured(in_, plan) * microseconds(folded, plan, traffic, work) +
                         Folds::combining(in_, folded, plan);
    if (price >= least) return false;
    least = price;
    walks_[folded_ = count_] = {plan, price};
    return true;
  }

  // A way of folding that is cheaper by a margin than what would be taken without, if one is found.
  void add_folded(const Traffic& traffic) {
    if (is_clear() || !Folds::fits(in_)) return;
    const Priced& otherwise = walks_[cheapest()];
    double least = Folds::price_without(in_, otherwise.plan, otherwise.price) *
                   static_cast<double>(in_.tuning.fold) / 100;
    const double reading =
        least_measured_of_columns(in_) * (traffic.start + traffic.read / price::kMemory);
    if (reading + price::kWorkspace > least) return;
    Folds::to_rows(in_, [&](const Fold& fold, const Folded& folded, double factor) {
      consider<WholeRowsPlan>(fold, PlanInput(in_, folded.groups), factor, least);
    });
    constexpr double kColumns = 1;  // microseconds that they take at least beside reading
    if (reading + price::kWorkspace + kColumns <= least) {
      Folds::to_columns(in_, [&](const Fold& fold, const Folded& folded) {
        const PlanInput columns(in_, folded.groups);
        const bool bulk = consider<BulkColumnsPlan>(fold, columns, 1, least);
        return consider<ColumnsPlan>(fold, columns, 1, least) || bulk;
      });
    }
    count_ += folded_ >= 0;
  }

  const PlanInput& in_;
  int count_ = 0, usual_ = -1, folded_ = -1;
  Priced walks_[kMostPlans];
  Work (*works_[kMostPlans])(const PlanInput&, const Plan&, const Traffic&);
};

// What is taken. Its price is there if it is asked for, or if it takes that to know.
inline Priced make_plan(const PlanInput& in, bool priced = false) {
  if (!priced && in.tuning.walk == 0 && SmallPlan::is_tiny(in) && SmallPlan::fits(in) &&
      SmallPlan::usual(in)) {
    Priced small{};  // launched as fast as it is planned, so no time for others
    SmallPlan::make(in, small.plan);
    return small;
  }
  FittingWalks walks(in);
  if (priced || !walks.is_clear()) walks.set_prices();
  return walks[walks.chosen()];
}

}  // namespace reduceops::cuda
