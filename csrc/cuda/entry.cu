// The CUDA implementation of the operators: plan, take a workspace where parts need one, enqueue on
// the current stream.
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "cuda/device.cuh"
#include "operators.h"
#include "switch.h"

namespace reduceops::cuda {
namespace {

class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_create_cuda_guard(device, &guard_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  ~DeviceGuard() { aoti_torch_delete_cuda_guard(guard_); }

 private:
  CUDAGuardHandle guard_;
};

bool set(Tuning& tuning, std::string_view name, int64_t value) {
  for (const Tunable& tunable : kTunables) {
    if (tunable.name == name) {
      tuning.*tunable.value = value;
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
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() ||
        !set(tuning, item.substr(0, equals), value)) {
      throw std::runtime_error(
          "reduceops: REDUCEOPS_CUDA_TUNING: no constant of the plan is set by '" +
          std::string(item) + "'");
    }
  }
  return tuning;
}

const Tuning& tuning() {
  static const Tuning tuning = tuning_of_environment();
  return tuning;
}

// Asked for once per device. Rings are made for the shared memory of a Hopper multiprocessor, which
// not every later GPU has.
Limits limits_of(int32_t device) {
  static std::array<std::atomic<int>, 256> multiprocessors{}, bulk{};
  if (multiprocessors.at(device) == 0) {
    int count = 0, major = 0, shared = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    bulk[device] = major >= 9 && shared >= kSharedBytes;
    multiprocessors[device] = count;
  }
  return {multiprocessors[device], bulk[device] != 0};
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
  }
}

void run(Reduction& r) {
  const DeviceGuard guard(r.device_index);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(r.device_index, &stream));
  if (is_single(r.groups)) return launch_fill(r, stream);
  if (!is_rows(r.groups)) order_by_index(r.groups.reduced);
  const auto address = reinterpret_cast<int64_t>(r.input);
  const Plan plan =
      make_plan(r.groups, r.dtype->bytes, address, limits_of(r.device_index), tuning());
  std::optional<Tensor> workspace;
  if (plan.split()) {
    const int64_t size = r.groups.outputs * plan.candidates() * plan.candidate_bytes, stride = 1;
    workspace.emplace(Tensor::empty(1, &size, &stride, aoti_torch_dtype_uint8(),
                                    aoti_torch_device_type_cuda(), r.device_index));
  }
  const Problem problem = make_problem(r, plan, workspace ? workspace->mutable_data() : nullptr);
  launch_walk(r, problem, stream);
  if (workspace) launch_combine(r, problem, stream);
  if (r.groups.copies > 1) launch_repeat(r, stream);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(reduceops, CUDA, m) { Operators<run>::implement(m); }

}  // namespace reduceops::cuda

// For `python -m customops`.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_architectures() {
  return REDUCEOPS_CUDA_ARCHITECTURES;
}

// For customops.enable(): null, or what went wrong.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_switch(bool on) {
  return reduceops::Switch<reduceops::cuda::run>::set(on, "CUDA", "cuda");
}
