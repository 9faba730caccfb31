// The convolution is torch's, of a channels_last copy of the input (unless that is what it is):
// oneDNN then writes what its kernels compute, and not the same in another order. It runs over
// slices of the batch, or of an image's rows, so that this is still in cache when its channels are
// reduced, and memory is used again and again. Small results, those of 64 bits, other dims than
// that of the channels, and calls with a gradient take torch's convolution as a whole.
#include "cpu/conv2d.h"

#include <cstring>

#include "cpu/limits.h"

namespace reduceops::cpu {
namespace {

// Of a convolution's result. oneDNN is slower in smaller slices, and glibc keeps no larger ones for
// reuse: 32 MiB with what it and torch add.
constexpr int64_t kSliceBytes = (int64_t(32) << 20) - (int64_t(64) << 10);
// Smaller results are not worth a copy of the input.
constexpr int64_t kLeastBytes = int64_t(1) << 20;

// Of a slice's rows, in those that it computes or reads without having to.
constexpr int64_t kLeastSlice = 4;

struct Slice {
  int64_t image, images;
  int64_t row, rows;  // of the convolution's result
};

Tensor as_channels_last(Tensor images) {
  const int64_t* size = images.sizes();
  if (images.strides()[1] == 1 && size[1] > 1) return images;
  const int64_t strides[] = {size[1] * size[2] * size[3], 1, size[1] * size[3], size[1]};
  Tensor copy =
      Tensor::empty(4, size, strides, images.dtype(), images.device_type(), images.device_index());
  TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.borrow(), images.borrow(), 0));
  return copy;
}

// The convolution's part of a slice.
Tensor convolve_slice(const char* op, const Conv2d& call, const Slice& slice) {
  const int64_t *size = call.input.sizes(), *step = call.input.strides();
  const int64_t stride = call.stride[0];
  const int64_t kernel = call.dilation[0] * (call.weight.sizes()[2] - 1) + 1;
  // The rows of the input that it reads, less those that are padding.
  int64_t first = slice.row * stride - call.padding[0];
  const int64_t end = first + (slice.rows - 1) * stride + kernel;
  Sides padding = call.padding;
  int64_t extra = 0;  // rows before the slice's: torch pads both edges where one is an image's
  if (first >= 0 && end <= size[2]) {
    padding[0] = 0;
  } else {
    const int64_t before = (padding[0] + stride - 1) / stride;
    const int64_t row = std::min(std::max<int64_t>(slice.row - before, 0), (size[2] - 1) / stride);
    extra = slice.row - row;
    first = row * stride;
  }
  const int64_t last = std::max(std::min(end, size[2]), first + 1);  // a slice may be all padding
  const int64_t sizes[] = {slice.images, size[1], last - first, size[3]};
  const Tensor input = as_channels_last(
      view_of(call.input, {sizes, 4}, step, slice.image * step[0] + first * step[2]));
  const Tensor result = convolve(op, aoti_torch_cpu_convolution, call, input, padding);
  const int64_t kept[] = {slice.images, call.shape[1], slice.rows, call.shape[3]};
  return view_of(result, {kept, 4}, result.strides(), extra * result.strides()[2]);
}

}  // namespace

Tensor run_conv2d(Run run, const char* op, const Conv2d& call) {
  const auto [images, channels, rows, columns] = call.shape;
  const int64_t row_bytes = std::max<int64_t>(channels * columns * call.dtype->bytes, 1);
  if (call.dim != 1 || call.dtype->bytes > 4 || images * rows * row_bytes < kLeastBytes)
    return run_unfused(run, op, aoti_torch_cpu_convolution, call);
  // A slice reads the rows around it, too, and at an image's edges convolves its padding.
  const int64_t around =
      std::max(call.dilation[0] * (call.weight.sizes()[2] - 1), 2 * call.padding[0]);
  const int64_t least_rows = kLeastSlice * ceil_div(around, call.stride[0]);
  // All slices about as large as each other.
  const auto even = [](int64_t all, int64_t most) { return ceil_div(all, ceil_div(all, most)); };
  const int64_t most_rows = std::max({kSliceBytes / row_bytes, least_rows, int64_t(1)});
  const int64_t rows_at_once = std::max(even(rows, most_rows), std::min(rows, least_rows));
  const int64_t images_at_once = even(images, std::max<int64_t>(most_rows / rows, 1));

  Tensor result = empty_result(call, call.input.dtype());
  const int64_t result_row = columns * call.dtype->bytes;
  Slice slice;
  for (slice.image = 0; slice.image < images; slice.image += slice.images) {
    slice.images = std::min(images_at_once, images - slice.image);
    for (slice.row = 0; slice.row < rows; slice.row += slice.rows) {
      slice.rows = std::min(rows_at_once, rows - slice.row);
      const Tensor part = reduce_convolution(run, op, call, convolve_slice(op, call, slice));
      char* to = static_cast<char*>(result.mutable_data());
      std::memcpy(to + (slice.image * rows + slice.row) * result_row, part.data(),
                  slice.images * slice.rows * result_row);
    }
  }
  return result;
}

Kept run_conv2d_and_keep(Run run, const char* op, const Conv2d& call) {
  return run_unfused_and_keep(run, op, aoti_torch_cpu_convolution, call);
}

Tensor find_channels(Run run, const char* op, const Conv2d& call, const Tensor&) {
  return run_unfused(run, op, aoti_torch_cpu_convolution, call, true);
}

}  // namespace reduceops::cpu
