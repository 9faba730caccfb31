// Memory for a walk's bests and copies: a thread's stack may be too small for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace reduceops::cpu {

constexpr size_t kScratchAlignment = 64;
constexpr size_t kScratchBytes = 1 << 20;  // pages that a walk does not use cost nothing

[[noreturn, gnu::cold]] void fail_to_allocate(size_t bytes);

// Uninitialised.
template <class T>
std::unique_ptr<T[]> allocate(int64_t count) {
  std::unique_ptr<T[]> memory(new (std::nothrow) T[count]);
  if (!memory) fail_to_allocate(count * sizeof(T));
  return memory;
}

// Allocates the calling thread's, which it keeps until it ends.
void make_scratch();
// That of the calling thread, for which it was made.
void* scratch() noexcept;

}  // namespace reduceops::cpu
