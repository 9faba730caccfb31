// An owned tensor handle of the stable ABI and the few questions the operators ask of it.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "torch_private.h"

namespace reduceops {

// Why a kernel of ours cannot run, where one of torch's may: there is no memory, or no code for the
// device.
struct CannotRun : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  explicit Tensor(StableIValue stolen) : handle_(reinterpret_cast<AtenTensorHandle>(stolen)) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&&) = delete;
  ~Tensor() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }

  // Uninitialised. Not torch::stable::empty: that goes through the dispatcher once more and costs a
  // microsecond.
  static Tensor empty(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                      int32_t device_type, int32_t device_index) {
    AtenTensorHandle handle;
    const auto status =
        aoti_torch_empty_strided(ndim, sizes, strides, dtype, device_type, device_index, &handle);
    if (status != AOTI_TORCH_SUCCESS) fail_to_allocate(ndim, sizes);
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
  [[noreturn, gnu::noinline, gnu::cold]] static void fail_to_allocate(int64_t ndim,
                                                                      const int64_t* sizes) {
    const std::string cause = torch_private::cause("the cause is in the log above");
    std::ostringstream text;
    text << "reduceops: cannot allocate a tensor of shape [";
    for (int64_t d = 0; d < ndim; ++d) text << (d ? ", " : "") << sizes[d];
    text << "] (out of memory?): " << cause;
    throw CannotRun(text.str());
  }

  template <class T>
  T get(AOTITorchError (*query)(AtenTensorHandle, T*)) const {
    T answer;
    TORCH_ERROR_CODE_CHECK(query(handle_, &answer));
    return answer;
  }

  AtenTensorHandle handle_;
};

}  // namespace reduceops
