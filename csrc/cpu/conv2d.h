// A convolution, scaled and reduced over its channels, on a CPU.
#pragma once

#include "convolution.h"

namespace reduceops::cpu {

Tensor run_conv2d(Run run, const char* op, const Conv2d& call);

}  // namespace reduceops::cpu
