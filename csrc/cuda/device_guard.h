// torch's current device and stream, and memory of a device.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <cstdint>

#include "tensor.h"

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

inline Tensor empty_bytes(int64_t size, int32_t device) {
  constexpr int64_t kStride = 1;
  return Tensor::empty(1, &size, &kStride, aoti_torch_dtype_uint8(), aoti_torch_device_type_cuda(),
                       device);
}

}  // namespace reduceops::cuda
