#include "check.h"

#include <sstream>
#include <stdexcept>

#include "groups.h"

namespace reduceops {
namespace {

template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << "reduceops::" << op << ": ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

struct List {
  const int64_t* values;
  int64_t count;
};

std::ostream& operator<<(std::ostream& out, List list) {
  out << '[';
  for (int64_t i = 0; i < list.count; ++i) out << (i ? ", " : "") << list.values[i];
  return out << ']';
}

}  // namespace

const DType& check_dtype(const char* op, int32_t code, bool floating) {
  const DType& dtype = dtype_of(code);
  if (floating && (dtype.kind != Kind::kFloat || dtype.bytes < 2)) {
    fail(op, "self must be a floating-point tensor (float16, bfloat16, float32, float64), got ", dtype_name(code));
  }
  if (dtype.kind == Kind::kUnsupported) {
    fail(op, "dtype ", dtype_name(code),
         " is not supported (supported: bool, uint8, int8, int16, int32, int64, uint16, uint32, uint64, float16, "
         "bfloat16, float32, float64, float8_e4m3fn, float8_e5m2)");
  }
  return dtype;
}

int64_t check_dim(const char* op, int64_t dim, int64_t ndim) {
  const int64_t range = ndim > 0 ? ndim : 1;
  if (dim < -range || dim >= range) {
    fail(op, "dim ", dim, " is out of range for a ", ndim, "-d tensor (valid: ", -range, " to ", range - 1, ")");
  }
  return dim < 0 ? dim + range : dim;
}

uint64_t check_dims(const char* op, const int64_t* dims, int64_t count, int64_t ndim) {
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

void check_extent(const char* op, uint64_t reduced_mask, int64_t ndim, const int64_t* sizes) {
  for (int64_t d = 0; d < ndim; ++d) {
    if (sizes[d] == 0 && (reduced_mask >> d & 1)) {
      fail(op, "cannot reduce over dim ", d, ", which has size 0 (input shape ", List{sizes, ndim}, ")");
    }
  }
}

uint64_t full_mask(const char* op, int64_t ndim) {
  if (ndim > kMaxDims) fail(op, "a tensor of ", ndim, " dims is not supported (at most ", kMaxDims, ")");
  return ndim == kMaxDims ? ~uint64_t(0) : (uint64_t(1) << ndim) - 1;
}

}  // namespace reduceops
