// The element types the operators take, and what the order needs to know of each.
#pragma once

#include <cstdint>

namespace reduceops {

enum class Kind : uint8_t { kUnsupported, kSigned, kUnsigned, kFloat };

struct DType {
  const char* name;
  Kind kind;
  uint8_t bytes;
  // Bits of the largest magnitude that is not a NaN (floats only): infinity, or the largest finite
  // where there is none.
  uint64_t max_magnitude;
};

}  // namespace reduceops
