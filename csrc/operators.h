// The operators, once for every device: read the arguments, check them, allocate the outputs, run.
//
// Kernels are written against the boxed calling convention directly: a call from Python costs about
// a microsecond before any kernel runs, and the generic wrappers would add several allocations to
// that.
#pragma once

#include <torch/csrc/stable/library.h>

#include <optional>
#include <vector>

#include "check.h"
#include "make_groups.h"
#include "reduction.h"
#include "tensor.h"

namespace reduceops {

using Run = void (*)(Reduction&);

template <class T>
T argument(StableIValue value) {
  return torch::stable::detail::to<T>(value);
}

// The input of a call and its description, asked for once.
struct Input {
  explicit Input(StableIValue stolen)
      : tensor(stolen), dtype(tensor.dtype()), ndim(tensor.ndim()), sizes(tensor.sizes()) {}
  const Tensor tensor;
  const int32_t dtype;
  const int64_t ndim;
  const int64_t* const sizes;
};

struct Outputs {
  bool values, indices;
};

// The layout of a result: the kept dims in their order, and reduced ones with size 1 if wanted.
struct OutputShape {
  OutputShape(const Input& self, uint64_t reduced_mask, bool keepdim) {
    for (int64_t d = 0; d < self.ndim; ++d) {
      const bool reduced = reduced_mask >> d & 1;
      if (!reduced || keepdim) sizes[ndim++] = reduced ? 1 : self.sizes[d];
    }
    for (int64_t d = ndim - 1, stride = 1; d >= 0; --d) {
      strides[d] = stride;
      stride *= sizes[d] > 0 ? sizes[d] : 1;
    }
  }
  int64_t ndim = 0, sizes[kMaxDims], strides[kMaxDims];
};

// What only some operators and overloads have.
struct Options {
  std::optional<double> scale = std::nullopt;
  bool softmax = false;
  std::optional<Tensor> mask = std::nullopt;
  std::optional<int32_t> index_dtype = std::nullopt;  // int64 if it is not given
};

// An optional tensor of a call, which is now ours.
inline std::optional<Tensor> optional_tensor(StableIValue value) {
  const auto held = argument<std::optional<torch::stable::Tensor>>(value);
  if (!held) return {};
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(held->get(), &handle));
  return std::optional<Tensor>(std::in_place, handle);
}

// An optional dtype of a call, as a code of the stable ABI.
inline std::optional<int32_t> optional_dtype(StableIValue value) {
  const auto* held = argument<StableIValue*>(value);
  if (!held) return {};
  const auto code = argument<int32_t>(*held);
  delete held;
  return code;
}

// The strides of a mask as that of the input's shape: 0 where it is expanded.
inline void expand_mask(const char* op, const Tensor& mask, const Input& self, int64_t* strides) {
  check_mask_kind(op, mask);
  const int64_t ndim = mask.ndim(), before = self.ndim - ndim;
  const int64_t *sizes = mask.sizes(), *given = mask.strides();
  check_mask_shape(op, {sizes, ndim}, {self.sizes, self.ndim});
  check_mask_device(op, mask, self.tensor);
  for (int64_t d = 0; d < self.ndim; ++d)
    strides[d] = d < before || sizes[d - before] == 1 ? 0 : given[d - before];
}

// What a call asks for, but where its results go and how wide indices are.
inline void describe(const char* op, const Input& self, const DType& dtype, uint64_t reduced_mask,
                     bool largest, const Options& options, Reduction& reduction) {
  int64_t mask_strides[kMaxDims];
  if (options.mask) expand_mask(op, *options.mask, self, mask_strides);
  make_groups(self.ndim, self.sizes, self.tensor.strides(), reduced_mask, reduction.groups,
              options.mask ? mask_strides : nullptr);
  reduction.dtype = &dtype;
  reduction.largest = largest;
  reduction.scaled = options.scale.has_value();
  reduction.scale = options.scale.value_or(1.0);
  reduction.softmax = options.softmax;
  reduction.input = self.tensor.data();
  reduction.mask = options.mask ? options.mask->data() : nullptr;
  reduction.device_index = self.tensor.device_index();
}

// Fills the stack with the outputs asked for, values first.
inline void reduce(Run run, const char* op, StableIValue* stack, const Input& self,
                   const DType& dtype, uint64_t reduced_mask, bool keepdim, bool largest,
                   Outputs outputs, const Options& options = {}) {
  static const int32_t kInt64 = aoti_torch_dtype_int64();
  check_extent(op, reduced_mask, self.ndim, self.sizes);

  const OutputShape shape(self, reduced_mask, keepdim);
  Reduction reduction;
  describe(op, self, dtype, reduced_mask, largest, options, reduction);
  const int32_t device_type = self.tensor.device_type();
  const auto allocate = [&](int32_t code) {
    return Tensor::empty(shape.ndim, shape.sizes, shape.strides, code, device_type,
                         reduction.device_index);
  };
  const int32_t index_dtype = options.index_dtype.value_or(kInt64);
  if (index_dtype != kInt64) check_index_dtype(op, index_dtype, reduction.groups.extent);
  std::optional<Tensor> values, indices;
  if (outputs.values) values.emplace(allocate(self.dtype));
  if (outputs.indices) indices.emplace(allocate(index_dtype));
  reduction.values = values ? values->mutable_data() : nullptr;
  reduction.indices = indices ? indices->mutable_data() : nullptr;
  reduction.index_bytes = index_dtype == kInt64 ? 8 : dtype_of(index_dtype).bytes;

  if (reduction.groups.outputs > 0) run(reduction);
  if (values) *stack++ = values->release();
  if (indices) *stack++ = indices->release();
}

template <Run run>
struct Operators {
  // (self, dim?, keepdim) -> indices
  template <bool largest>
  static void arg(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = largest ? "argmax" : "argmin";
    const Input self(stack[0]);
    const auto dim = argument<std::optional<int64_t>>(stack[1]);
    const DType& dtype = check_dtype(op, self.dtype, false);
    const uint64_t reduced = dim ? mask_of(op, *dim, self.ndim) : full_mask(op, self.ndim);
    reduce(run, op, stack, self, dtype, reduced, argument<bool>(stack[2]), largest, {false, true});
  }

  // (self, dim?, keepdim, mask?, index_dtype?) -> indices
  template <bool largest>
  static void arg_options(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = largest ? "argmax" : "argmin";
    const Input self(stack[0]);
    const auto dim = argument<std::optional<int64_t>>(stack[1]);
    const Options options{.mask = optional_tensor(stack[3]),
                          .index_dtype = optional_dtype(stack[4])};
    const DType& dtype = check_dtype(op, self.dtype, false);
    const uint64_t reduced = dim ? mask_of(op, *dim, self.ndim) : full_mask(op, self.ndim);
    reduce(run, op, stack, self, dtype, reduced, argument<bool>(stack[2]), largest, {false, true},
           options);
  }

  // (self, dims, keepdim, mask?, index_dtype?) -> indices
  template <bool largest>
  static void arg_dims_options(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = largest ? "argmax" : "argmin";
    const Input self(stack[0]);
    const auto dims = argument<std::vector<int64_t>>(stack[1]);
    const Options options{.mask = optional_tensor(stack[3]),
                          .index_dtype = optional_dtype(stack[4])};
    const DType& dtype = check_dtype(op, self.dtype, false);
    const uint64_t reduced = check_dims(op, dims.data(), dims.size(), self.ndim);
    reduce(run, op, stack, self, dtype, reduced, argument<bool>(stack[2]), largest, {false, true},
           options);
  }

  // (self, dims, keepdim) -> indices
  template <bool largest>
  static void arg_dims(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = largest ? "argmax" : "argmin";
    const Input self(stack[0]);
    const auto dims = argument<std::vector<int64_t>>(stack[1]);
    const DType& dtype = check_dtype(op, self.dtype, false);
    const uint64_t reduced = check_dims(op, dims.data(), dims.size(), self.ndim);
    reduce(run, op, stack, self, dtype, reduced, argument<bool>(stack[2]), largest, {false, true});
  }

  // (self, dim, keepdim) -> (values, indices)
  template <bool largest>
  static void extreme(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = largest ? "max" : "min";
    const Input self(stack[0]);
    const DType& dtype = check_dtype(op, self.dtype, false);
    const uint64_t reduced = mask_of(op, argument<int64_t>(stack[1]), self.ndim);
    reduce(run, op, stack, self, dtype, reduced, argument<bool>(stack[2]), largest, {true, true});
  }

  // (self, dim, keepdim, mask?, index_dtype?) -> (values, indices)
  template <bool largest>
  static void extreme_options(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = largest ? "max" : "min";
    const Input self(stack[0]);
    const int64_t dim = argument<int64_t>(stack[1]);
    const Options options{.mask = optional_tensor(stack[3]),
                          .index_dtype = optional_dtype(stack[4])};
    const DType& dtype = check_dtype(op, self.dtype, false);
    reduce(run, op, stack, self, dtype, mask_of(op, dim, self.ndim), argument<bool>(stack[2]),
           largest, {true, true}, options);
  }

  // (self, scale, dim, keepdim) -> values, or (values, indices)
  template <bool largest, bool with_indices>
  static void scale_extreme(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = largest ? "scale_max" : "scale_min";
    const Input self(stack[0]);
    const DType& dtype = check_dtype(op, self.dtype, true);
    const uint64_t reduced = mask_of(op, argument<int64_t>(stack[2]), self.ndim);
    reduce(run, op, stack, self, dtype, reduced, argument<bool>(stack[3]), largest,
           {true, with_indices}, {.scale = argument<double>(stack[1])});
  }

  // (self, dim, keepdim) -> (probability, index)
  static void softmax_max(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = "softmax_max";
    const Input self(stack[0]);
    const DType& dtype = check_dtype(op, self.dtype, true);
    const uint64_t reduced = mask_of(op, argument<int64_t>(stack[1]), self.ndim);
    reduce(run, op, stack, self, dtype, reduced, argument<bool>(stack[2]), true, {true, true},
           {.softmax = true});
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("argmin", arg<false>);
    m.impl("argmax", arg<true>);
    m.impl("argmin.dims", arg_dims<false>);
    m.impl("argmax.dims", arg_dims<true>);
    m.impl("argmin.options", arg_options<false>);
    m.impl("argmax.options", arg_options<true>);
    m.impl("argmin.dims_options", arg_dims_options<false>);
    m.impl("argmax.dims_options", arg_dims_options<true>);
    m.impl("min", extreme<false>);
    m.impl("max", extreme<true>);
    m.impl("min.options", extreme_options<false>);
    m.impl("max.options", extreme_options<true>);
    m.impl("softmax_max", softmax_max);
    m.impl("scale_min", scale_extreme<false, false>);
    m.impl("scale_max", scale_extreme<true, false>);
    m.impl("_scale_min_indices", scale_extreme<false, true>);
    m.impl("_scale_max_indices", scale_extreme<true, true>);
  }
};

}  // namespace reduceops
