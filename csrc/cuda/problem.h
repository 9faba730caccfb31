// What a kernel gets to know of a reduction, by value as its parameter.
#pragma once

#include <cstdint>

#include "cuda/divisor.h"
#include "cuda/outputs.h"
#include "cuda/plan.h"
#include "reduction.h"

namespace reduceops::cuda {

// The bests of the outputs in the parts of the reduced extent, [outputs in walk order][parts] in
// the workspace, if there is one.
struct Candidates {
  void* workspace;
  bool packed;  // key and index in one integer

  REDUCEOPS_HD explicit operator bool() const { return workspace; }
  __device__ void put(int64_t at, Best<int64_t> best) const {
    if (packed) {
      static_cast<int64_t*>(workspace)[at] = best.key << 32 | static_cast<uint32_t>(best.index);
    } else {
      static_cast<Best<int64_t>*>(workspace)[at] = best;
    }
  }
  __device__ Best<int64_t> get(int64_t at) const {
    if (!packed) return static_cast<const Best<int64_t>*>(workspace)[at];
    const int64_t both = static_cast<const int64_t*>(workspace)[at];
    const auto index = static_cast<uint32_t>(both);  // all bits: that of no element
    return {both >> 32, index == ~0u ? std::numeric_limits<int64_t>::max() : index};
  }
};

struct FoldedColumns;  // fold.h

// Constants come from memory in lines of 64 bytes, each of which delays a kernel by some 60 ns when
// it asks for it first. So what all kernels need is in the first lines, and operands, which are
// small, are parameters before it.
struct Problem {
  const char* input;
  int64_t walk, outputs;
  Candidates candidates;
  int8_t kept_count, reduced_count;
  int8_t axis_count;  // of the kept dims as they lie in memory
  bool in_order;      // the results follow each other as the outputs do in memory
  Outputs out;
  Plan plan;
  const uint8_t* mask;       // may be null
  const char* end;           // of the last element
  const char* whole_blocks;  // the end of the last 16-byte block that lies in the input altogether
  Dim dims[kMaxDims];        // the kept ones, then the reduced ones
  Dim merged[kMaxAxes];
  Divisor by_size[kFlatDims];  // of the reduced dims, where the plan wants it; the first of packed
                               // rows is by the packs of a run

  __device__ const Dim* kept() const { return dims; }
  __device__ const Dim* reduced() const { return dims + kept_count; }
  // Their steps mean nothing where several dims are merged: see `result`.
  __device__ const Dim* axes() const { return axis_count < kept_count ? merged : dims; }
  // Where the result of an output goes, by its number in the order of memory.
  __device__ int64_t result(int64_t output) const {
    return in_order ? output : place(dims, kept_count, output).step;
  }
};

inline Outputs outputs_of(const Reduction& r) {
  return {static_cast<char*>(r.indices), r.values, r.index_bytes};
}

inline Problem make_problem(const Reduction& r, const Plan& plan, void* workspace) {
  Problem p;
  p.plan = plan;
  p.input = static_cast<const char*>(r.input);
  p.out = outputs_of(r);
  p.mask = static_cast<const uint8_t*>(r.mask);
  p.candidates = {workspace, plan.candidate_bytes == 8};
  p.outputs = r.groups.outputs;
  p.walk = walk_extent(r.groups.reduced);
  p.kept_count = r.groups.kept.count;
  p.reduced_count = r.groups.reduced.count;
  std::copy_n(r.groups.kept.dim, p.kept_count, p.dims);
  std::copy_n(r.groups.reduced.dim, p.reduced_count, p.dims + p.kept_count);
  p.axis_count = r.groups.axes.count;
  if (p.axis_count < p.kept_count) std::copy_n(r.groups.axes.dim, p.axis_count, p.merged);
  p.in_order = in_order(r.groups);
  const bool rows = plan.walk == Walk::kRows;
  const bool flat = rows ? plan.rows.flat : plan.walk == Walk::kColumns && plan.columns.flat;
  for (int d = 0; flat && d < p.reduced_count; ++d)
    p.by_size[d] = Divisor(r.groups.reduced.dim[d].size);
  if (rows && flat && plan.rows.vector)
    p.by_size[0] = Divisor(ceil_div(p.dims[p.kept_count].size, kLoadBytes / r.dtype->bytes));
  p.end = p.input + (reach(r.groups.kept) + reach(r.groups.reduced) + 1) * r.dtype->bytes;
  p.whole_blocks = p.end - reinterpret_cast<uintptr_t>(p.end) % kLoadBytes;
  return p;
}

// Each enqueues on `stream` (a cudaStream_t) and throws if the launch fails.
void launch_small(const Reduction& r, const Problem& problem, void* stream);
void launch_whole_rows(const Reduction& r, const Problem& problem, void* stream);
void launch_rows(const Reduction& r, const Problem& problem, void* stream);
void launch_whole_columns(const Reduction& r, const Problem& problem, void* stream);
void launch_columns(const Reduction& r, const Problem& problem, void* stream);
void launch_packed_columns(const Reduction& r, const Problem& problem, void* stream);
void launch_boxes(const Reduction& r, const Problem& problem, void* stream);
void launch_gather(const Reduction& r, const Problem& problem, void* stream);
void launch_tiles(const Reduction& r, const Problem& problem, void* stream);
void launch_bulk_columns(const Reduction& r, const Problem& problem, void* stream);
// `columns`: those of an output, if the plan folds. `early`: it may begin before what the stream
// does before it has ended, for which it then waits.
void launch_combine(const Reduction& r, const Problem& problem, const FoldedColumns& columns,
                    bool early, void* stream);
// Whole rows, rows, columns, small or gather, and what combines their parts: all the walks of these
// tasks.
void launch_masked(const Reduction& r, const Problem& problem, bool early, void* stream);
void launch_masked_columns(const Reduction& r, const Problem& problem, void* stream);
void launch_softmax(const Reduction& r, const Problem& problem, bool early, void* stream);
// Of groups of one element.
void launch_fill(const Reduction& r, void* stream);

}  // namespace reduceops::cuda
