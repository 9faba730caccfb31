// The building blocks that the walks share: reading 16 bytes, combining over a warp, writing a
// result.
#pragma once

#include <cuda_runtime.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "cuda/problem.h"
#include "element.h"

namespace reduceops::cuda {

template <class Key>
struct alignas(kLoadBytes) Vector {
  static constexpr int kWidth = kLoadBytes / sizeof(Key);
  Key at[kWidth];
};

struct Split {
  int64_t quotient, remainder;
};

// Division of a position by a count that is mostly 1; a 64-bit one costs about a hundred
// instructions.
__device__ inline Split split(int64_t position, int64_t count) {
  if (count == 1) return {position, 0};
  const int64_t quotient = position / count;
  return {quotient, position - quotient * count};
}

// What loses against any element of any tensor.
template <class Key>
__device__ Best<Key> no_best() {
  return {std::numeric_limits<Key>::max(), std::numeric_limits<int64_t>::max()};
}

template <class Key>
__device__ void take(Best<Key>& best, Best<Key> other) {
  if (better(other, best)) best = other;
}

// The best of each group of `lanes` neighbouring lanes, in all of them. Every lane of the warp
// takes part.
template <class Key>
__device__ Best<Key> warp_best(Best<Key> best, int lanes) {
  for (int d = lanes / 2; d > 0; d /= 2) {
    const Best<Key> other{static_cast<Key>(__shfl_xor_sync(~0u, best.key, d)),
                          __shfl_xor_sync(~0u, best.index, d)};
    take(best, other);
  }
  return best;
}

// Writes the result of the group that starts at input offset `base`.
template <class Element>
__device__ void finish(const Problem& p, Element element, Place at, int64_t index) {
  using Key = typename Element::Key;
  if (p.indices) p.indices[at.step] = index;
  if (p.values) {
    const Key* input = static_cast<const Key*>(p.input) + at.offset;
    static_cast<Key*>(p.values)[at.step] =
        element.value(input[offset_of(p.reduced(), p.reduced_count, index)]);
  }
}

// The result of output number `output` in walk order, which lies `at`, or this part's candidate for
// it.
template <class Element, class Key>
__device__ void emit(const Problem& p, Element element, int64_t output, Place at, int part,
                     Best<Key> best) {
  if (p.candidates) {
    p.candidates[output * p.parts + part] = {best.key, best.index};
  } else {
    finish(p, element, at, best.index);
  }
}

inline void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("reduceops: CUDA error: ") + cudaGetErrorString(error));
  }
}

inline unsigned grid_of(int64_t blocks) {
  return static_cast<unsigned>(std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max()));
}

}  // namespace reduceops::cuda
