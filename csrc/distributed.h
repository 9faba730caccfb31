// The operators between which customops/distributed/exchange.py puts a collective, once for every
// device.
#pragma once

#include <span>

#include "operators.h"
#include "pairs.h"

namespace reduceops {

// Writes the pairs of a reduction, of which only the outputs are not set; it may have no elements.
using RunPairs = void (*)(Reduction&, Packing&);
// The reduction has dtype, direction and device.
using Unpack = void (*)(const Unpacking&, const Gathered&, const Reduction&);

// Fills the stack with what is asked for of (values, indices), of the words of one rank or more,
// (rows, length): calls `run` with what there is to unpack, with the words and their rows. Of
// `self`, a shard, only dtype and shape matter.
template <class F>
[[gnu::cold]] void unpack_words(const char* op, StableIValue* stack, const Tensor& words,
                                const Input& self, uint64_t mask, bool largest, bool keepdim,
                                Outputs outputs, F run) {
  const DType& dtype = check_dtype(op, self.dtype, false);
  const OutputShape shape(self, mask, keepdim);
  Unpacking u{};
  u.count = 1;
  for (int64_t d = 0; d < shape.ndim; ++d) u.count *= shape.sizes[d];
  const int32_t device_type = self.tensor.device_type();
  const int32_t device_index = self.tensor.device_index();
  const int64_t *given = words.sizes(), *apart = words.strides();
  u.wide =
      is_wide(dtype.bytes, 0) || (words.ndim() == 2 && u.count > 0 && given[1] == 1 + 2 * u.count);
  if (words.ndim() != 2 || words.dtype() != aoti_torch_dtype_int64() || given[0] < 1 ||
      given[1] != 1 + (u.wide ? 2 : 1) * u.count || words.device_type() != device_type ||
      words.device_index() != device_index)
    fail(op, "the words are not those of the ranks of this reduction");
  if ((given[0] > 1 && apart[0] != given[1]) || (given[1] > 1 && apart[1] != 1))
    fail(op, "the words are not contiguous");
  const auto allocate = [&](int32_t code) {
    return Tensor::empty(shape.ndim, shape.sizes, shape.strides, code, device_type, device_index);
  };
  std::optional<Tensor> values;
  if (outputs.values) values.emplace(allocate(self.dtype));
  Tensor indices = allocate(aoti_torch_dtype_int64());
  const Gathered gathered{static_cast<const int64_t*>(words.data()), given[1]};
  u.ranks = given[0];
  u.values = values ? values->mutable_data() : nullptr;
  u.indices = static_cast<int64_t*>(indices.mutable_data());
  Reduction order;  // the dtype's
  order.scaled = false;
  order.dtype = &dtype;
  order.largest = largest;
  order.device_index = device_index;
  if (u.count > 0) run(u, gathered, order);
  if (values) *stack++ = values->release();
  *stack = indices.release();
}

inline Hidden hidden_by(const char* op, const Tensor& mask, const Input& self, uint64_t reduced) {
  Hidden hidden;
  hidden.mask = static_cast<const uint8_t*>(mask.data());
  int64_t strides[kMaxDims];
  expand_mask(op, mask, self, strides);
  for (int64_t d = self.ndim - 1; d >= 0; --d) {
    if (!(reduced >> d & 1)) hidden.dim[hidden.dims++] = {self.sizes[d], strides[d], 0};
  }
  return hidden;
}

inline Tensor empty_words(int64_t rows, int64_t length, const Input& self) {
  const int64_t sizes[] = {rows, length}, strides[] = {length, 1};
  return Tensor::empty(2, sizes, strides, aoti_torch_dtype_int64(), self.tensor.device_type(),
                       self.tensor.device_index());
}

template <RunPairs run_pairs, Unpack unpack>
struct DistributedOperators {
  // This rank's words, as (1, length).
  //
  // `start` and `size` have a number for each reduced dim, in ascending order: where the shard
  // begins and the extent of all shards. Without `size` the shard is one of one dim, and without
  // `start` it follows that of the rank before.
  [[gnu::cold]] static Tensor words_of(const Input& self, uint64_t mask, bool largest,
                                       const Options& options, std::span<const int64_t> start,
                                       std::span<const int64_t> size) {
    constexpr const char* op = "_pairs";
    if (options.scale && options.mask) fail(op, "a scale and a mask do not go together");
    const DType& dtype = check_dtype(op, self.dtype, options.scale.has_value());
    Packing packing;
    Words& to = packing.to;
    Shard& shard = packing.shard;
    int64_t extent = 1, whole = 1;
    size_t reduced = 0;
    for (int64_t d = 0; d < self.ndim; ++d) reduced += mask >> d & 1;
    if ((!size.empty() && (size.size() != reduced || start.size() != reduced)) ||
        (size.empty() && (start.size() > 1 || reduced > 1)))
      fail(op, "start and size are not those of the reduced dims");
    to.count = 1;
    for (int64_t d = self.ndim - 1, at = reduced; d >= 0; --d) {
      if (!(mask >> d & 1)) {
        to.count *= self.sizes[d];
        continue;
      }
      extent *= self.sizes[d];
      if (size.empty()) continue;
      --at;
      if (start[at] < 0 || self.sizes[d] < 0 || start[at] > size[at] - self.sizes[d])
        fail(op, "the shard of dim ", d, " does not lie in the whole");
      if (__builtin_mul_overflow(whole, size[at], &whole))
        fail(op, "size is too large, ", size[at]);
      shard.add(self.sizes[d], start[at], size[at]);
    }
    if (size.empty()) {
      if (!start.empty() && start[0] < 0) fail(op, "start is ", start[0]);
      to.header = start.empty() ? ~extent : start[0];
      whole = extent;
    } else if (shard.dims == 1) {
      to.header = shard.start[0];
    }
    to.wide = is_wide(dtype.bytes, whole);

    Reduction reduction;
    describe(op, self, dtype, mask, largest, options, reduction);
    Tensor words = empty_words(1, 1 + to.count * (to.wide ? 2 : 1), self);
    to.words = static_cast<int64_t*>(words.mutable_data());
    if (options.mask) packing.hidden = hidden_by(op, *options.mask, self, mask);
    run_pairs(reduction, packing);
    return words;
  }

  // (self, dims, largest, scale?, start, size, mask?) -> words
  static void pairs(StableIValue* stack, uint64_t, uint64_t) {
    const Input self(stack[0]);
    const auto dims = argument<std::vector<int64_t>>(stack[1]);
    const bool largest = argument<bool>(stack[2]);
    const Options options{.scale = argument<std::optional<double>>(stack[3]),
                          .mask = optional_tensor(stack[6])};
    const auto start = argument<std::vector<int64_t>>(stack[4]);
    const auto size = argument<std::vector<int64_t>>(stack[5]);
    const uint64_t mask = check_dims("_pairs", dims.data(), dims.size(), self.ndim);
    stack[0] = words_of(self, mask, largest, options, start, size).release();
  }

  // (self, dim, largest, ranks, start) -> (words, an uninitialised tensor for those of all ranks).
  // Lists and further calls would cost the host as much as the rest. A `start` of -1 is none.
  static void pairs_dim(StableIValue* stack, uint64_t, uint64_t) {
    const Input self(stack[0]);
    const uint64_t mask = mask_of("_pairs", argument<int64_t>(stack[1]), self.ndim);
    const bool largest = argument<bool>(stack[2]);
    const int64_t ranks = argument<int64_t>(stack[3]), start = argument<int64_t>(stack[4]);
    Tensor words = words_of(self, mask, largest, {}, {&start, start == -1 ? 0u : 1u}, {});
    stack[1] = empty_words(ranks, words.sizes()[1], self).release();
    stack[0] = words.release();
  }

  static void unpack_all(StableIValue* stack, uint64_t mask, const Tensor& words, const Input& self,
                         Outputs outputs) {
    const bool largest = argument<bool>(stack[3]), keepdim = argument<bool>(stack[4]);
    unpack_words("_unpack", stack, words, self, mask, largest, keepdim, outputs,
                 [](const Unpacking& u, const Gathered& gathered, const Reduction& order) {
                   unpack(u, gathered, order);
                 });
  }

  // (words, self, dims, largest, keepdim) -> (values, indices), of all ranks' words
  static void unpacked(StableIValue* stack, uint64_t, uint64_t) {
    const Tensor words(stack[0]);
    const Input self(stack[1]);
    const auto dims = argument<std::vector<int64_t>>(stack[2]);
    const uint64_t mask = check_dims("_unpack", dims.data(), dims.size(), self.ndim);
    unpack_all(stack, mask, words, self, {true, true});
  }

  // (words, self, dim, largest, keepdim) -> (values, indices), or indices
  template <bool with_values>
  static void unpacked_dim(StableIValue* stack, uint64_t, uint64_t) {
    const Tensor words(stack[0]);
    const Input self(stack[1]);
    const uint64_t mask = mask_of("_unpack", argument<int64_t>(stack[2]), self.ndim);
    unpack_all(stack, mask, words, self, {with_values, true});
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("_pairs", pairs);
    m.impl("_pairs.dim", pairs_dim);
    m.impl("_unpack", unpacked);
    m.impl("_unpack.dim", unpacked_dim<true>);
    m.impl("_unpack.index", unpacked_dim<false>);
  }
};

}  // namespace reduceops
