// The kernels around a fused convolution (cudnn.h); each enqueues on `stream`.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace reduceops::cuda {

// `images` of `channels` planes, each a run of `positions` elements, to a channels_last tensor.
struct Images {
  const void* from;
  void* to;  // aligned to 16 bytes
  int64_t images, channels, positions;
  int64_t image_stride, channel_stride;  // of `from`, in elements
};

// For elements of 2 and 4 bytes.
void launch_channels_last(const Images& images, int bytes, void* stream);

// From what a fused kernel leaves (FusedOperands) to results of the dtype of its input: NaNs and
// infinities, rounded as a convolution's result is, times the scale.
struct Unfinished {
  const float* from;
  void* to;  // may be `from` where the dtype is float32
  int64_t count;
  float scale;
  bool largest;  // what the kernel has looked for
};

void launch_finish(const Unfinished& results, const DType& dtype, void* stream);

}  // namespace reduceops::cuda
