// The CUDA implementation of the operators: plan, take a workspace where parts need one, enqueue on
// the current stream.
#include <cuda_runtime.h>

#include <array>
#include <atomic>
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

Tuning tuning;

// Asked for once per device. REDUCEOPS_CUDA_BULK=0 keeps to what GPUs before Hopper can do.
Limits limits_of(int32_t device) {
  static std::array<std::atomic<int>, 256> known{};
  static const bool bulk = [] {
    const char* wanted = std::getenv("REDUCEOPS_CUDA_BULK");
    return wanted == nullptr || std::string_view(wanted) != "0";
  }();
  std::atomic<int>& multiprocessors = known.at(device);
  static std::array<std::atomic<int>, 256> majors{};
  if (multiprocessors == 0) {
    int count = 0, major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    majors[device] = major;
    multiprocessors = count;
  }
  return {multiprocessors, bulk && majors[device] >= 9};
}

void launch_walk(const Reduction& r, const Problem& problem, void* stream) {
  switch (problem.plan.walk) {
    case Walk::kRows:
      return launch_rows(r, problem, stream);
    case Walk::kColumns:
      return launch_columns(r, problem, stream);
    case Walk::kBulkRows:
      return launch_bulk_rows(r, problem, stream);
    case Walk::kBulkGroups:
      return launch_bulk_groups(r, problem, stream);
    case Walk::kBulkColumns:
      return launch_bulk_columns(r, problem, stream);
  }
}

void run(Reduction& r) {
  const DeviceGuard guard(r.device_index);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(r.device_index, &stream));
  if (!is_rows(r.groups)) order_by_index(r.groups.reduced);
  const auto address = reinterpret_cast<int64_t>(r.input);
  const Plan plan = make_plan(r.groups, r.dtype->bytes, address, limits_of(r.device_index), tuning);
  std::optional<Tensor> workspace;
  if (plan.split()) {
    const int64_t size = r.groups.outputs * plan.candidates() * kCandidateBytes, stride = 1;
    workspace.emplace(Tensor::empty(1, &size, &stride, aoti_torch_dtype_uint8(),
                                    aoti_torch_device_type_cuda(), r.device_index));
  }
  const Problem problem = make_problem(
      r, plan, workspace ? static_cast<Candidate*>(workspace->mutable_data()) : nullptr);
  launch_walk(r, problem, stream);
  if (workspace) launch_combine(r, problem, stream);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(reduceops, CUDA, m) { Operators<run>::implement(m); }

}  // namespace reduceops::cuda

// For `python -m customops`.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_architectures() {
  return REDUCEOPS_CUDA_ARCHITECTURES;
}

// For tuning runs: sets a constant of the plan (tuning.h). Returns whether there is one of the
// name.
extern "C" __attribute__((visibility("default"))) bool reduceops_cuda_tune(const char* name,
                                                                           int64_t value) {
  using namespace reduceops::cuda;
  for (const Tunable& tunable : kTunables) {
    if (std::string_view(tunable.name) == name) {
      tuning.*tunable.value = value;
      return true;
    }
  }
  return false;
}

// For customops.enable(): null, or what went wrong.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cuda_switch(bool on) {
  return reduceops::Switch<reduceops::cuda::run>::set(on, "CUDA", "cuda");
}
