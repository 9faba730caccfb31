#include "cpu/scratch.h"

#include <string>

#include "tensor.h"

namespace reduceops::cpu {
namespace {

constexpr std::align_val_t kAlignment{kScratchAlignment};

thread_local struct Buffer {
  void* memory = nullptr;
  ~Buffer() {
    operator delete(memory, kAlignment);
    const_cast<void* volatile&>(memory) = nullptr;  // for calls of destructors that come later
  }
} buffer;

}  // namespace

void fail_to_allocate(size_t bytes) {
  throw CannotRun("reduceops: cannot allocate " + std::to_string(bytes) +
                  " bytes (out of memory?)");
}

void make_scratch() {
  if (buffer.memory) [[likely]]
    return;
  buffer.memory = operator new(kScratchBytes, kAlignment, std::nothrow);
  if (!buffer.memory) fail_to_allocate(kScratchBytes);
}

void* scratch() noexcept { return buffer.memory; }

}  // namespace reduceops::cpu
