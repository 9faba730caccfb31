// Columns of a few elements that a thread holds as a whole: four neighbouring columns, two of
// 8-byte types, all loads in flight at once, whose results are in the order of memory.
//
// Bound by memory, for which there are as many bytes to write as to read, and more: so two
// neighbouring lanes exchange four indices each until each store of theirs fills a sector of 32
// bytes (0.93 of the bandwidth over two rows of float32; 0.85 with a store to each half). Two
// indices, and four of fewer than 8 bytes, are one store as they are.
#include "cuda/device.cuh"

namespace reduceops::cuda {
namespace {

struct WholeColumns {
  const char* input;
  Outputs out;
  Dim along;          // the reduced dim
  uint32_t packs;     // of columns, as many as a thread holds
  uint32_t in_inner;  // of them
  int outer_count;
  Dim outer[kWholeDims];  // the axes of the columns but for the innermost

  WholeColumns(const Problem& p, const Groups& groups, int64_t columns)
      : input(p.input),
        out(p.out),
        along(p.dims[p.kept_count]),
        packs(static_cast<uint32_t>(p.outputs / columns)),
        in_inner(static_cast<uint32_t>(groups.axes.dim[0].size / columns)),
        outer_count(p.axis_count - 1) {
    std::copy_n(groups.axes.dim + 1, outer_count, outer);
  }
};

template <class Key>
struct alignas(whole_columns_of_thread(sizeof(Key)) * sizeof(Key)) Held {
  Key at[whole_columns_of_thread(sizeof(Key))];
};

// In a multiprocessor, with registers for what each thread holds.
constexpr int whole_blocks(uint32_t rows, size_t bytes) {
  return room_for(rows * bytes > 16 ? 4 : 8, kThreads);
}

template <uint32_t kRows, class Element>
__global__ void __launch_bounds__(kThreads, whole_blocks(kRows, sizeof(typename Element::Key)))
    whole_columns(const __grid_constant__ WholeColumns p, const Element element) {
  using Key = typename Element::Key;
  constexpr uint32_t kColumns = whole_columns_of_thread(sizeof(Key));
  const uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  uint32_t across = std::min(thread, p.packs - 1);
  int64_t outer = 0;
  if (p.outer_count > 0) {
    const uint32_t over = across / p.in_inner;
    across -= over * p.in_inner;
    outer = place(p.outer, p.outer_count, over).offset;
  }
  const Key* first = reinterpret_cast<const Key*>(p.input) + (outer + across * int64_t(kColumns));
  // Past the end there is the last row again.
  const auto row = [&](uint32_t j) { return std::min<int64_t>(j, p.along.size - 1); };
  Held<Key> held[kRows];
#pragma unroll
  for (uint32_t j = 0; j < kRows; ++j)
    held[j] = *reinterpret_cast<const Held<Key>*>(first + row(j) * p.along.stride);

  uint32_t at[kColumns];
  Held<Key> chosen = held[0];  // looked up by `at`, they would all be kept in memory
#pragma unroll
  for (uint32_t c = 0; c < kColumns; ++c) {
    Key best = element.key(held[0].at[c]);
    at[c] = 0;
#pragma unroll
    for (uint32_t j = 1; j < kRows; ++j) {
      const Key key = element.key(held[j].at[c]);
      if (key < best) {
        best = key;
        at[c] = j;
        chosen.at[c] = held[j].at[c];
      }
    }
  }
  if (p.out.values && thread < p.packs) {
#pragma unroll
    for (uint32_t c = 0; c < kColumns; ++c) chosen.at[c] = element.value(chosen.at[c]);
    static_cast<Held<Key>*>(p.out.values)[thread] = chosen;
  }
  if (!p.out.indices) return;
  const int64_t step = p.along.step;
  if (kColumns == 2 || p.out.index_bytes < 8) {
    uint32_t index[kColumns];
#pragma unroll
    for (uint32_t c = 0; c < kColumns; ++c) index[c] = at[c] * static_cast<uint32_t>(step);
    if (thread < p.packs) p.out.put_indices(thread * int64_t(kColumns), index);
    return;
  }
  // Of the eight columns of a pair of lanes, the even one stores 0, 1, 4 and 5, the odd one the
  // others: each gives the other the two that it does not store.
  if constexpr (kColumns == 4) {
    const bool odd = thread % 2;
    const uint32_t lower = at[0] | at[1] << 16, upper = at[2] | at[3] << 16;
    const uint32_t other = __shfl_xor_sync(~0u, odd ? lower : upper, 1);
    const uint32_t low = odd ? other : lower, high = odd ? upper : other;
    auto* to = reinterpret_cast<longlong2*>(p.out.indices) + thread / 2 * int64_t(4) + odd;
    if (thread - odd < p.packs) to[0] = {(low & 0xffff) * step, (low >> 16) * step};
    if ((thread | 1) < p.packs) to[2] = {(high & 0xffff) * step, (high >> 16) * step};
  }
}

}  // namespace

void launch_whole_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_element(r, [&](auto element) {
    using Element = decltype(element);
    const auto launch_for = [&]<uint32_t kRows>(std::integral_constant<uint32_t, kRows>) {
      launch(
          whole_columns<kRows, Element>, problem.plan,
          WholeColumns(problem, r.groups, whole_columns_of_thread(sizeof(typename Element::Key))),
          element, stream);
    };
    const int64_t rows = problem.walk;
    if (rows == 2) return launch_for(std::integral_constant<uint32_t, 2>());
    if (rows == 3) return launch_for(std::integral_constant<uint32_t, 3>());
    if (rows == 4) return launch_for(std::integral_constant<uint32_t, 4>());
    if constexpr (whole_column_rows(sizeof(typename Element::Key)) > 4) {
      if (rows <= 6) return launch_for(std::integral_constant<uint32_t, 6>());
      return launch_for(std::integral_constant<uint32_t, 8>());
    }
  });
}

}  // namespace reduceops::cuda
