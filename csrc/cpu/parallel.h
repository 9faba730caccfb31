// torch's parallel_for, whose threads compute with floats as the caller does.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <exception>

#include "cpu/float_mode.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace reduceops::cpu {

// Tell the thread sanitizer what OpenMP, which it cannot look into, keeps in order.
#ifdef __SANITIZE_THREAD__
inline void before(const void* that) { __tsan_release(const_cast<void*>(that)); }
inline void after(const void* that) { __tsan_acquire(const_cast<void*>(that)); }
#else
inline void before(const void*) {}
inline void after(const void*) {}
#endif

template <class F>
struct Task {
  const F& f;
  const uint64_t float_mode;
  // What went wrong first: through torch's C interface it would lose its text.
  mutable std::exception_ptr error{};
  mutable std::atomic_flag failed{};
  const char done{};  // of which only the address matters

  void operator()(int64_t begin, int64_t end) const {
    after(this);
    try {
      const FloatModeOf caller(float_mode);
      f(begin, end);
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
    before(&done);
  }
};

// Calls f(begin, end) for ranges that together are [0, items).
template <class F>
void parallel(int64_t items, int64_t grain, const F& f) {
  const Task<F> task{f, float_mode()};
  before(&task);
  torch::stable::parallel_for(0, items, grain, task);
  after(&task.done);
  if (task.error) [[unlikely]]
    std::rethrow_exception(task.error);
}

// In this thread if there are few items, each of which is worth 1 / grain of a thread.
template <class Body>
void in_parallel(int64_t items, int64_t grain, Body body) {
  if (items <= grain) {
    body(0, items);
  } else {
    parallel(items, grain, body);
  }
}

}  // namespace reduceops::cpu
