// One kernel of cuDNN (cudnn.h) where it has one and that is worth while, else a convolution of
// torch and scale_min.
#include "cuda/conv2d.h"

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <mutex>

#include "cuda/cudnn.h"
#include "cuda/device.cuh"
#include "cuda/device_guard.h"
#include "cuda/layout.h"
#include "torch_private.h"

namespace reduceops::cuda {
namespace {

// Kernels that are kept, of all devices: the least recently used one goes first.
constexpr size_t kKept = 256;
// Kernels that are tried where torch.backends.cudnn.benchmark is set.
constexpr size_t kTried = 16;
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

// A choice of kernel, null for the unfused form, for a convolution on a device.
struct Key {
  FusedConvolution convolution;
  int64_t device;
  bool fastest;
  auto operator<=>(const Key&) const = default;
};
using Choice = std::shared_ptr<const FusedKernel>;

class Choices {
 public:
  // Null where there is none yet.
  const Choice* find(const Key& key, Choice& found) {
    const std::lock_guard lock(mutex_);
    const auto at = places_.find(key);
    if (at == places_.end()) return nullptr;
    recent_.splice(recent_.begin(), recent_, at->second);
    found = recent_.front().second;
    return &found;
  }

  void keep(const Key& key, Choice choice) {
    const std::lock_guard lock(mutex_);
    if (places_.count(key)) return;  // another thread was as fast
    recent_.emplace_front(key, std::move(choice));
    places_[key] = recent_.begin();
    if (recent_.size() <= kKept) return;
    places_.erase(recent_.back().first);
    recent_.pop_back();
  }

 private:
  using List = std::list<std::pair<Key, Choice>>;
  std::mutex mutex_;
  List recent_;  // used last, first
  std::map<Key, List::iterator> places_;
};

Choices& choices() {
  static auto* choices = new Choices;  // kernels outlive the driver at the end of a process
  return *choices;
}

bool is_channels_last(const Tensor& tensor) {
  const int64_t *size = tensor.sizes(), *stride = tensor.strides();
  int64_t expected = 1;
  for (const int d : {1, 3, 2, 0}) {
    if (size[d] != 1 && stride[d] != expected) return false;
    expected *= size[d];
  }
  return true;
}

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

Tensor bytes(int64_t count, int32_t device) {
  constexpr int64_t kStride = 1;
  return Tensor::empty(1, &count, &kStride, aoti_torch_dtype_uint8(), aoti_torch_device_type_cuda(),
                       device);
}

// A tensor in channels_last, by a copy if need be.
class ChannelsLast {
 public:
  explicit ChannelsLast(const Tensor& tensor) : data_(tensor.data()), tensor_(tensor) {
    if (is_channels_last(tensor) && is_aligned(tensor)) return;
    const int64_t* size = tensor.sizes();
    const int width = dtype_of(tensor.dtype()).bytes;
    copy_.emplace(bytes(size[0] * size[1] * size[2] * size[3] * width, tensor.device_index()));
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
  constexpr int64_t kTile = 128, kFewTiles = 64, kLongSum = 2048;
  if (const char* why = why_not_fused()) return why;
  if (!settings.enabled) return "torch does not use cuDNN";
  if (size.bytes > 4) return "cuDNN has no kernel for the dtype";
  if (size.bytes == 4 && !settings.tf32) return "torch does not allow TF32";
  if (size.channels < 8 || size.channels % 4 != 0)
    return "the kernel is slow where it cannot load several channels at once";
  const auto tiles = [](int64_t n) { return (n + kTile - 1) / kTile; };
  const int64_t sum = size.channels * size.height * size.width;
  if (tiles(size.positions) * tiles(size.filters) < kFewTiles && sum >= kLongSum)
    return "the kernel does not share long sums among multiprocessors that have nothing to do";
  return nullptr;
}

// The kernel does not scale: the extreme element times a number is the extreme product.
bool looks_for_largest(const Conv2d& call) { return call.largest != (call.scale < 0); }

// What the kernel of a call is compiled for; false where no kernel can be or is worth while.
bool describe(const Conv2d& call, const Settings& settings, FusedConvolution& c) {
  const int bytes = call.dtype->bytes;
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
       .tf32 = settings.tf32,
       .deterministic = settings.deterministic};
  return true;
}

Tensor run_fused(const Conv2d& call, const FusedKernel& kernel, void* stream) {
  const int32_t device = call.input.device_index();
  const ChannelsLast input(call.input), weight(call.weight);
  Tensor result = empty_result(call, call.input.dtype());
  const int64_t count = call.shape[0] * call.shape[2] * call.shape[3];
  std::optional<Tensor> wide, workspace;
  if (call.dtype->bytes < 4) wide.emplace(bytes(count * sizeof(float), device));
  if (const int64_t size = kernel.workspace_bytes()) workspace.emplace(bytes(size, device));
  auto* const unfinished = static_cast<float*>((wide ? *wide : result).mutable_data());
  input.copy(stream);
  weight.copy(stream);
  kernel.enqueue({input.data(), weight.data(), call.bias ? call.bias->data() : nullptr, unfinished},
                 workspace ? workspace->mutable_data() : nullptr, stream);
  const auto scale = static_cast<float>(call.scale);
  launch_finish({unfinished, result.mutable_data(), count, scale, looks_for_largest(call)},
                *call.dtype, stream);
  return result;
}

// Microseconds that a call takes on the GPU, the least of several.
float time_of(const std::function<void()>& call, void* stream) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  float least = std::numeric_limits<float>::infinity();
  call();
  for (int i = 0; i < kTimed; ++i) {
    check(cudaEventRecord(begin, static_cast<cudaStream_t>(stream)));
    call();
    check(cudaEventRecord(end, static_cast<cudaStream_t>(stream)));
    check(cudaEventSynchronize(end));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    least = std::min(least, milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return least;
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

Tensor run_conv2d(Run run, const char* op, const Conv2d& call) {
  const int32_t device = call.input.device_index();
  const DeviceGuard guard(device);
  void* const stream = current_stream(device);
  const auto unfused = [&] { return run_unfused(run, op, aoti_torch_cuda_convolution, call); };

  const Settings now = settings();
  Key key{{}, device, now.benchmark};
  if (!describe(call, now, key.convolution)) return unfused();
  Choice choice;
  if (!choices().find(key, choice)) {
    // A kernel that is loaded now would not be in a graph that is captured now.
    if (is_capturing(stream)) return unfused();
    auto kernels = compile_fused(device, key.convolution, now.benchmark ? kTried : 1);
    if (now.benchmark) {
      float least = time_of([&] { unfused(); }, stream);
      for (auto& kernel : kernels) {
        const float time = time_of([&] { run_fused(call, *kernel, stream); }, stream);
        if (time >= least) continue;
        least = time;
        choice = std::move(kernel);
      }
    } else if (!kernels.empty()) {
      choice = std::move(kernels.front());
    }
    choices().keep(key, choice);
  }
  return choice ? run_fused(call, *choice, stream) : unfused();
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
    int32_t filters, int32_t channels, int32_t height, int32_t width, int32_t positions,
    int32_t bytes) {
  using namespace reduceops::cuda;
  return why_unfused({filters, channels, height, width, positions, bytes}, settings());
}
