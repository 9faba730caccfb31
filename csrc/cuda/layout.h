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

// The results of a fused convolution as the operator gives them, of the dtype of its input; `to`
// may be `from` where that is float32.
void launch_finish(const float* from, void* to, int64_t count, const DType& dtype, bool largest,
                   void* stream);

}  // namespace reduceops::cuda
