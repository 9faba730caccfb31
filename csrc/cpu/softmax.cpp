// The CPU kernels of softmax_max, compiled once per instruction set (REDUCEOPS_ISA) as kernels.cpp.
#include "cpu/kernels.h"
#include "cpu/softmax_columns.h"
#include "cpu/softmax_fill.h"
#include "cpu/softmax_rows.h"

namespace reduceops::cpu {
namespace {

template <class F>
void visit_format(const Reduction& r, F&& f) {
  switch (r.dtype->bytes) {
    case 2:
      return r.dtype->max_magnitude == 0x7c00 ? f(Float16()) : f(BFloat16());
    case 4:
      return f(Float32());
    default:
      return f(Float64());
  }
}

void run(const Job& job, int64_t begin, int64_t end) {
  visit_format(job.reduction, [&]<class Format>(Format) {
    job.plan.walk == Walks::kRows ? SoftmaxRows<Format>(job)(begin, end)
                                  : SoftmaxColumns<Format>(job)(begin, end);
  });
}

void combine(const Job& job, int64_t begin, int64_t end) {
  visit_format(job.reduction,
               [&]<class Format>(Format) { SoftmaxWalk<Format>(job).combine(begin, end); });
}

void fill(const Job& job, int64_t begin, int64_t end) {
  visit_format(job.reduction, [&]<class Format>(Format) {
    const SoftmaxFill<Format> fill_range(job);
    fill_range(begin, end);
  });
}

}  // namespace

const Kernels REDUCEOPS_OF_ISA(softmax) = {run, combine, fill, nullptr};

}  // namespace reduceops::cpu
