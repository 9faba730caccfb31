// What a fused convolution leaves (cudnn.h) becomes results; each launch enqueues on `stream`.
#pragma once

#include "cuda/cudnn.h"
#include "dtype.h"

namespace reduceops::cuda {

// The convolution, what its kernels read, and what they have left for its positions, of which there
// are `count`. Where that is no answer (FusedOperands), the position is computed again.
struct Unfinished {
  FusedConvolution convolution;
  FusedOperands operands;
  int64_t count;
};

// To be called before a kernel: sets the memory of its results, `channels` if there are to be some,
// to numbers beyond all others.
void set_undecided(const Unfinished& left, void* stream);

// Results of the dtype of the input: rounded as a convolution's result is, times the scale. `to`
// may be `extremes` where the dtype is float32.
void launch_finish(const Unfinished& left, float scale, const DType& dtype, void* to, void* stream);

// The channels of the extremes: the first NaN, or the first of equal ones.
void launch_finish_channels(const Unfinished& left, const DType& dtype, int64_t* to, void* stream);

}  // namespace reduceops::cuda
