// The CPU kernels: one set per instruction set, all compiled from kernels.cpp, without exceptions.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "cpu/plan.h"
#include "reduction.h"

namespace reduceops::cpu {

// Whether to ask for what comes next in a stream of memory, into L1. AMD's hardware goes on in the
// next page by itself; what is asked for into L1 besides makes it slower by a tenth to a third.
extern const bool asks_in_streams;

constexpr int kRowAhead = 6 << 10;  // bytes; of rows, what lies so far ahead is asked for

// For AMD, of an input that comes from memory: asks for 256 bytes, into L2. A function, and not in
// each kernel, which would be 5 KB of the wheel; what GCC saves around a call hides behind memory.
#ifdef __x86_64__
__attribute__((no_caller_saved_registers)) void ask_into_l2(const void* from);
#else
inline void ask_into_l2(const void*) {}
#endif

// The best candidate of one output in one part of the reduced extent.
struct Candidate {
  int64_t key, index;
};

// The index where a mask lets nothing through: larger than any, for a group has fewer elements.
// Unsigned, its sum with an index is as well.
constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

struct Job {
  const Reduction& reduction;
  const Plan& plan;
  Candidate* candidates = nullptr;  // [outputs in walk order][columns of crossed dims][parts]
  bool streams = false;             // results without gaps go past the caches
  bool asks_for_rows = false;       // for short rows that come next
  bool asks_into_l2 = false;        // for what comes next, in a row or behind it, on AMD
  int64_t pitch = 0;                // bytes from a row to the next, where rows are read as they lie
  double* sums = nullptr;  // of softmax_max: the candidates', whose keys are the largest elements
  const Filling* filling = nullptr;
  std::atomic<int64_t>* decided = nullptr;  // of each row, the first part that none can beat
  const Dims* crossed = nullptr;            // reduced dims whose positions are candidates (plan.h)
};

// A name of its own for each instruction set.
#define REDUCEOPS_NAME_OF(name, isa) name##_##isa
#define REDUCEOPS_NAME(name, isa) REDUCEOPS_NAME_OF(name, isa)
#define REDUCEOPS_OF_ISA(name) REDUCEOPS_NAME(name, REDUCEOPS_ISA)

struct Kernels {
  // Items [begin, end) of the plan; item i is part i % parts of unit i / parts, or where it goes by
  // parts, part i / units of unit i % units. The thread's scratch (scratch.h) is there, but for
  // rows without a mask, which use none.
  void (*run)(const Job& job, int64_t begin, int64_t end);
  // Combines the candidates of outputs [begin, end) and writes the results.
  void (*combine)(const Job& job, int64_t begin, int64_t end);
  // The values of units [begin, end) of the filling, where every group is one element.
  void (*fill)(const Job& job, int64_t begin, int64_t end);
  // Writes n words, into the caches: memset() goes past them where there are many, which takes
  // longer where they are fresh.
  void (*write)(uint64_t* words, int64_t n, uint64_t word);
  // The same past the caches.
  void (*write_past)(uint64_t* words, int64_t n, uint64_t word);
  // Reads n words and does next to nothing with them: what memory allows (customops/bench).
  uint64_t (*read)(const uint64_t* words, int64_t n);
};

extern const Kernels kernels_baseline;
#ifdef __x86_64__
extern const Kernels kernels_avx2, kernels_avx512;
#endif

}  // namespace reduceops::cpu
