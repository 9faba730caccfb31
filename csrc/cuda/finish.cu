// The last step of a fused convolution. Its kernels leave few positions undecided, those of NaNs
// and infinities; a warp computes each again, with all channels.
#include "cuda/finish.h"

#include <bit>
#include <limits>

#include "cuda/device.cuh"
#include "cuda/sizes.h"

namespace reduceops::cuda {
namespace {

constexpr int kLanes = 32, kFinishThreads = 256;

struct Chosen {
  float value;
  int64_t channel;
};

// Numbers that a memset can write, near the last finite ones.
constexpr int kLargeByte = 0x7f, kSmallByte = 0xfe;
constexpr float kLarge = std::bit_cast<float>(0x7f7f7f7fu);
constexpr float kSmall = std::bit_cast<float>(0xfefefefeu);

// Whether the extreme is infinite, of the sign that is looked for, or beyond what was set before.
__device__ inline bool is_undecided(float extreme, bool largest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return largest ? extreme == kInfinity || extreme <= kSmall
                 : extreme == -kInfinity || extreme >= kLarge;
}

// A lane's part of the sum of one filter at a row and column of an image.
template <class Format>
__device__ float part_of_sum(const FusedConvolution& c, const typename Format::Key* image,
                             const typename Format::Key* filter, int64_t row, int64_t column) {
  const int64_t channels = c.input[1], height = c.input[2], width = c.input[3];
  float sum = 0;
  for (int64_t r = 0; r < c.weight[2]; ++r) {
    const int64_t y = row * c.stride[0] - c.padding[0] + r * c.dilation[0];
    for (int64_t s = 0; s < c.weight[3]; ++s, filter += channels) {
      const int64_t x = column * c.stride[1] - c.padding[1] + s * c.dilation[1];
      const bool inside = y >= 0 && y < height && x >= 0 && x < width;
      const auto* pixel = image + (y * width + x) * channels;
      for (int64_t i = threadIdx.x % kLanes; i < channels; i += kLanes)
        sum += (inside ? Format::decode(pixel[i]) : 0.0f) * Format::decode(filter[i]);
    }
  }
  return sum;
}

// All lanes of a warp, for one position.
template <class Format>
__device__ Chosen choose(const Unfinished& left, int64_t position) {
  using Key = typename Format::Key;
  const FusedConvolution& c = left.convolution;
  const int64_t columns = c.output[3], rows = c.output[2];
  const int64_t image = position / (rows * columns);
  const int64_t row = position / columns % rows, column = position % columns;
  const int64_t filter_size = c.weight[1] * c.weight[2] * c.weight[3];
  const auto* input =
      static_cast<const Key*>(left.operands.input) + image * c.input[1] * c.input[2] * c.input[3];
  const auto* weight = static_cast<const Key*>(left.operands.weight);
  const auto* bias = static_cast<const Key*>(left.operands.bias);
  Chosen chosen{};
  for (int64_t k = 0; k < c.weight[0]; ++k) {
    float value = part_of_sum<Format>(c, input, weight + k * filter_size, row, column);
    for (int lane = kLanes / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
    if (bias) value += Format::decode(bias[k]);
    if (value != value) return {value, k};
    if (k == 0 || (c.largest ? value > chosen.value : value < chosen.value)) chosen = {value, k};
  }
  return chosen;
}

// What this lane's position gets where it is undecided, else `decided`.
template <class Format>
__device__ Chosen decide(const Unfinished& left, int64_t position, bool undecided, Chosen decided) {
  const int lane = threadIdx.x % kLanes;
  for (uint32_t all = __reduce_add_sync(~0u, uint32_t(undecided) << lane); all; all &= all - 1) {
    const int of = __ffs(all) - 1;
    const Chosen chosen = choose<Format>(left, position - lane + of);
    if (of == lane) decided = chosen;
  }
  return decided;
}

template <class Format>
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const __grid_constant__ Unfinished left, float scale, typename Format::Key* to) {
  const int64_t i = blockIdx.x * int64_t(kFinishThreads) + threadIdx.x;
  const bool inside = i < left.count;
  const float extreme = inside ? left.operands.extremes[i] : 0;
  const bool undecided = inside && is_undecided(extreme, left.convolution.largest);
  const Chosen chosen = decide<Format>(left, i, undecided, {extreme, 0});
  if (inside) to[i] = Format::encode(Format::decode(Format::encode(chosen.value)) * scale);
}

template <class Format>
__global__ void __launch_bounds__(kFinishThreads)
    finish_channels_kernel(const __grid_constant__ Unfinished left, int64_t* to) {
  const int64_t i = blockIdx.x * int64_t(kFinishThreads) + threadIdx.x;
  const bool inside = i < left.count;
  const float extreme = inside ? left.operands.extremes[i] : 0;
  const float channel = inside ? left.operands.channels[i] : 0;
  const bool undecided = inside && (is_undecided(extreme, left.convolution.largest) ||
                                    !(channel < left.convolution.weight[0]));
  const Chosen chosen = decide<Format>(left, i, undecided, {0, static_cast<int64_t>(channel)});
  if (inside) to[i] = chosen.channel;
}

cudaLaunchConfig_t configuration(int64_t count, void* stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(ceil_div(count, kFinishThreads));
  config.blockDim = kFinishThreads;
  config.stream = static_cast<cudaStream_t>(stream);
  return config;
}

// `launch` with the format of a dtype.
template <class Launch>
void with_format(const DType& dtype, Launch&& launch) {
  if (dtype.bytes == 4) return launch(Float32{});
  if (dtype.max_magnitude == 0x7c00) return launch(Float16{});
  launch(BFloat16{});
}

}  // namespace

void set_undecided(const Unfinished& left, void* stream) {
  const auto& [convolution, operands, count] = left;
  const bool small = convolution.largest && !operands.channels;
  float* const results = operands.channels ? operands.channels : operands.extremes;
  check(cudaMemsetAsync(results, small ? kSmallByte : kLargeByte, count * sizeof(float),
                        static_cast<cudaStream_t>(stream)));
}

void launch_finish(const Unfinished& left, float scale, const DType& dtype, void* to,
                   void* stream) {
  const auto config = configuration(left.count, stream);
  with_format(dtype, [&](auto format) {
    using Format = decltype(format);
    auto* const keys = static_cast<typename Format::Key*>(to);
    check(cudaLaunchKernelEx(&config, finish_kernel<Format>, left, scale, keys));
  });
}

void launch_finish_channels(const Unfinished& left, const DType& dtype, int64_t* to, void* stream) {
  const auto config = configuration(left.count, stream);
  with_format(dtype, [&](auto format) {
    check(cudaLaunchKernelEx(&config, finish_channels_kernel<decltype(format)>, left, to));
  });
}

}  // namespace reduceops::cuda
