// Small groups of any layout: a block copies a tile to shared memory that is short runs of memory
// (columns, and what is reduced beside them) times groups with neighbouring results, and takes the
// results from there in their order. So whole sectors are read and written where results lie in
// another order than memory, and where elements of a group are far apart. (In the order of memory
// each store would cost a sector of 32 bytes instead of the index's 8.)
//
// Bound by memory, of which as much is written as is read, or more; 8- and 16-bit types and groups
// of two or three elements by instructions. So whatever takes a division (where groups, columns and
// elements lie, and where results go) is written down once for a tile.
#include "cuda/async.cuh"
#include "cuda/combine.cuh"
#include "cuda/tile_rows.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

// Positions over some dims of less than 2^32 positions.
template <int kMost>
struct Positions {
  int count;
  Dim dims[kMost];
  Divisor by_size[kMost];

  Positions() = default;
  Positions(const Dim* from, int n) : count(n) {
    for (int d = 0; d < n; ++d) {
      dims[d] = from[d];
      if (d + 1 < n) by_size[d] = Divisor(from[d].size);
    }
  }
  __device__ Place operator()(uint32_t position) const {
    Place at{0, 0};
    REDUCEOPS_ROLLED
    for (int d = 0; d < count; ++d) {
      uint32_t digit = position;
      if (d + 1 < count) {
        const uint32_t over = by_size[d].quotient(position);
        digit = position - over * static_cast<uint32_t>(dims[d].size);
        position = over;
      }
      at.offset += digit * dims[d].stride;
      at.step += digit * dims[d].step;
    }
    return at;
  }
};

struct TileProblem {
  const char* input;
  const char* whole_blocks;  // the end of the last 16-byte block that lies in the input altogether
  Outputs out;
  Tiles plan;
  uint32_t groups, rows;
  Dim cut;                            // the last column dim, which is cut in chunks
  Positions<kBoxDims> columns;        // of a tile
  Positions<kBoxDims> outer;          // the other kept dims, in the order of the results
  Positions<kBoxReduced> outer_rows;  // steps: bytes in shared memory
  Positions<kBoxReduced> elements;    // in the order of the index; strides: bytes in shared memory
  int64_t index_step;                 // of positions in that order; 0: their dims say

  TileProblem(const Problem& p, const Groups& groups_of)
      : input(p.input),
        whole_blocks(p.whole_blocks),
        out(p.out),
        plan(p.plan.tiles),
        rows(static_cast<uint32_t>(p.walk)),
        cut{1, 0, 0} {
    const Dims kept = by_stride(groups_of.kept);
    if (plan.column_dims > 0) cut = kept.dim[plan.column_dims - 1];
    columns = {kept.dim, plan.column_dims};
    const Dims others = other_dims(groups_of, plan.column_dims);
    outer = {others.dim, others.count};
    groups = static_cast<uint32_t>(walk_extent(others));
    const Dims reduced = by_stride(groups_of.reduced);
    Dims apart, in_tile;
    for (int d = 0; d < reduced.count; ++d) {
      Dim dim = reduced.dim[d];
      if (d >= plan.inner_rows)
        apart.dim[apart.count++] = {dim.size, dim.stride, plan.row_pitch[d]};
      dim.stride = plan.row_pitch[d];
      insert(in_tile, dim, &Dim::step);
    }
    outer_rows = {apart.dim, apart.count};
    elements = {in_tile.dim, in_tile.count};
    index_step = in_tile.dim[0].step;
    for (int d = 1; d < in_tile.count; ++d) {
      if (in_tile.dim[d].step != in_tile.dim[d - 1].step * in_tile.dim[d - 1].size) index_step = 0;
    }
  }

  __device__ int64_t index_of(uint32_t position) const {
    return index_step ? position * index_step : elements(position).step;
  }
};

// The tile of a block in shared memory, with what is written down of it. (Offsets, for of a pointer
// that is passed on it would not be known that it is one to shared memory.)
struct Tile {
  TileTables tables;
  uint32_t columns, groups;

  __device__ explicit Tile(const TileProblem& p) : tables(p.plan, p.rows) {
    const Tiles& plan = p.plan;
    const auto chunks = static_cast<uint32_t>(plan.chunks);
    const uint32_t number = chunks == 1 ? blockIdx.x : blockIdx.x / chunks;
    const uint32_t chunk = blockIdx.x - number * chunks;
    const auto inner = static_cast<uint32_t>(plan.inner_columns);
    const uint32_t taken = static_cast<uint32_t>(plan.columns) / inner;  // along the last dim
    const int64_t first = int64_t(chunk) * taken;
    columns = inner * static_cast<uint32_t>(std::min<int64_t>(taken, p.cut.size - first));
    const auto most = static_cast<uint32_t>(plan.groups);
    groups = std::min(most, p.groups - number * most);
  }

  template <class T>
  static __device__ T& in(int table, uint32_t i) {
    return reinterpret_cast<T*>(dynamic_shared() + table)[i];
  }
  __device__ int64_t& group_from(uint32_t i) const { return in<int64_t>(tables.group_from, i); }
  __device__ int64_t& group_result(uint32_t i) const { return in<int64_t>(tables.group_result, i); }
  __device__ uint32_t& group_at(uint32_t i) const { return in<uint32_t>(tables.group_at, i); }
  __device__ int64_t& column_result(uint32_t i) const {
    return in<int64_t>(tables.column_result, i);
  }
  __device__ uint32_t& column_at(uint32_t i) const { return in<uint32_t>(tables.column_at, i); }
  __device__ int64_t& row_from(uint32_t i) const { return in<int64_t>(tables.row_from, i); }
  __device__ uint32_t& row_at(uint32_t i) const { return in<uint32_t>(tables.row_at, i); }
  __device__ uint16_t& element_at(uint32_t i) const { return in<uint16_t>(tables.element_at, i); }
};

template <class Key, bool kScattered>
__device__ void write_tables(const TileProblem& p, const Tile& tile) {
  const Tiles& plan = p.plan;
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Key));
  const auto chunks = static_cast<uint32_t>(plan.chunks);
  const uint32_t number = chunks == 1 ? blockIdx.x : blockIdx.x / chunks;
  const int64_t first = (blockIdx.x - number * chunks) * (plan.columns / plan.inner_columns);
  const uint32_t groups_before = number * static_cast<uint32_t>(plan.groups);
  for (uint32_t g = threadIdx.x; g < tile.groups; g += kGroupThreads) {
    const Place at = p.outer(groups_before + g);
    const int64_t from = (at.offset + first * p.cut.stride) * kBytes;
    const auto lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p.input + from));
    tile.group_from(g) = from;
    tile.group_result(g) = at.step + first * p.cut.step;
    tile.group_at(g) = plan.table_bytes + g * plan.group_pitch + lead % kLoadBytes;
  }
  for (uint32_t c = threadIdx.x; c < tile.columns; c += kGroupThreads) {
    const Place at = p.columns(c);
    tile.column_at(c) = static_cast<uint32_t>(at.offset * kBytes);
    tile.column_result(c) = at.step;
  }
  for (uint32_t r = threadIdx.x; r < plan.outer_rows; r += kGroupThreads) {
    const Place at = p.outer_rows(r);
    tile.row_from(r) = at.offset * kBytes;
    tile.row_at(r) = static_cast<uint32_t>(at.step);
  }
  if constexpr (kScattered) {
    for (uint32_t i = threadIdx.x; i < p.rows; i += kGroupThreads)
      tile.element_at(i) = static_cast<uint16_t>(p.elements(i).offset);
  }
}

// Some lanes to each piece of memory.
template <class Key>
__device__ void copy_tile(const TileProblem& p, const Tile& tile) {
  const Tiles& plan = p.plan;
  const auto missing = static_cast<uint32_t>(plan.columns) - tile.columns;
  uint32_t bytes = plan.piece_bytes;
  if (missing > 0)
    bytes -= static_cast<uint32_t>(missing / plan.inner_columns * p.cut.stride * sizeof(Key));
  const uint32_t lanes = plan.copy_lanes, lane = threadIdx.x & (lanes - 1);
  const auto rows = static_cast<uint32_t>(plan.outer_rows);
  const uint32_t at_once = kGroupThreads / lanes, number = threadIdx.x / lanes;
  // A piece is row `row` of a group; the next of these lanes is so many groups and rows on.
  const uint32_t groups_on = at_once / rows, rows_on = at_once - groups_on * rows;
  uint32_t group = number / rows, row = number - group * rows;
  while (group < tile.groups) {
    const char* from = p.input + (tile.group_from(group) + tile.row_from(row));
    char* to = dynamic_shared() + (tile.group_at(group) + tile.row_at(row));
    copy_piece(from, to, bytes, p.whole_blocks, lane, lanes);
    group += groups_on;
    row += rows_on;
    if (row >= rows) {
      row -= rows;
      ++group;
    }
  }
  wait_for_copies();
}

// A slot of neighbouring columns `at` in the tile, of which position j is offset(j) on: the best of
// each, of positions that this lane has.
template <class Element, class Offset>
__device__ void scan_slots(Element element, Tracker<Element>& tracker, uint32_t at, uint32_t rows,
                           uint32_t lane, uint32_t lanes, Offset offset) {
  using S = Slots<Element>;
  const auto slot = [&](uint32_t j) {
    return typename S::Row(dynamic_shared(), at + offset(j))[0];
  };
  uint32_t turn = 0, j = lane;
  for (; (turn + 4) * lanes <= rows; turn += 4, j += 4 * lanes)
    tracker.take(element, {{slot(j), slot(j + lanes), slot(j + 2 * lanes), slot(j + 3 * lanes)}},
                 turn);
  // Past the end there is the last position again.
  const uint32_t last = rows - 1;
  if ((turn + 2) * lanes < rows) {
    tracker.take(element,
                 {{slot(std::min(j, last)), slot(std::min(j + lanes, last)),
                   slot(std::min(j + 2 * lanes, last)), slot(std::min(j + 3 * lanes, last))}},
                 turn);
  } else if (turn * lanes < rows) {
    tracker.take(element, {{slot(std::min(j, last)), slot(std::min(j + lanes, last))}}, turn);
  }
  tracker.finish();
}

// Some lanes to each slot, or output, of a tile.
template <int kReading, class Element>
__device__ void read_tile(const TileProblem& p, Element element, const Tile& tile) {
  using S = Slots<Element>;
  using Key = typename Element::Key;
  constexpr bool kTracked = kReading == Tiles::kSlots || sizeof(Key) >= 4;
  constexpr uint32_t kElements = kTracked ? S::kElements : 1;
  const Tiles& plan = p.plan;
  const uint32_t lanes = plan.lanes, side = plan.side, lane = threadIdx.x & (lanes - 1);
  const uint32_t unit = threadIdx.x >> log2_of(lanes);
  const uint32_t across = (kGroupThreads >> log2_of(lanes)) >> log2_of(side);
  const uint32_t first_group = unit & (side - 1), first_slot = unit >> log2_of(side);
  const uint32_t slots = (tile.columns + kElements - 1) / kElements;
  const auto offset = [&](uint32_t j) -> uint32_t {
    if constexpr (kReading == Tiles::kScattered) return tile.element_at(j);
    return j * plan.row_pitch[0];
  };
  // A warp's lanes stay together, for they combine what they have.
  for (uint32_t g0 = 0; g0 < tile.groups; g0 += side) {
    const uint32_t group = std::min(g0 + first_group, tile.groups - 1);
    const uint32_t begin = tile.group_at(group);
    const int64_t result = tile.group_result(group);
    for (uint32_t s0 = 0; s0 < slots; s0 += across) {
      const uint32_t slot = std::min(s0 + first_slot, slots - 1), column = slot * kElements;
      const uint32_t at = begin + tile.column_at(column);
      uint32_t best[kElements];
      if constexpr (kReading > 0) {
        best[0] = short_row<kReading, kReading / 2>(element, dynamic_shared(), at, p.rows).index;
      } else if constexpr (kTracked) {
        Tracker<Element> tracker;
        scan_slots(element, tracker, at, p.rows, lane, lanes, offset);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          best[e] = std::min(tracker.turn(0, e) * lanes + lane, p.rows - 1);
          if (lanes > 1)
            best[e] = warp_combine(Near<Key>{tracker.key(element, 0, e), best[e]}, lanes).index;
        }
      } else {
        Near<Key> found;
        found.index = std::min(lane, p.rows - 1);
        for (uint32_t j = lane; j < p.rows; j += 4 * lanes) {
          // Past the end there is the last element again, which changes nothing.
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            const uint32_t position = std::min(j + u * lanes, p.rows - 1);
            const char* from = dynamic_shared() + (at + offset(position));
            const Key key = element.key(*reinterpret_cast<const Key*>(from));
            if (key < found.key) found = {key, position};
          }
        }
        best[0] = (lanes > 1 ? warp_combine(found, lanes) : found).index;
      }
      if (lane > 0 || g0 + first_group >= tile.groups || s0 + first_slot >= slots) continue;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (column + e >= tile.columns) break;
        p.out.put(result + tile.column_result(column + e), p.index_of(best[e]), [&] {
          const char* from = dynamic_shared() + (at + e * sizeof(Key) + offset(best[e]));
          return element.value(*reinterpret_cast<const Key*>(from));
        });
      }
    }
  }
}

template <int kReading, class Element>
__global__ void __launch_bounds__(kGroupThreads, kGroupBlocks)
    tiles(const Element element, const __grid_constant__ TileProblem p) {
  using Key = typename Element::Key;
  const Tile tile(p);
  write_tables<Key, kReading == Tiles::kScattered>(p, tile);
  __syncthreads();
  copy_tile<Key>(p, tile);
  __syncthreads();
  read_tile<kReading>(p, element, tile);
}

}  // namespace

void launch_tiles(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    using Kernel = void (*)(Element, TileProblem);
    const int reading = problem.plan.tiles.reading;
    Kernel kernel = tiles<Tiles::kScattered, Element>;
    if (reading == Tiles::kSlots) kernel = tiles<Tiles::kSlots, Element>;
    if constexpr (sizeof(typename Element::Key) < 4) {  // only such rows are held
      if (reading == 1) kernel = tiles<1, Element>;
      if (reading == 2) kernel = tiles<2, Element>;
      if (reading == 4) kernel = tiles<4, Element>;
    }
    const TileProblem p(problem, r.groups);
    launch(kernel, problem.plan, p, element, stream, shared_bytes(p.plan));
  });
}

}  // namespace reduceops::cuda
