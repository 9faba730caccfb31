// Memory for a walk's bests and copies: a thread's stack may be too small for it.
#pragma once

#include <cstddef>

namespace reduceops::cpu {

constexpr size_t kScratchAlignment = 64;
constexpr size_t kScratchBytes = 1 << 20;  // pages that a walk does not use cost nothing

// Allocates the calling thread's, which it keeps until it ends.
void make_scratch();
// That of the calling thread, for which it was made.
void* scratch() noexcept;

}  // namespace reduceops::cpu
