// The argument checks of every operator. customops/checks.py raises the same texts at trace time.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace reduceops {

// Throws unless the dtype is supported and, for scale_*, floating and at least 16 bits wide.
const DType& check_dtype(const char* op, int32_t code, bool floating);

// Throws unless `dim` is in range; returns it counted from the front. A 0-d tensor is treated as 1-d.
int64_t check_dim(const char* op, int64_t dim, int64_t ndim);

// The mask of several dims; throws if one is out of range or named twice. None at all means every dim.
uint64_t check_dims(const char* op, const int64_t* dims, int64_t count, int64_t ndim);

// Throws if a reduced dim has size 0.
void check_extent(const char* op, uint64_t reduced_mask, int64_t ndim, const int64_t* sizes);

// All dims.
uint64_t full_mask(const char* op, int64_t ndim);

}  // namespace reduceops
