// One call of an operator, checked and free of torch: what a device's kernels are asked to do.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "groups.h"

namespace reduceops {

struct Reduction {
  const DType* dtype;
  bool largest;
  bool scaled;
  double scale;
  const void* input;
  int64_t* indices;  // null where only values are wanted
  void* values;      // null where only indices are wanted
  int32_t device_index;
  Groups groups;  // outputs > 0 and extent > 0
};

}  // namespace reduceops
