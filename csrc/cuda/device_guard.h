// torch's current device and stream.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <cstdint>

namespace reduceops::cuda {

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

inline void* current_stream(int32_t device) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return stream;
}

}  // namespace reduceops::cuda
