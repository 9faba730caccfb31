// The CPU kernels, compiled once per instruction set (REDUCEOPS_ISA); docs/cpu.md says how they
// work.
#include "cpu/kernels.h"

#include "cpu/columns.h"
#include "cpu/combine.h"
#include "cpu/fill.h"
#include "cpu/rows.h"
#include "cpu/softmax_columns.h"
#include "cpu/softmax_fill.h"
#include "cpu/softmax_rows.h"

namespace reduceops::cpu {
namespace {

// Calls f with the element reader of a reduction and whether there is a mask; scaled elements have
// none.
template <class F>
void visit(const Reduction& r, F&& f) {
  if (!r.mask) return visit_element(r, [&](auto element) { f(element, std::false_type()); });
  if (r.dtype->is_bool()) return f(MarkedBool(r.largest), std::true_type());
  visit_element(r, [&]<class Element>(Element element) {
    if constexpr (std::is_same_v<Element, Plain<typename Element::Key, true>> ||
                  std::is_same_v<Element, Plain<typename Element::Key, false>>)
      f(element, std::true_type());
  });
}

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

void run_softmax(const Job& job, int64_t begin, int64_t end) {
  visit_format(job.reduction, [&]<class Format>(Format) {
    job.plan.walk == Walks::kRows ? SoftmaxRows<Format>(job)(begin, end)
                                  : SoftmaxColumns<Format>(job)(begin, end);
  });
}

void run(const Job& job, int64_t begin, int64_t end) {
  if (job.reduction.softmax) return run_softmax(job, begin, end);
  visit(job.reduction, [&]<class Element>(Element element, auto masked) {
    using Key = typename Element::Key;
    constexpr bool kBools = std::is_same_v<Element, MarkedBool>;
    using Row = std::conditional_t<masked, MaskedRows<Key, kBools>, StoredRows<Key>>;
    using Column = std::conditional_t<masked, MaskedColumns<Key, kBools>, StoredColumns<Key>>;
    job.plan.walk == Walks::kRows ? Rows<Element, Row>(job, element)(begin, end)
                                  : Columns<Element, Column>(job, element)(begin, end);
  });
  if (job.streams) end_streams();
}

void combine(const Job& job, int64_t begin, int64_t end) {
  if (job.reduction.softmax) {
    return visit_format(
        job.reduction, [&]<class Format>(Format) { SoftmaxWalk<Format>(job).combine(begin, end); });
  }
  visit(job.reduction,
        [&]<class Element>(Element element, auto) { Combine<Element>(job, element)(begin, end); });
}

void fill(const Job& job, int64_t begin, int64_t end) {
  if (job.reduction.softmax) {
    return visit_format(job.reduction, [&]<class Format>(Format) {
      const OnlyElement<Format> element(job.reduction);
      Fill<typename Format::Key, false, false>(job, element)(begin, end);
    });
  }
  visit(job.reduction, [&]<class Element>(Element element, auto masked) {
    constexpr bool kBools = std::is_same_v<Element, MarkedBool>;
    Fill<typename Element::Key, masked, kBools>(job, element)(begin, end);
  });
}

void write(uint64_t* words, int64_t n, uint64_t word) {
  for (int64_t i = 0; i < n; ++i) words[i] = word;
}

void write_past(uint64_t* words, int64_t n, uint64_t word) {
  constexpr int64_t kWords = 4096 / sizeof(word);
  alignas(kVectorBytes) uint64_t page[kWords];
  write(page, kWords, word);
  for (int64_t i = 0; i < n; i += kWords)
    stream(words + i, page, least(kWords, n - i) * static_cast<int64_t>(sizeof(word)));
  end_streams();
}

uint64_t read(const uint64_t* words, int64_t n) {
  uint64_t all = 0;
  for (int64_t i = 0; i < n; ++i) all |= words[i];
  return all;
}

}  // namespace

const Kernels REDUCEOPS_OF_ISA(kernels) = {run, combine, fill, write, write_past, read};

}  // namespace reduceops::cpu
