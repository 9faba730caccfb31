// The element types the operators take, and what the order needs to know of each.
#pragma once

#include <cstdint>

namespace reduceops {

enum class Kind : uint8_t { kUnsupported, kSigned, kUnsigned, kFloat };

struct DType {
  const char* name;
  Kind kind;
  uint8_t bytes;
  // Bits of the largest magnitude that is no NaN: of floats infinity, or the largest finite number
  // where there is none; of bools 1; 0 for integers, which use all of their bits.
  uint64_t max_magnitude;

  bool is_bool() const { return kind == Kind::kUnsigned && max_magnitude == 1; }
};

}  // namespace reduceops
