// One kernel of cuDNN (cudnn.h) where it has one and that is worth while, else a convolution of
// torch and scale_min.
#include "cuda/conv2d.h"

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "cuda/choices.h"
#include "cuda/device.cuh"
#include "cuda/device_guard.h"
#include "cuda/finish.h"
#include "cuda/layout.h"
#include "cuda/sizes.h"
#include "torch_private.h"

namespace reduceops::cuda {
namespace {

// Kernels that are tried where torch.backends.cudnn.benchmark is set. Each takes up to a second to
// compile.
constexpr size_t kTried = 3;
// How many calls of each are timed then.
constexpr int kTimed = 3;

using Type = FusedConvolution::Type;

// What torch is told to do with convolutions.
struct Settings {
  bool enabled = false, benchmark = false, deterministic = false, tf32 = false;
};

bool has_settings() {
  using namespace torch_private;
  return global_context && cudnn_enabled && cudnn_benchmark && cudnn_deterministic &&
         deterministic && cudnn_allows_tf32;
}

Settings settings() {
  using namespace torch_private;
  if (!has_settings()) return {};
  constexpr int kConvolutions = 1;  // of at::Float32Op
  const Context context = global_context();
  return {cudnn_enabled(context), cudnn_benchmark(context),
          cudnn_deterministic(context) || deterministic(context),
          cudnn_allows_tf32(context, kConvolutions)};
}

Choices& choices() {
  static auto* choices = new Choices;  // kernels outlive the driver at the end of a process
  return *choices;
}

// Whether a tensor has no gaps and its dims follow each other in memory in this order.
bool is_dense(const Tensor& tensor, const std::array<int, 4>& innermost_first) {
  const int64_t *size = tensor.sizes(), *stride = tensor.strides();
  int64_t expected = 1;
  for (const int d : innermost_first) {
    if (size[d] != 1 && stride[d] != expected) return false;
    expected *= size[d];
  }
  return true;
}
bool is_channels_last(const Tensor& tensor) { return is_dense(tensor, {1, 3, 2, 0}); }
bool is_contiguous(const Tensor& tensor) { return is_dense(tensor, {3, 2, 1, 0}); }

// Whether each channel of an image is a run of memory.
bool has_planes(const Tensor& tensor) {
  const int64_t *size = tensor.sizes(), *stride = tensor.strides();
  return (size[3] == 1 || stride[3] == 1) && (size[2] == 1 || stride[2] == size[3]);
}

bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data()) % kFusedAlignment == 0;
}

std::array<int64_t, 4> four_sizes(const Tensor& tensor) {
  const int64_t* size = tensor.sizes();
  return {size[0], size[1], size[2], size[3]};
}

// A tensor in channels_last, by a copy if need be.
class ChannelsLast {
 public:
  explicit ChannelsLast(const Tensor& tensor) : data_(tensor.data()), tensor_(tensor) {
    if (is_channels_last(tensor) && is_aligned(tensor)) return;
    const int64_t* size = tensor.sizes();
    const int width = dtype_of(tensor.dtype()).bytes;
    copy_.emplace(
        empty_bytes(size[0] * size[1] * size[2] * size[3] * width, tensor.device_index()));
    data_ = copy_->data();
  }
  static bool possible(const Tensor& tensor) {
    return (is_channels_last(tensor) && is_aligned(tensor)) || has_planes(tensor);
  }

  void copy(void* stream) const {
    if (!copy_) return;
    const int64_t *size = tensor_.sizes(), *stride = tensor_.strides();
    launch_channels_last({tensor_.data(), copy_->mutable_data(), size[0], size[1],
                          size[2] * size[3], stride[0], stride[1]},
                         dtype_of(tensor_.dtype()).bytes, stream);
  }
  const void* data() const { return data_; }

 private:
  const void* data_;
  const Tensor& tensor_;
  std::optional<Tensor> copy_;
};

struct Size {
  int64_t filters, channels, height, width;  // of the weight
  int64_t positions;                         // of the result, in all images
  int64_t bytes;                             // of an element
};

// Why a convolution over all channels of an input is not one kernel, null where it is.
const char* why_unfused(const Size& size, const Settings& settings) {
  constexpr int64_t kMostNumbered = 1 << 24;
  constexpr int64_t kTile = 128, kLeastTiles = 16, kFewTiles = 64, kLongSum = 2048;
  if (const char* why = why_not_fused()) return why;
  if (!settings.enabled) return "torch does not use cuDNN";
  if (size.bytes > 4) return "cuDNN has no kernel for the dtype";
  if (size.bytes == 4 && !settings.tf32) return "torch does not allow TF32";
  if (size.filters > kMostNumbered) return "the kernel numbers filters by float32";
  if (size.channels < 8 || size.channels % 4 != 0)
    return "the kernel is slow where it cannot load several channels at once";
  const int64_t sum = size.channels * size.height * size.width;
  const int64_t tiles = ceil_div(size.positions, kTile) * ceil_div(size.filters, kTile);
  if (tiles < kLeastTiles) return "the kernel has too little to do";
  if (tiles < kFewTiles && sum >= kLongSum)
    return "the kernel does not share long sums among multiprocessors that have nothing to do";
  return nullptr;
}

// Whether elements of a tensor have numbers of 31 bits, whatever its sizes are.
bool are_few(const std::array<int64_t, 4>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(count, size, &count)) return false;
  }
  return count <= std::numeric_limits<int32_t>::max();
}

// The kernel does not scale: the extreme element times a number is the extreme product.
bool looks_for_largest(const Conv2d& call) { return call.largest != (call.scale < 0); }

// What the kernel of a call is compiled for; false where no kernel can be or is worth while.
bool describe(const Conv2d& call, const Settings& settings, FusedConvolution& c) {
  const int bytes = call.dtype->bytes;
  for (const auto& size : {four_sizes(call.input), four_sizes(call.weight), call.shape}) {
    if (!are_few(size)) return false;
  }
  const auto [filters, channels, height, width] = four_sizes(call.weight);
  const int64_t positions = call.shape[0] * call.shape[2] * call.shape[3];
  if (call.dim != 1 || call.groups != 1 || positions == 0 ||
      why_unfused({filters, channels, height, width, positions, bytes}, settings))
    return false;
  // Times zero or infinity, a product of another element than the extreme one may be NaN.
  const auto scale = static_cast<float>(call.scale);
  if (!std::isfinite(scale) || scale == 0) return false;
  if (!ChannelsLast::possible(call.input) || !ChannelsLast::possible(call.weight)) return false;
  if (call.bias && (!is_aligned(*call.bias) || call.bias->strides()[0] != 1)) return false;
  c = {.type = bytes == 4                            ? Type::kFloat32
               : call.dtype->max_magnitude == 0x7c00 ? Type::kFloat16
                                                     : Type::kBFloat16,
       .input = four_sizes(call.input),
       .weight = four_sizes(call.weight),
       .output = call.shape,
       .stride = call.stride,
       .padding = call.padding,
       .dilation = call.dilation,
       .bias = call.bias.has_value(),
       .largest = looks_for_largest(call),
       .finds_channels = false,
       .deterministic = settings.deterministic};
  return true;
}

// A call's operands as kernels read them, and its workspace.
struct Prepared {
  Prepared(const Conv2d& call, const FusedConvolution& convolution, const FusedKernel& kernel)
      : input(call.input),
        weight(call.weight),
        left{convolution,
             {input.data(), weight.data(), call.bias ? call.bias->data() : nullptr, nullptr},
             call.shape[0] * call.shape[2] * call.shape[3]} {
    const int64_t size = kernel.workspace_bytes();
    if (size) workspace.emplace(empty_bytes(size, call.input.device_index()));
  }

  void run(const FusedKernel& kernel, void* stream) const {
    input.copy(stream);
    weight.copy(stream);
    set_undecided(left, stream);
    kernel.enqueue(left.operands, workspace ? workspace->mutable_data() : nullptr, stream);
  }

  const ChannelsLast input, weight;
  std::optional<Tensor> workspace;
  Unfinished left;
};

// With the extremes that the kernel finds, in a tensor of their own if they are asked for.
Kept run_fused(const Conv2d& call, const FusedConvolution& convolution, const FusedKernel& kernel,
               bool keep, void* stream) {
  Prepared prepared(call, convolution, kernel);
  Tensor result = empty_result(call, call.input.dtype());
  const bool apart = keep || call.dtype->bytes < 4;
  Tensor extremes = apart ? empty_result(call, aoti_torch_dtype_float32()) : result.share();
  prepared.left.operands.extremes = static_cast<float*>(extremes.mutable_data());
  prepared.run(kernel, stream);
  launch_finish(prepared.left, static_cast<float>(call.scale), *call.dtype, result.mutable_data(),
                stream);
  return {std::move(result), std::move(extremes)};
}

Tensor run_fused_channels(const Conv2d& call, const FusedConvolution& convolution,
                          const FusedKernel& kernel, const Tensor& extremes, void* stream) {
  Prepared prepared(call, convolution, kernel);
  Tensor result = empty_result(call, aoti_torch_dtype_int64());
  const Tensor channels = empty_result(call, aoti_torch_dtype_float32());
  prepared.left.operands.extremes = static_cast<float*>(extremes.mutable_data());
  prepared.left.operands.channels = static_cast<float*>(channels.mutable_data());
  prepared.run(kernel, stream);
  launch_finish_channels(prepared.left, *call.dtype, static_cast<int64_t*>(result.mutable_data()),
                         stream);
  return result;
}

// Whether a tensor can be what a fused forward has kept: a graph may hand in another.
bool can_be_extremes(const Conv2d& call, const Tensor& kept) {
  if (kept.dtype() != aoti_torch_dtype_float32() ||
      kept.device_type() != call.input.device_type() ||
      kept.device_index() != call.input.device_index() || kept.ndim() != 4)
    return false;
  auto shape = call.shape;
  shape[call.dim] = 1;
  return four_sizes(kept) == shape && is_contiguous(kept) && is_aligned(kept);
}

struct Event {
  Event() { check(cudaEventCreate(&event)); }
  Event(const Event&) = delete;
  ~Event() { cudaEventDestroy(event); }
  cudaEvent_t event;
};

constexpr float kFailed = std::numeric_limits<float>::infinity();

// Milliseconds that a call takes on the GPU, the least of several; kFailed where it fails.
float time_of(const std::function<void()>& call, void* stream) try {
  const Event begin, end;
  float least = kFailed;
  call();
  for (int i = 0; i < kTimed; ++i) {
    check(cudaEventRecord(begin.event, static_cast<cudaStream_t>(stream)));
    call();
    check(cudaEventRecord(end.event, static_cast<cudaStream_t>(stream)));
    check(cudaEventSynchronize(end.event));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
    least = std::min(least, milliseconds);
  }
  return least;
} catch (const std::exception&) {
  cudaGetLastError();
  return kFailed;
}

// Of the kernels that there are, and with ConvolutionKey::fastest of the unfused form too; none
// where that could not be found out.
std::optional<Choice> choose(const ConvolutionKey& key, const Conv2d& call,
                             const std::function<void()>& unfused, void* stream) {
  const auto device = static_cast<int32_t>(key.device);
  auto kernels = compile_fused(device, key.convolution, key.fastest ? kTried : 1);
  if (kernels.empty()) return Choice();
  if (!key.fastest) return Choice(std::move(kernels.front()));
  Choice choice;
  bool any_timed = false;
  float least = time_of(unfused, stream);
  for (auto& kernel : kernels) {
    const auto fused = [&] { run_fused(call, key.convolution, *kernel, false, stream); };
    const float time = time_of(fused, stream);
    any_timed |= time != kFailed;
    if (time >= least) continue;
    least = time;
    choice = std::move(kernel);
  }
  return any_timed ? std::optional(choice) : std::nullopt;
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

// What is kept for a key, or made now; none where nothing can be made now. Throws where that fails:
// in later calls, too, unless it would fail in the same way.
template <class Make>
std::optional<Choice> find_or_make(const ConvolutionKey& key, void* stream, Make&& make) {
  std::optional<Choice> choice = choices().find(key);
  // A kernel that is loaded now would not be in a graph that is captured now.
  if (choice || is_capturing(stream)) return choice;
  const std::lock_guard lock(choices().making.at(key.device));
  choice = choices().find(key);  // another thread may have made it
  if (choice || !choices().has_room(key)) return choice;
  try {
    choice = make();
  } catch (const CannotCompile&) {
    choices().keep(key, nullptr);
    throw;
  }
  if (!choice) throw std::runtime_error("reduceops: no kernel could be timed");
  choices().keep(key, *choice);
  return choice;
}

// Once in a process.
void warn_of(const std::exception& failure) {
  static std::once_flag warned;
  std::call_once(warned, [&] {
    const std::string text =
        std::string("customops: one kernel for a convolution and what follows it failed (") +
        failure.what() + "); torch's convolution is used, whose last bits may be others";
    aoti_torch_warn(__func__, __FILE__, __LINE__, text.c_str());
  });
}

// `fused` with the kernel of a call, else `unfused`, which is also for where that fails: where
// there is no memory, say; a later call tries again.
template <class Fused, class Unfused>
auto run_with_kernel(const ConvolutionKey& key, void* stream,
                     const std::function<std::optional<Choice>()>& make, Fused&& fused,
                     Unfused&& unfused) {
  if (choices().skips(key)) return unfused();
  try {
    const std::optional<Choice> choice = find_or_make(key, stream, make);
    if (choice && *choice) {
      auto result = fused(**choice);
      choices().succeeded(key);
      return result;
    }
  } catch (const std::exception& failure) {
    if (is_capturing(stream)) throw;
    cudaGetLastError();  // else our next launch would report it as its own
    choices().failed(key);
    warn_of(failure);
  }
  return unfused();
}

// `keep` as of run_fused.
template <class Unfused>
Kept run_either(const Conv2d& call, bool keep, Unfused&& unfused) {
  const int32_t device = call.input.device_index();
  const DeviceGuard guard(device);
  void* const stream = current_stream(device);
  const Settings now = settings();
  ConvolutionKey key{{}, device, now.benchmark};
  if (!describe(call, now, key.convolution)) return unfused();
  const auto make = [&] { return choose(key, call, unfused, stream); };
  const auto fused = [&](const FusedKernel& kernel) {
    return run_fused(call, key.convolution, kernel, keep, stream);
  };
  return run_with_kernel(key, stream, make, fused, unfused);
}

}  // namespace

Tensor run_conv2d(Run run, const char* op, const Conv2d& call) {
  return run_either(call, false,
                    [&] {
                      Tensor result = run_unfused(run, op, aoti_torch_cuda_convolution, call);
                      return Kept{result.share(), result.share()};
                    })
      .values;
}

Kept run_conv2d_and_keep(Run run, const char* op, const Conv2d& call) {
  return run_either(
      call, true, [&] { return run_unfused_and_keep(run, op, aoti_torch_cuda_convolution, call); });
}

Tensor find_channels(Run run, const char* op, const Conv2d& call, const Tensor& kept) {
  const int32_t device = call.input.device_index();
  const DeviceGuard guard(device);
  void* const stream = current_stream(device);
  const auto unfused = [&] {
    return run_unfused(run, op, aoti_torch_cuda_convolution, call, true);
  };
  const Settings now = settings();
  ConvolutionKey key{{}, device, now.benchmark};
  if (!describe(call, now, key.convolution) || !can_be_extremes(call, kept)) return unfused();
  const std::optional<Choice> of_extremes = choices().find(key);
  if (!of_extremes || !*of_extremes) return unfused();
  key.convolution.finds_channels = true;
  const auto make = [&]() -> std::optional<Choice> {
    // The same, so that its sums are the same bit by bit.
    auto kernels = compile_fused(device, key.convolution, 1, &(*of_extremes)->configuration());
    return kernels.empty() ? Choice() : Choice(std::move(kernels.front()));
  };
  const auto fused = [&](const FusedKernel& kernel) {
    return run_fused_channels(call, key.convolution, kernel, kept, stream);
  };
  return run_with_kernel(key, stream, make, fused, unfused);
}

}  // namespace reduceops::cuda

// For `python -m customops`: why no convolution is one kernel with what follows it, null where some
// are.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_not_fused() {
  if (!reduceops::cuda::has_settings()) return "this torch does not say how it is set up";
  return reduceops::cuda::why_not_fused();
}

// For customops.inductor: the same of one convolution under torch's settings.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_convolution_not_fused(
    int64_t filters, int64_t channels, int64_t height, int64_t width, int64_t positions,
    int64_t bytes) {
  using namespace reduceops::cuda;
  return why_unfused({filters, channels, height, width, positions, bytes}, settings());
}
