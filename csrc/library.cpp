// Every schema of the library, in one place: the table of contents.
#include "registration.h"

REDUCEOPS_LIBRARY(m) {
  // torch tries the overloads of a name in this order, and each that does not fit takes 10 us.
  m.def("argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor");
  m.def("argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor");
  m.def("argmin.dims(Tensor self, int[] dim, bool keepdim=False) -> Tensor");
  m.def("argmax.dims(Tensor self, int[] dim, bool keepdim=False) -> Tensor");
  m.def(
      "argmin.options(Tensor self, int? dim=None, bool keepdim=False, *, Tensor? mask=None, "
      "ScalarType? index_dtype=None) -> Tensor");
  m.def(
      "argmax.options(Tensor self, int? dim=None, bool keepdim=False, *, Tensor? mask=None, "
      "ScalarType? index_dtype=None) -> Tensor");
  m.def(
      "argmin.dims_options(Tensor self, int[] dim, bool keepdim=False, *, Tensor? mask=None, "
      "ScalarType? index_dtype=None) -> Tensor");
  m.def(
      "argmax.dims_options(Tensor self, int[] dim, bool keepdim=False, *, Tensor? mask=None, "
      "ScalarType? index_dtype=None) -> Tensor");
  m.def("min(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)");
  m.def("max(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)");
  m.def(
      "min.options(Tensor self, int dim, bool keepdim=False, *, Tensor? mask=None, "
      "ScalarType? index_dtype=None) -> (Tensor values, Tensor indices)");
  m.def(
      "max.options(Tensor self, int dim, bool keepdim=False, *, Tensor? mask=None, "
      "ScalarType? index_dtype=None) -> (Tensor values, Tensor indices)");
  m.def(
      "softmax_max(Tensor self, int dim, bool keepdim=False) "
      "-> (Tensor probability, Tensor index)");
  m.def("scale_min(Tensor self, float scale, int dim=1, bool keepdim=True) -> Tensor");
  m.def("scale_max(Tensor self, float scale, int dim=1, bool keepdim=True) -> Tensor");

  m.def(
      "conv2d_scale_min(Tensor input, Tensor weight, Tensor? bias, float scale, "
      "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, int dim=1, "
      "bool keepdim=True) -> Tensor");
  m.def(
      "conv2d_scale_max(Tensor input, Tensor weight, Tensor? bias, float scale, "
      "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, int dim=1, "
      "bool keepdim=True) -> Tensor");

  // What a call with a gradient computes, and a graph holds: the backward needs the indices.
  m.def(
      "_scale_min_indices(Tensor self, float scale, int dim, bool keepdim) "
      "-> (Tensor values, Tensor indices)");
  m.def(
      "_scale_max_indices(Tensor self, float scale, int dim, bool keepdim) "
      "-> (Tensor values, Tensor indices)");

  // The same of a convolution, which keeps what is cheapest: indices, or what the second operator
  // finds them by.
  m.def(
      "_conv2d_scale_extreme(Tensor input, Tensor weight, Tensor? bias, float scale, "
      "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, int dim=1, "
      "bool keepdim=True, *, bool largest) -> (Tensor values, Tensor kept)");
  m.def(
      "_conv2d_scale_channels(Tensor input, Tensor weight, Tensor? bias, float scale, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, int dim, bool keepdim, "
      "Tensor kept, *, bool largest) -> Tensor");

  // Before and after the collective of customops/distributed/exchange.py: see distributed.h.
  m.def(
      "_pairs(Tensor self, int[] dim, bool largest, float? scale, int[] start, int[] size, "
      "Tensor? mask=None) -> Tensor");
  m.def(
      "_pairs.dim(Tensor self, int dim, bool largest, int ranks, int start=-1) "
      "-> (Tensor words, Tensor gathered)");
  m.def(
      "_unpack(Tensor words, Tensor self, int[] dim, bool largest, bool keepdim=False) "
      "-> (Tensor values, Tensor indices)");
  m.def(
      "_unpack.dim(Tensor words, Tensor self, int dim, bool largest, bool keepdim=False) "
      "-> (Tensor values, Tensor indices)");
  m.def(
      "_unpack.index(Tensor words, Tensor self, int dim, bool largest, bool keepdim=False) "
      "-> Tensor");
  m.def(
      "_one_shot(Tensor words, Tensor self, int[] dim, bool largest, bool keepdim, Tensor buffers, "
      "Tensor(a!) own, Tensor(b!) state, int rank, int timeout) "
      "-> (Tensor values, Tensor indices)");

  // What autograd.cpp goes on with where a gradient may be needed; implemented in
  // customops/_register/autograd.py.
  m.def("_min_autograd(Tensor self, int dim, bool keepdim) -> (Tensor values, Tensor indices)");
  m.def("_max_autograd(Tensor self, int dim, bool keepdim) -> (Tensor values, Tensor indices)");
  m.def(
      "_min_options_autograd(Tensor self, int dim, bool keepdim, Tensor? mask, "
      "ScalarType? index_dtype) -> (Tensor values, Tensor indices)");
  m.def(
      "_max_options_autograd(Tensor self, int dim, bool keepdim, Tensor? mask, "
      "ScalarType? index_dtype) -> (Tensor values, Tensor indices)");
  m.def(
      "_softmax_max_autograd(Tensor self, int dim, bool keepdim) "
      "-> (Tensor probability, Tensor index)");
  m.def("_scale_min_autograd(Tensor self, float scale, int dim, bool keepdim) -> Tensor");
  m.def("_scale_max_autograd(Tensor self, float scale, int dim, bool keepdim) -> Tensor");
  m.def(
      "_scale_min_indices_autograd(Tensor self, float scale, int dim, bool keepdim) "
      "-> (Tensor values, Tensor indices)");
  m.def(
      "_scale_max_indices_autograd(Tensor self, float scale, int dim, bool keepdim) "
      "-> (Tensor values, Tensor indices)");
  m.def(
      "_conv2d_scale_min_autograd(Tensor input, Tensor weight, Tensor? bias, float scale, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, int dim, bool keepdim) "
      "-> Tensor");
  m.def(
      "_conv2d_scale_max_autograd(Tensor input, Tensor weight, Tensor? bias, float scale, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, int dim, bool keepdim) "
      "-> Tensor");
}
