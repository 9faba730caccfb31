// Memory for a walk's bests and copies: a thread's stack may be too small for it.
#pragma once

#include <cstddef>

namespace reduceops::cpu {

constexpr size_t kScratchAlignment = 64;

// At least so many bytes, uninitialised. They belong to the calling thread, for its next call too,
// and are freed when it ends.
void* scratch(size_t bytes);

}  // namespace reduceops::cpu
