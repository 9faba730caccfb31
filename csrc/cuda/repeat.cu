// The results of kept dims of stride 0: computed once, they are copied here to all other positions.
//
// Bound by writing the results in their order.
#include "cuda/divisor.h"
#include "cuda/each.cuh"
#include "make_groups.h"

namespace reduceops::cuda {
namespace {

// For each result that of its first copy, by positions of 32 bits where all have one.
template <bool kShort>
struct Sources {
  using Position = std::conditional_t<kShort, uint32_t, int64_t>;
  struct Repeat {
    int64_t step, size;
    Divisor by_step, by_size;
  };
  int count;
  Repeat repeats[kMaxDims];

  explicit Sources(const Dims& dims) : count(dims.count) {
    for (int d = 0; d < count; ++d) {
      const Dim& dim = dims.dim[d];
      repeats[d] = {dim.step, dim.size};
      if constexpr (kShort) {
        repeats[d].by_step = Divisor(dim.step);
        repeats[d].by_size = Divisor(dim.size);
      }
    }
  }
  __device__ Position operator()(Position i) const {
    Position source = i;
    REDUCEOPS_ROLLED
    for (int d = 0; d < count; ++d) {
      const Repeat& repeat = repeats[d];
      if constexpr (kShort) {
        const uint32_t over = repeat.by_step.quotient(i);
        const uint32_t digit = over - repeat.by_size.quotient(over) * uint32_t(repeat.size);
        source -= digit * static_cast<uint32_t>(repeat.step);
      } else {
        const int64_t over = split(i, repeat.step).quotient;
        source -= split(over, repeat.size).remainder * repeat.step;
      }
    }
    return source;
  }
};

// One array of results, or two of the same positions. `second` may be null.
template <class First, class Second, class Sources>
__global__ void __launch_bounds__(kThreads)
    repeat(First* first, Second* second, int64_t n, const __grid_constant__ Sources sources) {
  using Position = typename Sources::Position;
  struct Copy {
    First first;
    Second second;
    bool is_first;
  };
  // A result that is there already is left alone, for others read it meanwhile.
  each(
      n,
      [&](int64_t i) -> Copy {
        const Position to = static_cast<Position>(i), from = sources(to);
        return {first[from], second ? second[from] : Second(), from == to};
      },
      [&](int64_t i, const Copy& copy) {
        if (copy.is_first) return;
        first[i] = copy.first;
        if (second) second[i] = copy.second;
      });
}

// Calls f with an integer of so many bytes.
template <class F>
void with_bits(int64_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f(int8_t());
    case 2:
      return f(int16_t());
    case 4:
      return f(int32_t());
    default:
      return f(int64_t());
  }
}

template <class First, class Second>
void repeat_as(const Reduction& r, First* first, Second* second, void* stream) {
  const int64_t n = r.groups.outputs * r.groups.copies;
  const auto launch = [&](const auto& sources) {
    using Of = std::decay_t<decltype(sources)>;
    launch_over(n, stream, repeat<First, Second, Of>, first, second, n, sources);
  };
  n >> 32 == 0 ? launch(Sources<true>(r.groups.repeats)) : launch(Sources<false>(r.groups.repeats));
}

void repeat_results(const Reduction& r, void* results, int64_t bytes, void* stream) {
  with_bits(bytes, [&](auto bits) {
    repeat_as(r, static_cast<decltype(bits)*>(results), static_cast<int8_t*>(nullptr), stream);
  });
}

}  // namespace

void launch_repeat(const Reduction& r, void* stream) {
  const bool both = r.indices && r.values && r.index_bytes == sizeof(int64_t);
  if (both) {
    return with_bits(r.dtype->bytes, [&](auto bits) {
      repeat_as(r, static_cast<int64_t*>(r.indices), static_cast<decltype(bits)*>(r.values),
                stream);
    });
  }
  if (r.indices) repeat_results(r, r.indices, r.index_bytes, stream);
  if (r.values) repeat_results(r, r.values, r.dtype->bytes, stream);
}

}  // namespace reduceops::cuda
