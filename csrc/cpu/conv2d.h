// A convolution, scaled and reduced over its channels, on a CPU.
#pragma once

#include "convolution.h"

namespace reduceops::cpu {

Tensor run_conv2d(Run run, const char* op, const Conv2d& call);
Kept run_conv2d_and_keep(Run run, const char* op, const Conv2d& call);
Tensor find_channels(Run run, const char* op, const Conv2d& call, const Tensor& kept);

}  // namespace reduceops::cpu
