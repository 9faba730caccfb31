// Results along kept dims of stride 0 (repeat.h).
//
// Bound by writing the results in their order; of few results by the launch, for which what is
// copied need not have ended.
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
    Position step, span;  // results from one copy to the next, and those of all copies
    Position apart;       // sources of one span and of the next
    Divisor by_step, by_span;
  };
  // The source of a result, and the place of the result in a copy and in a span of the first
  // repeat.
  struct Place {
    Position source, in_step, in_span;
  };
  int count;
  Repeat repeats[kMaxDims];

  Sources(const Dims& dims, bool packed) : count(dims.count) {
    for (int d = 0; d < count; ++d) {
      const Dim& dim = dims.dim[d];
      const int64_t span = dim.step * dim.size;
      repeats[d].step = static_cast<Position>(dim.step);
      repeats[d].span = static_cast<Position>(span);
      repeats[d].apart = packed ? repeats[d].step : repeats[d].span;
      if constexpr (kShort) {
        repeats[d].by_step = Divisor(dim.step);
        repeats[d].by_span = Divisor(span);
      }
    }
  }
  __device__ Place of(Position i) const {
    Place place{};
    REDUCEOPS_ROLLED
    for (int d = count - 1; d >= 0; --d) {
      const Repeat& repeat = repeats[d];
      const Position over = quotient(i, repeat.span, repeat.by_span);
      place.in_span = i - over * repeat.span;
      place.in_step =
          place.in_span - quotient(place.in_span, repeat.step, repeat.by_step) * repeat.step;
      i = over * repeat.apart + place.in_step;
    }
    place.source = i;
    return place;
  }
  // Of result `i`, from that of the one before: copies of other repeats end where spans of the
  // first one do.
  __device__ void go_on(Place& place, Position i) const {
    const Repeat& first = repeats[0];
    ++place.source;
    if (++place.in_step == first.step) {
      place.in_step = 0;
      place.source -= first.step;
    }
    if (++place.in_span == first.span) place = of_next_span(i);
  }

 private:
  __device__ __noinline__ Place of_next_span(Position i) const { return of(i); }
  static __device__ Position quotient(Position i, Position by, const Divisor& divisor) {
    if constexpr (kShort) {
      return divisor.quotient(i);
    } else {
      return split(i, by).quotient;
    }
  }
};

// One array of results, or two of the same positions. The second may be null.
template <class First, class Second>
struct Results {
  First* first;
  Second* second = nullptr;
};

// Stores results side by side, those of which `inside(r)` is true; `whole`: of all of them.
template <int kCount, class T, class Inside>
__device__ void store(T* to, const T (&results)[kCount], bool whole, Inside inside) {
  struct alignas(sizeof(results)) Pack {
    T at[kCount];
  };
  if (whole && reinterpret_cast<uintptr_t>(to) % sizeof(Pack) == 0) {
    *reinterpret_cast<Pack*>(to) = *reinterpret_cast<const Pack*>(&results);
    return;
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    if (inside(r)) to[r] = results[r];
  }
}

// A thread has as many neighbouring results as fill 16 bytes.
template <class First>
constexpr int kPack = kLoadBytes / sizeof(First);

template <class First, class Second, class Sources>
__global__ void __launch_bounds__(kThreads)
    repeat(const Results<First, Second> from, const Results<First, Second> to, int64_t begin,
           int64_t end, const __grid_constant__ Sources sources) {
  constexpr int kCount = kPack<First>;
  const int64_t pack = begin / kCount + blockIdx.x * int64_t(kThreads) + threadIdx.x;
  const int64_t i = pack * kCount;
  if (i >= end) return;
  const auto inside = [&](int r) { return i + r >= begin && i + r < end; };
  const bool whole = i >= begin && i + kCount <= end;
  alignas(sizeof(First) * kCount) First first[kCount];
  alignas(sizeof(Second) * kCount) Second second[kCount];
  auto place = sources.of(static_cast<typename Sources::Position>(i));
  wait_for_previous();
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    if (r > 0) sources.go_on(place, static_cast<typename Sources::Position>(i + r));
    if (!whole && !inside(r)) continue;
    first[r] = from.first[place.source];
    if (to.second) second[r] = from.second[place.source];
  }
  store(to.first + i, first, whole, inside);
  if (to.second) store(to.second + i, second, whole, inside);
}

template <class First, class Second = int8_t>
void repeat_as(const Groups& groups, bool packed, Results<First, Second> from,
               Results<First, Second> to, int64_t begin, int64_t end, bool early, void* stream) {
  const auto launch = [&](const auto& sources) {
    using Of = std::decay_t<decltype(sources)>;
    const int64_t packs = ceil_div(end, kPack<First>) - begin / kPack<First>;
    auto config = launch_config(ceil_div(packs, kThreads), kThreads, stream);
    const EarlyLaunch begins_early(config, early);
    check(cudaLaunchKernelEx(&config, repeat<First, Second, Of>, from, to, begin, end, sources));
  };
  groups.outputs* groups.copies >> 32 == 0 ? launch(Sources<true>(groups.repeats, packed))
                                           : launch(Sources<false>(groups.repeats, packed));
}

void repeat_results(const Reduction& r, bool packed, const Reduction& once, int64_t begin,
                    int64_t end, bool early, void* stream) {
  if (r.indices && r.values && r.index_bytes == sizeof(int64_t)) {
    return with_bits(r.dtype->bytes, [&]<class Bits>(Bits) {
      const auto both = [](const Reduction& of) {
        return Results<int64_t, Bits>{static_cast<int64_t*>(of.indices),
                                      static_cast<Bits*>(of.values)};
      };
      repeat_as(r.groups, packed, both(once), both(r), begin, end, early, stream);
    });
  }
  const auto repeat_array = [&](void* from, void* to, int64_t bytes) {
    with_bits(bytes, [&]<class Bits>(Bits) {
      repeat_as<Bits>(r.groups, packed, {static_cast<Bits*>(from)}, {static_cast<Bits*>(to)}, begin,
                      end, early, stream);
    });
  };
  if (r.indices) repeat_array(once.indices, r.indices, r.index_bytes);
  if (r.values) repeat_array(once.values, r.values, r.dtype->bytes);
}

}  // namespace

void launch_repeat(const Reduction& r, const Reduction& once, int64_t begin, int64_t end,
                   bool early, void* stream) {
  repeat_results(r, true, once, begin, end, early, stream);
}

void launch_repeat(const Reduction& r, bool early, void* stream) {
  repeat_results(r, false, r, 0, r.groups.outputs * r.groups.copies, early, stream);
}

}  // namespace reduceops::cuda
