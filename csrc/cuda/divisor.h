// Division by a number that the host knows, in four instructions instead of twenty.
#pragma once

#include <cuda_runtime.h>

#include <cassert>
#include <cstdint>

namespace reduceops::cuda {

// Lemire, Kaser and Kurz, "Faster remainder by direct computation" (2019): exact for dividends and
// divisors below 2^32.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t by) : inverse_(by == 1 ? 0 : ~uint64_t(0) / by + 1) {
    assert(by > 0 && by >> 32 == 0);
  }

  __device__ uint32_t quotient(uint32_t x) const {
    return inverse_ == 0 ? x : static_cast<uint32_t>(__umul64hi(inverse_, x));
  }

 private:
  uint64_t inverse_ = 0;  // 2^64 / by, rounded up; 0 where that is 2^64
};

// The same of dividends and divisors below 2^31, in three instructions: with a multiplier of 33
// bits (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994), of
// which the highest is added.
class ShortDivisor {
 public:
  ShortDivisor() = default;
  explicit ShortDivisor(int64_t by) {
    assert(by > 0 && by >> 31 == 0);
    while ((int64_t(1) << shift_) < by) ++shift_;
    const auto above = static_cast<uint64_t>((int64_t(1) << shift_) - by);
    inverse_ = static_cast<uint32_t>((above << 32) / static_cast<uint64_t>(by) + 1);
  }

  __device__ uint32_t quotient(uint32_t x) const { return (__umulhi(x, inverse_) + x) >> shift_; }

 private:
  uint32_t inverse_ = 1, shift_ = 0;
};

}  // namespace reduceops::cuda
