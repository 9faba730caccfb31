#include "cpu/scratch.h"

#include <new>
#include <stdexcept>
#include <string>

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

void make_scratch() {
  if (buffer.memory) [[likely]]
    return;
  buffer.memory = operator new(kScratchBytes, kAlignment, std::nothrow);
  if (!buffer.memory) {
    throw std::runtime_error("reduceops: cannot allocate " + std::to_string(kScratchBytes) +
                             " bytes for a thread");
  }
}

void* scratch() noexcept { return buffer.memory; }

}  // namespace reduceops::cpu
