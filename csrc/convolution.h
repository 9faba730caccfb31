// conv2d_scale_min and conv2d_scale_max, once for every device: read the arguments, check them, and
// go on with a device's fused form or with a convolution of torch and scale_min. The errors are
// torch's for a convolution, which customops/conv2d.py raises at trace time.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "operators.h"

namespace reduceops {

using Sides = std::array<int64_t, 2>;  // of the height and the width

// A checked call. The input has four dims: one without a batch gets one of size 1.
struct Conv2d {
  Tensor input, weight;
  std::optional<Tensor> bias;
  double scale;
  Sides stride, padding, dilation;
  int64_t groups;
  int64_t dim;  // of the four of the convolution's result
  bool keepdim, largest, batched;
  const DType* dtype;
  std::array<int64_t, 4> shape;  // of the convolution's result
};

inline List sizes_of(const Tensor& tensor) { return {tensor.sizes(), tensor.ndim()}; }

// Another look at the memory of a tensor.
inline Tensor view_of(const Tensor& tensor, List sizes, const int64_t* strides,
                      int64_t skipped = 0) {
  int64_t offset;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(tensor.borrow(), &offset));
  AtenTensorHandle view;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor.borrow(), sizes.count, sizes.values,
                                                        strides, offset + skipped, &view));
  return Tensor(view);
}

namespace conv2d {

// One number stands for both, as torch has it.
inline Sides check_pair(const char* op, const char* name, const std::vector<int64_t>& given,
                        int64_t least) {
  const List list{given.data(), static_cast<int64_t>(given.size())};
  if (list.count != 1 && list.count != 2) fail(op, name, " must be one number or two, got ", list);
  const Sides pair{given.front(), given.back()};
  if (pair[0] < least || pair[1] < least)
    fail(op, name, " must be at least ", least, ", got ", list);
  return pair;
}

inline void check_place(const char* op, const char* name, const Tensor& tensor,
                        const Tensor& input) {
  if (tensor.layout() != aoti_torch_layout_strided()) fail(op, name, " must be a strided tensor");
  if (tensor.device_type() != input.device_type() || tensor.device_index() != input.device_index())
    fail(op, name, " must be on the device of input");
  if (tensor.dtype() != input.dtype()) {
    fail(op, name, " must have the dtype of input, ", dtype_name(input.dtype()), ", got ",
         dtype_name(tensor.dtype()));
  }
}

// The sizes of the convolution's result, of four dims.
inline std::array<int64_t, 4> check_shapes(const char* op, List x, List w,
                                           const std::optional<Tensor>& bias, const Sides& stride,
                                           const Sides& padding, const Sides& dilation,
                                           int64_t groups) {
  if (x.count != 3 && x.count != 4) fail(op, "input must be 3-d (unbatched) or 4-d, got shape ", x);
  if (w.count != 4) fail(op, "weight must be 4-d, got shape ", w);
  const int64_t* size = x.values + x.count - 3;  // channels, height, width
  const int64_t filters = w.values[0];
  if (groups < 1) fail(op, "groups must be at least 1, got ", groups);
  if (filters < groups || filters % groups != 0)
    fail(op, "weight of shape ", w, " cannot be divided into ", groups, " groups of filters");
  if (size[0] != w.values[1] * groups) {
    fail(op, "weight of shape ", w, " with groups=", groups, " needs an input of ",
         w.values[1] * groups, " channels, got ", size[0], " (input shape ", x, ")");
  }
  if (size[0] == 0 || w.values[2] == 0 || w.values[3] == 0)
    fail(op, "cannot convolve input of shape ", x, " with weight of shape ", w);
  if (bias && (bias->ndim() != 1 || bias->sizes()[0] != filters))
    fail(op, "bias must have the shape [", filters, "], got ", sizes_of(*bias));
  std::array<int64_t, 4> shape{x.count == 4 ? x.values[0] : 1, filters};
  for (int i = 0; i < 2; ++i) {
    const int64_t padded = size[1 + i] + 2 * padding[i];
    const int64_t kernel = dilation[i] * (w.values[2 + i] - 1) + 1;
    if (padded < kernel) {
      fail(op, "the kernel, ", kernel, " long, is larger than the padded input, ", padded,
           " (input shape ", x, ", weight shape ", w, ")");
    }
    shape[2 + i] = (padded - kernel) / stride[i] + 1;
  }
  return shape;
}

// With a batch of one.
inline Tensor with_batch(Tensor input) {
  if (input.ndim() == 4) return input;
  const int64_t *size = input.sizes(), *stride = input.strides();
  const int64_t sizes[] = {1, size[0], size[1], size[2]};
  const int64_t strides[] = {size[0] * stride[0], stride[0], stride[1], stride[2]};
  return view_of(input, {sizes, 4}, strides);
}

}  // namespace conv2d

// (input, weight, bias?, scale, stride, padding, dilation, groups, dim, keepdim)
inline Conv2d read_conv2d(const char* op, bool largest, StableIValue* stack) {
  Tensor input(stack[0]), weight(stack[1]);
  std::optional<Tensor> bias = optional_tensor(stack[2]);
  const auto strides = argument<std::vector<int64_t>>(stack[4]);
  const auto paddings = argument<std::vector<int64_t>>(stack[5]);
  const auto dilations = argument<std::vector<int64_t>>(stack[6]);
  const int64_t groups = argument<int64_t>(stack[7]), ndim = input.ndim();

  const DType& dtype = dtype_of(input.dtype());
  if (dtype.kind != Kind::kFloat || dtype.bytes < 2) {
    fail(op, "input must be a floating-point tensor (float16, bfloat16, float32, float64), got ",
         dtype_name(input.dtype()));
  }
  conv2d::check_place(op, "input", input, input);
  conv2d::check_place(op, "weight", weight, input);
  if (bias) conv2d::check_place(op, "bias", *bias, input);
  const Sides stride = conv2d::check_pair(op, "stride", strides, 1);
  const Sides padding = conv2d::check_pair(op, "padding", paddings, 0);
  const Sides dilation = conv2d::check_pair(op, "dilation", dilations, 1);
  const auto shape = conv2d::check_shapes(op, sizes_of(input), sizes_of(weight), bias, stride,
                                          padding, dilation, groups);
  const int64_t dim = check_dim(op, argument<int64_t>(stack[8]), ndim) + (ndim == 3);
  check_extent(op, uint64_t(1) << dim, 4, shape.data());
  return {.input = conv2d::with_batch(std::move(input)),
          .weight = std::move(weight),
          .bias = std::move(bias),
          .scale = argument<double>(stack[3]),
          .stride = stride,
          .padding = padding,
          .dilation = dilation,
          .groups = groups,
          .dim = dim,
          .keepdim = argument<bool>(stack[9]),
          .largest = largest,
          .batched = ndim == 4,
          .dtype = &dtype,
          .shape = shape};
}

using Convolution = decltype(&aoti_torch_cpu_convolution);

// torch's convolution of a part of a call's input, or of all of it.
inline Tensor convolve(const char* op, Convolution convolution, const Conv2d& call,
                       const Tensor& input, const Sides& padding) {
  constexpr int64_t kNone[2] = {0, 0};
  AtenTensorHandle bias = call.bias ? call.bias->borrow() : nullptr, result;
  const auto status =
      convolution(input.borrow(), call.weight.borrow(), bias ? &bias : nullptr, call.stride.data(),
                  2, padding.data(), 2, call.dilation.data(), 2, 0, kNone, 2, call.groups, &result);
  if (status != AOTI_TORCH_SUCCESS) {
    const char* cause = torch_private::what ? torch_private::what() : nullptr;
    fail(op, "the convolution failed: ", cause ? cause : "the cause is in the log above");
  }
  return Tensor(result);
}

// What scale_min makes of a convolution.
inline Tensor reduce_convolution(Run run, const char* op, const Conv2d& call, Tensor convolved) {
  StableIValue result;
  const Input self(convolved.release());
  reduce(run, op, &result, self, *call.dtype, uint64_t(1) << call.dim, true, call.largest,
         {true, false}, {.scale = call.scale});
  return Tensor(result);
}

inline Tensor run_unfused(Run run, const char* op, Convolution convolution, const Conv2d& call) {
  return reduce_convolution(run, op, call,
                            convolve(op, convolution, call, call.input, call.padding));
}

// A contiguous tensor for the result, of four dims.
inline Tensor empty_result(const Conv2d& call, int32_t dtype) {
  int64_t sizes[4], strides[4], stride = 1;
  for (int d = 3; d >= 0; --d) {
    sizes[d] = d == call.dim ? 1 : call.shape[d];
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return Tensor::empty(4, sizes, strides, dtype, call.input.device_type(),
                       call.input.device_index());
}

// A result of four dims as the caller wants it.
inline Tensor as_asked(const Conv2d& call, Tensor result) {
  if (call.batched && call.keepdim) return result;
  int64_t sizes[4], strides[4], ndim = 0;
  for (int64_t d = !call.batched; d < 4; ++d) {
    if (d == call.dim && !call.keepdim) continue;
    sizes[ndim] = result.sizes()[d];
    strides[ndim++] = result.strides()[d];
  }
  return view_of(result, {sizes, ndim}, strides);
}

// `run_call` gives a result of four dims.
template <Run run_reduction, Tensor (*run_call)(Run, const char* op, const Conv2d&)>
struct Conv2dOperators {
  template <bool largest>
  static void run(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = largest ? "conv2d_scale_max" : "conv2d_scale_min";
    const Conv2d call = read_conv2d(op, largest, stack);
    stack[0] = as_asked(call, run_call(run_reduction, op, call)).release();
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("conv2d_scale_min", run<false>);
    m.impl("conv2d_scale_max", run<true>);
  }
};

}  // namespace reduceops
