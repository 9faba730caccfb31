// The candidates of parts: the best of each output's is its result. Bound by nothing, for there are
// few of them.
#pragma once

#include "cpu/mask.h"

namespace reduceops::cpu {
namespace {

template <class Element, bool kMasked>
struct Combine : Walk<Element> {
  using Base = Walk<Element>;
  using Base::job, Base::r;

  Combine(const Job& job, Element element) : Base(job, element) {}

  void operator()() const {
    const GroupMask<Element> mask(*this);
    Cursor kept(r.groups.kept, 0, 0);
    Marks<kMasked> marks(r, r.groups.kept, 0, 0);
    const Dims whole;
    const Dims& crossed = job.crossed ? *job.crossed : whole;
    const int64_t columns = walk_extent(crossed);
    Cursor column(crossed, 0, 0);
    const Candidate* candidate = job.candidates;
    for (int64_t o = 0; o < r.groups.outputs; ++o, kept.next(), marks.next()) {
      Best<int64_t> best{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
      for (int64_t c = 0; c < columns; ++c, column.next()) {
        const int64_t index = column.place().step;
        for (int64_t p = 0; p < job.plan.parts; ++p, ++candidate) {
          const Best<int64_t> next{candidate->key, index + candidate->index};
          if (better(next, best)) best = next;
        }
      }
      if (kMasked && mask.finished(*this, kept.place(), marks.place(), best.key)) continue;
      this->finish(kept.place(), best.index);
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
