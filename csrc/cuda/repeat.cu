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

// Indices of any width, by their bits.
struct Indices {
  void* at;  // may be null
  int bytes;

  __device__ int64_t get(int64_t i) const {
    switch (bytes) {
      case 1:
        return static_cast<const int8_t*>(at)[i];
      case 2:
        return static_cast<const int16_t*>(at)[i];
      case 4:
        return static_cast<const int32_t*>(at)[i];
      default:
        return static_cast<const int64_t*>(at)[i];
    }
  }
  __device__ void put(int64_t i, int64_t bits) const {
    switch (bytes) {
      case 1:
        static_cast<int8_t*>(at)[i] = static_cast<int8_t>(bits);
        break;
      case 2:
        static_cast<int16_t*>(at)[i] = static_cast<int16_t>(bits);
        break;
      case 4:
        static_cast<int32_t*>(at)[i] = static_cast<int32_t>(bits);
        break;
      default:
        static_cast<int64_t*>(at)[i] = bits;
    }
  }
};

// `values` may be null.
template <class Value, class Sources>
__global__ void __launch_bounds__(kThreads) repeat(Value* values, const Indices indices, int64_t n,
                                                   const __grid_constant__ Sources sources) {
  using Position = typename Sources::Position;
  struct Copy {
    int64_t index;
    Value value;
    bool is_first;
  };
  // A result that is there already is left alone, for others read it meanwhile.
  each(
      n,
      [&](int64_t i) -> Copy {
        const Position to = static_cast<Position>(i), from = sources(to);
        return {indices.at ? indices.get(from) : 0, values ? values[from] : Value(), from == to};
      },
      [&](int64_t i, const Copy& copy) {
        if (copy.is_first) return;
        if (indices.at) indices.put(i, copy.index);
        if (values) values[i] = copy.value;
      });
}

template <class Value>
void repeat_as(const Reduction& r, void* stream) {
  const int64_t n = r.groups.outputs * r.groups.copies;
  const auto launch = [&](const auto& sources) {
    using Of = std::decay_t<decltype(sources)>;
    launch_over(n, stream, repeat<Value, Of>, static_cast<Value*>(r.values),
                Indices{r.indices, r.index_bytes}, n, sources);
  };
  n >> 32 == 0 ? launch(Sources<true>(r.groups.repeats)) : launch(Sources<false>(r.groups.repeats));
}

}  // namespace

void launch_repeat(const Reduction& r, void* stream) {
  switch (r.values ? r.dtype->bytes : 1) {
    case 1:
      return repeat_as<int8_t>(r, stream);
    case 2:
      return repeat_as<int16_t>(r, stream);
    case 4:
      return repeat_as<int32_t>(r, stream);
    default:
      return repeat_as<int64_t>(r, stream);
  }
}

}  // namespace reduceops::cuda
