// Copies from global to shared memory that need no registers: 16-byte blocks by each thread (sm_80
// on), and spans by the bulk copy engine (sm_90 on).
#pragma once

#include "cuda/ring.cuh"

namespace reduceops::cuda {

// 4 bytes or 16; both addresses are multiples of that.
template <int kBytes>
__device__ void copy_async(char* to, const void* from) {
#ifdef __CUDACC__
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(from) : "memory");
  }
#else
  memcpy(to, from, kBytes);
#endif
}

// Ends a group of copies of this thread, and waits for all of them but the last kPending.
__device__ inline void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>
__device__ void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Waits for the blocks that this thread copies; others see them after a barrier.
__device__ inline void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Copies `bytes` bytes to shared memory, block by block of 16 bytes: this lane's share. Both
// addresses have the same offset in such a block; nothing is read past `whole`, the end of the last
// block that lies in the input altogether, but the bytes asked for.
__device__ inline void copy_piece(const char* from, char* to, uint32_t bytes, const char* whole,
                                  uint32_t lane, uint32_t lanes) {
  const uint32_t before = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) % kLoadBytes;
  const char* source = from - before;
  char* target = to - before;
  const uint32_t end = before + bytes;
  const auto in_blocks = static_cast<uint32_t>(std::min<int64_t>(end, whole - source));
  uint32_t at = lane * kLoadBytes;
  for (; at < in_blocks; at += lanes * kLoadBytes) copy_async<kLoadBytes>(target + at, source + at);
  for (; at < end; ++at) target[at] = source[at];
}

// All threads of the block copy a span to `shared`, which has room for it and a line, with a
// barrier behind `room` bytes. Returns the offset at which it begins there.
__device__ inline uint32_t copy_span(char* shared, int room, const char* from, uint32_t bytes,
                                     const char* whole) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const Ring ring(shared, 1, room);
  if (threadIdx.x == 0) ring.fill({}, from, from + bytes, whole);
  ring.wait_full({});
  return lead_of(from);
#else
  const uint32_t lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) % kLoadBytes;
  copy_piece(from, shared + lead, bytes, whole, threadIdx.x, blockDim.x);
  wait_for_copies();
  __syncthreads();
  return lead;
#endif
}

}  // namespace reduceops::cuda
