// An owned tensor handle of the stable ABI and the few questions the operators ask of it.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <cstdint>
#include <utility>

namespace reduceops {

class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  explicit Tensor(StableIValue stolen) : handle_(reinterpret_cast<AtenTensorHandle>(stolen)) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&&) = delete;
  ~Tensor() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }

  // Uninitialised. Not torch::stable::empty: that goes through the dispatcher and costs a
  // microsecond.
  static Tensor empty(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                      int32_t device_type, int32_t device_index) {
    AtenTensorHandle handle;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_empty_strided(ndim, sizes, strides, dtype, device_type, device_index, &handle));
    return Tensor(handle);
  }

  // A second handle to the same tensor.
  Tensor share() const { return Tensor(get<AtenTensorHandle>(aoti_torch_new_tensor_handle)); }
  AtenTensorHandle borrow() const { return handle_; }
  StableIValue release() { return reinterpret_cast<StableIValue>(std::exchange(handle_, nullptr)); }

  int64_t ndim() const { return get<int64_t>(aoti_torch_get_dim); }
  int32_t dtype() const { return get<int32_t>(aoti_torch_get_dtype); }
  int32_t layout() const { return get<int32_t>(aoti_torch_get_layout); }
  int32_t device_type() const { return get<int32_t>(aoti_torch_get_device_type); }
  int32_t device_index() const { return get<int32_t>(aoti_torch_get_device_index); }
  const int64_t* sizes() const { return get<int64_t*>(aoti_torch_get_sizes); }
  const int64_t* strides() const { return get<int64_t*>(aoti_torch_get_strides); }
  const void* data() const { return get<const void*>(torch_get_const_data_ptr); }
  void* mutable_data() const { return get<void*>(torch_get_mutable_data_ptr); }

 private:
  template <class T>
  T get(AOTITorchError (*query)(AtenTensorHandle, T*)) const {
    T answer;
    TORCH_ERROR_CODE_CHECK(query(handle_, &answer));
    return answer;
  }

  AtenTensorHandle handle_;
};

}  // namespace reduceops
