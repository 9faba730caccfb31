#include "dtype.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>

namespace reduceops {
namespace {

constexpr size_t kCodes = 128;

std::array<DType, kCodes> make_table() {
  std::array<DType, kCodes> table;
  table.fill({nullptr, Kind::kUnsupported, 0, 0});
  table[aoti_torch_dtype_complex32()].name = "complex32";
  table[aoti_torch_dtype_complex64()].name = "complex64";
  table[aoti_torch_dtype_complex128()].name = "complex128";
  table[aoti_torch_dtype_float8_e4m3fnuz()].name = "float8_e4m3fnuz";
  table[aoti_torch_dtype_float8_e5m2fnuz()].name = "float8_e5m2fnuz";
  table[aoti_torch_dtype_bool()] = {"bool", Kind::kUnsigned, 1, 0};
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

const std::array<DType, kCodes> table = make_table();
const DType unknown{nullptr, Kind::kUnsupported, 0, 0};

}  // namespace

const DType& dtype_of(int32_t code) {
  return static_cast<uint32_t>(code) < kCodes ? table[code] : unknown;
}

std::string dtype_name(int32_t code) {
  const char* name = dtype_of(code).name;
  return name ? name : torch::headeronly::toString(static_cast<torch::headeronly::ScalarType>(code));
}

}  // namespace reduceops
