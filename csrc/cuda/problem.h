// What a kernel gets to know of a reduction, by value as its parameter.
#pragma once

#include <cstdint>

#include "cuda/plan.h"
#include "reduction.h"

namespace reduceops::cuda {

// The best of one output in one part of the reduced extent.
struct Candidate {
  int64_t key, index;
};
static_assert(sizeof(Candidate) == kCandidateBytes);

struct Problem {
  Plan plan;
  const char* input;
  const char* whole_blocks;  // the end of the last 16-byte block that lies in the input altogether
  int64_t* indices;          // may be null
  void* values;              // may be null
  Candidate* candidates;     // [outputs in walk order][parts], or null
  int64_t outputs, walk;
  int kept_count, reduced_count;
  Dim dims[kMaxDims];  // the kept ones, then the reduced ones

  __device__ const Dim* kept() const { return dims; }
  __device__ const Dim* reduced() const { return dims + kept_count; }
};

inline Problem make_problem(const Reduction& r, const Plan& plan, Candidate* candidates) {
  Problem p;
  p.plan = plan;
  p.input = static_cast<const char*>(r.input);
  p.indices = r.indices;
  p.values = r.values;
  p.candidates = candidates;
  p.outputs = r.groups.outputs;
  p.walk = walk_extent(r.groups.reduced);
  p.kept_count = r.groups.kept.count;
  p.reduced_count = r.groups.reduced.count;
  std::copy_n(r.groups.kept.dim, p.kept_count, p.dims);
  std::copy_n(r.groups.reduced.dim, p.reduced_count, p.dims + p.kept_count);
  int64_t last = 0;
  for (int d = 0; d < p.kept_count + p.reduced_count; ++d)
    last += (p.dims[d].size - 1) * p.dims[d].stride;
  const auto end = reinterpret_cast<uintptr_t>(p.input + (last + 1) * r.dtype->bytes);
  p.whole_blocks = reinterpret_cast<const char*>(end / kLoadBytes * kLoadBytes);
  return p;
}

// Each enqueues on `stream` (a cudaStream_t) and throws if the launch fails.
void launch_rows(const Reduction& r, const Problem& problem, void* stream);
void launch_columns(const Reduction& r, const Problem& problem, void* stream);
void launch_bulk_rows(const Reduction& r, const Problem& problem, void* stream);
void launch_bulk_groups(const Reduction& r, const Problem& problem, void* stream);
void launch_bulk_columns(const Reduction& r, const Problem& problem, void* stream);
void launch_combine(const Reduction& r, const Problem& problem, void* stream);

}  // namespace reduceops::cuda
