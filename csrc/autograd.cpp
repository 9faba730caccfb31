// The Autograd kernels of the differentiable operators: decide whether a gradient may be needed,
// and go on with `_min_autograd`, which is in Python and has one, or with the operator itself below
// autograd.
//
// The stable ABI has no C++ autograd, and an Autograd kernel in Python would add about 5 us to
// every call, gradient or not. So the decision is here and only calls that need a gradient, or that
// Python sees anyway, pay for Python.

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "convolution.h"
#include "registration.h"
#include "tensor.h"
#include "torch_private.h"

namespace reduceops {
namespace {

// Whether a gradient may be needed is the one question that the stable ABI cannot answer. A tensor
// handle points to an at::Tensor, a pointer to a TensorImpl, which can: no autograd_meta() means no
// gradient of any kind, else there may be one backward, requires_grad(), or a tangent of
// forward mode, _fw_grad(level 0). Should a symbol be missing, the answer is "maybe", and the
// Python side, which can ask, decides.
bool may_need_gradient(StableIValue tensor) {
  using namespace torch_private;
  if (!autograd_meta || !requires_grad || !fw_grad || !undefined) return true;
  const Impl* handle = reinterpret_cast<const Impl*>(tensor);
  if (!autograd_meta(*handle)) return false;
  if (requires_grad(*handle) && aoti_torch_grad_mode_is_enabled()) return true;
  return *fw_grad(*handle, 0, handle) != undefined;
}

// Whether Python sees the call: a mode (tracing, fake tensors) or a subclass that dispatches.
bool seen_by_python(StableIValue tensor) {
  using namespace torch_private;
  if (!any_modes_set || !has_dispatch) return true;  // maybe
  return any_modes_set(false) || has_dispatch(reinterpret_cast<Handle>(tensor));
}

// Keeps the dispatcher from coming back here in this thread.
class BelowAutograd {
 public:
  static bool possible() {
    return torch_private::parse_dispatch_key && torch_private::exclude_dispatch_key &&
           torch_private::is_dispatch_key_excluded;
  }
  BelowAutograd() : before_(torch_private::is_dispatch_key_excluded(key())) {
    torch_private::exclude_dispatch_key(key(), true);
  }
  BelowAutograd(const BelowAutograd&) = delete;
  ~BelowAutograd() { torch_private::exclude_dispatch_key(key(), before_); }

 private:
  static torch_private::DispatchKey key() {
    static const auto key = torch_private::parse_dispatch_key("AutogradFunctionality");
    return key;
  }
  const bool before_;
};

// The size of a dim, also where sizes are symbols; 1 if it has no number.
int64_t size(const Tensor& self, int64_t dim) {
  StableIValue stack[] = {self.share().release(), torch::stable::detail::from(dim)};
  const auto status = torch_call_dispatcher("aten::sym_size", "int", stack, TORCH_ABI_VERSION);
  return status == TORCH_SUCCESS ? torch::stable::detail::to<int64_t>(stack[0]) : 1;
}

// The arguments after keepdim that the overloads of most operators have: none.
struct NoOptions {
  explicit NoOptions(StableIValue*) {}
  bool seen_by_python() const { return false; }
  void check_layout(const char*) const {}
  void hand_over() {}
  void check(const char*, const Tensor&, const std::vector<int64_t>&, int64_t) const {}
};

// mask and index_dtype, ours until the nested call takes them from the stack.
class GivenOptions {
 public:
  explicit GivenOptions(StableIValue* stack)
      : mask_(torch::stable::detail::to<StableIValue*>(stack[0])),
        dtype_(torch::stable::detail::to<StableIValue*>(stack[1])) {
    if (dtype_) index_dtype_ = torch::stable::detail::to<int32_t>(*dtype_);
    if (!mask_) return;
    Tensor mask(*mask_);
    kept_.emplace(mask.share());
    *mask_ = mask.release();
  }
  GivenOptions(const GivenOptions&) = delete;
  ~GivenOptions() {
    if (mask_) const Tensor deleted(*mask_);
    delete mask_;
    delete dtype_;
  }

  bool seen_by_python() const { return mask_ && reduceops::seen_by_python(*mask_); }

  void check_layout(const char* op) const {
    if (kept_ && kept_->layout() != aoti_torch_layout_strided()) check_mask_kind(op, *kept_);
  }

  void hand_over() { mask_ = dtype_ = nullptr; }

  // After hand_over, as the kernels do.
  void check(const char* op, const Tensor& self, const std::vector<int64_t>& sizes,
             int64_t extent) const {
    if (kept_) {
      check_mask_kind(op, *kept_);
      std::vector<int64_t> shape;
      for (int64_t d = 0, ndim = kept_->ndim(); d < ndim; ++d) shape.push_back(size(*kept_, d));
      const auto list = [](const std::vector<int64_t>& values) {
        return List{values.data(), static_cast<int64_t>(values.size())};
      };
      check_mask_shape(op, list(shape), list(sizes));
      check_mask_device(op, *kept_, self);
    }
    if (index_dtype_) check_index_dtype(op, *index_dtype_, extent);
  }

 private:
  StableIValue *mask_, *dtype_;  // null where not given
  std::optional<Tensor> kept_;
  std::optional<int32_t> index_dtype_;
};

// What the user is told of a nested call that failed with this text of torch's.
std::string message_of_failure(const char* op, const std::string& text) {
  if (text.empty())
    return std::string("reduceops::") + op + ": the call failed; the cause is in the log above";
  const size_t start = text.find("reduceops:");
  return start == text.npos ? text : text.substr(start, text.find("\n\nAt:") - start);
}

// What went wrong in the nested call: a mistake that was not ruled out, else the message,
// which torch keeps from 2.13 on, without what Python adds to it.
template <class Rest>
[[noreturn]] void explain(const char* op, const Tensor& self, int64_t ndim, int64_t dim,
                          bool with_gradient, const Rest& rest) {
  const std::string text = torch_private::cause("");  // before a failure here replaces it
  size(self, dim);  // what Python raised is still pending, and fails the first question
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < ndim; ++d) sizes.push_back(size(self, d));
  check_extent(op, mask_of(op, dim, ndim), ndim, sizes.data());
  rest.check(op, self, sizes, ndim ? sizes[check_dim(op, dim, ndim)] : 1);
  const bool no_gradients =
      text.find("_autograd'") != text.npos || !dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  if (with_gradient && no_gradients) {
    fail(op, "its gradient is in Python: import customops, or call it where none is needed");
  }
  if (text.empty()) check_device(op, self);
  throw std::runtime_error(message_of_failure(op, text));
}

// What was raised in Python (by a hook for saved tensors, for one) cannot cross the C interface of
// the nested call, but it can cross C++: instead of failing, the call gives complex tensors, as no
// result is, and they raise it on use: here by detach, which modes of Python let through.
void check_failed(const char* op, StableIValue* stack, int outputs) {
  static const int32_t kComplex = aoti_torch_dtype_complex64();
  const auto values = reinterpret_cast<AtenTensorHandle>(stack[0]);
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(values, &dtype));
  if (dtype != kComplex) return;
  std::vector<Tensor> failed;
  for (int i = 0; i < outputs; ++i) failed.emplace_back(stack[i]);
  if (torch_private::detach) {
    using torch_private::Returned;
    auto* detached = new Returned(torch_private::detach(values));
    failed.emplace_back(reinterpret_cast<AtenTensorHandle>(detached));
  }
  throw std::runtime_error(std::string("reduceops::") + op + ": the call failed in Python");
}

// Argument number kDim is the dim. What is checked first can be asked of any tensor, fake and
// symbolic ones too.
template <bool kFloating, int kDim, int kOutputs, class Rest = NoOptions>
void forward(const char* op, const char* name, const char* overload, const char* in_python,
             StableIValue* stack) {
  Tensor self(stack[0]);
  Rest rest(stack + kDim + 2);
  const int64_t dim = torch::stable::detail::to<int64_t>(stack[kDim]);
  const int64_t ndim = self.ndim();
  // Python gets to see the call whatever is wrong with it, and its errors have its types.
  const bool seen = seen_by_python(stack[0]) || rest.seen_by_python();
  if (!seen) {
    check_dtype(op, self.dtype(), kFloating);
    mask_of(op, dim, ndim);
    // Here and not below, where the message would be lost before torch 2.13; and a tensor of mkldnn
    // has an Autograd key that is not excluded there, with which this would call itself without
    // end.
    check_layout(op, self);
    rest.check_layout(op);
  }
  const bool python = seen || !BelowAutograd::possible() || may_need_gradient(stack[0]);
  stack[0] = self.share().release();
  rest.hand_over();
  const auto call = [stack](const char* name, const char* overload) {
    return torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION) == TORCH_SUCCESS;
  };
  bool done;
  if (python) {
    done = call(in_python, "");
  } else {
    const BelowAutograd guard;
    done = call(name, overload);
  }
  if (!done) explain(op, self, ndim, dim, python, rest);
  if (python) check_failed(op, stack, kOutputs);
}

// Where a gradient may be needed, Python goes on with a convolution and scale_min.
void forward_conv2d(const char* op, const char* name, const char* in_python, StableIValue* stack) {
  const auto* bias = torch::stable::detail::to<StableIValue*>(stack[2]);
  const auto any = [&](auto&& is) { return is(stack[0]) || is(stack[1]) || (bias && is(*bias)); };
  const bool seen = any(seen_by_python);
  const bool python = seen || !BelowAutograd::possible() || any(may_need_gradient);
  if (!seen) {
    const Conv2dArguments arguments(stack);
    check_conv2d(op, arguments);
    arguments.put(stack);
  }
  const auto call = [stack](const char* name) {
    return torch_call_dispatcher(name, "", stack, TORCH_ABI_VERSION) == TORCH_SUCCESS;
  };
  bool done;
  if (python) {
    done = call(in_python);
  } else {
    const BelowAutograd guard;
    done = call(name);
  }
  if (!done) throw std::runtime_error(message_of_failure(op, torch_private::cause("")));
  if (python) check_failed(op, stack, 1);
}

// Nested tensors have an Autograd key of their own, which is not excluded below autograd, so that
// `forward` would call itself without end.
void refuse_nested(const char* op, StableIValue* stack) {
  const Tensor self(stack[0]);
  const bool strided = self.layout() == aoti_torch_layout_strided();
  fail(op, "got a nested ", strided ? "strided " : "jagged ", dtype_name(self.dtype()),
       " tensor (supported: strided tensors on cpu and cuda)");
}

void refuse_nested_conv2d(const char* op, StableIValue* stack) {
  const Conv2dArguments call(stack);
  fail(op, "got a nested ", dtype_name(call.input.dtype()),
       " tensor (supported: strided tensors on cpu and cuda)");
}

// Nothing here tells whether self is nested or its mask.
void refuse_nested_options(const char* op, StableIValue* stack) {
  const Tensor self(stack[0]);
  const GivenOptions options(stack + 3);
  fail(op, "got a nested ", dtype_name(self.dtype()),
       " tensor or a nested mask (supported: strided tensors on cpu and cuda)");
}

#define REDUCEOPS_NESTED_OPTIONS(op) \
  m.impl(#op ".options",             \
         [](StableIValue* stack, uint64_t, uint64_t) { refuse_nested_options(#op, stack); })

#define REDUCEOPS_NESTED(op) \
  m.impl(#op, [](StableIValue* stack, uint64_t, uint64_t) { refuse_nested(#op, stack); })

#define REDUCEOPS_AUTOGRAD(op, floating, dim, outputs)                                          \
  m.impl(#op, [](StableIValue* stack, uint64_t, uint64_t) {                                     \
    forward<floating, dim, outputs>(#op, "reduceops::" #op, "", "reduceops::_" #op "_autograd", \
                                    stack);                                                     \
  })

#define REDUCEOPS_AUTOGRAD_OPTIONS(op)                                                 \
  m.impl(#op ".options", [](StableIValue* stack, uint64_t, uint64_t) {                 \
    forward<false, 1, 2, GivenOptions>(#op, "reduceops::" #op, "options",              \
                                       "reduceops::_" #op "_options_autograd", stack); \
  })

// With its indices, which a graph holds that was recorded below autograd.
#define REDUCEOPS_AUTOGRAD_INDICES(op)                                     \
  m.impl("_" #op "_indices", [](StableIValue* stack, uint64_t, uint64_t) { \
    forward<true, 2, 2>(#op, "reduceops::_" #op "_indices", "",            \
                        "reduceops::_" #op "_indices_autograd", stack);    \
  })

#define REDUCEOPS_NESTED_INDICES(op) \
  m.impl("_" #op "_indices",         \
         [](StableIValue* stack, uint64_t, uint64_t) { refuse_nested(#op, stack); })

#define REDUCEOPS_NESTED_CONV2D(op) \
  m.impl(#op, [](StableIValue* stack, uint64_t, uint64_t) { refuse_nested_conv2d(#op, stack); })

#define REDUCEOPS_AUTOGRAD_CONV2D(op)                                              \
  m.impl(#op, [](StableIValue* stack, uint64_t, uint64_t) {                        \
    forward_conv2d(#op, "reduceops::" #op, "reduceops::_" #op "_autograd", stack); \
  })

}  // namespace

REDUCEOPS_LIBRARY_IMPL(Autograd, m) {
  REDUCEOPS_AUTOGRAD(min, false, 1, 2);
  REDUCEOPS_AUTOGRAD(max, false, 1, 2);
  REDUCEOPS_AUTOGRAD_OPTIONS(min);
  REDUCEOPS_AUTOGRAD_OPTIONS(max);
  REDUCEOPS_AUTOGRAD(softmax_max, true, 1, 2);
  REDUCEOPS_AUTOGRAD(scale_min, true, 2, 1);
  REDUCEOPS_AUTOGRAD(scale_max, true, 2, 1);
  REDUCEOPS_AUTOGRAD_INDICES(scale_min);
  REDUCEOPS_AUTOGRAD_INDICES(scale_max);
  REDUCEOPS_AUTOGRAD_CONV2D(conv2d_scale_min);
  REDUCEOPS_AUTOGRAD_CONV2D(conv2d_scale_max);
}

REDUCEOPS_LIBRARY_IMPL(AutogradNestedTensor, m) {
  REDUCEOPS_NESTED(min);
  REDUCEOPS_NESTED(max);
  REDUCEOPS_NESTED_OPTIONS(min);
  REDUCEOPS_NESTED_OPTIONS(max);
  REDUCEOPS_NESTED(softmax_max);
  REDUCEOPS_NESTED(scale_min);
  REDUCEOPS_NESTED(scale_max);
  REDUCEOPS_NESTED_INDICES(scale_min);
  REDUCEOPS_NESTED_INDICES(scale_max);
  REDUCEOPS_NESTED_CONV2D(conv2d_scale_min);
  REDUCEOPS_NESTED_CONV2D(conv2d_scale_max);
}

}  // namespace reduceops
