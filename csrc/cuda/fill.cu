// Groups of one element, which need no reduction: all indices are 0, and the values are copied.
//
// Bound by writing the results in their order, and by reading the values where these lie apart in
// memory.
#include <optional>

#include "cuda/call_cache.h"
#include "cuda/each.cuh"
#include "cuda/offsets.cuh"
#include "cuda/plan/copies.h"
#include "cuda/repeat.h"
#include "cuda/source.cuh"
#include "cuda/transpose.cuh"

namespace reduceops::cuda {
namespace {

// By all threads of a block, of results [first, end); `indices` are aligned to 16 bytes, and those
// before `first` fill whole blocks of 16.
__device__ void set_zeros(char* indices, int index_bytes, int64_t first, int64_t end) {
  char* const from = indices + first * index_bytes;
  const int64_t bytes = (end - first) * index_bytes, whole = bytes / kLoadBytes;
  for (int64_t i = threadIdx.x; i < whole; i += kThreads) reinterpret_cast<uint4*>(from)[i] = {};
  for (int64_t i = whole * kLoadBytes + threadIdx.x; i < bytes; i += kThreads) from[i] = 0;
}

// The indices beside the values that the blocks of a grid copy, so many to a block at a time, if
// there are to be some.
__device__ void set_zeros_beside(char* indices, int index_bytes, int64_t n, int64_t of_block) {
  if (!indices) return;
  for (int64_t i = blockIdx.x * of_block; i < n; i += gridDim.x * of_block)
    set_zeros(indices, index_bytes, i, std::min(i + of_block, n));
}

// Values one by one, wherever they lie, and the indices beside them.
template <class Element, class Offsets, class Key = typename Element::Key>
__global__ void __launch_bounds__(kThreads)
    copy_values(const Element element, const Key* input, Key* values, char* indices,
                int index_bytes, int64_t n, const __grid_constant__ Offsets offset) {
  set_zeros_beside(indices, index_bytes, n, at_once(n, kAtOnce) * kThreads);
  each(
      n, [&](int64_t i) { return input[offset(i)]; },
      [&](int64_t i, Key bits) { values[i] = element.value(bits); });
}

// 16 bytes of values from anywhere on; those past the end of the input are zeros.
template <class Key>
__device__ Anywhere<Key> load_values(const Key* values, const char* end) {
  const auto address = reinterpret_cast<uintptr_t>(values);
  if (address % kLoadBytes == 0 && address + kLoadBytes <= reinterpret_cast<uintptr_t>(end))
    return {*reinterpret_cast<const uint4*>(values), {}, 0};
  return Anywhere<Key>::load(values, end);
}

// Values that lie side by side in runs, each of several times 16 bytes, 16 bytes to a thread, and
// the indices beside them. `end` is that of the input.
template <class Element, class Offsets, class Key = typename Element::Key>
__global__ void __launch_bounds__(kThreads)
    copy_packs(const Element element, const Key* input, const char* end, Key* values, char* indices,
               int index_bytes, int64_t n, const __grid_constant__ Offsets offset) {
  using Pack = Anywhere<Key>;
  constexpr int64_t kWidth = Vector<Key>::kWidth;
  set_zeros_beside(indices, index_bytes, n, kThreads * kWidth);
  const auto read = [&](int64_t number) {
    const int64_t i = number * kWidth;
    if (offset.count <= 1) return load_values(input + i, end);
    Pack pack = load_values(input + offset(i), end);
    const int64_t left = offset.run(i);
    if (left >= std::min(kWidth, n - i)) return pack;
    // The rest is of the next run, before which there may be no memory.
    const int64_t next = offset(i + left);
    Vector<Key> both = pack.joined(), behind{};
    if (next >= left) {
      behind = load_values(input + next - left, end).joined();
    } else {
#pragma unroll
      for (int k = 1; k < kWidth; ++k) {
        if (k >= left && i + k < n) behind.at[k] = input[next + k - left];
      }
    }
#pragma unroll
    for (int k = 1; k < kWidth; ++k) both.at[k] = k < left ? both.at[k] : behind.at[k];
    pack = {};
    memcpy(&pack.low, &both, kLoadBytes);
    return pack;
  };
  each<1>((n + kWidth - 1) / kWidth, read, [&](int64_t number, const Pack& pack) {
    const int64_t i = number * kWidth;
    Vector<Key> vector = pack.joined();
#pragma unroll
    for (Key& bits : vector.at) bits = element.value(bits);
    if (i + kWidth <= n) {
      *reinterpret_cast<Vector<Key>*>(values + i) = vector;
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        if (i + k < n) values[i + k] = vector.at[k];
      }
    }
  });
}

// Values in another order than their results, and the indices beside them.
template <bool kSquare, class Element, class Key = typename Element::Key>
__global__ void __launch_bounds__(kThreads)
    transpose(const Element element, const Key* input, Key* values, char* indices, int index_bytes,
              int64_t n, const __grid_constant__ Transposition transposition) {
  transpose_tile<kSquare>(input, values, transposition, element,
                          [&] { set_zeros_beside(indices, index_bytes, n, kTransposeTile); });
}

// A kernel, for setting memory by the device's own means begins later.
// With one store to a thread: with several, in a loop, it takes 2 to 5 % longer.
__global__ void __launch_bounds__(kThreads) zero(char* to, int64_t bytes) {
  const int64_t at = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kLoadBytes;
  if (at + kLoadBytes <= bytes) {
    *reinterpret_cast<uint4*>(to + at) = {};
  } else {
    for (int64_t i = at; i < bytes; ++i) to[i] = 0;
  }
}

void set_indices(const Reduction& r, int64_t n, void* stream) {
  const int64_t bytes = n * r.index_bytes;
  auto* indices = static_cast<char*>(r.indices);
  const auto config =
      launch_config(ceil_div(ceil_div(bytes, kLoadBytes), kThreads), kThreads, stream);
  check(is_aligned(indices) ? cudaLaunchKernelEx(&config, zero, indices, bytes)
                            : cudaMemsetAsync(indices, 0, bytes, config.stream));
}

// Whether packs of 16 bytes are of two runs at most, and most of one.
bool has_runs(const Dims& dims, int64_t bytes) {
  constexpr int64_t kLeastPacks = 4;
  static_assert(kLeastPacks >= 1);
  return dims.count == 0 ||
         (dims.dim[0].stride == 1 && dims.dim[0].size * bytes >= kLeastPacks * kLoadBytes);
}

void launch_transpose(const Reduction& r, const Transposition& transposition, int64_t n,
                      char* indices, void* stream) {
  visit_element(r, [&](auto element) {
    using Key = typename decltype(element)::Key;
    const auto config = launch_config(transposition.blocks(), kThreads, stream,
                                      transposition.shared_bytes<sizeof(Key)>());
    const auto launch = [&](auto* kernel) {
      check(cudaLaunchKernelEx(&config, kernel, element, static_cast<const Key*>(r.input),
                               static_cast<Key*>(r.values), indices, r.index_bytes, n,
                               transposition));
    };
    using Element = decltype(element);
    transposition.is_square() ? launch(transpose<true, Element>)
                              : launch(transpose<false, Element>);
  });
}

// Good until the next call of this thread.
const CopiesPlan& plan_of(const Reduction& outputs) {
  thread_local CallCache<CopiesPlan> cache;
  const int index_bytes = outputs.indices ? outputs.index_bytes : 0;
  const int64_t address = reinterpret_cast<int64_t>(outputs.input) % kLineBytes;
  const Stores stores{index_bytes > 0, true};
  const Call call{outputs.dtype->bytes, address, stores, Task::kExtreme, 0, index_bytes};
  return cache.find(outputs.groups, call,
                    [&] { return CopiesPlan(outputs.groups, call.bytes, address, index_bytes); });
}

// Values that lie apart, and the indices: `beside` if the values' kernel may set these.
bool copy_apart(const Reduction& r, int64_t n, char* beside, void* stream) {
  Reduction outputs = r;
  outputs.groups = repeats_as_outputs(r.groups);
  const CopiesPlan& plan = plan_of(outputs);
  if (plan.transposition) {
    if (r.indices && !beside) set_indices(r, n, stream);
    launch_transpose(r, *plan.transposition, n, beside, stream);
    return true;
  }
  if (!plan.gather) return false;
  if (plan.indices_apart) {
    set_indices(r, n, stream);
    outputs.indices = nullptr;
  }
  launch_gather(outputs, make_problem(outputs, *plan.gather, nullptr), stream);
  return true;
}

const char* end_of_input(const Reduction& r, const Dims& dims) {
  return static_cast<const char*>(r.input) + (reach(dims) + 1) * r.dtype->bytes;
}

}  // namespace

void launch_fill(const Reduction& r, void* stream) {
  const int64_t n = r.groups.outputs * r.groups.copies;
  const Dims dims = result_dims(r.groups);
  const bool beside = r.values && is_aligned(r.indices);
  const bool packs = beside && has_runs(dims, r.dtype->bytes) && is_aligned(r.values);
  auto* indices = static_cast<char*>(beside ? r.indices : nullptr);
  if (r.values && !packs && copy_apart(r, n, indices, stream)) return;
  if (r.indices && !beside) set_indices(r, n, stream);
  if (!r.values) return;
  visit_element(r, [&](auto element) {
    using Element = decltype(element);
    using Key = typename Element::Key;
    const auto* input = static_cast<const Key*>(r.input);
    auto* values = static_cast<Key*>(r.values);
    const auto launch = [&](const auto& offsets) {
      using Of = std::decay_t<decltype(offsets)>;
      if (!packs)
        return launch_over(n, stream, copy_values<Element, Of>, element, input, values, indices,
                           r.index_bytes, n, offsets);
      launch_over<1>(ceil_div(n, Vector<Key>::kWidth), stream, copy_packs<Element, Of>, element,
                     input, end_of_input(r, dims), values, indices, r.index_bytes, n, offsets);
    };
    n >> 32 == 0 ? launch(Offsets<true>(dims)) : launch(Offsets<false>(dims));
  });
}

}  // namespace reduceops::cuda
