// Results along kept dims of stride 0 (repeat.h).
//
// Bound by writing the results in their order.
#include "cuda/repeat.h"

#include "cuda/divisor.h"
#include "cuda/each.cuh"

namespace reduceops::cuda {
namespace {

// Where each result comes from, by positions of 32 bits where all have one.
template <bool kShort>
struct Sources {
  using Position = std::conditional_t<kShort, uint32_t, int64_t>;
  struct Repeat {
    int64_t step, span;  // results from one copy to the next, and those of all copies
    int64_t apart;       // sources of one span and of the next
    Divisor by_step, by_span;
  };
  int count;
  Repeat repeats[kMaxDims];

  Sources(const Dims& dims, bool packed) : count(dims.count) {
    for (int d = 0; d < count; ++d) {
      const Dim& dim = dims.dim[d];
      const int64_t span = dim.step * dim.size;
      repeats[d] = {dim.step, span, packed ? dim.step : span};
      if constexpr (kShort) {
        repeats[d].by_step = Divisor(dim.step);
        repeats[d].by_span = Divisor(span);
      }
    }
  }
  __device__ Position operator()(Position i) const {
    REDUCEOPS_ROLLED
    for (int d = count - 1; d >= 0; --d) {
      const Repeat& repeat = repeats[d];
      if constexpr (kShort) {
        const uint32_t in_step = i - repeat.by_step.quotient(i) * uint32_t(repeat.step);
        i = repeat.by_span.quotient(i) * uint32_t(repeat.apart) + in_step;
      } else {
        i = split(i, repeat.span).quotient * repeat.apart + split(i, repeat.step).remainder;
      }
    }
    return i;
  }
};

// One array of results, or two of the same positions. The second may be null.
template <class First, class Second>
struct Results {
  First* first;
  Second* second = nullptr;
};

template <class First, class Second, class Sources>
__global__ void __launch_bounds__(kThreads)
    repeat(const Results<First, Second> from, const Results<First, Second> to, int64_t begin,
           int64_t end, const __grid_constant__ Sources sources) {
  struct Copy {
    First first;
    Second second;
  };
  each(
      end - begin,
      [&](int64_t i) -> Copy {
        const auto at = sources(static_cast<typename Sources::Position>(begin + i));
        return {from.first[at], to.second ? from.second[at] : Second()};
      },
      [&](int64_t i, const Copy& copy) {
        to.first[begin + i] = copy.first;
        if (to.second) to.second[begin + i] = copy.second;
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

template <class First, class Second = int8_t>
void repeat_as(const Groups& groups, bool packed, Results<First, Second> from,
               Results<First, Second> to, int64_t begin, int64_t end, void* stream) {
  const auto launch = [&](const auto& sources) {
    using Of = std::decay_t<decltype(sources)>;
    launch_over(end - begin, stream, repeat<First, Second, Of>, from, to, begin, end, sources);
  };
  groups.outputs* groups.copies >> 32 == 0 ? launch(Sources<true>(groups.repeats, packed))
                                           : launch(Sources<false>(groups.repeats, packed));
}

void repeat_results(const Reduction& r, bool packed, const Reduction& once, int64_t begin,
                    int64_t end, void* stream) {
  if (r.indices && r.values && r.index_bytes == sizeof(int64_t)) {
    return with_bits(r.dtype->bytes, [&]<class Bits>(Bits) {
      const auto both = [](const Reduction& of) {
        return Results<int64_t, Bits>{static_cast<int64_t*>(of.indices),
                                      static_cast<Bits*>(of.values)};
      };
      repeat_as(r.groups, packed, both(once), both(r), begin, end, stream);
    });
  }
  const auto repeat_array = [&](void* from, void* to, int64_t bytes) {
    with_bits(bytes, [&]<class Bits>(Bits) {
      repeat_as<Bits>(r.groups, packed, {static_cast<Bits*>(from)}, {static_cast<Bits*>(to)}, begin,
                      end, stream);
    });
  };
  if (r.indices) repeat_array(once.indices, r.indices, r.index_bytes);
  if (r.values) repeat_array(once.values, r.values, r.dtype->bytes);
}

}  // namespace

void launch_repeat(const Reduction& r, const Reduction& once, int64_t begin, int64_t end,
                   void* stream) {
  repeat_results(r, true, once, begin, end, stream);
}

void launch_repeat(const Reduction& r, void* stream) {
  repeat_results(r, false, r, 0, r.groups.outputs * r.groups.copies, stream);
}

}  // namespace reduceops::cuda
