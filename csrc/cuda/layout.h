// What a fused convolution (cudnn.h) reads.
#pragma once

#include <cstdint>

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

}  // namespace reduceops::cuda
