// The argument checks of every operator. customops/checks.py raises the same texts at trace time.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "dtype.h"
#include "groups.h"
#include "tensor.h"

namespace reduceops {

constexpr size_t kDTypeCodes = 128;

// The dtype codes of the stable ABI are only known at run time.
[[gnu::cold]] inline std::array<DType, kDTypeCodes> make_dtype_table() {
  std::array<DType, kDTypeCodes> table;
  table.fill({nullptr, Kind::kUnsupported, 0, 0});
  table[aoti_torch_dtype_complex32()].name = "complex32";
  table[aoti_torch_dtype_complex64()].name = "complex64";
  table[aoti_torch_dtype_complex128()].name = "complex128";
  table[aoti_torch_dtype_float8_e4m3fnuz()].name = "float8_e4m3fnuz";
  table[aoti_torch_dtype_float8_e5m2fnuz()].name = "float8_e5m2fnuz";
  table[aoti_torch_dtype_bool()] = {"bool", Kind::kUnsigned, 1, 1};
  table[aoti_torch_dtype_uint8()] = {"uint8", Kind::kUnsigned, 1, 0};
  table[aoti_torch_dtype_uint16()] = {"uint16", Kind::kUnsigned, 2, 0};
  table[aoti_torch_dtype_uint32()] = {"uint32", Kind::kUnsigned, 4, 0};
  table[aoti_torch_dtype_uint64()] = {"uint64", Kind::kUnsigned, 8, 0};
  table[aoti_torch_dtype_int8()] = {"int8", Kind::kSigned, 1, 0};
  table[aoti_torch_dtype_int16()] = {"int16", Kind::kSigned, 2, 0};
  table[aoti_torch_dtype_int32()] = {"int32", Kind::kSigned, 4, 0};
  table[aoti_torch_dtype_int64()] = {"int64", Kind::kSigned, 8, 0};
  table[aoti_torch_dtype_float8_e4m3fn()] = {"float8_e4m3fn", Kind::kFloat, 1, 0x7e};
  table[aoti_torch_dtype_float8_e5m2()] = {"float8_e5m2", Kind::kFloat, 1, 0x7c};
  table[aoti_torch_dtype_float16()] = {"float16", Kind::kFloat, 2, 0x7c00};
  table[aoti_torch_dtype_bfloat16()] = {"bfloat16", Kind::kFloat, 2, 0x7f80};
  table[aoti_torch_dtype_float32()] = {"float32", Kind::kFloat, 4, 0x7f800000};
  table[aoti_torch_dtype_float64()] = {"float64", Kind::kFloat, 8, 0x7ff0000000000000};
  return table;
}

// The type behind a dtype code of the stable ABI; kind is kUnsupported for all but those of the
// operators.
inline const DType& dtype_of(int32_t code) {
  static const std::array<DType, kDTypeCodes> table = make_dtype_table();
  static const DType unknown{nullptr, Kind::kUnsupported, 0, 0};
  return static_cast<uint32_t>(code) < kDTypeCodes ? table[code] : unknown;
}

inline std::string dtype_name(int32_t code) {
  const char* known = dtype_of(code).name;
  if (known) return known;
  // torch has the names of Python in another case.
  std::string name = torch::headeronly::toString(static_cast<torch::headeronly::ScalarType>(code));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return name;
}

// Null for the layouts of strided and of nested tensors.
[[gnu::cold]] inline const char* layout_name(int32_t code) {
  const std::pair<int32_t, const char*> names[] = {
      {aoti_torch_layout_sparse_coo(), "sparse_coo"},
      {aoti_torch_layout_sparse_csr(), "sparse_csr"},
      {aoti_torch_layout_sparse_csc(), "sparse_csc"},
      {aoti_torch_layout_sparse_bsr(), "sparse_bsr"},
      {aoti_torch_layout_sparse_bsc(), "sparse_bsc"},
      {aoti_torch_layout__mkldnn(), "_mkldnn"},
  };
  for (const auto& [known, name] : names) {
    if (known == code) return name;
  }
  return nullptr;
}

// As torch writes it.
[[gnu::cold]] inline std::string device_name(const Tensor& tensor) {
  const std::pair<int32_t, const char*> names[] = {
      {aoti_torch_device_type_cpu(), "cpu"},   {aoti_torch_device_type_cuda(), "cuda"},
      {aoti_torch_device_type_meta(), "meta"}, {aoti_torch_device_type_xpu(), "xpu"},
      {aoti_torch_device_type_mps(), "mps"},
  };
  for (const auto& [type, name] : names) {
    if (type != tensor.device_type()) continue;
    const int32_t index = tensor.device_index();
    return index < 0 ? name : std::string(name) + ":" + std::to_string(index);
  }
  return "another device";
}

template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << "reduceops::" << op << ": ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// Those that kernels are for, or that graphs are traced with.
[[gnu::cold]] inline void check_device(const char* op, const Tensor& self) {
  for (const int32_t type : {aoti_torch_device_type_cpu(), aoti_torch_device_type_cuda(),
                             aoti_torch_device_type_meta()}) {
    if (type == self.device_type()) return;
  }
  fail(op, "got a tensor on ", device_name(self), " (supported: strided tensors on cpu and cuda)");
}

struct List {
  const int64_t* values;
  int64_t count;
};

inline std::ostream& operator<<(std::ostream& out, List list) {
  out << '[';
  for (int64_t i = 0; i < list.count; ++i) out << (i ? ", " : "") << list.values[i];
  return out << ']';
}

// All dims; raises where there are more than the library takes.
inline uint64_t full_mask(const char* op, int64_t ndim) {
  if (ndim > kMaxDims)
    fail(op, "a tensor of ", ndim, " dims is not supported (at most ", kMaxDims, ")");
  return ndim == kMaxDims ? ~uint64_t(0) : (uint64_t(1) << ndim) - 1;
}

// The type, if it is supported and, if so asked, floating and at least 16 bits wide.
inline const DType& check_dtype(const char* op, int32_t code, bool floating) {
  const DType& dtype = dtype_of(code);
  if (floating && (dtype.kind != Kind::kFloat || dtype.bytes < 2)) {
    fail(op,
         "the input must be a floating-point tensor (float16, bfloat16, float32, float64), got ",
         dtype_name(code));
  }
  if (dtype.kind == Kind::kUnsupported) {
    fail(op, "dtype ", dtype_name(code),
         " is not supported (supported: bool, uint8, int8, int16, int32, int64, uint16, uint32, "
         "uint64, float16, "
         "bfloat16, float32, float64, float8_e4m3fn, float8_e5m2)");
  }
  return dtype;
}

// `dim` counted from the front, if it is in range. A 0-d tensor is treated as 1-d.
inline int64_t check_dim(const char* op, int64_t dim, int64_t ndim) {
  const int64_t range = ndim > 0 ? ndim : 1;
  if (dim < -range || dim >= range) {
    fail(op, "dim ", dim, " is out of range for a ", ndim, "-d tensor (valid: ", -range, " to ",
         range - 1, ")");
  }
  return dim < 0 ? dim + range : dim;
}

// The mask of one dim.
inline uint64_t mask_of(const char* op, int64_t dim, int64_t ndim) {
  full_mask(op, ndim);
  return uint64_t(1) << check_dim(op, dim, ndim);
}

// The mask of several distinct dims. None at all means every dim. One that is out of range is named
// before one that is given twice.
inline uint64_t check_dims(const char* op, const int64_t* dims, int64_t count, int64_t ndim) {
  if (count == 0) return full_mask(op, ndim);
  full_mask(op, ndim);
  for (int64_t i = 0; i < count; ++i) check_dim(op, dims[i], ndim);
  uint64_t mask = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bit = uint64_t(1) << check_dim(op, dims[i], ndim);
    if (mask & bit) fail(op, "dim ", dims[i], " appears twice in dim=", List{dims, count});
    mask |= bit;
  }
  return mask;
}

// The dtype of the indices; the greatest of them is extent - 1.
inline void check_index_dtype(const char* op, int32_t code, int64_t extent) {
  const DType& dtype = dtype_of(code);
  const bool wide = dtype.kind == Kind::kSigned && dtype.bytes >= 4;
  const bool narrow = dtype.kind == Kind::kUnsigned && dtype.bytes <= 2 && !dtype.is_bool();
  if (!wide && !narrow)
    fail(op, "index_dtype must be int64, int32, uint16 or uint8, got ", dtype_name(code));
  if (dtype.bytes < 8 && extent > int64_t(1) << (8 * dtype.bytes - wide))
    fail(op, "index_dtype ", dtype_name(code), " cannot hold every index of ", extent, " elements");
}

// Of the input. (Nested tensors are refused where their keys lead to.)
[[gnu::cold]] inline void check_layout(const char* op, const Tensor& self) {
  const int32_t layout = self.layout();
  if (layout == aoti_torch_layout_strided()) return;
  if (const char* name = layout_name(layout)) {
    fail(op, "got a ", name, " ", dtype_name(self.dtype()),
         " tensor (supported: strided tensors on cpu and cuda)");
  }
}

// For arguments other than the input.
inline void check_strided(const char* op, const char* name, const Tensor& tensor) {
  const int32_t layout = tensor.layout();
  if (layout == aoti_torch_layout_strided()) return;
  const char* kind = layout_name(layout);
  fail(op, name, " must be a strided tensor, got a ", kind ? kind : "nested", " one");
}

inline void check_mask_kind(const char* op, const Tensor& mask) {
  const int32_t code = mask.dtype();
  if (!dtype_of(code).is_bool()) fail(op, "mask must be a bool tensor, got ", dtype_name(code));
  check_strided(op, "mask", mask);
}

// torch would broadcast it to the input.
inline void check_mask_shape(const char* op, List mask, List self) {
  bool fits = mask.count <= self.count;
  for (int64_t d = 1; fits && d <= mask.count; ++d) {
    const int64_t size = mask.values[mask.count - d];
    fits = size == 1 || size == self.values[self.count - d];
  }
  if (!fits) fail(op, "a mask of shape ", mask, " does not broadcast to the input's ", self);
}

inline void check_mask_device(const char* op, const Tensor& mask, const Tensor& self) {
  if (mask.device_type() != self.device_type() || mask.device_index() != self.device_index()) {
    fail(op, "mask must be on the device of the input, ", device_name(self), ", got ",
         device_name(mask));
  }
}

// No reduced dim may have size 0.
inline void check_extent(const char* op, uint64_t reduced_mask, int64_t ndim,
                         const int64_t* sizes) {
  for (int64_t d = 0; d < ndim; ++d) {
    if (sizes[d] == 0 && (reduced_mask >> d & 1)) {
      fail(op, "cannot reduce over dim ", d, ", which has size 0 (input shape ", List{sizes, ndim},
           ")");
    }
  }
}

}  // namespace reduceops
