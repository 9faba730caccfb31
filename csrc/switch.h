// What customops.enable() switches: torch's own argmin, argmax, min(dim) and max(dim) of one device
// run our kernels, and go on to torch's with all that ours do not take.
//
// Our kernels replace torch's in the dispatcher at the first enable() and stay there, for to remove
// one would free what another thread may be calling. Switched off, they go on to torch's.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "operators.h"
#include "torch_private.h"

namespace reduceops {

// A stack entry: a handle is an at::Tensor on the heap.
inline StableIValue to_stack(torch_private::Returned* tensor) {
  return reinterpret_cast<StableIValue>(tensor);
}

// Named dims, which torch has up to 2.12, are not for our kernels.
inline bool has_names(const Tensor& tensor) {
  return torch_private::has_names &&
         torch_private::has_names(*reinterpret_cast<const torch_private::Impl*>(tensor.borrow()));
}

// Whether torch takes the dtype, too: what is an error without enable() is one with it.
inline bool torch_takes(int32_t code, bool arg) {
  static const int32_t kBool = aoti_torch_dtype_bool();
  const DType& dtype = dtype_of(code);
  if (dtype.kind == Kind::kFloat) return dtype.bytes > 1;
  if (dtype.kind == Kind::kUnsigned) return dtype.bytes == 1 && !(arg && code == kBool);
  return dtype.kind == Kind::kSigned;
}

// Keeps torch from saying that a kernel is replaced, which is the purpose. A warning handler is
// a class with a virtual destructor and this method, and belongs to a thread.
class NoWarnings {
 public:
  NoWarnings() : previous_(kCan ? torch_private::get_warning_handler() : nullptr) {
    if (kCan) torch_private::set_warning_handler(&silent_);
  }
  NoWarnings(const NoWarnings&) = delete;
  ~NoWarnings() {
    if (kCan) torch_private::set_warning_handler(previous_);
  }

 private:
  struct Silent {
    virtual ~Silent() = default;
    virtual void process(const char& /* c10::Warning */) {}
  };
  static inline const bool kCan =
      torch_private::get_warning_handler && torch_private::set_warning_handler;
  Silent silent_;
  void* const previous_;
};

// Where another extension had replaced a kernel of torch before we did: the operator of ours that
// calls that one (customops/switch.py). By our operators' order: argmin, argmax, min, max.
inline std::atomic<const char*> former[4];

extern "C" __attribute__((visibility("default"), used)) inline void reduceops_hand_back_to(
    int operation, const char* name) {
  former[operation] = name;
}

template <Run run>
class Switch {
 public:
  // Null, or what went wrong. `key` is the dispatch key and `device` the namespace in at::.
  static const char* set(bool on, const char* key, const char* device) {
    static std::mutex mutex;
    static std::optional<bool> installed;  // tried once: what torch took of them stays
    const std::lock_guard lock(mutex);
    if (on && !installed) {
      if (!torch_.find(device)) return "this torch lacks kernels that other versions have";
      installed = install(key);
    }
    if (on && !*installed) return "torch's dispatcher refused the kernels";
    on_ = on;
    return nullptr;
  }

 private:
  // The dims to reduce as a mask; none if the call is for torch, be it to raise an error.
  static std::optional<uint64_t> dims_of(const Input& self, std::optional<int64_t> dim, bool arg) {
    if (!on_.load(std::memory_order_relaxed) || !torch_takes(self.dtype, arg)) return {};
    const int64_t ndim = self.ndim, range = ndim > 0 ? ndim : 1;
    if (ndim > kMaxDims || (dim && (*dim < -range || *dim >= range))) return {};
    if (has_names(self.tensor)) return {};
    const uint64_t all = ndim == kMaxDims ? ~uint64_t(0) : (uint64_t(1) << ndim) - 1;
    const uint64_t mask = dim ? uint64_t(1) << (*dim < 0 ? *dim + range : *dim) : all;
    for (int64_t d = 0; d < ndim; ++d) {
      if (self.sizes[d] == 0 && (mask >> d & 1)) return {};
    }
    return mask;
  }

  // Whether a call is ours, which is done then. Where it cannot run it is torch's, whose error, if
  // memory is not enough, has a type of its own.
  static bool runs(const char* name, StableIValue* stack, const Input& self,
                   std::optional<uint64_t> mask, bool keepdim, bool largest, Outputs outputs) {
    if (!mask) return false;
    try {
      reduce(run, name, stack, self, dtype_of(self.dtype), *mask, keepdim, largest, outputs);
      return true;
    } catch (const CannotRun&) {
      return false;
    }
  }

  // (self, dim?, keepdim) -> indices
  template <bool largest>
  static void arg(StableIValue* stack, uint64_t, uint64_t) {
    const Input self(stack[0]);
    const auto dim = argument<std::optional<int64_t>>(stack[1]);
    const bool keepdim = argument<bool>(stack[2]);
    const char* name = largest ? "argmax" : "argmin";
    if (runs(name, stack, self, dims_of(self, dim, true), keepdim, largest, {false, true})) return;
    if (!hand_back(largest, stack, self, dim)) {
      stack[0] = to_stack(
          new torch_private::Returned(torch_.arg[largest](self.tensor.borrow(), dim, keepdim)));
    }
  }

  // (self, dim, keepdim) -> (values, indices)
  template <bool largest>
  static void extreme(StableIValue* stack, uint64_t, uint64_t) {
    const Input self(stack[0]);
    const auto dim = argument<int64_t>(stack[1]);
    const bool keepdim = argument<bool>(stack[2]);
    const char* name = largest ? "max" : "min";
    if (runs(name, stack, self, dims_of(self, dim, false), keepdim, largest, {true, true})) return;
    if (!hand_back(2 + largest, stack, self, dim)) {
      auto [values, indices] = torch_.extreme[largest](self.tensor.borrow(), dim, keepdim);
      stack[0] = to_stack(new torch_private::Returned(std::move(values)));
      stack[1] = to_stack(new torch_private::Returned(std::move(indices)));
    }
  }

  // Whether there was another extension's kernel to call.
  template <class Dim>
  static bool hand_back(int operation, StableIValue* stack, const Input& self, const Dim& dim) {
    const char* name = former[operation].load(std::memory_order_relaxed);
    if (!name) return false;
    stack[0] = self.tensor.share().release();
    stack[1] = torch::stable::detail::from(dim);
    if (torch_call_dispatcher(name, "", stack, TORCH_ABI_VERSION) == TORCH_SUCCESS) return true;
    throw std::runtime_error(
        torch_private::cause("another extension's kernel failed; see the log above"));
  }

  static bool install(const char* key) {
    const NoWarnings guard;
    TorchLibraryHandle library;
    const auto replace = [&](const char* name, void (*kernel)(StableIValue*, uint64_t, uint64_t)) {
      return torch_library_impl(library, name, kernel, TORCH_ABI_VERSION) == TORCH_SUCCESS;
    };
    return aoti_torch_library_init_impl("aten", key, __FILE__, __LINE__, &library) ==
               TORCH_SUCCESS &&
           replace("argmin", arg<false>) && replace("argmax", arg<true>) &&
           replace("min.dim", extreme<false>) && replace("max.dim", extreme<true>);
  }

  static inline std::atomic<bool> on_{false};
  static inline torch_private::Kernels torch_;
};

}  // namespace reduceops
