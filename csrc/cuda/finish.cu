// The last step of a fused convolution. Its kernels leave few positions undecided, those of NaNs
// and infinities. A block computes its own again, with all channels: each warp some of them, for a
// few positions at once, so that a filter is read once for these.
#include "cuda/finish.h"

#include <bit>
#include <limits>

#include "cuda/device.cuh"
#include "cuda/sizes.h"

namespace reduceops::cuda {
namespace {

constexpr int kLanes = 32, kFinishThreads = 256, kWarps = kFinishThreads / kLanes;
constexpr int kTogether = 4;  // positions that are computed at once
// Positions of a block; of few ones fewer, so that all multiprocessors have some of those
// undecided.
constexpr int64_t kFewPositions = 1 << 15;
inline int positions_of_block(int64_t count) {
  return count <= kFewPositions ? kLanes : kFinishThreads;
}

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

// Whether a channel is chosen instead of another: the first NaN, or the first of extreme ones.
__device__ inline bool is_before(Chosen a, Chosen b, bool largest) {
  const bool a_none = a.value != a.value, b_none = b.value != b.value;
  if (a_none != b_none) return a_none;
  if (!a_none && a.value != b.value) return largest ? a.value > b.value : a.value < b.value;
  return a.channel < b.channel;
}

// A position of a result, by its image in the input.
template <class Key>
struct Window {
  const Key* image;
  int64_t row, column;

  __device__ Window(const Unfinished& left, int64_t position) {
    const FusedConvolution& c = left.convolution;
    const int64_t rows = c.output[2], columns = c.output[3];
    const int64_t number = position / (rows * columns);
    image = static_cast<const Key*>(left.operands.input) +
            number * c.input[1] * c.input[2] * c.input[3];
    row = position / columns % rows * c.stride[0] - c.padding[0];
    column = position % columns * c.stride[1] - c.padding[1];
  }
  // The channels of one of its pixels; null where that is padding.
  __device__ const Key* pixel(const FusedConvolution& c, int64_t r, int64_t s) const {
    const int64_t y = row + r * c.dilation[0], x = column + s * c.dilation[1];
    const bool inside = y >= 0 && y < c.input[2] && x >= 0 && x < c.input[3];
    return inside ? image + (y * c.input[3] + x) * c.input[1] : nullptr;
  }
};

// A lane's parts of the sums of one filter.
template <class Format, class Key = typename Format::Key>
__device__ void add_parts(const FusedConvolution& c, const Window<Key> (&windows)[kTogether],
                          const Key* filter, float (&sums)[kTogether]) {
  const int64_t channels = c.input[1];
  for (int64_t r = 0; r < c.weight[2]; ++r) {
    for (int64_t s = 0; s < c.weight[3]; ++s, filter += channels) {
      const Key* pixels[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) pixels[u] = windows[u].pixel(c, r, s);
      for (int64_t i = threadIdx.x % kLanes; i < channels; i += kLanes) {
        const float factor = Format::decode(filter[i]);
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
          sums[u] += (pixels[u] ? Format::decode(pixels[u][i]) : 0.0f) * factor;
      }
    }
  }
}

// What a warp chooses of its filters, for each position; the same in all lanes.
template <class Format>
__device__ void choose(const Unfinished& left, const int64_t (&positions)[kTogether],
                       Chosen (&chosen)[kTogether]) {
  using Key = typename Format::Key;
  const FusedConvolution& c = left.convolution;
  const int64_t filter_size = c.weight[1] * c.weight[2] * c.weight[3];
  const auto* weight = static_cast<const Key*>(left.operands.weight);
  const auto* bias = static_cast<const Key*>(left.operands.bias);
  const Window<Key> windows[kTogether] = {
      {left, positions[0]}, {left, positions[1]}, {left, positions[2]}, {left, positions[3]}};
  for (int64_t k = threadIdx.x / kLanes; k < c.weight[0]; k += kWarps) {
    float sums[kTogether] = {};
    add_parts<Format>(c, windows, weight + k * filter_size, sums);
    bool all_none = true;  // NaNs, of which no later one is chosen
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      float& value = sums[u];
      for (int lane = kLanes / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
      if (bias) value += Format::decode(bias[k]);
      if (k < kWarps || is_before({value, k}, chosen[u], c.largest)) chosen[u] = {value, k};
      all_none &= chosen[u].value != chosen[u].value;
    }
    if (all_none) break;
  }
}

// What this thread's position gets where it is undecided, else `decided`; `first`: that of thread
// 0.
template <class Format>
__device__ Chosen decide(const Unfinished& left, int64_t first, bool undecided, Chosen decided) {
  __shared__ uint32_t undecided_of[kWarps];
  __shared__ Chosen found[kTogether][kWarps];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const uint32_t here = __reduce_add_sync(~0u, uint32_t(undecided) << lane);
  if (lane == 0) undecided_of[warp] = here;
  __syncthreads();
  int of = 0;
  uint32_t rest = undecided_of[0];
  // The thread of the next one, the same for all threads; -1 after the last.
  const auto next = [&] {
    while (rest == 0 && of < kWarps) rest = ++of < kWarps ? undecided_of[of] : 0;
    if (rest == 0) return -1;
    const int thread = of * kLanes + __ffs(rest) - 1;
    rest &= rest - 1;
    return thread;
  };
  for (int thread = next(); thread >= 0; thread = next()) {
    int threads[kTogether];
    int64_t positions[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      // After the last one that once more.
      if (const int another = u ? next() : -1; another >= 0) thread = another;
      threads[u] = thread;
      positions[u] = first + thread;
    }
    Chosen chosen[kTogether];
    choose<Format>(left, positions, chosen);
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (lane == 0) found[u][warp] = chosen[u];
    }
    __syncthreads();
    const int warps = std::min<int64_t>(kWarps, left.convolution.weight[0]);
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (threadIdx.x != threads[u]) continue;
      decided = found[u][0];
      for (int w = 1; w < warps; ++w) {
        if (is_before(found[u][w], decided, left.convolution.largest)) decided = found[u][w];
      }
    }
    __syncthreads();
  }
  return decided;
}

template <class Format>
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const __grid_constant__ Unfinished left, int of_block, float scale,
                  typename Format::Key* to) {
  const int64_t first = blockIdx.x * int64_t(of_block), i = first + threadIdx.x;
  const bool inside = threadIdx.x < of_block && i < left.count;
  const float extreme = inside ? left.operands.extremes[i] : 0;
  const bool undecided = inside && is_undecided(extreme, left.convolution.largest);
  const Chosen chosen = decide<Format>(left, first, undecided, {extreme, 0});
  if (inside) to[i] = Format::encode(Format::decode(Format::encode(chosen.value)) * scale);
}

template <class Format>
__global__ void __launch_bounds__(kFinishThreads)
    finish_channels_kernel(const __grid_constant__ Unfinished left, int of_block, int64_t* to) {
  const int64_t first = blockIdx.x * int64_t(of_block), i = first + threadIdx.x;
  const bool inside = threadIdx.x < of_block && i < left.count;
  const float extreme = inside ? left.operands.extremes[i] : 0;
  const float channel = inside ? left.operands.channels[i] : 0;
  const bool undecided = inside && (is_undecided(extreme, left.convolution.largest) ||
                                    !(channel < left.convolution.weight[0]));
  const Chosen chosen = decide<Format>(left, first, undecided, {0, static_cast<int64_t>(channel)});
  if (inside) to[i] = chosen.channel;
}

cudaLaunchConfig_t configuration(int64_t count, void* stream) {
  return launch_config(ceil_div(count, positions_of_block(count)), kFinishThreads, stream);
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
    check(cudaLaunchKernelEx(&config, finish_kernel<Format>, left, positions_of_block(left.count),
                             scale, keys));
  });
}

void launch_finish_channels(const Unfinished& left, const DType& dtype, int64_t* to, void* stream) {
  const auto config = configuration(left.count, stream);
  with_format(dtype, [&](auto format) {
    check(cudaLaunchKernelEx(&config, finish_channels_kernel<decltype(format)>, left,
                             positions_of_block(left.count), to));
  });
}

}  // namespace reduceops::cuda
