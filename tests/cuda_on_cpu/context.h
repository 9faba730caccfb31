// A function with a stack of its own that can pause. On x86-64 a switch takes some nanoseconds; by
// ucontext, which other processors have, it takes two calls of the system.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __x86_64__

// AddressSanitizer is told which stack comes next, and asked which one came before.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif

// Leaves the registers that a call preserves on this stack, and takes those that are on the other.
__attribute__((naked, noinline)) inline void switch_stacks(void** /*from*/, void* /*to*/) {
  asm("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15;"
      "mov %rsp, (%rdi); mov %rsi, %rsp;"
      "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");
}

class Context {
 public:
  // The function begins with entered() and ends with leave().
  void start(char* stack, size_t bytes, void (*function)()) {
    stack_ = stack;
    bytes_ = bytes;
    auto* const end = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) & -16);
    end[-1] = nullptr;  // where the function would return to
    end[-2] = reinterpret_cast<void*>(function);
    paused_ = end - 8;  // six registers
  }
  void go_on() {
    void* frames;
    __sanitizer_start_switch_fiber(&frames, stack_, bytes_);
    switch_stacks(&caller_, paused_);
    __sanitizer_finish_switch_fiber(frames, nullptr, nullptr);
  }
  void entered() { __sanitizer_finish_switch_fiber(nullptr, &caller_stack_, &caller_bytes_); }
  void pause() {
    void* frames;
    __sanitizer_start_switch_fiber(&frames, caller_stack_, caller_bytes_);
    switch_stacks(&paused_, caller_);
    __sanitizer_finish_switch_fiber(frames, &caller_stack_, &caller_bytes_);
  }
  void leave() {
    __sanitizer_start_switch_fiber(nullptr, caller_stack_, caller_bytes_);
    switch_stacks(&paused_, caller_);
  }

 private:
  void *paused_, *caller_;
  const void *stack_, *caller_stack_ = nullptr;
  size_t bytes_, caller_bytes_ = 0;
};

#else

#include <ucontext.h>

class Context {
 public:
  void start(char* stack, size_t bytes, void (*function)()) {
    getcontext(&paused_);
    paused_.uc_stack = {stack, 0, bytes};
    paused_.uc_link = &caller_;
    makecontext(&paused_, function, 0);
  }
  void go_on() { swapcontext(&caller_, &paused_); }
  void entered() {}
  void pause() { swapcontext(&paused_, &caller_); }
  void leave() {}

 private:
  ucontext_t paused_, caller_;
};

#endif
