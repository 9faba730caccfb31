// The candidates of parts and of crossed columns: the best of each output's is its result. Bound by
// the candidates, of which there are at most a MiB at a time, in cache.
#pragma once

#include "cpu/mask.h"

namespace reduceops::cpu {
namespace {

template <class Element>
struct Combine : Walk<Element> {
  using Base = Walk<Element>;
  using Base::job, Base::r;

  Combine(const Job& job, Element element) : Base(job, element) {}

  REDUCEOPS_NOINLINE void operator()(int64_t begin, int64_t end) const {
    Cursor kept(r.groups.kept, 0, begin);
    const Dims whole;
    const Dims& crossed = job.crossed ? *job.crossed : whole;
    const int64_t columns = walk_extent(crossed);
    Cursor column(crossed, 0, 0);
    const Candidate* candidate = job.candidates + begin * columns * job.plan.parts;
    for (; begin < end; ++begin, kept.next()) {
      Best<int64_t, uint64_t> best{std::numeric_limits<int64_t>::max(), kNowhere};
      for (int64_t c = 0; c < columns; ++c, column.next()) {
        const uint64_t index = column.place().step;
        for (int64_t p = 0; p < job.plan.parts; ++p, ++candidate) {
          const Best<int64_t, uint64_t> next{candidate->key, index + candidate->index};
          if (better(next, best)) best = next;
        }
      }
      finish(*this, kept.place(), best.index);
    }
  }
};

}  // namespace
}  // namespace reduceops::cpu
