// conv2d_scale_min and conv2d_scale_max, once for every device: read the arguments, check them, and
// go on with a device's fused form or with a convolution of torch and scale_min. The errors are
// torch's for a convolution, which customops/_register/conv2d.py raises at trace time.
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

// What an operator is called with: (input, weight, bias?, scale, stride, padding, dilation, groups,
// dim, keepdim).
struct Conv2dArguments {
  explicit Conv2dArguments(StableIValue* stack)
      : input(stack[0]),
        weight(stack[1]),
        bias(optional_tensor(stack[2])),
        scale(argument<double>(stack[3])),
        stride(argument<std::vector<int64_t>>(stack[4])),
        padding(argument<std::vector<int64_t>>(stack[5])),
        dilation(argument<std::vector<int64_t>>(stack[6])),
        groups(argument<int64_t>(stack[7])),
        dim(argument<int64_t>(stack[8])),
        keepdim(argument<bool>(stack[9])) {}

  // For another call.
  void put(StableIValue* stack) const {
    using torch::stable::detail::from;
    stack[0] = input.share().release();
    stack[1] = weight.share().release();
    stack[2] = from(bias ? new StableIValue(bias->share().release()) : nullptr);
    stack[3] = from(scale);
    stack[4] = from(stride);
    stack[5] = from(padding);
    stack[6] = from(dilation);
    stack[7] = from(groups);
    stack[8] = from(dim);
    stack[9] = from(keepdim);
  }

  Tensor input, weight;
  std::optional<Tensor> bias;
  double scale;
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups, dim;
  bool keepdim;
};

// What its checks find. There are four dims: an input without a batch gets one of size 1.
struct Geometry {
  const DType* dtype;
  Sides stride, padding, dilation;
  int64_t dim;
  bool batched;
  std::array<int64_t, 4> shape;  // of the convolution's result
};

// A checked call.
struct Conv2d : Geometry {
  Tensor input, weight;
  std::optional<Tensor> bias;
  double scale;
  int64_t groups;
  bool keepdim, largest;
};

inline List sizes_of(const Tensor& tensor) { return {tensor.sizes(), tensor.ndim()}; }

// Another look at the memory of a tensor, from its element number `skipped` on.
inline Tensor view_of(const Tensor& tensor, List sizes, const int64_t* strides,
                      int64_t skipped = 0) {
  AtenTensorHandle view;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor.borrow(), sizes.count, sizes.values,
                                                        strides, skipped, &view));
  return Tensor(view);
}

namespace conv2d {

// One number stands for both, as torch has it.
inline Sides check_sides(const char* op, const char* name, const std::vector<int64_t>& given,
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
  check_strided(op, name, tensor);
  if (tensor.device_type() != input.device_type() || tensor.device_index() != input.device_index())
    fail(op, name, " must be on the device of input, ", device_name(input), ", got ",
         device_name(tensor));
  if (tensor.dtype() != input.dtype()) {
    fail(op, name, " must have the dtype of input, ", dtype_name(input.dtype()), ", got ",
         dtype_name(tensor.dtype()));
  }
}

// The sizes of the convolution's result, of four dims.
[[gnu::cold]] inline std::array<int64_t, 4> check_shapes(const char* op, List x, List w,
                                                         const std::optional<Tensor>& bias,
                                                         const Sides& stride, const Sides& padding,
                                                         const Sides& dilation, int64_t groups) {
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
  const bool is_empty_image = size[1] == 0 || size[2] == 0;
  const bool is_empty_batch = x.count == 4 && x.values[0] == 0;
  if (size[0] == 0 || w.values[2] == 0 || w.values[3] == 0 || (is_empty_image && !is_empty_batch))
    fail(op, "cannot convolve input of shape ", x, " with weight of shape ", w);
  if (bias && (bias->ndim() != 1 || bias->sizes()[0] != filters))
    fail(op, "bias must have the shape [", filters, "], got ", sizes_of(*bias));
  std::array<int64_t, 4> shape{x.count == 4 ? x.values[0] : 1, filters};
  for (int i = 0; i < 2; ++i) {
    int64_t padded, kernel;
    if (__builtin_mul_overflow(2, padding[i], &padded) ||
        __builtin_add_overflow(padded, size[1 + i], &padded))
      fail(op, "padding is too large, ", padding[i]);
    if (__builtin_mul_overflow(dilation[i], w.values[2 + i] - 1, &kernel) ||
        __builtin_add_overflow(kernel, 1, &kernel))
      fail(op, "dilation is too large, ", dilation[i]);
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

[[gnu::cold]] inline Geometry check_conv2d(const char* op, const Conv2dArguments& call) {
  const Tensor& input = call.input;
  const int64_t ndim = input.ndim();
  Geometry g;
  g.dtype = &check_dtype(op, input.dtype(), true);
  check_layout(op, input);
  conv2d::check_place(op, "weight", call.weight, input);
  if (call.bias) conv2d::check_place(op, "bias", *call.bias, input);
  g.stride = conv2d::check_sides(op, "stride", call.stride, 1);
  g.padding = conv2d::check_sides(op, "padding", call.padding, 0);
  g.dilation = conv2d::check_sides(op, "dilation", call.dilation, 1);
  g.shape = conv2d::check_shapes(op, sizes_of(input), sizes_of(call.weight), call.bias, g.stride,
                                 g.padding, g.dilation, call.groups);
  g.batched = ndim == 4;
  g.dim = check_dim(op, call.dim, ndim) + !g.batched;
  if (g.dim == 0) check_extent(op, 1, ndim, input.sizes());  // of the others none is empty
  return g;
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
    fail(op, "the convolution failed: ", torch_private::cause("the cause is in the log above"));
  }
  return Tensor(result);
}

// What scale_min makes of a convolution; or the channels that it chooses, int64.
inline Tensor reduce_convolution(Run run, const char* op, const Conv2d& call, Tensor convolved,
                                 bool channels = false) {
  StableIValue result;
  const Input self(convolved.release());
  reduce(run, op, &result, self, *call.dtype, uint64_t(1) << call.dim, true, call.largest,
         {!channels, channels}, {.scale = call.scale});
  return Tensor(result);
}

inline Tensor run_unfused(Run run, const char* op, Convolution convolution, const Conv2d& call,
                          bool channels = false) {
  return reduce_convolution(run, op, call,
                            convolve(op, convolution, call, call.input, call.padding), channels);
}

// What a call with a gradient keeps of its forward beside input, weight and bias: indices, int64,
// or what they can be found by, float32.
struct Kept {
  Tensor values, kept;
};

inline Kept run_unfused_and_keep(Run run, const char* op, Convolution convolution,
                                 const Conv2d& call) {
  StableIValue results[2];
  const Input self(convolve(op, convolution, call, call.input, call.padding).release());
  reduce(run, op, results, self, *call.dtype, uint64_t(1) << call.dim, true, call.largest,
         {true, true}, {.scale = call.scale});
  Tensor values(results[0]);
  return {std::move(values), Tensor(results[1])};
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

// A call whose arguments are the first of the stack.
[[gnu::cold]] inline Conv2d checked_conv2d(const char* op, StableIValue* stack, bool largest) {
  Conv2dArguments given(stack);
  const Geometry geometry = check_conv2d(op, given);
  return {geometry,
          conv2d::with_batch(std::move(given.input)),
          std::move(given.weight),
          std::move(given.bias),
          given.scale,
          given.groups,
          given.keepdim,
          largest};
}

// `run_call`, `keep` and `find_channels` give results of four dims.
template <Run run_reduction, Tensor (*run_call)(Run, const char* op, const Conv2d&),
          Kept (*keep)(Run, const char* op, const Conv2d&),
          Tensor (*find_channels)(Run, const char* op, const Conv2d&, const Tensor& kept)>
struct Conv2dOperators {
  static constexpr const char* name(bool largest) {
    return largest ? "conv2d_scale_max" : "conv2d_scale_min";
  }

  template <bool largest>
  static void run(StableIValue* stack, uint64_t, uint64_t) {
    constexpr const char* op = name(largest);
    const Conv2d call = checked_conv2d(op, stack, largest);
    stack[0] = as_asked(call, run_call(run_reduction, op, call)).release();
  }

  // (the same, largest) -> (values, kept)
  static void run_and_keep(StableIValue* stack, uint64_t, uint64_t) {
    const bool largest = argument<bool>(stack[10]);
    const Conv2d call = checked_conv2d(name(largest), stack, largest);
    Kept results = keep(run_reduction, name(largest), call);
    stack[0] = as_asked(call, std::move(results.values)).release();
    stack[1] = results.kept.release();
  }

  // (the same, kept, largest) -> indices
  static void channels(StableIValue* stack, uint64_t, uint64_t) {
    const bool largest = argument<bool>(stack[11]);
    const Tensor kept(stack[10]);
    const Conv2d call = checked_conv2d(name(largest), stack, largest);
    stack[0] = find_channels(run_reduction, name(largest), call, kept).release();
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("conv2d_scale_min", run<false>);
    m.impl("conv2d_scale_max", run<true>);
    m.impl("_conv2d_scale_extreme", run_and_keep);
    m.impl("_conv2d_scale_channels", channels);
  }
};

}  // namespace reduceops
