// The CPU kernels, compiled once per instruction set (REDUCEOPS_ISA); docs/cpu.md says how they
// work.
#include "cpu/kernels.h"

#include "cpu/columns.h"
#include "cpu/fill.h"
#include "cpu/rows.h"

namespace reduceops::cpu {
namespace {

void run(const Job& job, int64_t begin, int64_t end) {
  if (job.reduction.softmax) return REDUCEOPS_OF_ISA(softmax).run(job, begin, end);
  visit_element(job.reduction, [&](auto element) {
    job.plan.rows ? Rows<decltype(element)>(job, element)(begin, end)
                  : Columns<decltype(element)>(job, element)(begin, end);
  });
  if (job.streams) end_streams();
}

void combine(const Job& job) {
  if (job.reduction.softmax) return REDUCEOPS_OF_ISA(softmax).combine(job);
  visit_element(job.reduction, [&](auto element) { Walk(job, element).combine(); });
}

void fill(const Job& job, int64_t begin, int64_t end) {
  if (job.reduction.softmax) return REDUCEOPS_OF_ISA(softmax).fill(job, begin, end);
  visit_element(job.reduction, [&](auto element) { Fill(job, element)(begin, end); });
}

uint64_t read(const uint64_t* words, int64_t n) {
  uint64_t all = 0;
  for (int64_t i = 0; i < n; ++i) all |= words[i];
  return all;
}

}  // namespace

const Kernels REDUCEOPS_OF_ISA(kernels) = {run, combine, fill, read};

}  // namespace reduceops::cpu
