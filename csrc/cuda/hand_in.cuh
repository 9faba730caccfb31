// Parts of a row that the block with its last part combines, in the kernel that finds them: a
// second kernel would begin two microseconds later, a third of the time of a row of a few
// megabytes.
//
// The block waits for those with the other parts. Blocks begin in the order of their numbers, so
// these run already, or have ended (as in prefix sums with look-back, CUB's for one).
#pragma once

#include <atomic>
#include <chrono>

#include "cuda/device.cuh"

namespace reduceops::cuda {

// What each part found, in two words of memory that nobody has set to anything. A word is stored
// together with the number of the call, in one piece, so whoever sees the number has the word. Who
// took it takes the number away, for a CUDA graph has the same in each of its replays.
struct HandIn {
  struct alignas(16) Word {
    int64_t bits;
    uint64_t call;
  };
  Word* words;  // two to a part; may be null
  uint64_t call;

  HandIn() = default;
  explicit HandIn(void* workspace) : words(static_cast<Word*>(workspace)), call(0) {
    if (words) call = next_call();
  }

  template <class Key>
  __device__ void put(uint32_t part, Far<Key> found) const {
    store(words + 2 * part, {static_cast<int64_t>(found.key), call});
    store(words + 2 * part + 1, {found.index, call});
  }
  template <class Key>
  __device__ Far<Key> take(uint32_t part) const {
    const int64_t key = take_word(words + 2 * part), index = take_word(words + 2 * part + 1);
    return {static_cast<Key>(key), index};
  }

 private:
  // Memory is as good as never set to one of these: they are spread over 64 bits, and differ from
  // one process to the next.
  static uint64_t next_call() {
    static std::atomic<uint64_t> calls{
        static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
    return calls.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15u | 1;
  }

  __device__ int64_t take_word(Word* at) const {
    Word word;
    do {
      word = load(at);
    } while (word.call != call);
    store(at, {0, 0});
    return word.bits;
  }
  static __device__ void store(Word* at, Word word) {
#ifdef __CUDACC__
    asm volatile(
        "{ .reg .b128 word; mov.b128 word, {%1, %2};"
        " st.relaxed.gpu.global.b128 [%0], word; }" ::"l"(at),
        "l"(word.bits), "l"(word.call)
        : "memory");
#else
    *at = word;
#endif
  }
  static __device__ Word load(const Word* at) {
    Word word;
#ifdef __CUDACC__
    asm volatile(
        "{ .reg .b128 word; ld.relaxed.gpu.global.b128 word, [%2]; mov.b128 {%0, %1}, word; }"
        : "=l"(word.bits), "=l"(word.call)
        : "l"(at)
        : "memory");
#else
    word = *at;
#endif
    return word;
  }
};

}  // namespace reduceops::cuda
