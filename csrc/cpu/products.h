// What a scale makes of 16-bit floats, where multiplying takes longer than comparing: products that
// keep the order have their extreme where the elements have theirs, but for those that vanish.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/limits.h"
#include "cpu/parallel.h"
#include "element.h"
#include "make_groups.h"
#include "reduction.h"

namespace reduceops::cpu {

// By one scale.
struct Products {
  bool ordered = false;  // as what is multiplied, or the other way round
  int16_t zero = 0;      // the product of zero
  int vanishing = 0;     // the largest magnitude whose product is zero
};

[[gnu::cold]] inline Products products_of(const Reduction& reduction) {
  Products products;
  visit_element(reduction, [&]<class Element>(Element element) {
    if constexpr (std::is_same_v<Element, Scaled<Float16>> ||
                  std::is_same_v<Element, Scaled<BFloat16>>) {
      products.ordered = keeps_order(element, static_cast<int16_t>(reduction.dtype->max_magnitude));
      products.zero = element.value(0);
      int& vanishing = products.vanishing;
      for (int bit = 1 << 14; bit; bit /= 2)
        if (magnitude_of_product(element, static_cast<int16_t>(vanishing + bit)) == 0)
          vanishing += bit;
    }
  });
  return products;
}

// Gives zeros among the products of 16-bit floats the sign of their group's first, where the
// extreme element's may be another's: where that has the sign of those that lose. False where
// looking for them would take long.
[[gnu::cold]] inline bool settle_zeros(const Reduction& reduction, Products products) {
  constexpr int64_t kFree = 64, kShare = 16;  // elements to read; of how many, one
  constexpr int64_t kSearch = 4;              // as many as a wrong guess takes
  constexpr int64_t kTogether = 64;
  constexpr int16_t kSign = std::numeric_limits<int16_t>::min();
  const int16_t unsure = reduction.largest ? 0 : kSign, zero = products.zero;
  const int vanishing = products.vanishing;
  const Dims results = result_dims(reduction.groups);
  const Dim inner = results.count ? results.dim[0] : Dim{1, 0, 1};
  const Dim down = reduction.groups.reduced.dim[0];
  const auto* input = static_cast<const char*>(reduction.input);  // of any alignment
  auto* values = static_cast<int16_t*>(reduction.values);
  std::atomic<bool> settled{true};
  in_parallel(walk_extent(results), kGrainBytes / sizeof(zero), [&](int64_t begin, int64_t end) {
    int64_t left = kFree;
    while (true) {
      const int64_t found = std::find(values + begin, values + end, unsure) - values;
      if (found == end) return;
      const int64_t n = std::min({kTogether, end - found, inner.size - found % inner.size});
      left += (found + n - begin) * (down.size / kShare);
      begin = found + n;
      int64_t first = place(results.dim, results.count, found).offset;
      for (int64_t i = found; i < begin; ++i, first += inner.stride) {
        int64_t next = first;
        const int16_t value = values[i];
        const bool asks = value == unsure;
        const auto bits = [&] {
          int16_t read;
          std::memcpy(&read, input + next * sizeof(read), sizeof(read));
          return read;
        };
        const auto is_zero = [&] { return (bits() & ~kSign) <= vanishing; };
        if (asks & !is_zero()) [[unlikely]] {
          const int64_t most = std::min(left, down.size);
          int64_t at = 0;
          for (; at < most && !is_zero(); ++at) next += down.stride;
          left -= at + kSearch;
          if (at == most || left < 0) return settled.store(false, std::memory_order_relaxed);
        }
        // Without a branch, which would be a guess.
        values[i] = asks ? static_cast<int16_t>((bits() ^ zero) & kSign) : value;
      }
    }
  });
  return settled;
}

}  // namespace reduceops::cpu
