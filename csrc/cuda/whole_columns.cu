// Columns of a few elements that a thread holds as a whole: four neighbouring columns, two of
// 8-byte types, all loads in flight at once, whose results are in the order of memory.
//
// Bound by memory, for which there are as many bytes to write as to read, and more: so two
// neighbouring lanes exchange four indices each until each store of theirs fills a sector of 32
// bytes (0.93 of the bandwidth over two rows of float32; 0.85 with a store to each half). Two
// indices, and four of fewer than 8 bytes, are one store as they are. Elements of 8 and 16 bits are
// compared several at once: one by one, instructions would take longer than memory.
#include "cuda/keys.cuh"

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

// The first smallest element of each column, and its row. The constructor's last argument: whether
// rows are asked for.
template <uint32_t kRows, class Element>
class Chosen {
  using Key = typename Element::Key;
  static constexpr uint32_t kColumns = whole_columns_of_thread(sizeof(Key));

 public:
  __device__ Chosen(Element element, const Held<Key> (&held)[kRows], bool) : element_(element) {
#pragma unroll
    for (uint32_t c = 0; c < kColumns; ++c) {
#pragma unroll
      for (uint32_t j = 0; j < kRows; ++j) winners_[c].take(element, held[j].at[c], j, j == 0);
    }
  }
  __device__ uint32_t row(uint32_t c) const { return winners_[c].row(); }
  __device__ Key value(uint32_t c) const { return element_.value(winners_[c].bits()); }

 private:
  const Element element_;
  Winner<Element> winners_[kColumns];
};

// An element by its row, of which none is looked up in memory.
template <uint32_t kRows, class Key>
__device__ Key element_of_row(const Held<Key> (&held)[kRows], uint32_t row, uint32_t column) {
  Key element = held[0].at[column];
#pragma unroll
  for (uint32_t j = 1; j < kRows; ++j) element = row == j ? held[j].at[column] : element;
  return element;
}

static_assert(whole_columns_of_thread(1) == 4 && whole_columns_of_thread(2) == 4, "two pairs");

// Of bytes, two at once: a key above the number of its row, of which the smallest is the first.
template <uint32_t kRows, class Element>
  requires(sizeof(typename Element::Key) == 1)
class Chosen<kRows, Element> {
  using Key = typename Element::Key;

 public:
  __device__ Chosen(Element element, const Held<Key> (&held)[kRows], bool)
      : element_(element), held_(held) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
      for (uint32_t j = 0; j < kRows; ++j) {
        const uint32_t keys = pair_of_keys(element, bits_as<uint32_t>(held[j]), pair) | j * kBoth;
        best_[pair] = j == 0 ? keys : __vmins2(best_[pair], keys);
      }
    }
  }
  __device__ uint32_t row(uint32_t c) const { return best(c) & 0xff; }
  __device__ Key value(uint32_t c) const {
    Key value;
    if (!element_.value_of_key(static_cast<Key>(best(c) >> 8), value))
      value = element_.value(element_of_row(held_, row(c), c));
    return value;
  }

 private:
  __device__ uint32_t best(uint32_t c) const { return best_[c % 2] >> (c / 2 * 16); }

  const Element element_;
  const Held<Key> (&held_)[kRows];
  uint32_t best_[2];
};

// Of 16-bit integers: the same, one at a time.
template <uint32_t kRows, class Element>
  requires(sizeof(typename Element::Key) == 2 && !kIsHalf<Element>)
class Chosen<kRows, Element> {
  using Key = typename Element::Key;
  static constexpr uint32_t kColumns = whole_columns_of_thread(sizeof(Key));

 public:
  __device__ Chosen(Element element, const Held<Key> (&held)[kRows], bool) : element_(element) {
#pragma unroll
    for (uint32_t j = 0; j < kRows; ++j) {
#pragma unroll
      for (uint32_t c = 0; c < kColumns; ++c) {
        const auto key = static_cast<int32_t>(
            uint32_t(static_cast<uint16_t>(element.key(held[j].at[c]))) << 16 | j);
        best_[c] = j == 0 ? key : std::min(best_[c], key);
      }
    }
  }
  __device__ uint32_t row(uint32_t c) const { return best_[c] & 0xffff; }
  __device__ Key value(uint32_t c) const {
    Key value;
    element_.value_of_key(static_cast<Key>(best_[c] >> 16), value);
    return value;
  }

 private:
  const Element element_;
  int32_t best_[kColumns];
};

// Of 16-bit floats, two at once. Their rows are found where they are asked for, or where a value
// does not follow from its order (a zero, a NaN).
template <uint32_t kRows, class Element>
  requires kIsHalf<Element>
class Chosen<kRows, Element> {
  using Key = typename Element::Key;
  using Format = typename Element::Format;

 public:
  __device__ Chosen(Element element, const Held<Key> (&held)[kRows], bool rows)
      : element_(element), held_(held) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t pairs[kRows];
#pragma unroll
      for (uint32_t j = 0; j < kRows; ++j) {
        const auto words = bits_as<uint2>(held[j]);
        pairs[j] = i == 0 ? words.x : words.y;
      }
      scale_pairs(element, pairs);
#pragma unroll
      for (uint32_t& pair : pairs) pair = ordered_pair(of_values(element), pair);
      best_[i] = pairs[0];
#pragma unroll
      for (uint32_t j = 1; j < kRows; ++j) best_[i] = smaller_pair<Element>(best_[i], pairs[j]);
      const bool looked_up =
          is_ambiguous<Element>(best_[i]) || is_ambiguous<Element>(best_[i] >> 16);
      if (rows || looked_up) rows_[i] = first_like<Format>(pairs, best_[i]);
    }
  }
  __device__ uint32_t row(uint32_t c) const { return rows_[c / 2] >> (c % 2 * 16) & 0xffff; }
  __device__ Key value(uint32_t c) const {
    const auto best = static_cast<Key>(best_[c / 2] >> (c % 2 * 16));
    return is_ambiguous<Element>(best) ? element_.value(element_of_row(held_, row(c), c))
                                       : value_of_ordered(element_, best);
  }

 private:
  const Element element_;
  const Held<Key> (&held_)[kRows];
  uint32_t best_[2], rows_[2] = {};
};

// In a multiprocessor, with registers for what each thread holds.
constexpr int whole_blocks(uint32_t rows, size_t bytes) {
  return room_for(rows * bytes > 16 ? 4 : 8, kThreads);
}

template <uint32_t kRows, class Element>
__global__ void __launch_bounds__(kThreads, whole_blocks(kRows, sizeof(typename Element::Key)))
    whole_columns(const Element element, const __grid_constant__ WholeColumns p) {
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

  const Chosen<kRows, Element> chosen(element, held, p.out.indices);
  if (p.out.values && thread < p.packs) {
    Held<Key> values;
#pragma unroll
    for (uint32_t c = 0; c < kColumns; ++c) values.at[c] = chosen.value(c);
    static_cast<Held<Key>*>(p.out.values)[thread] = values;
  }
  if (!p.out.indices) return;
  // Should somebody have written to the last row while it was read twice, it is that one.
  uint32_t at[kColumns];
#pragma unroll
  for (uint32_t c = 0; c < kColumns; ++c)
    at[c] = std::min(chosen.row(c), static_cast<uint32_t>(row(kRows - 1)));
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
  visit_input_element(r, [&](auto element) {
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
    if (rows <= 6) return launch_for(std::integral_constant<uint32_t, 6>());
    if (rows <= 8) return launch_for(std::integral_constant<uint32_t, 8>());
    if constexpr (whole_column_rows(sizeof(typename Element::Key)) > 8) {
      if (rows <= 12) return launch_for(std::integral_constant<uint32_t, 12>());
      return launch_for(std::integral_constant<uint32_t, 16>());
    }
  });
}

}  // namespace reduceops::cuda
