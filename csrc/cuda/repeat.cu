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

template <class T, class Sources>
__global__ void __launch_bounds__(kThreads)
    repeat(T* results, int64_t n, const __grid_constant__ Sources sources) {
  using Position = typename Sources::Position;
  struct Copy {
    T result;
    bool is_first;
  };
  // A result that is there already is left alone, for others read it meanwhile.
  each(
      n,
      [&](int64_t i) -> Copy {
        const Position to = static_cast<Position>(i), from = sources(to);
        return {results[from], from == to};
      },
      [&](int64_t i, Copy copy) {
        if (!copy.is_first) results[i] = copy.result;
      });
}

template <class T>
void repeat_as(void* results, int64_t n, const Dims& repeats, void* stream) {
  const auto launch = [&](const auto& sources) {
    using Of = std::decay_t<decltype(sources)>;
    launch_over(n, stream, repeat<T, Of>, static_cast<T*>(results), n, sources);
  };
  n >> 32 == 0 ? launch(Sources<true>(repeats)) : launch(Sources<false>(repeats));
}

void repeat_results(void* results, int bytes, int64_t n, const Dims& repeats, void* stream) {
  switch (bytes) {
    case 1:
      return repeat_as<int8_t>(results, n, repeats, stream);
    case 2:
      return repeat_as<int16_t>(results, n, repeats, stream);
    case 4:
      return repeat_as<int32_t>(results, n, repeats, stream);
    default:
      return repeat_as<int64_t>(results, n, repeats, stream);
  }
}

}  // namespace

void launch_repeat(const Reduction& r, void* stream) {
  const Groups& groups = r.groups;
  const int64_t n = groups.outputs * groups.copies;
  if (r.indices) repeat_results(r.indices, r.index_bytes, n, groups.repeats, stream);
  if (r.values) repeat_results(r.values, r.dtype->bytes, n, groups.repeats, stream);
}

}  // namespace reduceops::cuda
