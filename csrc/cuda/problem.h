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
  const void* input;
  int64_t* indices;       // may be null
  void* values;           // may be null
  Candidate* candidates;  // [outputs in walk order][parts], or null when there is one part
  int64_t outputs, walk, part_extent, blocks;
  int parts, lanes, shares;
  int kept_count, reduced_count;
  Dim dims[kMaxDims];  // the kept ones, then the reduced ones

  __device__ const Dim* kept() const { return dims; }
  __device__ const Dim* reduced() const { return dims + kept_count; }
};

inline Problem make_problem(const Reduction& r, const Plan& plan, Candidate* candidates) {
  Problem p;
  p.input = r.input;
  p.indices = r.indices;
  p.values = r.values;
  p.candidates = candidates;
  p.outputs = r.groups.outputs;
  p.walk = walk_extent(r.groups.reduced);
  p.part_extent = plan.part_extent;
  p.blocks = plan.blocks;
  p.parts = static_cast<int>(plan.parts);
  p.lanes = static_cast<int>(plan.lanes);
  p.shares = static_cast<int>(plan.shares);
  p.kept_count = r.groups.kept.count;
  p.reduced_count = r.groups.reduced.count;
  std::copy_n(r.groups.kept.dim, p.kept_count, p.dims);
  std::copy_n(r.groups.reduced.dim, p.reduced_count, p.dims + p.kept_count);
  return p;
}

// Each enqueues on `stream` (a cudaStream_t) and throws if the launch fails.
void launch_rows(const Reduction& r, const Plan& plan, const Problem& problem, void* stream);
void launch_columns(const Reduction& r, const Plan& plan, const Problem& problem, void* stream);
void launch_combine(const Reduction& r, const Problem& problem, void* stream);

}  // namespace reduceops::cuda
