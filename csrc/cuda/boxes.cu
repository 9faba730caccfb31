// Boxes: groups so small that a block copies many of them to shared memory as a whole, with the
// gaps in them: short rows (channels_last channels, say), or a short reduced dim outside a short
// kept one. A thread, or a few lanes for a longer group, takes each output. Groups may lie at any
// pitch, in any order of the results, and their elements apart from each other. A tile is one span
// of memory where there is little between the groups; else each group is copied by itself. Several
// reduced dims that lie close together are such a group too, in whatever order the index counts
// them.
//
// Bound by reading memory: so many blocks find room that some always copy. Rows of 8- and 16-bit
// types by instructions: 190 of them for a row of 21 that a thread holds.
#include "cuda/async.cuh"
#include "cuda/combine.cuh"
#include "cuda/tile_rows.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

struct BoxProblem {
  const char* input;
  const char* whole_blocks;  // the end of the last 16-byte block that lies in the input altogether
  Outputs out;
  Box box;
  int64_t groups;         // groups are numbered as the axes behind the columns say
  int64_t in_axis;        // of them along the first of these axes
  int64_t tiles_of_axis;  // spans: tiles along it
  uint32_t columns, rows;
  int64_t index_step;
  bool in_order;      // the results follow each other as the outputs do
  bool only_indices;  // and are positions, nothing else
  int kept_count, axis_count;
  Dim axes[kBoxDims], kept[kBoxDims];

  BoxProblem(const Problem& p, const Groups& groups_of)
      : input(p.input),
        whole_blocks(p.whole_blocks),
        out(p.out),
        box(p.plan.box),
        columns(static_cast<uint32_t>(p.plan.box.columns)),
        rows(static_cast<uint32_t>(p.walk)),
        index_step(p.dims[p.kept_count].step),
        kept_count(p.kept_count) {
    const Dims& kept_axes = groups_of.axes;
    const int first = box.of_columns;
    axis_count = std::max(1, kept_axes.count - first);
    axes[0] = {1, 0, 1};
    std::copy(kept_axes.dim + first, kept_axes.dim + kept_axes.count, axes);
    std::copy_n(p.dims, kept_count, kept);
    groups = p.outputs / columns;
    in_axis = axes[0].size;
    tiles_of_axis = ceil_div(in_axis, box.tile);
    in_order = p.in_order;
    only_indices = in_order && !out.values && index_step == 1;
  }

  // Where a reduced position lies in a group in shared memory, and its index.
  __device__ uint32_t offset_of_row(uint32_t row) const { return row * box.row_pitch; }
  __device__ int64_t index_of_row(uint32_t row) const { return row * index_step; }
};

// Groups over several reduced dims, whose positions are counted as the index counts them.
struct ScatteredBoxes : BoxProblem {
  int reduced_count;
  Dim reduced[kBoxReduced];  // the innermost of the index first

  ScatteredBoxes(const Problem& p, const Groups& groups_of)
      : BoxProblem(p, groups_of), reduced_count(p.reduced_count) {
    const Dims dims = by_step(groups_of.reduced);
    std::copy_n(dims.dim, reduced_count, reduced);
    only_indices = in_order && !out.values && groups_of.weight == 1;
  }

  // A table behind the groups, for to divide a position takes long.
  __device__ uint16_t* offsets() const {
    return reinterpret_cast<uint16_t*>(dynamic_shared() + table_begin(box));
  }
  template <class Key>
  __device__ void write_offsets() const {
    for (uint32_t row = threadIdx.x; row < rows; row += kGroupThreads)
      offsets()[row] =
          static_cast<uint16_t>(place(reduced, reduced_count, row).offset * sizeof(Key));
  }
  __device__ uint32_t offset_of_row(uint32_t row) const { return offsets()[row]; }
  __device__ int64_t index_of_row(uint32_t row) const {
    return place(reduced, reduced_count, row).step;
  }
};

// The groups of a block, in shared memory: element e of row j of group g is at offset
// at(g) + j * row_pitch + e * column_pitch there. (Offsets, for of a pointer that is passed on it
// would not be known that it is one to shared memory.)
struct Tile {
  bool pieces;  // where each begins in its room is written before them
  uint32_t begin, group_pitch;
  int64_t first;  // group
  uint32_t count;

  __device__ uint32_t at(const char* shared, uint32_t group) const {
    const uint32_t room = begin + group * group_pitch;
    return pieces ? room + reinterpret_cast<const uint16_t*>(shared)[group] : room;
  }
};

template <class Key>
__device__ Tile load_tile(const BoxProblem& p, char* shared) {
  Tile tile;
  tile.pieces = p.box.pieces;
  tile.group_pitch = p.box.group_pitch;
  if (!p.box.pieces) {
    // One span of one axis.
    const auto [outer, number] = split(blockIdx.x, p.tiles_of_axis);
    const int64_t in_axis = number * p.box.tile;
    tile.first = outer * p.in_axis + in_axis;
    tile.count = static_cast<uint32_t>(std::min<int64_t>(p.box.tile, p.in_axis - in_axis));
    const int64_t offset =
        place(p.axes + 1, p.axis_count - 1, outer).offset + in_axis * p.axes[0].stride;
    const char* from = p.input + offset * int64_t(sizeof(Key));
    const uint32_t bytes = (tile.count - 1) * tile.group_pitch + p.box.group_bytes;
    tile.begin = copy_span(shared, p.box.stage_bytes, from, bytes, p.whole_blocks);
    return tile;
  }
  tile.first = int64_t(blockIdx.x) * p.box.tile;
  tile.count = static_cast<uint32_t>(std::min<int64_t>(p.box.tile, p.groups - tile.first));
  auto* leads = reinterpret_cast<uint16_t*>(shared);
  tile.begin = p.box.lead_bytes;
  const uint32_t lanes = p.box.copy_lanes, lane = threadIdx.x & (lanes - 1);
  for (uint32_t group = threadIdx.x >> log2_of(lanes); group < tile.count;
       group += kGroupThreads / lanes) {
    const int64_t offset = place(p.axes, p.axis_count, tile.first + group).offset;
    const char* first = p.input + offset * int64_t(sizeof(Key));
    const uint32_t lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(first)) % kLoadBytes;
    if (lane == 0) leads[group] = static_cast<uint16_t>(lead);
    copy_piece(first, shared + tile.begin + group * tile.group_pitch + lead, p.box.group_bytes,
               p.whole_blocks, lane, lanes);
  }
  wait_for_copies();
  __syncthreads();
  return tile;
}

// The result of an output, whose best element is row `row` of what lies `at` in the tile.
template <class Boxes, class Element>
__device__ void store(const Boxes& p, Element element, int64_t output, uint32_t at, uint32_t row) {
  using Key = typename Element::Key;
  const int64_t to = p.in_order ? output : place(p.kept, p.kept_count, output).step;
  p.out.put(to, p.index_of_row(row), [&] {
    const auto* bits = reinterpret_cast<const Key*>(dynamic_shared() + at + p.offset_of_row(row));
    return element.value(*bits);
  });
}

// The best of a row of n neighbouring elements `row` bytes into `tile`, which `lanes` lanes share.
template <class Element, class Key = typename Element::Key>
__device__ Near<Key> scan_row(Element element, const char* tile, uint32_t row, uint32_t n,
                              uint32_t lane, uint32_t lanes) {
  using S = Slots<Element>;
  const uint32_t count = n / S::kElements;
  const typename S::Row slots(tile, row);
  // Past the end there is the last slot again, which cannot win.
  std::conditional_t<S::kPacked, ShortTracker<Element>, Tracker<Element>> tracker;
  for (uint32_t s = lane, turn = 0; s < count; s += 4 * lanes, turn += 4) {
    const auto slot = [&](uint32_t i) { return slots[std::min(s + i * lanes, count - 1)]; };
    if constexpr (S::kPacked) {
      tracker.take(element, {slot(0), slot(1), slot(2), slot(3)}, s * S::kElements,
                   lanes * S::kElements);
    } else {
      tracker.take(element, {{slot(0), slot(1), slot(2), slot(3)}}, turn);
    }
  }
  Near<Key> best;
  if (lane < count) {
    if constexpr (S::kPacked) {
      best = tracker.best();
    } else {
      best.take(tracker.key(element, 0, 0), lane + tracker.turn(0, 0) * lanes);
    }
  }
  for (uint32_t i = count * S::kElements + lane; i < n; i += lanes)
    best.take(element.key(reinterpret_cast<const Key*>(tile + row)[i]), i);
  return warp_combine(best, lanes);
}

template <int kVectors, class Element>
__device__ void read_rows(const BoxProblem& p, Element element, const Tile& tile) {
  using Key = typename Element::Key;
  const uint32_t lanes = p.box.lanes, at_once = kGroupThreads / lanes, lane = threadIdx.x % lanes;
  for (uint32_t r0 = 0; r0 < tile.count; r0 += at_once) {
    const uint32_t r = r0 + threadIdx.x / lanes;
    const uint32_t group = std::min(r, tile.count - 1);
    uint32_t row;
    Near<Key> best;
    if constexpr (kVectors > 0) {
      row = tile.begin + group * tile.group_pitch;
      best = short_row<kVectors, kVectors - 1>(element, dynamic_shared(), row, p.rows);
    } else {
      row = tile.at(dynamic_shared(), group);
      best = scan_row(element, dynamic_shared(), row, p.rows, lane, lanes);
    }
    if (lane != 0 || r >= tile.count) continue;
    if (p.only_indices) {
      p.out.put_index(tile.first + r, best.index);
    } else {
      store(p, element, tile.first + r, row, best.index);
    }
  }
}

// A thread to a slot of neighbouring columns, or some lanes, which take its rows by turns.
template <class Element>
__device__ void read_columns(const BoxProblem& p, Element element, const Tile& tile) {
  using S = Slots<Element>;
  using Key = typename S::Key;
  const uint32_t lanes = p.box.lanes, lane = threadIdx.x & (lanes - 1);
  const uint32_t slots = (p.columns + S::kElements - 1) / S::kElements;
  const uint32_t at_once = kGroupThreads / lanes, number = threadIdx.x >> log2_of(lanes);
  const uint32_t next_group = at_once / slots, next_slot = at_once % slots;
  uint32_t group = number / slots, slot = number % slots;
  const uint32_t turns = (p.rows + lanes - 1) / lanes;
  // A warp's lanes stay together, for they combine what they have.
  for (uint32_t first = 0; first < tile.count * slots; first += at_once) {
    const uint32_t at = tile.at(dynamic_shared(), std::min(group, tile.count - 1)) +
                        slot * uint32_t(sizeof(typename S::Slot));
    // Past the end there is the last row again.
    const auto number_of = [&](uint32_t turn) { return std::min(turn * lanes + lane, p.rows - 1); };
    const auto row = [&](uint32_t turn) {
      return typename S::Row(dynamic_shared(), at + number_of(turn) * p.box.row_pitch)[0];
    };
    Tracker<Element> tracker;
    for (uint32_t j = 0; j < turns; j += 4)
      tracker.take(element, {{row(j), row(j + 1), row(j + 2), row(j + 3)}}, j);
    tracker.finish();
    uint32_t index[S::kElements];
#pragma unroll
    for (int e = 0; e < S::kElements; ++e) {
      index[e] = number_of(tracker.turn(0, e));
      if (lanes > 1)
        index[e] = warp_combine(Near<Key>{tracker.key(element, 0, e), index[e]}, lanes).index;
    }
    const uint32_t column = slot * S::kElements;
    const int64_t output = (tile.first + group) * p.columns + column;
    if (lane > 0 || group >= tile.count) {
      // Another lane stores this, or nobody.
    } else if (p.only_indices) {
      p.out.put_indices(output, p.columns - column, index);
    } else {
#pragma unroll
      for (int e = 0; e < S::kElements; ++e) {
        if (column + e < p.columns)
          store(p, element, output + e, at + e * uint32_t(sizeof(Key)), index[e]);
      }
    }
    const bool next_line = slot + next_slot >= slots;
    group += next_group + next_line;
    slot += next_slot - (next_line ? slots : 0);
  }
}

// A few lanes to an output, an element at a time to each of them, wherever in the tile these lie.
template <class Boxes, class Element>
__device__ void read_elements(const Boxes& p, Element element, const Tile& tile) {
  using Key = typename Element::Key;
  constexpr int kAtOnce = 4;
  const uint32_t lanes = p.box.lanes, lane = threadIdx.x & (lanes - 1);
  const uint32_t outputs = tile.count * p.columns;
  for (uint32_t o0 = 0; o0 < outputs; o0 += kGroupThreads / lanes) {
    const uint32_t mine = o0 + (threadIdx.x >> log2_of(lanes)), o = std::min(mine, outputs - 1);
    const uint32_t group = p.columns == 1 ? o : o / p.columns, column = o - group * p.columns;
    const uint32_t at = tile.at(dynamic_shared(), group) + column * p.box.column_pitch;
    // Positions rise, so that a later element wins only if it is smaller.
    Near<Key> best;
    if (lane < p.rows) best.index = lane;
    for (uint32_t j = lane; j < p.rows; j += kAtOnce * lanes) {
      // Past the end there is the last element again, which changes nothing.
      const auto position = [&](int u) { return std::min(j + u * lanes, p.rows - 1); };
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const char* from = dynamic_shared() + at + p.offset_of_row(position(u));
        const Key key = element.key(*reinterpret_cast<const Key*>(from));
        if (key < best.key) best = {key, position(u)};
      }
    }
    best = warp_combine(best, lanes);
    if (lane != 0 || mine >= outputs) continue;
    if (p.only_indices) {
      p.out.put_index(tile.first * p.columns + o, best.index);
    } else {
      store(p, element, tile.first * p.columns + o, at, best.index);
    }
  }
}

template <int kReading, class Boxes, class Element>
__global__ void __launch_bounds__(kGroupThreads, kGroupBlocks)
    boxes(const Element element, const __grid_constant__ Boxes p) {
  using Key = typename Element::Key;
  if constexpr (kReading == Box::kScattered) p.template write_offsets<Key>();
  const Tile tile = load_tile<Key>(p, dynamic_shared());
  if constexpr (kReading == Box::kScattered) {
    __syncthreads();
    read_elements(p, element, tile);
  } else if constexpr (kReading == Box::kElements) {
    read_elements(p, element, tile);
  } else if constexpr (kReading == Box::kColumns) {
    read_columns(p, element, tile);
  } else {
    read_rows<kReading>(p, element, tile);
  }
}

}  // namespace

void launch_boxes(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    using Kernel = void (*)(Element, BoxProblem);
    constexpr Kernel kOfRows[] = {boxes<0, BoxProblem, Element>, boxes<1, BoxProblem, Element>,
                                  boxes<2, BoxProblem, Element>, boxes<3, BoxProblem, Element>,
                                  boxes<4, BoxProblem, Element>};
    const Plan& plan = problem.plan;
    const Box& box = plan.box;
    if (box.reading == Box::kScattered) {
      const auto kernel = boxes<Box::kScattered, ScatteredBoxes, Element>;
      const ScatteredBoxes parameters(problem, r.groups);
      return launch(kernel, plan, parameters, element, stream, shared_bytes(box));
    }
    const Kernel kernel = box.reading == Box::kElements ? boxes<Box::kElements, BoxProblem, Element>
                          : box.reading == Box::kColumns ? boxes<Box::kColumns, BoxProblem, Element>
                                                         : kOfRows[box.reading];
    launch(kernel, plan, BoxProblem(problem, r.groups), element, stream, shared_bytes(box));
  });
}

}  // namespace reduceops::cuda
