// Folding: some reduced positions are taken as further columns, or further rows. Columns that are
// narrow, or have reduced dims on either side of them, come to be wide, contiguous ones so, and
// rows of several runs of memory one run each. Each leaves a candidate, and what combines the
// candidates of parts combines these, too (combine.cuh). Below, such a row is called a column as
// well.
#pragma once

#include "cuda/plan.h"
#include "make_groups.h"

namespace reduceops::cuda {

constexpr int kMostFolds = 4;
constexpr int kCombiners = 256;  // threads of a block that combines candidates

// What is folded of groups.
struct Fold {
  struct Piece {
    int dim;       // number of a reduced one
    int64_t size;  // its innermost positions: a divisor of them, or all
  };
  int count;
  Piece pieces[kMostFolds];

  void add(int dim, int64_t size) { pieces[count++] = {dim, size}; }
  bool has(int dim) const {
    for (int i = 0; i < count; ++i) {
      if (pieces[i].dim == dim) return true;
    }
    return false;
  }
  int64_t columns() const {  // to an output
    int64_t columns = 1;
    for (int i = 0; i < count; ++i) columns *= pieces[i].size;
    return columns;
  }
};

// A plan with what is folded before kernels are told the rest, which is of its columns.
struct FoldedPlan : Plan {
  Fold fold{};

  bool is_folded() const { return fold.count > 0; }
  // Whether a second kernel combines candidates: of parts, of columns or of both.
  bool has_combine() const { return is_folded() || Plan::has_combine(); }
  // Bytes of workspace for the candidates of an output.
  int64_t workspace_of_output() const {
    return split() || is_folded() ? fold.columns() * candidates() * candidate_bytes : 0;
  }
};

// Where the columns of an output are among all of them. The dims, innermost first: stride, in
// columns; step, in the result index.
struct FoldedColumns {
  int count = 0;
  int64_t of_output = 1;
  Dim dims[kMostFolds];

  FoldedColumns() {}
  void add(const Dim& dim) {
    dims[count++] = dim;
    of_output *= dim.size;
  }
  REDUCEOPS_HD int64_t first(int64_t output) const {
    REDUCEOPS_ROLLED
    for (int d = 0; d < count; ++d) {
      const auto [outer, inner] = split(output, dims[d].stride);
      output = outer * dims[d].size * dims[d].stride + inner;
    }
    return output;
  }
};

// Groups of which each is a column of a group; their results are numbered in the order of memory.
struct Folded {
  Groups groups;
  FoldedColumns columns;

  Folded(const Groups& whole, const Fold& fold) : groups(whole) {
    Dims& kept = groups.kept;
    // Until all are numbered, a step says that a dim is a folded one: its step in the index.
    for (int d = 0; d < kept.count; ++d) kept.dim[d].step = 0;
    groups.reduced.count = 0;
    for (int d = 0; d < whole.reduced.count; ++d) {
      Dim rest = whole.reduced.dim[d];
      for (int i = 0; i < fold.count; ++i) {
        const auto [dim, size] = fold.pieces[i];
        if (dim != d) continue;
        insert(kept, {size, rest.stride, rest.step});
        rest = {rest.size / size, rest.stride * size, rest.step * size};
        groups.outputs *= size;
      }
      if (rest.size > 1) insert(groups.reduced, rest, &Dim::step);
    }
    int64_t number = 1;
    for (int d = 0; d < kept.count; ++d) {
      Dim& dim = kept.dim[d];
      if (dim.step > 0) columns.add({dim.size, number, dim.step});
      dim.step = number;
      number *= dim.size;
    }
    merge_kept(groups);
    if (is_rows(groups)) groups.reduced = by_stride(groups.reduced);
  }
};

}  // namespace reduceops::cuda
