// The walks over memory, compiled once per instruction set (REDUCEOPS_ISA). The loops are plain C++
// that the compiler vectorises; everything they call is inlined, so that no code of one instruction
// set is shared with another.
//
// Rows (the reduced dim is innermost): the minimum key of a block of elements is compared once with
// the best so far and only the winning block is remembered; its first element with that key is
// looked up at the end. Columns (a kept dim is innermost): a tile of columns keeps its best keys
// and positions in L1 while whole row segments stream by. Neither depends on the data. Both are
// bound by reading memory once; short rows by the call per row.
#include "cpu/kernels.h"

#include <cstring>

#include "element.h"

namespace reduceops::cpu {
namespace {

constexpr int64_t kBlockBytes =
    4096;  // L1-resident, so looking up the winner costs no second read of memory
constexpr int64_t kShort = 32;  // elements of a row for which starting up vector loops does not pay

template <class T>
T least(T a, T b) {
  return b < a ? b : a;
}

// Steps through the positions of some dims without a division per step.
class Cursor {
 public:
  Cursor(const Dims& dims, int first, int64_t position) : dims_(dims), first_(first) {
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

// Key bits are loaded by memcpy: tensors may be unaligned.
template <class Key>
inline __attribute__((always_inline)) Key load(const Key* p) {
  Key key;
  std::memcpy(&key, p, sizeof(key));
  return key;
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

  // Writes the result of the group whose first element is at `base` and whose output is number
  // `out`.
  void finish(int64_t base, int64_t out, int64_t index) const {
    if (r.indices) r.indices[out] = index;
    if (r.values) {
      const Key value = element.value(
          load(input + base + offset_of(r.groups.reduced.dim, r.groups.reduced.count, index)));
      std::memcpy(static_cast<Key*>(r.values) + out, &value, sizeof(value));
    }
  }

  // The first of n elements, stride apart, that has the smallest key.
  template <bool kUnit>
  Best<Key> run(const Key* p, int64_t n, int64_t stride) const {
    constexpr int64_t kBlock = kBlockBytes / sizeof(Key);
    const int64_t s = kUnit ? 1 : stride;
    if (n <= kShort) {
      Best<Key> best{element.key(load(p)), 0};
      for (int64_t i = 1; i < n; ++i) {
        const Key key = element.key(load(p + i * s));
        best.index = key < best.key ? i : best.index;
        best.key = least(best.key, key);
      }
      return best;
    }
    Best<Key> best{std::numeric_limits<Key>::max(),
                   0};  // a block that never beats it is all equal to it
    for (int64_t b = 0; b < n; b += kBlock) {
      const int64_t m = least(kBlock, n - b);
      const Key* q = p + b * s;
      Key smallest = std::numeric_limits<Key>::max();
      for (int64_t i = 0; i < m; ++i) smallest = least(smallest, element.key(load(q + i * s)));
      if (smallest < best.key) best = {smallest, b};
    }
    best.index += find<kUnit>(p + best.index * s, n - best.index, s, best.key);
    return best;
  }

  // Position of the first element with this key; there is one.
  template <bool kUnit>
  int64_t find(const Key* p, int64_t n, int64_t stride, Key key) const {
    constexpr int64_t kChunk = 64;
    const int64_t s = kUnit ? 1 : stride;
    for (int64_t b = 0; b < n; b += kChunk) {
      const int64_t m = least(kChunk, n - b);
      uint8_t hit[kChunk] = {};
      for (int64_t i = 0; i < m; ++i) hit[i] = element.key(load(p + (b + i) * s)) == key;
      for (int64_t w = 0; w < kChunk; w += 8) {
        uint64_t word;
        std::memcpy(&word, hit + w, 8);
        if (word == 0) continue;
        for (int64_t i = w;; ++i) {
          if (hit[i]) return b + i;
        }
      }
    }
    return 0;
  }

  template <bool kUnit>
  void rows(int64_t begin, int64_t end) const {
    const Dims& reduced = r.groups.reduced;
    const Dim inner = reduced.count ? reduced.dim[0] : Dim{1, 1, 0};
    const int64_t walk = walk_extent(reduced), parts = job.plan.parts;
    Cursor kept(r.groups.kept, 0, begin / parts);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t part = item % parts;
      int64_t j = part * job.plan.part_extent;
      const int64_t stop = least(walk, j + job.plan.part_extent);
      const Place at = kept.place();
      Best<int64_t> best{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
      Cursor outer(reduced, 1, j / inner.size);
      for (int64_t start = j % inner.size; j < stop; start = 0, outer.next()) {
        const int64_t n = least(inner.size - start, stop - j);
        const Place run_at = outer.place();
        const auto found =
            run<kUnit>(input + at.offset + run_at.offset + start * inner.stride, n, inner.stride);
        const Best<int64_t> here{found.key, run_at.step + (start + found.index) * inner.step};
        if (better(here, best)) best = here;
        j += n;
      }
      if (job.candidates) {
        job.candidates[item] = {best.key, best.index};
      } else {
        finish(at.offset, at.step, best.index);
      }
      if (part == parts - 1) kept.next();
    }
  }

  // The best of `width` neighbouring columns over reduced positions [j, stop): keys and result
  // indices.
  template <bool kUnit>
  void tile(const Key* base, int64_t width, int64_t stride, int64_t j, int64_t stop, Key* keys,
            int64_t* indices) const {
    constexpr int64_t kTile = kTileBytes / sizeof(Key);
    constexpr int64_t kPositions =
        std::numeric_limits<Key>::max();  // a block's positions fit the key's own lanes
    constexpr int kUnroll = 4;            // rows per pass over the accumulators
    const int64_t s = kUnit ? 1 : stride;
    const Dims& reduced = r.groups.reduced;
    Key best[kTile], at[kTile];
    Cursor cursor(reduced, 0, j);
    for (bool first = true; j < stop; first = false) {
      const int64_t block = least(kPositions, stop - j);
      const int64_t block_start = j;
      const Key* row[kUnroll];
      row[0] = base + cursor.place().offset;
      for (int64_t c = 0; c < width; ++c) {
        best[c] = element.key(load(row[0] + c * s));
        at[c] = 0;
      }
      cursor.next();
      int64_t i = 1;
      for (; i + kUnroll <= block; i += kUnroll) {
        for (int u = 0; u < kUnroll; ++u, cursor.next()) row[u] = base + cursor.place().offset;
        for (int64_t c = 0; c < width; ++c) {
          Key k = best[c], a = at[c];
          for (int u = 0; u < kUnroll; ++u) {
            const Key key = element.key(load(row[u] + c * s));
            a = key < k ? static_cast<Key>(i + u) : a;
            k = key < k ? key : k;
          }
          best[c] = k;
          at[c] = a;
        }
      }
      for (; i < block; ++i, cursor.next()) {
        row[0] = base + cursor.place().offset;
        for (int64_t c = 0; c < width; ++c) {
          const Key key = element.key(load(row[0] + c * s));
          at[c] = key < best[c] ? static_cast<Key>(i) : at[c];
          best[c] = least(best[c], key);
        }
      }
      for (int64_t c = 0; c < width; ++c) {
        if (first || best[c] < keys[c]) {
          keys[c] = best[c];
          indices[c] = block_start + at[c];
        }
      }
      j += block;
    }
    for (int64_t c = 0; c < width; ++c)
      indices[c] = reduceops::place(reduced.dim, reduced.count, indices[c]).step;
  }

  template <bool kUnit>
  void columns(int64_t begin, int64_t end) const {
    constexpr int64_t kTile = kTileBytes / sizeof(Key);
    const Plan& plan = job.plan;
    const Dim inner = r.groups.kept.dim[0];
    const int64_t walk = walk_extent(r.groups.reduced);
    Key keys[kTile];
    int64_t indices[kTile];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t unit = item / plan.parts, part = item % plan.parts;
      const int64_t outer = unit / plan.tiles, column = unit % plan.tiles * plan.tile;
      const int64_t width = least(plan.tile, inner.size - column);
      const int64_t j = part * plan.part_extent;
      const Place at = Cursor(r.groups.kept, 1, outer).place();
      const int64_t base = at.offset + column * inner.stride;
      tile<kUnit>(input + base, width, inner.stride, j, least(walk, j + plan.part_extent), keys,
                  indices);
      for (int64_t c = 0; c < width; ++c) {
        if (job.candidates) {
          job.candidates[(outer * inner.size + column + c) * plan.parts + part] = {keys[c],
                                                                                   indices[c]};
        } else {
          finish(base + c * inner.stride, at.step + (column + c) * inner.step, indices[c]);
        }
      }
    }
  }

  void combine() const {
    Cursor kept(r.groups.kept, 0, 0);
    const Candidate* candidate = job.candidates;
    for (int64_t o = 0; o < r.groups.outputs; ++o, kept.next()) {
      Best<int64_t> best{candidate->key, candidate->index};
      ++candidate;
      for (int64_t p = 1; p < job.plan.parts; ++p, ++candidate) {
        const Best<int64_t> next{candidate->key, candidate->index};
        if (better(next, best)) best = next;
      }
      finish(kept.place().offset, kept.place().step, best.index);
    }
  }
};

void run(const Job& job, int64_t begin, int64_t end) {
  const Groups& groups = job.reduction.groups;
  visit_element(job.reduction, [&](auto element) {
    const Walk walk(job, element);
    if (job.plan.rows) {
      const bool unit = groups.reduced.count == 0 || groups.reduced.dim[0].stride == 1;
      unit ? walk.template rows<true>(begin, end) : walk.template rows<false>(begin, end);
    } else {
      const bool unit = groups.kept.dim[0].stride == 1;
      unit ? walk.template columns<true>(begin, end) : walk.template columns<false>(begin, end);
    }
  });
}

void combine(const Job& job) {
  visit_element(job.reduction, [&](auto element) { Walk(job, element).combine(); });
}

}  // namespace

#define REDUCEOPS_KERNELS_OF(isa) kernels_##isa
#define REDUCEOPS_KERNELS(isa) REDUCEOPS_KERNELS_OF(isa)
extern const Kernels REDUCEOPS_KERNELS(REDUCEOPS_ISA);
const Kernels REDUCEOPS_KERNELS(REDUCEOPS_ISA) = {run, combine};

}  // namespace reduceops::cpu
