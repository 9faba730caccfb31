// A convolution, scaled and reduced over its channels, as one kernel of cuDNN. Built without
// cuDNN's headers, the library has no such kernel and says so.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace reduceops::cuda {

// What a kernel is compiled for. All tensors are channels_last.
struct FusedConvolution {
  enum class Type : int64_t { kFloat32, kFloat16, kBFloat16 };
  Type type;
  std::array<int64_t, 4> input, weight, output;  // of the convolution
  std::array<int64_t, 2> stride, padding, dilation;
  bool bias, largest;
  bool finds_channels;  // of extremes that are known
  bool deterministic;

  auto operator<=>(const FusedConvolution&) const = default;
};

// What a kernel reads and writes. cuDNN's minima and maxima drop NaNs and know nothing beyond the
// finite numbers. So where a channel is NaN the extreme is infinite, of the sign that is looked
// for, as where one is infinite; and where all are infinite, of the other sign, it is the last
// finite number of that sign, or what was in memory: some kernels combine their results with that,
// so it has to be set before (finish.h). None of these says anything about the channel.
struct FusedOperands {
  const void *input, *weight, *bias;  // aligned to kFusedAlignment bytes
  float* extremes;
  // Of the first channel that is the extreme; where there is none, more than there are channels.
  float* channels = nullptr;
};

constexpr int64_t kFusedAlignment = 16;

// One of the kernels that cuDNN has for a convolution: an engine, and its choices by cuDNN's
// numbers of them.
struct FusedConfiguration {
  int64_t engine;
  std::vector<std::pair<int64_t, int64_t>> knobs;

  auto operator<=>(const FusedConfiguration&) const = default;
};

class FusedKernel {
 public:
  virtual ~FusedKernel() = default;
  virtual const FusedConfiguration& configuration() const = 0;
  virtual int64_t workspace_bytes() const = 0;
  virtual void enqueue(const FusedOperands& operands, void* workspace, void* stream) const = 0;
};

// Why there are no fused kernels in this process; null where there are.
const char* why_not_fused();

// Another try would most likely fail in the same way.
struct CannotCompile : std::runtime_error {
  using runtime_error::runtime_error;
};

// At most so many kernels of the current device, the one first that is expected to be fastest; none
// where cuDNN has none. Throws where there is no memory for any, and CannotCompile where all have
// failed. Takes a second for each. Float32 is multiplied in TF32. With `only`, the kernel of that
// configuration.
std::vector<std::unique_ptr<FusedKernel>> compile_fused(int32_t device,
                                                        const FusedConvolution& convolution,
                                                        size_t most,
                                                        const FusedConfiguration* only = nullptr);

}  // namespace reduceops::cuda
