// Where results go: indices of any width.
//
// The walks count in int64_t; a result gets the width of the output where it is written, and
// nowhere else.
#pragma once

#include <cstdint>

#include "order.h"

namespace reduceops::cpu {

// Calls f with results as numbers of so many bytes: those of indices, where a value's bits are only
// copied.
template <class F>
inline void visit_results(void* results, int bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(static_cast<uint8_t*>(results));
    case 2:
      return f(static_cast<uint16_t*>(results));
    case 4:
      return f(static_cast<int32_t*>(results));
    default:
      return f(static_cast<int64_t*>(results));
  }
}

}  // namespace reduceops::cpu
