// What the walks over memory share: reading elements, stepping through positions, writing results.
//
// Included by kernels.cpp only. Everything here is its own, so that no code of one instruction set
// is shared with another.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>

#include "cpu/kernels.h"
#include "cpu/results.h"
#include "cpu/scratch.h"
#include "cpu/vector.h"
#include "element.h"

namespace reduceops::cpu {
namespace {

template <class T>
constexpr __attribute__((always_inline)) T least(T a, T b) {
  return b < a ? b : a;
}

// Whether denormals count as zero for the calling thread.
REDUCEOPS_SMALL inline bool flushes() {
  volatile float smallest = std::numeric_limits<float>::denorm_min();  // else the compiler computes
  return smallest == 0;
}

// A walk's own T, uninitialised, in the memory of the calling thread.
template <class T>
T& in_scratch() {
  static_assert(sizeof(T) <= kScratchBytes && alignof(T) <= kScratchAlignment);
  return *new (scratch()) T;
}

// The offset of the last of all elements of groups, or of its mark.
inline int64_t last_of(const Groups& groups, int64_t Dim::* stride = &Dim::stride) {
  return reach(groups.kept, stride) + reach(groups.reduced, stride);
}

// Steps through the positions of dims, from the `first` of them on, without a division per step.
class Cursor {
 public:
  REDUCEOPS_NOINLINE Cursor(const Dims& dims, int first, int64_t position)
      : dims_(dims), first_(first) {
    for (int d = first; d < dims.count; ++d) {
      const Dim& dim = dims.dim[d];
      at_[d] = position % dim.size;
      position /= dim.size;
      place_.offset += at_[d] * dim.stride;
      place_.step += at_[d] * dim.step;
    }
  }
  Place place() const { return place_; }
  void next() {
    for (int d = first_; d < dims_.count; ++d) {
      const Dim& dim = dims_.dim[d];
      place_.offset += dim.stride;
      place_.step += dim.step;
      if (++at_[d] < dim.size) return;
      at_[d] = 0;
      place_.offset -= dim.size * dim.stride;
      place_.step -= dim.size * dim.step;
    }
  }

 private:
  const Dims& dims_;
  const int first_;
  int64_t at_[kMaxDims];
  Place place_{0, 0};
};

// Where groups [begin, begin + count) lie; those of several dims are the next of the cursor.
inline void next_places(const Dims& kept, int64_t begin, int count, Cursor& cursor, Place* at) {
  if (kept.count != 1) {
    for (int i = 0; i < count; ++i, cursor.next()) at[i] = cursor.place();
    return;
  }
  const Dim dim = kept.dim[0];
  Place next{begin * dim.stride, begin * dim.step};
  for (int i = 0; i < count; ++i) {
    at[i] = next;
    next = {next.offset + dim.stride, next.step + dim.step};
  }
}

// Copies past the caches: a result that nobody reads soon would else be read from memory before it
// is written, and take the place of the input.
REDUCEOPS_INLINE void stream(void* to, const void* from, int64_t bytes) {
  if (!kStreams) return static_cast<void>(std::memcpy(to, from, bytes));
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  int64_t i = least<int64_t>(-reinterpret_cast<uintptr_t>(to) % kVectorBytes, bytes);
  if (i) std::memcpy(target, source, i);
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) stream_vector(target + i, source + i);
  if (i < bytes) std::memcpy(target + i, source + i, bytes - i);
}

// Copies n elements that are `stride` apart. The compiler makes vectors of the small strides.
template <class Key>
REDUCEOPS_NOINLINE void copy_run(Key* to, const Key* from, int64_t n, int64_t stride) {
  const auto copy = [&](auto apart) REDUCEOPS_INLINED {
    for (int64_t i = 0; i < n; ++i) to[i] = get<Key>(from + i * apart);
  };
  switch (stride) {
    case 1:
      std::memcpy(to, from, n * sizeof(Key));
      return;
    case 2:
      return copy(std::integral_constant<int64_t, 2>());
    case 3:
      return copy(std::integral_constant<int64_t, 3>());
    case 4:
      return copy(std::integral_constant<int64_t, 4>());
    default:
      break;
  }
  // Elements further on, not what lies between: of some lines, for hardware prefetches no further
  // than a page. Where each is in a page of its own, looking up those behind the run would cost
  // more than is gained.
  constexpr int64_t kAheadElements = 24, kAheadBytes = 2560;
  const int64_t apart = stride * static_cast<int64_t>(sizeof(Key));
  if (apart < 32 || apart >= kPageBytes) return copy(stride);
  const int64_t ahead = std::max(kAheadElements, ceil_div(kAheadBytes, apart)) * apart;
  for (int64_t i = 0; i < n; ++i) {
    to[i] = get<Key>(from + i * stride);
    prefetch(from + i * stride, ahead);
  }
}

// Copies positions [start, start + n) of two dims, of which the inner one is short: a call, or a
// loop, and a step of a cursor for each of its runs would take longer than copying that. So some
// whole runs at a time are copied position by position of the inner dim, along the outer one; few,
// so that their lines stay in L1 until all is read of them, also where they share a set of it.
constexpr int64_t kShortRun = 16;
template <class Key>
REDUCEOPS_NOINLINE void copy_short_runs(Key* to, const Key* from, Dim inner, Dim outer,
                                        int64_t start, int64_t n) {
  constexpr int64_t kTogether = 8;
  const int64_t size = inner.size;
  const Key* run = from + start / size * outer.stride;
  const auto some = [&](int64_t begin, int64_t end) {  // of one run
    for (int64_t i = begin; i < end; ++i) *to++ = get<Key>(run + i * inner.stride);
    if (end == size) run += outer.stride;
  };
  if (const int64_t begin = start % size; begin > 0) {
    const int64_t end = least(size, begin + n);
    some(begin, end);
    n -= end - begin;
  }
  for (int64_t runs = n / size, m; runs > 0; runs -= m) {
    m = least(runs, kTogether);
    for (int64_t i = 0; i < size; ++i) {
      const Key* next = run + i * inner.stride;
      for (int64_t u = 0; u < m; ++u) to[u * size + i] = get<Key>(next + u * outer.stride);
    }
    to += m * size;
    run += m * outer.stride;
  }
  some(0, n % size);
}

// Where indices from number `at` on can be written as the walks count; null if they are narrower.
inline int64_t* wide_indices(const Reduction& r, int64_t at) {
  return r.indices && r.index_bytes == 8 ? static_cast<int64_t*>(r.indices) + at : nullptr;
}

// Writes n indices to places that follow each other; `narrowed` is room for as many where they go
// past the caches.
[[maybe_unused]] REDUCEOPS_NOINLINE void write_indices(const Reduction& r, int64_t at,
                                                       const int64_t* from, int64_t n, bool streams,
                                                       void* narrowed) {
  visit_results(r.indices, r.index_bytes, [&]<class T>(T* indices) {
    const void* narrow = from;
    if constexpr (sizeof(T) < sizeof(int64_t)) {
      T* __restrict to = streams ? static_cast<T*>(narrowed) : indices + at;
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
      if (!streams) return;
      narrow = to;
    }
    streams ? stream(indices + at, narrow, n * sizeof(T))
            : static_cast<void>(std::memcpy(indices + at, narrow, n * sizeof(T)));
  });
}

// Writes a result to its place; the value is ignored where none is wanted.
template <class Key>
REDUCEOPS_NOINLINE void write_result(const Reduction& r, int64_t at, int64_t index, Key value) {
  if (r.indices) {
    visit_results(r.indices, r.index_bytes, [&]<class T>(T* indices) {
      const auto narrow = static_cast<T>(index);
      std::memcpy(indices + at, &narrow, sizeof(narrow));
    });
  }
  if (r.values) std::memcpy(static_cast<Key*>(r.values) + at, &value, sizeof(value));
}

// Whether positions of the walk are the result's indices.
REDUCEOPS_NOINLINE inline bool counts(const Dims& reduced) {
  int64_t step = 1;
  for (int d = 0; d < reduced.count; ++d) {
    if (reduced.dim[d].step != step) return false;
    step *= reduced.dim[d].size;
  }
  return true;
}

// From positions of the walk to indices.
REDUCEOPS_NOINLINE inline void to_indices(const Dims& reduced, int64_t* positions, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    positions[i] = place(reduced.dim, reduced.count, positions[i]).step;
}

// An item of a plan.
struct Item {
  const Plan& plan;
  int64_t unit, part;

  Item(const Plan& plan, int64_t number)
      : plan(plan),
        unit(plan.by_parts ? number % plan.units : number / plan.parts),
        part(plan.by_parts ? number / plan.units : number % plan.parts) {}
  int64_t candidate() const { return unit * plan.parts + part; }
  // Goes on to the next item; whether its unit is another one, the first after the last.
  bool next() {
    if (plan.by_parts) {
      if (++unit == plan.units) unit = 0, ++part;
      return true;
    }
    if (++part < plan.parts) return false;
    part = 0;
    ++unit;
    return true;
  }
};

// What an item of a plan of columns is: positions [j, stop) of `width` outputs from the `first` on.
struct TileItem {
  int64_t part, first, width, j, stop;
};

// Of tiles of so many columns side by side, over a walk of so many positions.
REDUCEOPS_NOINLINE inline TileItem tile_item(const Plan& plan, int64_t number, int64_t columns,
                                             int64_t walk) {
  const int64_t unit = number / plan.parts, part = number % plan.parts;
  const int64_t column = unit % plan.tiles * plan.tile, j = part * plan.part_extent;
  return {part, unit / plan.tiles * columns + column, least(plan.tile, columns - column), j,
          least(walk, j + plan.part_extent)};
}

template <class Element>
struct Walk {
  using Key = typename Element::Key;
  const Job& job;
  const Reduction& r;
  const Element element;
  const Key* const input;

  Walk(const Job& job, Element element)
      : job(job), r(job.reduction), element(element), input(static_cast<const Key*>(r.input)) {}

  // The element of the group that lies `at`.
  REDUCEOPS_NOINLINE Key read(Place at, int64_t index) const {
    const Dims& reduced = r.groups.reduced;
    const Key bits = get<Key>(input + at.offset + offset_of(reduced.dim, reduced.count, index));
    if constexpr (requires { Element::stored(bits); }) return Element::stored(bits);
    return bits;
  }
};

}  // namespace
}  // namespace reduceops::cpu
