// A convolution, scaled and reduced over its channels, as one kernel of cuDNN. Built without
// cuDNN's headers, the library has no such kernel and says so.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace reduceops::cuda {

// What a kernel is compiled for. All tensors are channels_last, and the result is float32.
struct FusedConvolution {
  enum class Type : int64_t { kFloat32, kFloat16, kBFloat16 };
  Type type;
  std::array<int64_t, 4> input, weight, output;  // of the convolution
  std::array<int64_t, 2> stride, padding, dilation;
  bool bias, largest;
  bool deterministic;

  auto operator<=>(const FusedConvolution&) const = default;
};

// What a kernel reads and writes. cuDNN's minima and maxima drop NaNs and know nothing beyond the
// finite numbers. So where a channel is NaN the result is infinite, of the sign that is looked for;
// and where it is infinite, the result is the largest finite number of that sign.
struct FusedOperands {
  const void *input, *weight, *bias;  // aligned to kFusedAlignment bytes
  float* result;
};

constexpr int64_t kFusedAlignment = 16;

class FusedKernel {
 public:
  virtual ~FusedKernel() = default;
  virtual int64_t workspace_bytes() const = 0;
  virtual void enqueue(const FusedOperands& operands, void* workspace, void* stream) const = 0;
};

// Why there are no fused kernels in this process; null where there are.
const char* why_not_fused();

// At most so many kernels of the current device, the one first that cuDNN expects to be fastest;
// none where it has none. Takes a second for each. Float32 is multiplied in TF32.
std::vector<std::unique_ptr<FusedKernel>> compile_fused(int32_t device,
                                                        const FusedConvolution& convolution,
                                                        size_t most);

}  // namespace reduceops::cuda
