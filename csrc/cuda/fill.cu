// Results that need no reduction: of groups of one element, and those of kept dims of stride 0,
// which are computed once and stored here for all other positions.
//
// Bound by writing the results in their order, and by reading the values where these lie apart in
// memory.
#include <algorithm>

#include "cuda/device.cuh"
#include "make_groups.h"

namespace reduceops::cuda {
namespace {

constexpr int kAtOnce = 4;             // results of a thread that are read before any is stored
constexpr int64_t kMostBlocks = 8192;  // enough to fill any GPU a few times

template <class Element>
constexpr bool kCopied = false;  // whether the value is the element, bit for bit
template <class Key, bool kFloat>
constexpr bool kCopied<Plain<Key, kFloat>> = true;

struct ResultDims {
  int count;
  Dim dims[kMaxDims];  // in the order of the results

  explicit ResultDims(const Dims& from) : count(from.count) {
    std::copy_n(from.dim, from.count, dims);
  }
};

// Calls read(i) for a few positions below n at once, then write(i, what was read).
template <class Read, class Write>
__device__ void each(int64_t n, Read read, Write write) {
  const int64_t threads = int64_t(gridDim.x) * kThreads;
  const int64_t first = blockIdx.x * kThreads + threadIdx.x;
  for (int64_t i = first; i < n; i += threads * kAtOnce) {
    decltype(read(i)) held[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) held[u] = read(std::min(i + u * threads, n - 1));
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i + u * threads < n) write(i + u * threads, held[u]);
    }
  }
}

template <class Element, class Key = typename Element::Key>
__global__ void __launch_bounds__(kThreads)
    copy_values(const Key* input, Key* values, int64_t n, const __grid_constant__ ResultDims p,
                const Element element) {
  each(
      n, [&](int64_t i) { return input[p.count ? place(p.dims, p.count, i).offset : 0]; },
      [&](int64_t i, Key bits) { values[i] = element.value(bits); });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    repeat(T* results, int64_t n, const __grid_constant__ ResultDims repeats) {
  const auto source_of = [&](int64_t i) {
    int64_t source = i;
    for (int d = 0; d < repeats.count; ++d) {
      const Dim dim = repeats.dims[d];
      const int64_t over = split(i, dim.step).quotient;
      source -= split(over, dim.size).remainder * dim.step;
    }
    return source;
  };
  // A result that is there already is left alone, for others read it meanwhile.
  each(
      n, [&](int64_t i) { return results[source_of(i)]; },
      [&](int64_t i, T result) {
        if (source_of(i) != i) results[i] = result;
      });
}

template <class... Parameters, class... Arguments>
void launch_over(int64_t n, void* stream, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min(ceil_div(n, kThreads * kAtOnce), kMostBlocks));
  config.blockDim = kThreads;
  config.stream = static_cast<cudaStream_t>(stream);
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

template <class T>
void repeat_as(void* results, int64_t n, const Dims& repeats, void* stream) {
  launch_over(n, stream, repeat<T>, static_cast<T*>(results), n, ResultDims(repeats));
}

void repeat_results(void* results, int bytes, int64_t n, const Dims& repeats, void* stream) {
  switch (bytes) {
    case 1:
      return repeat_as<int8_t>(results, n, repeats, stream);
    case 2:
      return repeat_as<int16_t>(results, n, repeats, stream);
    case 4:
      return repeat_as<int32_t>(results, n, repeats, stream);
    default:
      return repeat_as<int64_t>(results, n, repeats, stream);
  }
}

}  // namespace

void launch_fill(const Reduction& r, void* stream) {
  const Groups& groups = r.groups;
  const int64_t n = groups.outputs * groups.copies;
  const auto on = static_cast<cudaStream_t>(stream);
  if (r.indices) check(cudaMemsetAsync(r.indices, 0, n * r.index_bytes, on));
  if (!r.values) return;
  const Dims dims = result_dims(groups);
  const bool as_in_memory = dims.count == 0 || (dims.count == 1 && dims.dim[0].stride == 1);
  visit_element(r, [&](auto element) {
    using Element = decltype(element);
    using Key = typename Element::Key;
    if (kCopied<Element> && as_in_memory) {
      check(cudaMemcpyAsync(r.values, r.input, n * sizeof(Key), cudaMemcpyDeviceToDevice, on));
    } else {
      launch_over(n, stream, copy_values<Element>, static_cast<const Key*>(r.input),
                  static_cast<Key*>(r.values), n, ResultDims(dims), element);
    }
  });
}

void launch_repeat(const Reduction& r, void* stream) {
  const Groups& groups = r.groups;
  const int64_t n = groups.outputs * groups.copies;
  if (r.indices) repeat_results(r.indices, r.index_bytes, n, groups.repeats, stream);
  if (r.values) repeat_results(r.values, r.dtype->bytes, n, groups.repeats, stream);
}

}  // namespace reduceops::cuda
