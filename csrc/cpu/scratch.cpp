#include "cpu/scratch.h"

#include <new>
#include <stdexcept>
#include <string>

namespace reduceops::cpu {
namespace {

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  void* at_least(size_t bytes) {
    if (bytes > bytes_) [[unlikely]] {
      release();
      memory_ = operator new(bytes, kAlignment, std::nothrow);
      if (!memory_) {
        throw std::runtime_error("reduceops: cannot allocate " + std::to_string(bytes) +
                                 " bytes for a thread");
      }
      bytes_ = bytes;
    }
    return memory_;
  }

 private:
  static constexpr std::align_val_t kAlignment{kScratchAlignment};

  void release() {
    operator delete(memory_, kAlignment);
    memory_ = nullptr;
    bytes_ = 0;
  }

  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace

void* scratch(size_t bytes) {
  thread_local Buffer buffer;
  return buffer.at_least(bytes);
}

}  // namespace reduceops::cpu
