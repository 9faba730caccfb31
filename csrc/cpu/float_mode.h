// How a thread computes with floats: whether denormals count as zero. It is the caller's that
// decides; torch.set_flush_denormal() sets one thread's and leaves the others'. (It has the
// rounding in it, too; another than the usual one changes more than products.)
#pragma once

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include <cstdint>

namespace reduceops::cpu {

#if defined(__x86_64__)
inline uint64_t float_mode() { return _mm_getcsr(); }
inline void set_float_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
inline uint64_t float_mode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
inline uint64_t float_mode() { return 0; }
inline void set_float_mode(uint64_t) {}
#endif

// Another thread's mode, for as long as it lives.
class FloatModeOf {
 public:
  explicit FloatModeOf(uint64_t mode) { set_float_mode(mode); }
  FloatModeOf(const FloatModeOf&) = delete;
  FloatModeOf& operator=(const FloatModeOf&) = delete;
  ~FloatModeOf() { set_float_mode(before_); }

 private:
  const uint64_t before_ = float_mode();
};

}  // namespace reduceops::cpu
