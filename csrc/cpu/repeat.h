// Kept dims of stride 0: their results are computed once and stored here for all other positions.
// Bound by writing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "groups.h"

namespace reduceops::cpu {

constexpr int64_t kCopiedAtOnce = 2048;  // results, which stay in cache

// Completes results [begin, end) of a tensor of which those with position 0 along every repeat are
// there, and left alone, for others read them meanwhile. `repeats` are in the order of their steps.
template <class T>
void repeat_results(T* results, const Dims& repeats, int64_t begin, int64_t end) {
  // The innermost repeat makes blocks, in which `period` results come again and again.
  const Dim inner = repeats.dim[0];
  const int64_t period = inner.step, block = period * inner.size;
  const int64_t most = std::max(period, kCopiedAtOnce / period * period);
  for (int64_t first = begin / block * block; first < end; first += block) {
    int64_t source = first;
    for (int d = 1; d < repeats.count; ++d) {
      const Dim& dim = repeats.dim[d];
      source -= first / dim.step % dim.size * dim.step;
    }
    const int64_t from = std::max(begin, source == first ? first + period : first);
    const int64_t n = std::min(end, first + block) - from;
    T* to = results + from;
    if (period == 1) {
      const T result = results[source];
      for (int64_t i = 0; i < n; ++i) to[i] = result;
      continue;
    }
    const int64_t phase = (from - first) % period;
    for (int64_t done = 0, m; done < n; done += m) {
      if (done < period) {  // from the source; then from what is there, more and more of it
        const int64_t at = (phase + done) % period;
        m = std::min({period - at, period - done, n - done});
        std::copy_n(results + source + at, m, to + done);
      } else {
        m = std::min({done / period * period, most, n - done});
        std::copy_n(to, m, to + done);
      }
    }
  }
}

}  // namespace reduceops::cpu
