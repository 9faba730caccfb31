// The pairs that ranks exchange (pairs.h), on a GPU: a thread for each output, of which there are
// few. Bound by launch latency.
#include "cuda/device.cuh"
#include "cuda/outputs.h"
#include "cuda/pack.h"

namespace reduceops::cuda {
namespace {

constexpr int kPairThreads = 128;
constexpr int64_t kPairBlocks = 4096;  // at most, for there may be any number of pairs

template <class Key>
__global__ void __launch_bounds__(kPairThreads) pack_kernel(const __grid_constant__ Packing p) {
  const int64_t threads = int64_t(gridDim.x) * kPairThreads;
  const int64_t first = blockIdx.x * int64_t(kPairThreads) + threadIdx.x;
  for (int64_t i = first; i < (p.to.count > 0 ? p.to.count : 1); i += threads) pack<Key>(p, i);
}

template <class Element>
__global__ void __launch_bounds__(kPairThreads)
    unpack_kernel(const __grid_constant__ Unpacking u, Gathered words, Element element) {
  const int64_t threads = int64_t(gridDim.x) * kPairThreads;
  const int64_t first = blockIdx.x * int64_t(kPairThreads) + threadIdx.x;
  for (int64_t i = first; i < u.count; i += threads) unpack(u, element, i, words);
}

template <class... Parameters, class... Arguments>
void launch_pairs(int64_t count, void* stream, void (*kernel)(Parameters...),
                  const Arguments&... arguments) {
  const int64_t blocks = ceil_div(std::max<int64_t>(count, 1), kPairThreads);
  const auto config = launch_config(std::min(blocks, kPairBlocks), kPairThreads, stream);
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

}  // namespace

void launch_pack(const Packing& p, const DType& dtype, void* stream) {
  with_bits(dtype.bytes,
            [&]<class Bits>(Bits) { launch_pairs(p.to.count, stream, pack_kernel<Bits>, p); });
}

void launch_unpack(const Unpacking& u, const Gathered& words, const Reduction& order,
                   void* stream) {
  visit_element(order, [&](auto element) {
    launch_pairs(u.count, stream, unpack_kernel<decltype(element)>, u, words, element);
  });
}

}  // namespace reduceops::cuda
