// The CUDA implementation of the operators: plan, take a workspace where parts need one, enqueue on
// the current stream.
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cuda/call_cache.h"
#include "cuda/conv2d.h"
#include "cuda/device.cuh"
#include "cuda/device_guard.h"
#include "cuda/one_shot.h"
#include "cuda/pack.h"
#include "cuda/steps.h"
#include "distributed.h"
#include "operators.h"
#include "registration.h"
#include "switch.h"

namespace reduceops::cuda {

// A launch also reports what earlier work on the device has done wrong, which is known only now.
void fail(cudaError_t error) {
  cudaGetLastError();  // it is reported here, and not again by who launches next
  const char* whose = "";
  switch (error) {
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
    case cudaErrorNvlinkUncorrectable:
      whose = "an earlier CUDA error, not of this call: ";
      break;
    default:
      whose = "CUDA error: ";
  }
  throw std::runtime_error(std::string("reduceops: ") + whose + cudaGetErrorString(error));
}

namespace {

bool set(Tuning& tuning, std::string_view name, int64_t value) {
  for (const Tunable& tunable : kTunables) {
    if (tunable.name == name) {
      set(tuning, tunable, value);
      return true;
    }
  }
  return false;
}

// REDUCEOPS_CUDA_TUNING="name=value,..." changes constants of the plan.
Tuning tuning_of_environment() {
  Tuning tuning;
  const char* variable = std::getenv("REDUCEOPS_CUDA_TUNING");
  std::string_view rest = variable ? variable : "";
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view digits = item.substr(std::min(item.size(), equals + 1));
    int64_t value = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() || value < 0 ||
        !set(tuning, item.substr(0, equals), value)) {
      std::string names;
      for (const Tunable& tunable : kTunables)
        names += (names.empty() ? "" : ", ") + std::string(tunable.name);
      throw std::runtime_error(
          "reduceops: REDUCEOPS_CUDA_TUNING: no constant of the plan is set by '" +
          std::string(item) + "'; it takes name=value with a value from 0 on and one of " + names);
    }
  }
  return tuning;
}

const Tuning& tuning() {
  static const Tuning tuning = tuning_of_environment();
  return tuning;
}

// Stands for all kernels, which are compiled for the same architectures.
__global__ void any_kernel() {}

std::string version(int number) {
  return std::to_string(number / 1000) + '.' + std::to_string(number % 1000 / 10);
}

// Why there is no code of ours for a device; empty if the error is another one.
std::string why_no_code(cudaError_t error, int32_t device) {
  int runtime = 0, driver = 0, major = 0, minor = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  const std::string capability = std::to_string(major) + '.' + std::to_string(minor);
  switch (error) {
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorUnsupportedPtxVersion:
      return "reduceops: the CUDA library is built with CUDA " + version(runtime) +
             ", for which the driver (for CUDA " + version(driver) +
             ") is too old: it needs a newer driver, or a build with an older CUDA";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
      return "reduceops: the CUDA library has code for " REDUCEOPS_CUDA_ARCHITECTURES
             " and none for this GPU, of compute capability " +
             capability + ": build it with TORCH_CUDA_ARCH_LIST=" + capability;
    default:
      return "";
  }
}

struct Device {
  Limits limits;
  bool early_launch;
};

// Of the current device. What not every GPU has, the library's code for it must have too. Rings are
// made for the shared memory of a Hopper multiprocessor, which not every later GPU has.
Device ask_device(int32_t index) {
  cudaFuncAttributes code{};
  if (const cudaError_t error = cudaFuncGetAttributes(&code, any_kernel)) {
    const std::string why = why_no_code(error, index);
    if (why.empty()) fail(error);
    cudaGetLastError();
    throw CannotRun(why);
  }
  int count = 0, major = 0, shared = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index));
  const bool hopper = major >= 9 && code.ptxVersion >= 90;
  return {{count, hopper && shared >= kSharedBytes}, hopper};
}

// The same, asked for once; two threads may both ask.
const Device& device_of(int32_t index) {
  static std::array<std::atomic<const Device*>, kDevices> known{};
  const Device* device = known.at(index).load(std::memory_order_acquire);
  if (!device) {
    device = new Device(ask_device(index));
    known[index].store(device, std::memory_order_release);
  }
  return *device;
}

void launch_walk(const Reduction& r, const Problem& problem, void* stream) {
  switch (problem.plan.walk) {
    case Walk::kSmall:
      return launch_small(r, problem, stream);
    case Walk::kWholeRows:
      return launch_whole_rows(r, problem, stream);
    case Walk::kRows:
      return launch_rows(r, problem, stream);
    case Walk::kWholeColumns:
      return launch_whole_columns(r, problem, stream);
    case Walk::kColumns:
      return launch_columns(r, problem, stream);
    case Walk::kBoxes:
      return launch_boxes(r, problem, stream);
    case Walk::kBulkColumns:
      return launch_bulk_columns(r, problem, stream);
    case Walk::kTiles:
      return launch_tiles(r, problem, stream);
    case Walk::kGather:
      return launch_gather(r, problem, stream);
    case Walk::kFill:
      return launch_fill(r, stream);
  }
}

Task task_of(const Reduction& r) {
  return r.mask ? Task::kMasked : r.softmax ? Task::kSoftmax : Task::kExtreme;
}

Stores stores_of(const Reduction& r) { return {r.indices != nullptr, r.values != nullptr}; }

// Good until the next call of this thread.
const Steps& steps_of(const Reduction& r, Stores stores) {
  thread_local CallCache<Steps> cache;
  // No plan asks for more than where a line of memory begins.
  const int64_t address = reinterpret_cast<int64_t>(r.input) % kLineBytes;
  const Call call{r.dtype->bytes, address, stores, task_of(r), r.device_index};
  return cache.find(r.groups, call, [&] {
    return steps_of(r.groups, call.bytes, address, device_of(call.device).limits, tuning(),
                    call.task, stores);
  });
}

// `problem` is that of the whole groups, by which candidates of their columns are combined.
void launch_folded(const Reduction& r, const FoldedPlan& plan, const Problem& problem, bool early,
                   void* stream) {
  const Folded folded(r.groups, plan.fold);
  Reduction columns = r;
  columns.groups = folded.groups;
  launch_walk(columns, make_problem(columns, plan, problem.candidates.workspace), stream);
  launch_combine(r, problem, folded.columns, early, stream);
}

// The walk over the groups of `r`. With `pairs`, stores these in place of indices and values.
void launch(const Reduction& r, const Steps& steps, const Words& pairs, void* stream) {
  const FoldedPlan& plan = steps.plan;
  const Device& device = device_of(r.device_index);
  std::optional<Tensor> workspace;
  if (const int64_t of_output = plan.workspace_of_output())
    workspace.emplace(empty_bytes(r.groups.outputs * of_output, r.device_index));
  Problem problem = make_problem(r, plan, workspace ? workspace->mutable_data() : nullptr);
  problem.out.pairs = pairs;
  switch (steps.task) {
    case Task::kExtreme:
      if (plan.is_folded()) return launch_folded(r, plan, problem, device.early_launch, stream);
      launch_walk(r, problem, stream);
      if (plan.has_combine()) launch_combine(r, problem, {}, device.early_launch, stream);
      break;
    case Task::kMasked:
      launch_masked(r, problem, device.early_launch, stream);
      break;
    case Task::kSoftmax:
      launch_softmax(r, problem, device.early_launch, stream);
      break;
  }
}

// Memory for so many results, where `r` then stores them.
Tensor hold_results(Reduction& r, int64_t count) {
  const int64_t value_bytes = r.values ? round_up(count * r.dtype->bytes, kLoadBytes) : 0;
  const int64_t index_bytes = r.indices ? count * r.index_bytes : 0;
  Tensor results = empty_bytes(value_bytes + index_bytes, r.device_index);
  auto* at = static_cast<char*>(results.mutable_data());
  if (r.values) r.values = at;
  if (r.indices) r.indices = at + value_bytes;
  return results;
}

void copy_results(const Reduction& from, const Reduction& to, int64_t count, void* stream) {
  const auto copy = [&](const void* source, void* target, int64_t bytes) {
    if (target)
      check(cudaMemcpyAsync(target, source, count * bytes, cudaMemcpyDeviceToDevice,
                            static_cast<cudaStream_t>(stream)));
  };
  copy(from.indices, to.indices, from.index_bytes);
  copy(from.values, to.values, from.dtype->bytes);
}

void launch_steps(Reduction& r, const Steps& steps, void* stream);

// (Not by reference, for the steps of a slice may be kept where those of all were.)
void launch_slices(const Reduction& r, const Slices slices, void* stream) {
  for (int64_t i = 0; i < slices.count; ++i) {
    Reduction slice = r;
    narrow(slice, slices.dim, slices.begin(i), slices.positions(r.groups, i));
    launch_steps(slice, steps_of(slice, stores_of(slice)), stream);
  }
}

// What most calls do comes first, without a copy of the reduction.
void launch_steps(Reduction& r, const Steps& steps, void* stream) {
  if (steps.slices.count > 1) return launch_slices(r, steps.slices, stream);
  if (!steps.repeats && !steps.hides) {
    r.groups = steps.groups;
    return launch(r, steps, {}, stream);
  }
  Reduction walked = r;
  walked.groups = steps.groups;
  launch(walked, steps, {}, stream);
  const bool early = device_of(r.device_index).early_launch;
  if (steps.repeats) {
    Reduction all = r;
    if (steps.hides) all.groups = without_mask(r.groups);
    const int64_t bytes = (r.indices ? r.index_bytes : 0) + (r.values ? r.dtype->bytes : 0);
    std::optional<Tensor> workspace;
    const auto hold = [&](Reduction& some, int64_t count) {
      workspace.emplace(hold_results(some, count));
      copy_results(all, some, count, stream);
    };
    steps.packed ? repeat_packed(all, (kWorkspaceBytes - kLoadBytes) / bytes, hold, early, stream)
                 : launch_repeat(all, early, stream);
  }
  if (steps.hides) launch_hide(r, early, stream);
}

void run(Reduction& r) {
  const DeviceGuard guard(r.device_index);
  r.value_alone = !r.indices;
  launch_steps(r, steps_of(r, stores_of(r)), current_stream(r.device_index));
}

// What a walk could not store as pairs, what a mask may hide, and what is not yet the index in all
// shards, a second kernel makes pairs of.
void run_pairs(Reduction& r, Packing& p) {
  const DeviceGuard guard(r.device_index);
  void* stream = current_stream(r.device_index);
  const Groups& groups = r.groups;
  if (groups.extent == 0 || groups.outputs == 0) return launch_pack(p, *r.dtype, stream);
  if (groups.copies == 1 && p.shard.dims <= 1 && !r.mask) {
    const Steps& steps = steps_of(r, {.index = true});  // a pair costs as much
    if (steps.slices.count == 1 && stores_pairs(steps.plan.walk)) {
      r.groups = steps.groups;
      r.indices = nullptr;
      r.values = p.to.words;
      return launch(r, steps, p.to, stream);
    }
  }
  // Not among the words, which are not aligned for stores of several results.
  const int64_t value_bytes = round_up(p.to.count * r.dtype->bytes, kLoadBytes);
  const Tensor results =
      empty_bytes(value_bytes + p.to.count * int64_t(sizeof(int64_t)), r.device_index);
  p.values = r.values = results.mutable_data();
  r.indices = static_cast<char*>(r.values) + value_bytes;
  p.indices = static_cast<const int64_t*>(r.indices);
  r.index_bytes = sizeof(int64_t);
  launch_steps(r, steps_of(r, stores_of(r)), stream);
  launch_pack(p, *r.dtype, stream);
}

void unpack_pairs(const Unpacking& unpacking, const Gathered& words, const Reduction& order) {
  const DeviceGuard guard(order.device_index);
  launch_unpack(unpacking, words, order, current_stream(order.device_index));
}

// (words, self, dims, largest, keepdim, buffers, own, state, rank, timeout) -> (values, indices):
// of this rank's words and of those that the others send meanwhile. `own` is this rank's buffer,
// (2, ranks, capacity, 2), and `buffers` has the addresses of all.
void one_shot(StableIValue* stack, uint64_t, uint64_t) {
  constexpr const char* op = "_one_shot";
  const Tensor words(stack[0]);
  const Input self(stack[1]);
  const auto dims = argument<std::vector<int64_t>>(stack[2]);
  const bool largest = argument<bool>(stack[3]), keepdim = argument<bool>(stack[4]);
  const Tensor buffers(stack[5]), own(stack[6]), state(stack[7]);
  const auto is = [](const Tensor& tensor, int32_t dtype, int64_t ndim) {
    return tensor.dtype() == dtype && tensor.ndim() == ndim;
  };
  if (!is(buffers, aoti_torch_dtype_int64(), 1) || !is(own, aoti_torch_dtype_int64(), 4) ||
      !is(state, aoti_torch_dtype_int32(), 1))
    reduceops::fail(op, "a buffer has another dtype or shape");
  const int64_t ranks = buffers.sizes()[0], *slots = own.sizes();
  if (buffers.strides()[0] != 1 || state.strides()[0] != 1 || slots[0] != 2 || slots[1] != ranks ||
      slots[3] * sizeof(int64_t) != kSlotBytes || state.sizes()[0] != 2)
    reduceops::fail(op, "a buffer has another dtype or shape");
  const int32_t device = self.tensor.device_index();
  if (buffers.device_index() != device || own.device_index() != device ||
      state.device_index() != device)
    reduceops::fail(op, "the buffers are on another device");
  OneShot e{};
  e.capacity = slots[2];
  e.rank = argument<int64_t>(stack[8]);
  e.timeout = static_cast<uint64_t>(argument<int64_t>(stack[9]));
  if (e.rank < 0 || e.rank >= ranks) reduceops::fail(op, "there is no rank ", e.rank);
  e.buffers = static_cast<void* const*>(buffers.data());
  e.state = static_cast<uint32_t*>(state.mutable_data());
  const uint64_t mask = check_dims(op, dims.data(), dims.size(), self.ndim);
  unpack_words(op, stack, words, self, mask, largest, keepdim, {true, true},
               [&](Unpacking u, const Gathered& sent, const Reduction& order) {
                 if (u.ranks != 1 || sent.length > e.capacity || u.count > kMostOneShot)
                   reduceops::fail(op, u.ranks, " times ", sent.length, " words do not fit");
                 u.ranks = ranks;
                 e.words = sent.words;
                 const DeviceGuard guard(order.device_index);
                 launch_one_shot(u, e, order, current_stream(order.device_index));
               });
}

}  // namespace

REDUCEOPS_LIBRARY_IMPL(CUDA, m) {
  Operators<run>::implement(m);
  DistributedOperators<run_pairs, unpack_pairs>::implement(m);
  Conv2dOperators<run, run_conv2d, run_conv2d_and_keep, find_channels>::implement(m);
  m.impl("_one_shot", one_shot);
}

}  // namespace reduceops::cuda

// For `python -m customops`.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_architectures() {
  return REDUCEOPS_CUDA_ARCHITECTURES;
}

// For `import customops`: the versions of CUDA that this is built with and that the driver is for
// (0: there is none), as CUDA numbers them. It does not initialise CUDA.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_versions() {
  static const std::string versions = [] {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    return std::to_string(CUDART_VERSION) + ',' + std::to_string(driver);
  }();
  return versions.c_str();
}

// For the same: null, or why nothing can run on a device. Valid until the thread's next call.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_problem(
    int32_t device) {
  thread_local std::string problem;
  try {
    const reduceops::cuda::DeviceGuard guard(device);
    reduceops::cuda::ask_device(device);
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}

// For customops.enable(): null, or what went wrong.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_switch(bool on) {
  return reduceops::Switch<reduceops::cuda::run>::set(on, "CUDA", "cuda");
}
