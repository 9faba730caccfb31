// Groups of one element, which need no reduction: all indices are 0, and the values are copied.
//
// Bound by writing the results in their order, and by reading the values where these lie apart in
// memory.
#include "cuda/divisor.h"
#include "cuda/each.cuh"
#include "make_groups.h"

namespace reduceops::cuda {
namespace {

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
      if constexpr (kShort) by_size[d] = Divisor(dims[d].size);
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

}  // namespace reduceops::cuda
