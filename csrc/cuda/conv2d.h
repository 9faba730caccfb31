// A convolution, scaled and reduced over its channels, on a GPU.
#pragma once

#include "convolution.h"

namespace reduceops::cuda {

Tensor run_conv2d(Run run, const char* op, const Conv2d& call);

}  // namespace reduceops::cuda
