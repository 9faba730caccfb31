// What this library uses of libtorch beyond its stable ABI: C++ symbols that no version promises.
// Each is looked up by name when the library is loaded, and null where this torch has none. Nothing
// is wrong without it; the table says what is slower then, or missing.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace reduceops::torch_private {

// REDUCEOPS_WITHOUT names symbols, between commas, that count as missing: for tests.
[[gnu::cold]] inline bool hidden(std::string_view name) {
  const char* list = std::getenv("REDUCEOPS_WITHOUT");
  if (!list) return false;
  const std::string names = ',' + std::string(list) + ',';
  return names.find(',' + std::string(name) + ',') != names.npos;
}

template <class T>
T find(const char* name) {
  return hidden(name) ? nullptr : reinterpret_cast<T>(dlsym(RTLD_DEFAULT, name));
}

// An at::Tensor as its callers see it: one pointer, not trivial to copy, so returned in memory.
struct Returned {
  void* impl;
  Returned(Returned&& other) noexcept : impl(other.impl) {}
  ~Returned() {}
};

using Impl = const void*;    // const c10::TensorImpl*
using Handle = const void*;  // const at::Tensor*, which points to an Impl
using DispatchKey = uint16_t;
using Context = const void*;  // const at::Context*

// What is lost without a symbol.
inline constexpr const char* kSlowCalls =
    "every call of what has gradients (all but argmin and argmax) goes through Python (some 15 us)";
inline constexpr const char* kWarnings = "the first enable() warns that it replaces kernels";
inline constexpr const char* kNoEnable = "enable() raises";
inline constexpr const char* kNotFused =
    "conv2d_scale_min and conv2d_scale_max on a GPU are two kernels instead of one";

// name, type, mangled name, what is lost without it
#define REDUCEOPS_TORCH_SYMBOLS(X)                                                                \
  X(autograd_meta, Impl (*)(Impl), "_ZNK3c1010TensorImpl13autograd_metaEv", kSlowCalls)           \
  X(requires_grad, bool (*)(Impl), "_ZNK3c1010TensorImpl13requires_gradEv", kSlowCalls)           \
  X(fw_grad, const Impl* (*)(Impl, uint64_t, const Impl*),                                        \
    "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE", kSlowCalls)                             \
  X(undefined, Impl, "_ZN3c1019UndefinedTensorImpl10_singletonE", kSlowCalls)                     \
  X(parse_dispatch_key, DispatchKey (*)(const std::string&),                                      \
    "_ZN3c1016parseDispatchKeyERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",           \
    kSlowCalls)                                                                                   \
  X(exclude_dispatch_key, void (*)(DispatchKey, bool),                                            \
    "_ZN3c104impl29tls_set_dispatch_key_excludedENS_11DispatchKeyEb", kSlowCalls)                 \
  X(is_dispatch_key_excluded, bool (*)(DispatchKey),                                              \
    "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE", kSlowCalls)                   \
  X(any_modes_set, bool (*)(bool), "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb",         \
    kSlowCalls)                                                                                   \
  X(has_dispatch, bool (*)(Handle), "_ZN2at4impl19tensor_has_dispatchERKNS_6TensorE", kSlowCalls) \
  X(detach, Returned (*)(Handle), "_ZN2at4_ops6detach4callERKNS_6TensorE",                        \
    "an exception of a hook or a mode becomes a RuntimeError without its text")                   \
  X(what, const char* (*)(), "torch_exception_get_what_without_backtrace",                        \
    "some errors are in torch's log instead of the exception (torch 2.13 made it public)")        \
  X(has_names, bool (*)(Impl), "_ZN2at4impl9has_namesEPKN3c1010TensorImplE",                      \
    "enable() raises, if this torch has named dims")                                              \
  X(get_warning_handler, void* (*)(), "_ZN3c1012WarningUtils19get_warning_handlerEv", kWarnings)  \
  X(set_warning_handler, void (*)(void*),                                                         \
    "_ZN3c1012WarningUtils19set_warning_handlerEPNS_14WarningHandlerE", kWarnings)                \
  X(global_context, Context (*)(), "_ZN2at13globalContextEv", kNotFused)                          \
  X(cudnn_enabled, bool (*)(Context), "_ZNK2at7Context16userEnabledCuDNNEv", kNotFused)           \
  X(cudnn_benchmark, bool (*)(Context), "_ZNK2at7Context14benchmarkCuDNNEv", kNotFused)           \
  X(cudnn_deterministic, bool (*)(Context), "_ZNK2at7Context18deterministicCuDNNEv", kNotFused)   \
  X(deterministic, bool (*)(Context), "_ZNK2at7Context23deterministicAlgorithmsEv", kNotFused)    \
  X(cudnn_allows_tf32, bool (*)(Context, std::optional<int>),                                     \
    "_ZNK2at7Context14allowTF32CuDNNESt8optionalINS_9Float32OpEE", kNotFused)

#define REDUCEOPS_FIND(name, type, mangled, without) inline const auto name = find<type>(mangled);
REDUCEOPS_TORCH_SYMBOLS(REDUCEOPS_FIND)
#undef REDUCEOPS_FIND

// Why a call of torch failed, if it says so.
[[gnu::cold]] inline std::string cause(const char* unknown) {
  const char* const text = what ? what() : nullptr;
  return text ? text : unknown;
}

// torch's kernels of a device, at::cpu::argmin and so on. Called directly, for a call through the
// stable ABI would make a RuntimeError of every IndexError.
struct Kernels {
  using Arg = Returned (*)(Handle self, std::optional<int64_t> dim, bool keepdim);
  using Extreme = std::tuple<Returned, Returned> (*)(Handle self, int64_t dim, bool keepdim);
  Arg arg[2] = {};  // for the smallest element, for the largest
  Extreme extreme[2] = {};

  [[gnu::cold]] static std::string mangled(const std::string& device, const char* function) {
    return "_ZN2at" + std::to_string(device.size()) + device + function;
  }
  static constexpr const char* kNames[] = {"6argminERKNS_6TensorESt8optionalIlEb",
                                           "6argmaxERKNS_6TensorESt8optionalIlEb",
                                           "3minERKNS_6TensorElb", "3maxERKNS_6TensorElb"};

  // False where this torch lacks one.
  bool find(const std::string& device) {
    bool complete = true;
    for (const bool largest : {false, true}) {
      arg[largest] = torch_private::find<Arg>(mangled(device, kNames[largest]).c_str());
      extreme[largest] = torch_private::find<Extreme>(mangled(device, kNames[2 + largest]).c_str());
      complete &= arg[largest] && extreme[largest];
    }
    return complete;
  }
};

}  // namespace reduceops::torch_private
