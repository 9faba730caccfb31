// The CUDA implementation of the operators: plan, take a workspace where parts need one, enqueue on
// the current stream.
#include <cuda_runtime.h>

#include <array>
#include <atomic>

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

Limits limits_of(int32_t device) {
  static std::array<std::atomic<int>, 256> multiprocessors{};
  std::atomic<int>& known = multiprocessors.at(device);
  if (known == 0) {
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    known = count;
  }
  return {known};
}

void run(Reduction& r) {
  const DeviceGuard guard(r.device_index);
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(r.device_index, &stream));
  if (!is_rows(r.groups)) order_by_index(r.groups.reduced);
  const auto address = reinterpret_cast<int64_t>(r.input);
  const Plan plan = make_plan(r.groups, r.dtype->bytes, address, limits_of(r.device_index));
  std::optional<Tensor> workspace;
  if (plan.parts > 1) {
    const int64_t size = r.groups.outputs * plan.parts * kCandidateBytes, stride = 1;
    workspace.emplace(Tensor::empty(1, &size, &stride, aoti_torch_dtype_uint8(),
                                    aoti_torch_device_type_cuda(), r.device_index));
  }
  const Problem problem = make_problem(
      r, plan, workspace ? static_cast<Candidate*>(workspace->mutable_data()) : nullptr);
  plan.rows ? launch_rows(r, plan, problem, stream) : launch_columns(r, plan, problem, stream);
  if (workspace) launch_combine(r, problem, stream);
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
