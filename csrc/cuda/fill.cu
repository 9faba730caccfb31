// Results that need no reduction: of groups of one element, and those of kept dims of stride 0,
// which are computed once and stored here for all other positions.
//
// Bound by writing the results in their order, and by reading the values where these lie apart in
// memory.
#include <algorithm>

#include "cuda/device.cuh"
#include "cuda/divisor.h"
#include "make_groups.h"

namespace reduceops::cuda {
namespace {

constexpr int kAtOnce = 4;             // results of a thread that are read before any is stored
constexpr int64_t kMostBlocks = 8192;  // enough to fill any GPU a few times

template <class Element>
constexpr bool kCopied = false;  // whether the value is the element, bit for bit
template <class Key, bool kFloat>
constexpr bool kCopied<Plain<Key, kFloat>> = true;

// Where the result of a position lies in the input; kShort: all positions have 32 bits.
template <bool kShort>
struct Offsets {
  int count;
  Dim dims[kMaxDims];  // in the order of the results
  Divisor by_size[kMaxDims];

  explicit Offsets(const Dims& from) : count(from.count) {
    for (int d = 0; d < count; ++d) {
      dims[d] = from.dim[d];
      by_size[d] = Divisor(dims[d].size);
    }
  }
  __device__ int64_t operator()(int64_t i) const {
    if constexpr (!kShort) return count ? place(dims, count, i).offset : 0;
    int64_t offset = 0;
    auto rest = static_cast<uint32_t>(i);
    REDUCEOPS_ROLLED
    for (int d = 0; d < count; ++d) {
      const uint32_t over = by_size[d].quotient(rest);
      offset += (rest - over * static_cast<uint32_t>(dims[d].size)) * dims[d].stride;
      rest = over;
    }
    return offset;
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

template <class Element, class Offsets, class Key = typename Element::Key>
__global__ void __launch_bounds__(kThreads)
    copy_values(const Key* input, Key* values, int64_t n, const __grid_constant__ Offsets offset,
                const Element element) {
  each(
      n, [&](int64_t i) { return input[offset(i)]; },
      [&](int64_t i, Key bits) { values[i] = element.value(bits); });
}

// A kernel, for setting memory by the device's own means begins later.
__global__ void __launch_bounds__(kThreads) zero(uint4* to, int64_t n) {
  each(n, [](int64_t) { return uint4{}; }, [&](int64_t i, uint4 zeros) { to[i] = zeros; });
}

// For each result that of its first copy, by positions of 32 bits where all have one.
template <bool kShort>
struct Sources {
  using Position = std::conditional_t<kShort, uint32_t, int64_t>;
  struct Repeat {
    int64_t step, size;
    Divisor by_step, by_size;
  };
  int count;
  Repeat repeats[kMaxDims];

  explicit Sources(const Dims& dims) : count(dims.count) {
    for (int d = 0; d < count; ++d) {
      const Dim& dim = dims.dim[d];
      repeats[d] = {dim.step, dim.size, Divisor(dim.step), Divisor(dim.size)};
    }
  }
  __device__ Position operator()(Position i) const {
    Position source = i;
    REDUCEOPS_ROLLED
    for (int d = 0; d < count; ++d) {
      const Repeat& repeat = repeats[d];
      if constexpr (kShort) {
        const uint32_t over = repeat.by_step.quotient(i);
        const uint32_t digit = over - repeat.by_size.quotient(over) * uint32_t(repeat.size);
        source -= digit * static_cast<uint32_t>(repeat.step);
      } else {
        const int64_t over = split(i, repeat.step).quotient;
        source -= split(over, repeat.size).remainder * repeat.step;
      }
    }
    return source;
  }
};

template <class T, class Sources>
__global__ void __launch_bounds__(kThreads)
    repeat(T* results, int64_t n, const __grid_constant__ Sources sources) {
  using Position = typename Sources::Position;
  struct Copy {
    T result;
    bool is_first;
  };
  // A result that is there already is left alone, for others read it meanwhile.
  each(
      n,
      [&](int64_t i) -> Copy {
        const Position to = static_cast<Position>(i), from = sources(to);
        return {results[from], from == to};
      },
      [&](int64_t i, Copy copy) {
        if (!copy.is_first) results[i] = copy.result;
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
  const auto launch = [&](const auto& sources) {
    using Of = std::decay_t<decltype(sources)>;
    launch_over(n, stream, repeat<T, Of>, static_cast<T*>(results), n, sources);
  };
  n >> 32 == 0 ? launch(Sources<true>(repeats)) : launch(Sources<false>(repeats));
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
  if (r.indices) {
    const int64_t bytes = n * r.index_bytes, rest = bytes % kLoadBytes;
    auto* indices = static_cast<char*>(r.indices);
    if (bytes > rest)
      launch_over(bytes / kLoadBytes, stream, zero, reinterpret_cast<uint4*>(indices),
                  bytes / kLoadBytes);
    if (rest) check(cudaMemsetAsync(indices + bytes - rest, 0, rest, on));
  }
  if (!r.values) return;
  const Dims dims = result_dims(groups);
  const bool as_in_memory = dims.count == 0 || (dims.count == 1 && dims.dim[0].stride == 1);
  visit_element(r, [&](auto element) {
    using Element = decltype(element);
    using Key = typename Element::Key;
    if (kCopied<Element> && as_in_memory) {
      check(cudaMemcpyAsync(r.values, r.input, n * sizeof(Key), cudaMemcpyDeviceToDevice, on));
    } else {
      const auto launch = [&](const auto& offsets) {
        using Of = std::decay_t<decltype(offsets)>;
        launch_over(n, stream, copy_values<Element, Of>, static_cast<const Key*>(r.input),
                    static_cast<Key*>(r.values), n, offsets, element);
      };
      n >> 32 == 0 ? launch(Offsets<true>(dims)) : launch(Offsets<false>(dims));
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
