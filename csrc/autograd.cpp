// The Autograd kernels of the differentiable operators: decide whether a gradient may be needed,
// and go on with the operator that has one (`_min_autograd`, in Python) or with the bare one
// (`_min`).
//
// The stable ABI has no C++ autograd, and an Autograd kernel in Python would add about 5 us to
// every call, gradient or not. So the decision is here and only calls that need a gradient pay for
// Python.
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <string>

#include "check.h"
#include "tensor.h"

namespace reduceops {
namespace {

// The one question the stable ABI cannot answer is whether a tensor requires a gradient. A tensor
// handle points to a pointer to a TensorImpl, whose `requires_grad() const` every libtorch exports;
// should one not, the answer is "maybe", and the Python side, which can ask, decides.
bool may_require_grad(StableIValue tensor) {
  using Query = bool (*)(const void*);
  static const auto query =
      reinterpret_cast<Query>(dlsym(RTLD_DEFAULT, "_ZNK3c1010TensorImpl13requires_gradEv"));
  if (query && !query(*reinterpret_cast<const void* const*>(tensor))) return false;
  return aoti_torch_grad_mode_is_enabled();
}

// What went wrong in the nested call. Only torch >= 2.13 keeps its message; before that, look again
// for the one mistake that was not ruled out.
[[noreturn]] void explain(const char* op, const Tensor& self, int64_t dim) {
  using Query = const char* (*)();
  static const auto query =
      reinterpret_cast<Query>(dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace"));
  const char* text = query ? query() : nullptr;
  if (text && *text) throw std::runtime_error(text);
  check_extent(op, uint64_t(1) << check_dim(op, dim, self.ndim()), self.ndim(), self.sizes());
  throw std::runtime_error(std::string("reduceops::") + op +
                           ": the call failed; the cause is in the log above");
}

// Argument number kDim is the dim. What is checked first can be asked of any tensor, fake and
// symbolic ones too.
template <bool kFloating, int kDim>
void forward(const char* op, const char* bare, const char* differentiable, StableIValue* stack) {
  Tensor self(stack[0]);
  const int64_t dim = torch::stable::detail::to<int64_t>(stack[kDim]);
  check_dtype(op, self.dtype(), kFloating);
  check_dim(op, dim, self.ndim());
  const char* next = may_require_grad(stack[0]) ? differentiable : bare;
  stack[0] = self.share().release();
  if (torch_call_dispatcher(next, "", stack, TORCH_ABI_VERSION) != TORCH_SUCCESS)
    explain(op, self, dim);
}

#define REDUCEOPS_AUTOGRAD(op, floating, dim)                                               \
  m.impl(#op, [](StableIValue* stack, uint64_t, uint64_t) {                                 \
    forward<floating, dim>(#op, "reduceops::_" #op, "reduceops::_" #op "_autograd", stack); \
  })

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(reduceops, Autograd, m) {
  REDUCEOPS_AUTOGRAD(min, false, 1);
  REDUCEOPS_AUTOGRAD(max, false, 1);
  REDUCEOPS_AUTOGRAD(scale_min, true, 2);
  REDUCEOPS_AUTOGRAD(scale_max, true, 2);
}

}  // namespace reduceops
