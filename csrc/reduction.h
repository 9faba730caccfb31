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
  bool softmax;  // the values are probabilities: 1 / sum(exp(x - max)), the sum over each group
  const void* input;
  const void* mask;          // bools: whether an element takes part; null where all do
  void* indices;             // null where only values are wanted
  int index_bytes = 8;       // or 4, 2 or 1 (unsigned)
  void* values;              // null where only indices are wanted
  bool value_alone = false;  // for GPUs: whether no index is wanted, nor stored in a pair
  int32_t device_index;
  Groups groups;  // outputs > 0 and extent > 0
};

}  // namespace reduceops
