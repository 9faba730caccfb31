// Kept dims of stride 0: their results are computed once and stored here for all other positions.
// Bound by writing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "groups.h"

namespace reduceops::cpu {

// Completes results [begin, end) of a tensor of which those with position 0 along every repeat are
// there. `repeats` are in the order of their steps.
template <class T>
void repeat_results(T* results, const Dims& repeats, int64_t begin, int64_t end) {
  // The innermost repeat makes runs that have one source each: of one result that fills the run, or
  // of as many results as it has.
  const Dim inner = repeats.dim[0];
  const int64_t run = inner.step == 1 ? inner.size : inner.step;
  if (inner.step == 1 && repeats.count == 1) {
    for (int64_t source = begin / run * run; source < end; source += run) {
      const int64_t stop = std::min(end, source + run);
      const T result = results[source];
      // Its own place is left alone, for others read it meanwhile.
      for (int64_t i = std::max(begin, source + 1); i < stop; ++i) results[i] = result;
    }
    return;
  }
  while (begin < end) {
    const int64_t n = std::min(end, (begin / run + 1) * run) - begin;
    int64_t source = begin;
    for (int d = 0; d < repeats.count; ++d) {
      const Dim& dim = repeats.dim[d];
      source -= begin / dim.step % dim.size * dim.step;
    }
    if (inner.step == 1) {
      const T result = results[source];
      std::fill_n(results + begin + (source == begin), n - (source == begin), result);
    } else if (source != begin) {
      std::copy_n(results + source, n, results + begin);
    }
    begin += n;
  }
}

}  // namespace reduceops::cpu
