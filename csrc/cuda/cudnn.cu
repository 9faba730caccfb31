// cuDNN's graph API by its C interface, of the library that torch has loaded: nothing is linked.
#include "cuda/cudnn.h"

#ifdef REDUCEOPS_CUDNN

#include <cudnn_graph.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cuda/sizes.h"

namespace reduceops::cuda {
namespace {

#define REDUCEOPS_CUDNN_FUNCTIONS(X) \
  X(cudnnGetVersion)                 \
  X(cudnnGetErrorString)             \
  X(cudnnGetLastErrorString)         \
  X(cudnnCreate)                     \
  X(cudnnSetStream)                  \
  X(cudnnBackendCreateDescriptor)    \
  X(cudnnBackendDestroyDescriptor)   \
  X(cudnnBackendSetAttribute)        \
  X(cudnnBackendGetAttribute)        \
  X(cudnnBackendFinalize)            \
  X(cudnnBackendExecute)

struct Api {
#define REDUCEOPS_DECLARE(name) decltype(&::name) name = nullptr;
  REDUCEOPS_CUDNN_FUNCTIONS(REDUCEOPS_DECLARE)
#undef REDUCEOPS_DECLARE
  std::string problem;

  Api() {
    const std::string file = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!library) {
      problem = "torch has not loaded " + file;
      return;
    }
#define REDUCEOPS_FIND(name)                                      \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (!name) problem = file + " has no " #name;
    REDUCEOPS_CUDNN_FUNCTIONS(REDUCEOPS_FIND)
#undef REDUCEOPS_FIND
  }
};

const Api& api() {
  static const Api found;
  return found;
}

// What may work at another time.
struct OutOfMemory : std::runtime_error {
  using runtime_error::runtime_error;
};
// What cuDNN has no kernel for.
struct NotSupported : std::runtime_error {
  using runtime_error::runtime_error;
};

void check(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char cause[512] = "";
  api().cudnnGetLastErrorString(cause, sizeof(cause));
  const std::string text =
      std::string("reduceops: ") + api().cudnnGetErrorString(status) + ": " + cause;
  if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
    throw OutOfMemory(text);
  const auto category = CUDNN_STATUS_CATEGORY(status);
  if (category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM)
    throw NotSupported(text);
  throw std::runtime_error(text);
}

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(cudaGetErrorString(status));
}

// Of a C++ type, what cuDNN calls it.
template <class T>
constexpr auto kTypeOf = nullptr;
template <>
constexpr auto kTypeOf<int64_t> = CUDNN_TYPE_INT64;
template <>
constexpr auto kTypeOf<bool> = CUDNN_TYPE_BOOLEAN;
template <>
constexpr auto kTypeOf<float> = CUDNN_TYPE_FLOAT;
template <>
constexpr auto kTypeOf<void*> = CUDNN_TYPE_VOID_PTR;
template <>
constexpr auto kTypeOf<cudnnHandle_t> = CUDNN_TYPE_HANDLE;
template <>
constexpr auto kTypeOf<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
constexpr auto kTypeOf<cudnnConvolutionMode_t> = CUDNN_TYPE_CONVOLUTION_MODE;
template <>
constexpr auto kTypeOf<cudnnPointwiseMode_t> = CUDNN_TYPE_POINTWISE_MODE;
template <>
constexpr auto kTypeOf<cudnnReduceTensorOp_t> = CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
template <>
constexpr auto kTypeOf<cudnnBackendKnobType_t> = CUDNN_TYPE_KNOB_TYPE;
template <>
constexpr auto kTypeOf<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;
template <>
constexpr auto kTypeOf<cudnnBackendNumericalNote_t> = CUDNN_TYPE_NUMERICAL_NOTE;

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(api().cudnnBackendCreateDescriptor(type, &handle_));
  }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (handle_) api().cudnnBackendDestroyDescriptor(handle_);
  }

  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, const T* values, size_t count) {
    check(api().cudnnBackendSetAttribute(handle_, name, kTypeOf<T>, static_cast<int64_t>(count),
                                         values));
    return *this;
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, const T& value) {
    return set(name, &value, 1);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return set(name, std::vector{value.handle_});
  }
  // To cuDNN's types a descriptor is a pointer to anything.
  Descriptor& set(cudnnBackendAttributeName_t name,
                  const std::vector<cudnnBackendDescriptor_t>& values) {
    check(api().cudnnBackendSetAttribute(handle_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         static_cast<int64_t>(values.size()), values.data()));
    return *this;
  }
  template <class T, size_t n>
  Descriptor& set(cudnnBackendAttributeName_t name, const std::array<T, n>& values) {
    return set(name, values.data(), n);
  }
  Descriptor& finalize() {
    check(api().cudnnBackendFinalize(handle_));
    return *this;
  }

  // Up to `most` values, and how many they are.
  template <class T>
  int64_t get(cudnnBackendAttributeName_t name, T* values, int64_t most) const {
    return get(name, kTypeOf<T>, values, most);
  }
  // Fills in descriptors that there are already.
  int64_t get(cudnnBackendAttributeName_t name,
              std::vector<cudnnBackendDescriptor_t>& values) const {
    return get(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, values.data(), std::ssize(values));
  }

  cudnnBackendDescriptor_t handle() const { return handle_; }

 private:
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, void* values,
              int64_t most) const {
    int64_t count = 0;
    check(api().cudnnBackendGetAttribute(handle_, name, type, most, &count, values));
    return std::min(count, most);
  }

  cudnnBackendDescriptor_t handle_ = nullptr;
};

// One thread may use a handle at a time. Never destroyed: at the end of a process the driver may be
// gone before.
struct Handle {
  std::mutex mutex;
  cudnnHandle_t handle = nullptr;

  // With the mutex locked.
  cudnnHandle_t get() {
    if (!handle) check(api().cudnnCreate(&handle));
    return handle;
  }
};

// Two, so that calls do not wait while another thread compiles.
struct Device {
  Handle compiling, running;
};

Device& device_of(int32_t index) {
  static auto* devices = new std::array<Device, kDevices>;
  return devices->at(index);
}

// The operands by their numbers in a graph; tensors that are never in memory come after these.
enum Operand : int64_t {
  kInput = 1,
  kWeight,
  kBias,
  kInfinity,
  kNone,
  kExtremes,
  kChannels,
  kOthers
};

using Sizes = std::array<int64_t, 4>;

Sizes channels_last(const Sizes& size) {
  return {size[1] * size[2] * size[3], 1, size[1] * size[3], size[1]};
}

class Graph {
 public:
  Graph(const FusedConvolution& c, cudnnHandle_t handle);
  // Of its kernels that are allowed, the most promising one first.
  std::vector<FusedConfiguration> configurations(int32_t device) const;
  Descriptor finalize(const FusedConfiguration& configuration) const;

 private:
  Descriptor tensor(int64_t number, const Sizes& size, cudnnDataType_t type,
                    std::optional<cudnnBackendAttributeName_t> flag = std::nullopt);
  Descriptor between(cudnnDataType_t type) {
    return tensor(next_++, convolution_.output, type, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  }
  Descriptor number(int64_t which) {
    return tensor(which, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  }
  void convolve(const Descriptor& x, const Descriptor& w, const Descriptor& y);
  void pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor& other,
                 const Descriptor& y, const Descriptor* condition = nullptr);
  void number_channels(const Descriptor& x, const Descriptor& y);
  void reduce(const Descriptor& x, cudnnReduceTensorOp_t op, const Descriptor& y);
  bool is_allowed(const Descriptor& engine) const;
  std::vector<FusedConfiguration> ask_heuristics() const;

  const FusedConvolution convolution_;
  int64_t next_ = kOthers;
  std::vector<Descriptor> operations_;
  Descriptor graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};

Graph::Graph(const FusedConvolution& c, cudnnHandle_t handle) : convolution_(c) {
  using Type = FusedConvolution::Type;
  const auto type = c.type == Type::kFloat16    ? CUDNN_DATA_HALF
                    : c.type == Type::kBFloat16 ? CUDNN_DATA_BFLOAT16
                                                : CUDNN_DATA_FLOAT;
  constexpr auto kFloat = CUDNN_DATA_FLOAT;
  const Descriptor convolved = between(kFloat), biased = between(kFloat);
  convolve(tensor(kInput, c.input, type), tensor(kWeight, c.weight, type), convolved);
  if (c.bias) {
    const Sizes size{1, c.output[1], 1, 1};
    pointwise(CUDNN_POINTWISE_ADD, convolved, tensor(kBias, size, type), biased);
  }
  // See FusedOperands: of a NaN and an infinity, cuDNN's maximum is the infinity.
  const Descriptor& result = c.bias ? biased : convolved;
  const Descriptor marked = between(kFloat);
  pointwise(c.largest ? CUDNN_POINTWISE_MIN : CUDNN_POINTWISE_MAX, result, number(kInfinity),
            marked);
  const Sizes reduced{c.output[0], 1, c.output[2], c.output[3]};
  const Descriptor extremes = tensor(kExtremes, reduced, kFloat);
  if (!c.finds_channels) {
    reduce(marked, c.largest ? CUDNN_REDUCE_TENSOR_MAX : CUDNN_REDUCE_TENSOR_MIN, extremes);
  } else {
    const Descriptor is_extreme = between(CUDNN_DATA_BOOLEAN);
    const Descriptor channels = between(kFloat), candidates = between(kFloat);
    pointwise(CUDNN_POINTWISE_CMP_EQ, marked, extremes, is_extreme);
    number_channels(marked, channels);
    pointwise(CUDNN_POINTWISE_BINARY_SELECT, channels, number(kNone), candidates, &is_extreme);
    reduce(candidates, CUDNN_REDUCE_TENSOR_MIN, tensor(kChannels, reduced, kFloat));
  }

  std::vector<cudnnBackendDescriptor_t> handles;
  for (const Descriptor& operation : operations_) handles.push_back(operation.handle());
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle)
      .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, handles)
      .finalize();
}

Descriptor Graph::tensor(int64_t number, const Sizes& size, cudnnDataType_t type,
                         std::optional<cudnnBackendAttributeName_t> flag) {
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, number)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, size)
      .set(CUDNN_ATTR_TENSOR_STRIDES, channels_last(size))
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kFusedAlignment);
  if (flag) tensor.set(*flag, true);
  tensor.finalize();
  return tensor;
}

void Graph::convolve(const Descriptor& x, const Descriptor& w, const Descriptor& y) {
  Descriptor how(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t(2))
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, convolution_.padding)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, convolution_.padding)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, convolution_.dilation)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, convolution_.stride)
      .finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, how)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 1.0f)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 0.0f)
      .finalize();
  operations_.push_back(std::move(operation));
}

void Graph::pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor& other,
                      const Descriptor& y, const Descriptor* condition) {
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
      .finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (condition) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *condition);
  operation.finalize();
  operations_.push_back(std::move(operation));
}

void Graph::number_channels(const Descriptor& x, const Descriptor& y) {
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_POINTWISE_AXIS, int64_t(1))
      .finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y)
      .finalize();
  operations_.push_back(std::move(operation));
}

void Graph::reduce(const Descriptor& x, cudnnReduceTensorOp_t op, const Descriptor& y) {
  Descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, op)
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y)
      .finalize();
  operations_.push_back(std::move(operation));
}

// By what the engine's notes say of its arithmetic, as torch reads them for a convolution.
bool Graph::is_allowed(const Descriptor& engine) const {
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  const int64_t count =
      engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  const auto says = [&](auto note) {
    return std::find(notes, notes + count, note) != notes + count;
  };
  return !says(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) &&
         !(convolution_.deterministic && says(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
}

// So many descriptors of a kind, for cuDNN to fill in.
struct Descriptors {
  Descriptors(cudnnBackendDescriptorType_t type, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      at.emplace_back(type);
      handles.push_back(at.back().handle());
    }
  }
  std::vector<Descriptor> at;
  std::vector<cudnnBackendDescriptor_t> handles;
};

std::vector<FusedConfiguration> Graph::ask_heuristics() const {
  constexpr int64_t kMost = 16;
  Descriptors found(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMost);
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A)
      .finalize();
  const int64_t count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, found.handles);
  std::vector<FusedConfiguration> allowed;
  for (int64_t i = 0; i < count; ++i) {
    Descriptors engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
    found.at[i].get(CUDNN_ATTR_ENGINECFG_ENGINE, engine.handles);
    if (!is_allowed(engine.at.front())) continue;
    FusedConfiguration& configuration = allowed.emplace_back();
    engine.at.front().get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &configuration.engine, 1);
    Descriptors choices(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS);
    const int64_t chosen = found.at[i].get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices.handles);
    for (int64_t k = 0; k < chosen; ++k) {
      cudnnBackendKnobType_t knob;
      int64_t value;
      choices.at[k].get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &knob, 1);
      choices.at[k].get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, &value, 1);
      configuration.knobs.emplace_back(knob, value);
    }
  }
  return allowed;
}

// On Hopper, a kernel of tiles that the filters fill is faster than what the heuristics name first,
// if there are tiles for all multiprocessors; see docs/gpu.md.
std::vector<FusedConfiguration> Graph::configurations(int32_t device) const {
  constexpr int64_t kEngine = 4, kTile = 128;
  const auto of_engine = [](int64_t kernel) {
    return FusedConfiguration{kEngine, {{CUDNN_KNOB_TYPE_KERNEL_CFG, kernel}}};
  };
  std::vector<FusedConfiguration> all = ask_heuristics();
  const auto find = [&](const FusedConfiguration& one) {
    return std::find(all.begin(), all.end(), one);
  };
  int major = 0, multiprocessors = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const auto [images, filters, rows, columns] = convolution_.output;
  const int64_t tiles = ceil_div(images * rows * columns, kTile) * ceil_div(filters, kTile);
  // Another version of cuDNN may number its kernels in another way.
  const bool are_known = find(of_engine(2)) != all.end();
  if (major != 9 || !are_known || filters <= 64 || tiles < multiprocessors) return all;
  const auto preferred = of_engine(filters <= 96 ? 5 : filters <= 128 ? 0 : 2);
  if (const auto at = find(preferred); at != all.end()) all.erase(at);
  all.insert(all.begin(), preferred);
  return all;
}

Descriptor Graph::finalize(const FusedConfiguration& configuration) const {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR), finalized(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph_)
      .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, configuration.engine)
      .finalize();
  Descriptors choices(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, std::ssize(configuration.knobs));
  for (size_t i = 0; i < configuration.knobs.size(); ++i) {
    const auto [knob, value] = configuration.knobs[i];
    choices.at[i]
        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(knob))
        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value)
        .finalize();
  }
  finalized.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!choices.handles.empty()) finalized.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices.handles);
  finalized.finalize();
  return finalized;
}

class Kernel : public FusedKernel {
 public:
  Kernel(const FusedConvolution& c, const Graph& graph, const FusedConfiguration& configuration,
         Device& device)
      : convolution_(c), configuration_(configuration), device_(device) {
    plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, device.compiling.get())
        .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, graph.finalize(configuration))
        .finalize();
    plan_.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &workspace_bytes_, 1);
  }

  const FusedConfiguration& configuration() const override { return configuration_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void enqueue(const FusedOperands& operands, void* workspace, void* stream) const override {
    // The numbers are read before the call returns.
    float infinity = convolution_.largest ? INFINITY : -INFINITY, none = INFINITY;
    std::vector<int64_t> numbers{kInput, kWeight, kInfinity, kExtremes};
    std::vector<void*> pointers{const_cast<void*>(operands.input),
                                const_cast<void*>(operands.weight), &infinity, operands.extremes};
    const auto add = [&](int64_t number, void* pointer) {
      numbers.push_back(number);
      pointers.push_back(pointer);
    };
    if (convolution_.bias) add(kBias, const_cast<void*>(operands.bias));
    if (convolution_.finds_channels) {
      add(kNone, &none);
      add(kChannels, operands.channels);
    }
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, numbers.data(), numbers.size())
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers.data(), pointers.size())
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace)
        .finalize();
    const std::lock_guard lock(device_.running.mutex);
    const cudnnHandle_t handle = device_.running.get();
    check(api().cudnnSetStream(handle, static_cast<cudaStream_t>(stream)));
    check(api().cudnnBackendExecute(handle, plan_.handle(), pack.handle()));
  }

 private:
  const FusedConvolution convolution_;
  const FusedConfiguration configuration_;
  Device& device_;
  int64_t workspace_bytes_ = 0;
  Descriptor plan_{CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR};
};

}  // namespace

const char* why_not_fused() { return api().problem.empty() ? nullptr : api().problem.c_str(); }

std::vector<std::unique_ptr<FusedKernel>> compile_fused(int32_t index,
                                                        const FusedConvolution& convolution,
                                                        size_t most,
                                                        const FusedConfiguration* only) {
  std::vector<std::unique_ptr<FusedKernel>> kernels;
  Device& device = device_of(index);
  const std::lock_guard lock(device.compiling.mutex);
  const cudnnHandle_t handle = device.compiling.get();
  {
    const std::lock_guard running(device.running.mutex);
    device.running.get();  // not while a graph is captured
  }
  // What cuDNN cannot make is no error: there is the other form.
  std::string problem;
  try {
    const Graph graph(convolution, handle);
    for (const auto& configuration : only ? std::vector{*only} : graph.configurations(index)) {
      if (kernels.size() == most) break;
      try {
        kernels.push_back(std::make_unique<Kernel>(convolution, graph, configuration, device));
      } catch (const OutOfMemory&) {
        throw;
      } catch (const NotSupported&) {
      } catch (const std::exception& failure) {
        problem = failure.what();
      }
    }
  } catch (const OutOfMemory&) {
    if (kernels.empty()) throw;
  } catch (const NotSupported&) {
  } catch (const std::exception& failure) {
    problem = failure.what();
  }
  if (kernels.empty() && !problem.empty()) throw CannotCompile(problem);
  return kernels;
}

}  // namespace reduceops::cuda

#else

namespace reduceops::cuda {

const char* why_not_fused() { return "the CUDA library was built without cuDNN's headers"; }

std::vector<std::unique_ptr<FusedKernel>> compile_fused(int32_t, const FusedConvolution&, size_t,
                                                        const FusedConfiguration*) {
  return {};
}

}  // namespace reduceops::cuda

#endif
