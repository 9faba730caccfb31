// Groups of a few elements, wherever they lie, for what finds the best of them: gather.cu, of the
// input alone; gather_items.cuh, under a mask and of softmax_max. A thread has an output, or a pack
// of neighbouring ones, or several of these. Where results follow each other in another order than
// memory, a block takes a tile of both, and its threads exchange results.
#pragma once

#include "cuda/gather.h"

#include "cuda/combine.cuh"
#include "cuda/device.cuh"

namespace reduceops::cuda {

struct GatherDim {
  uint32_t size, stride, step, mask_stride;
  ShortDivisor by_size;
};

// Results that a thread of a tile stores at once, aligned: indices fill 16 bytes.
constexpr uint32_t kIndexRun = 2;
constexpr uint32_t run_of_values(int64_t bytes) { return bytes < 4 ? 4 : 2; }

// What most threads need is in the first lines, as in Problem.
struct GatherProblem {
  const char* input;
  uint32_t units;  // over `dims`; of a thread that has several, the first ones
  int count, all;  // dims of units; with those across a tile
  // Of threads that have several units, the dim along which these lie, which dims leave out; where
  // it is among them, and from a unit to the next one.
  int along_number;
  uint32_t spacing;
  GatherDim along;
  uint32_t last_from, last_mask, last_to;  // of the last pack of neighbours, from the first on
  uint32_t neighbour_step;                 // from a result to that of the next element of a pack
  uint32_t rows, row_stride, row_mask_stride;  // of one reduced dim
  uint32_t index_step;
  Outputs out;
  bool row_loads, even_rows;
  bool realigned;  // whether packs of bytes begin anywhere, or their bytes of the mask do
  // Whether the results across, or those of packs, lie side by side, in whole runs: so many of
  // them.
  bool in_runs;
  uint32_t index_runs, value_runs;
  GatherDim dims[kGatherDims];  // as dims_of has them
  // Where rows begin, of as many as may lie anywhere; and those of the mask.
  uint32_t row_from[kGatherRows], row_mask_from[kGatherRows];
  const uint8_t* mask;  // may be null
  // Of a pack: from an element's byte of the mask to the next one's, and whether they are a word.
  uint32_t mask_step;
  bool mask_words;
  // Of packs that begin anywhere: up to there, all words end in the input, or in the mask.
  int64_t last_inside, last_mask_inside;
  // Of tiles.
  uint32_t inner_side, cross_side;
  uint32_t inner_lanes, cross_lanes, tile_threads;
  uint32_t tile_units, next_inner, next_across;  // of a thread; from one of them to the next
  uint32_t whole_bands, last_band, band_blocks;  // tiles of the last band; blocks of a whole one
  uint32_t crosses;                              // positions across, of all tiles
  uint32_t pitch, next_cross;                    // in shared memory, from a result to others
  ShortDivisor by_inner_lanes, by_cross_lanes, by_cross_side, by_band_blocks, by_last_band;
  ShortDivisor by_index_runs, by_value_runs;
  uint32_t shares;

  GatherProblem(const Problem& p, const Groups& groups, int64_t bytes)
      : input(p.input),
        rows(static_cast<uint32_t>(p.walk)),
        row_stride(0),
        row_mask_stride(0),
        index_step(1),
        out(p.out),
        mask(p.mask) {
    const Gather& plan = p.plan.gather;
    const Dims reduced = by_step(groups.reduced);
    if (reduced.count > 0) {
      row_stride = static_cast<uint32_t>(reduced.dim[0].stride);
      row_mask_stride = static_cast<uint32_t>(reduced.dim[0].mask_stride);
      index_step = static_cast<uint32_t>(reduced.dim[0].step);
    }
    const auto find_rows = [&](Dims dims, uint32_t* from) {
      for (uint32_t row = 0; row < rows; ++row)
        from[row] = static_cast<uint32_t>(place(dims.dim, dims.count, row).offset);
    };
    if (rows <= kGatherRows) find_rows(reduced, row_from);
    if (rows <= kGatherRows && plan.masked) {
      Dims in_mask = reduced;
      for (int d = 0; d < in_mask.count; ++d) in_mask.dim[d].stride = in_mask.dim[d].mask_stride;
      find_rows(in_mask, row_mask_from);
    }
    const int64_t width = plan.width(bytes);
    const Dims kept = dims_of(plan, groups, bytes);
    neighbour_step = static_cast<uint32_t>(kept.dim[0].step);
    mask_step = static_cast<uint32_t>(kept.dim[0].mask_stride);
    mask_words = mask_step == 1 && has_mask_words(kept, reduced, width);
    row_loads = plan.row_loads;
    // Packs whose bytes of the mask begin anywhere are joined of words as these are.
    const bool joins_mask = plan.masked && width == 4 && mask_step == 1 && !mask_words;
    realigned = plan.realigned || joins_mask;
    last_inside = last_inside_of(input, groups, &Dim::stride);
    last_mask_inside = last_inside_of(mask, groups, &Dim::mask_stride);
    even_rows = reduced.count <= 1;
    shares = static_cast<uint32_t>(plan.shares);
    all = kept.count;
    count = all - (plan.tiled() ? dims_across(groups) : 0);
    const auto short_dim = [](const Dim& dim) {
      return GatherDim{static_cast<uint32_t>(dim.size), static_cast<uint32_t>(dim.stride),
                       static_cast<uint32_t>(dim.step), static_cast<uint32_t>(dim.mask_stride),
                       ShortDivisor(dim.size)};
    };
    units = crosses = 1;
    in_runs = !out.pairs.words && is_aligned(out.indices) && is_aligned(out.values);
    int64_t beyond_runs = 0;  // steps of dims that lead from run to run
    for (int d = 0; d < all; ++d) {
      Dim dim = kept.dim[d];
      if (d < count && (d > 0 || plan.tiled())) beyond_runs |= dim.step;
      if (d == 0) {
        last_from = static_cast<uint32_t>(dim.size - width);
        last_mask = last_from * mask_step;
        last_to = last_from * neighbour_step;
        dim = {plan.units_of(dim, bytes), dim.stride * width, dim.step * width,
               dim.mask_stride * width};
      }
      dims[d] = short_dim(dim);
      if (d >= count) in_runs &= dim.step == crosses;
      (d < count ? units : crosses) *= dims[d].size;
    }
    if (!plan.tiled() && !plan.shared()) {
      const UnitsAlong units_along = units_along_of(plan, groups, bytes);
      along_number = units_along.dim;
      spacing = static_cast<uint32_t>(units_along.spacing);
      along = dims[along_number];
      units = units / along.size * static_cast<uint32_t>(units_along.threads);
      dims[along_number] = {static_cast<uint32_t>(units_along.threads), 0, 0, 0,
                            ShortDivisor(units_along.threads)};
    }
    if (!plan.tiled()) {
      in_runs &= neighbour_step == 1 && beyond_runs % width == 0;
      return;
    }
    inner_side = static_cast<uint32_t>(plan.inner_side);
    cross_side = static_cast<uint32_t>(plan.cross_side);
    const int64_t inner_tiles = ceil_div(units, inner_side);
    const int64_t cross_tiles = ceil_div(crosses, cross_side);
    whole_bands = static_cast<uint32_t>(inner_tiles / kGatherBand);
    last_band = static_cast<uint32_t>(inner_tiles % kGatherBand);
    band_blocks = static_cast<uint32_t>(std::min(inner_tiles, kGatherBand) * cross_tiles);
    by_band_blocks = ShortDivisor(band_blocks);
    by_last_band = ShortDivisor(std::max<int64_t>(last_band, 1));
    inner_lanes = static_cast<uint32_t>(plan.inner_lanes);
    cross_lanes = static_cast<uint32_t>(plan.cross_lanes);
    by_inner_lanes = ShortDivisor(inner_lanes);
    by_cross_lanes = ShortDivisor(cross_lanes);
    tile_threads = static_cast<uint32_t>(plan.tile_threads());
    tile_units = static_cast<uint32_t>(plan.units);
    next_across = plan.along_cross() ? cross_lanes : 0;
    next_inner = plan.along_cross() ? 0 : inner_side / tile_units;
    by_cross_side = ShortDivisor(cross_side);
    const uint32_t value_run = run_of_values(bytes);
    const auto has_runs = [&](uint32_t run) {
      return crosses % run == 0 && (cross_side >= crosses || cross_side % run == 0) &&
             beyond_runs % run == 0;
    };
    in_runs &= (!out.indices || has_runs(kIndexRun)) && (!out.values || has_runs(value_run));
    index_runs = cross_side / kIndexRun;
    value_runs = cross_side / value_run;
    by_index_runs = ShortDivisor(std::max(index_runs, 1u));
    by_value_runs = ShortDivisor(std::max(value_runs, 1u));
    pitch = static_cast<uint32_t>(plan.pitch(bytes));
    next_cross = plan.copied ? 0 : 1;
  }

 private:
  // Whether the bytes of the mask for a pack, which are neighbours, begin where so many may.
  bool has_mask_words(const Dims& kept, const Dims& reduced, int64_t width) const {
    auto offsets = static_cast<int64_t>(reinterpret_cast<uintptr_t>(mask));
    for (int d = 1; d < kept.count; ++d) offsets |= kept.dim[d].mask_stride;
    for (int d = 0; d < reduced.count; ++d) offsets |= reduced.dim[d].mask_stride;
    return offsets % width == 0;
  }
  // Of a unit's first byte, so that the word with the last one of any row ends where the input
  // does, or before.
  static int64_t last_inside_of(const void* bytes, const Groups& groups, int64_t Dim::* stride) {
    const int64_t of_rows = reach(groups.reduced, stride);
    const int64_t end = reach(groups.kept, stride) + of_rows + 1;
    const int64_t behind = (reinterpret_cast<uintptr_t>(bytes) + end) % 4;
    return end - behind - 4 - of_rows;
  }
};

// Where the elements of a unit begin, those of its mask, and where its results go.
struct GatherPlace {
  uint32_t from = 0, mask = 0, to = 0;

  __device__ void add(const GatherDim& dim, uint32_t digit) {
    from += digit * dim.stride;
    mask += digit * dim.mask_stride;
    to += digit * dim.step;
  }
  // That of a unit by its number, from nowhere.
  template <bool kPacked>
  __device__ void add_unit(const GatherProblem& p, uint32_t unit) {
    add_digits(p, unit, [&](int d, uint32_t) {
      if (!kPacked || d > 0) return;
      from = std::min(from, p.last_from);
      mask = std::min(mask, p.last_mask);
      to = std::min(to, p.last_to);
    });
  }
  // The same, dim by dim, after each of which there is a call added(d, digit). Of the first dims,
  // what it takes are constants of instructions, not loads.
  template <class Added>
  __device__ void add_digits(const GatherProblem& p, uint32_t unit, Added added) {
    constexpr int kUnrolled = 3;
#pragma unroll
    for (int d = 0; d < kUnrolled; ++d) {
      const bool is_last = d + 1 == p.count;
      const uint32_t over = is_last ? 0 : p.dims[d].by_size.quotient(unit);
      const uint32_t digit = is_last ? unit : unit - over * p.dims[d].size;
      add(p.dims[d], digit);
      added(d, digit);
      if (is_last) return;
      unit = over;
    }
    add_rest(p, kUnrolled, p.count, unit, added);
  }
  // That of a position across a tile.
  __device__ void add_across(const GatherProblem& p, uint32_t cross) {
    add_rest(p, p.count, p.all, cross, [](int, uint32_t) {});
  }

 private:
  template <class Added>
  __device__ void add_rest(const GatherProblem& p, int d, int end, uint32_t number, Added added) {
    REDUCEOPS_ROLLED
    for (; d + 1 < end; ++d) {
      const uint32_t over = p.dims[d].by_size.quotient(number);
      const uint32_t digit = number - over * p.dims[d].size;
      add(p.dims[d], digit);
      added(d, digit);
      number = over;
    }
    add(p.dims[d], number);
    added(d, number);
  }
};

// The rows of a unit, or those of one of the threads that share it: every so many.
struct Rows {
  uint32_t count, stride, mask_stride;
  bool even;  // whether they lie so far apart; else the problem says where they begin
  // From the first row of the unit to the first of these, where places begin.
  uint32_t behind = 0, mask_behind = 0;

  __device__ uint32_t from(const GatherProblem& p, uint32_t row) const {
    return even ? row * stride : p.row_from[row];
  }
  __device__ uint32_t mask_from(const GatherProblem& p, uint32_t row) const {
    return even ? row * mask_stride : p.row_mask_from[row];
  }
};

// Of says what finds the best of each output of some units of a thread: a class Bests, of which
// Bests(p, operands, rows, places of units, whether positions are asked for) loads all elements, of
// kWidth outputs to a unit, and `position(unit, output)` and `value(unit, output)` are the results.
// kBlocks: those that shall find room in a multiprocessor. `rows(p)`: all of them, as is best to
// find them.
template <class Of>
__global__ void __launch_bounds__(kThreads, room_for(Of::kBlocks, kThreads))
    gather(const typename Of::Operands operands, const __grid_constant__ GatherProblem p) {
  using Key = typename Of::Key;
  using Bests = typename Of::Bests;
  constexpr int kUnits = Of::kUnits;
  const uint32_t number = blockIdx.x * uint32_t(kThreads) + threadIdx.x;
  GatherPlace first, at[kUnits];
  uint32_t along = 0;
  first.add_digits(p, std::min(number, p.units - 1),
                   [&](int d, uint32_t digit) { along = d == p.along_number ? digit : along; });
  along = (along & -p.spacing) * kUnits | (along & (p.spacing - 1));
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    at[i] = first;
    at[i].add(p.along, std::min(along + i * p.spacing, p.along.size - 1));
  }
  const bool indices = p.out.indices || p.out.pairs.words;
  const Bests bests(p, operands, Of::rows(p), at, indices);
  if (number >= p.units) return;
  // There are threads beyond a dim that they do not divide.
  const auto has = [&](int i) { return along + i * p.spacing < p.along.size; };
  const auto index = [&](int i, int e) { return bests.position(i, e) * p.index_step; };
  const auto value = [&](int i, int e) { return bests.value(i, e); };
  if constexpr (Bests::kWidth > 1) {
    if (p.in_runs) {
      p.out.template put_each_run<Key, Bests::kWidth>(
          [&](auto put) {
#pragma unroll
            for (int i = 0; i < kUnits; ++i) {
              if (has(i)) put(at[i].to, i);
            }
          },
          index, value);
      return;
    }
  }
  p.out.template put_each<Key>(
      [&](auto put) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          if (!has(i)) continue;
#pragma unroll
          for (int e = 0; e < Bests::kWidth; ++e) put(at[i].to + e * p.neighbour_step, i, e);
        }
      },
      index, value);
}

// The tile of a block in shared memory: where units and positions across lie, in the mask, too, and
// where their results go; of each result its value and position. Of copies there is one.
template <class Key, uint32_t kWidth, bool kMasked>
struct GatherTile {
  const GatherProblem& p;
  uint32_t *from, *mask, *to;  // [inner, then cross]
  Key* values;                 // [inner][width][cross]
  uint8_t* positions;          // the same, of at most 256 rows
  uint32_t inners, first_cross, crosses;

  __device__ explicit GatherTile(const GatherProblem& p)
      : p(p),
        from(reinterpret_cast<uint32_t*>(dynamic_shared())),
        mask(from + kMasked * (p.inner_side + p.cross_side)),
        to(mask + p.inner_side + p.cross_side),
        values(reinterpret_cast<Key*>(dynamic_shared() +
                                      places_bytes(p.inner_side + p.cross_side, kMasked))),
        positions(reinterpret_cast<uint8_t*>(values + p.inner_side * kWidth * p.pitch)) {
    const uint32_t band = p.by_band_blocks.quotient(blockIdx.x);
    const uint32_t in_band = blockIdx.x - band * p.band_blocks;
    const bool is_whole = band < p.whole_bands;
    const uint32_t tiles = is_whole ? uint32_t(kGatherBand) : p.last_band;
    const uint32_t cross_tile = is_whole ? in_band / kGatherBand : p.by_last_band.quotient(in_band);
    const uint32_t first = (band * kGatherBand + in_band - cross_tile * tiles) * p.inner_side;
    inners = std::min(p.inner_side, p.units - first);
    first_cross = cross_tile * p.cross_side;
    crosses = std::min(p.cross_side, p.crosses - first_cross);
    for (uint32_t i = threadIdx.x; i < p.inner_side + p.cross_side; i += kThreads) {
      GatherPlace at;
      if (i < p.inner_side) {
        at.template add_unit<(kWidth > 1)>(p, std::min(first + i, p.units - 1));
      } else {
        at.add_across(p, std::min(first_cross + i - p.inner_side, p.crosses - 1));
      }
      from[i] = at.from;
      if (kMasked) mask[i] = at.mask;
      to[i] = at.to;
    }
    __syncthreads();
  }

  // Threads lie over the results in their order.
  __device__ void store() const {
    if (p.in_runs) {
      if (p.out.indices) store_indices();
      if (p.out.values) store_values();
    } else if (p.out.index_bytes != 8 || p.out.pairs.words) {
      each([&](uint32_t to, uint32_t slot) { p.out.put(to, index(slot), value_in(slot)); });
    } else if (p.out.values) {
      each([&](uint32_t to, uint32_t slot) {
        static_cast<Key*>(p.out.values)[to] = values[slot];
        if (p.out.indices) put_index(to, slot);
      });
    } else {
      each([&](uint32_t to, uint32_t slot) { put_index(to, slot); });
    }
  }

 private:
  // Where the results of a row go, and where they lie in shared memory.
  __device__ uint32_t result_of_row(uint32_t row) const {
    return to[row / kWidth] + row % kWidth * p.neighbour_step;
  }
  __device__ uint32_t slot(uint32_t row, uint32_t cross) const {
    return row * p.pitch + cross * p.next_cross;
  }
  __device__ uint32_t index(uint32_t slot) const { return positions[slot] * p.index_step; }
  __device__ auto value_in(uint32_t slot) const {
    return [this, slot] { return values[slot]; };
  }
  __device__ void put_index(uint32_t to, uint32_t slot) const {
    reinterpret_cast<int64_t*>(p.out.indices)[to] = index(slot);
  }

  // Calls put(to, slot) of each result, which a thread finds from its last one without a division.
  template <class Put>
  __device__ void each(Put put) const {
    const uint32_t rows_on = p.by_cross_side.quotient(kThreads);
    const uint32_t cross_on = kThreads - rows_on * p.cross_side;
    uint32_t row = p.by_cross_side.quotient(threadIdx.x);
    uint32_t cross = threadIdx.x - row * p.cross_side;
    REDUCEOPS_ROLLED
    while (row < inners * kWidth) {
      if (cross < crosses) put(result_of_row(row) + to[p.inner_side + cross], slot(row, cross));
      row += rows_on;
      cross += cross_on;
      if (cross < p.cross_side) continue;
      cross -= p.cross_side;
      ++row;
    }
  }
  // Calls put(to, slot) of the first result of each run.
  template <uint32_t kRun, class Put>
  __device__ void each_run(uint32_t runs, ShortDivisor by_runs, Put put) const {
    for (uint32_t number = threadIdx.x; number < inners * kWidth * runs; number += kThreads) {
      const uint32_t row = by_runs.quotient(number), cross = (number - row * runs) * kRun;
      if (cross < crosses) put(result_of_row(row) + first_cross + cross, slot(row, cross));
    }
  }
  __device__ void store_indices() const {
    each_run<kIndexRun>(p.index_runs, p.by_index_runs, [&](uint32_t to, uint32_t slot) {
      uint32_t indices[kIndexRun];
#pragma unroll
      for (uint32_t i = 0; i < kIndexRun; ++i) indices[i] = index(slot + i * p.next_cross);
      p.out.put_indices(to, indices);
    });
  }
  __device__ void store_values() const {
    constexpr uint32_t kRun = run_of_values(sizeof(Key));
    each_run<kRun>(p.value_runs, p.by_value_runs, [&](uint32_t to, uint32_t slot) {
      p.out.template put_values<Key, kRun>(
          to, [&](uint32_t i) { return values[slot + i * p.next_cross]; });
    });
  }
};

// A tile to a block. Threads lie over units in the order of memory, and then over results in
// theirs.
template <class Of>
__global__ void __launch_bounds__(kThreads, Of::kTileBlocks)
    gather_tiles(const typename Of::Operands operands, const __grid_constant__ GatherProblem p) {
  using Key = typename Of::Key;
  using Bests = typename Of::Bests;
  constexpr uint32_t kWidth = Bests::kWidth;
  constexpr int kUnits = Of::kUnits;
  const GatherTile<Key, kWidth, Of::kMasked> tile(p);
  const uint32_t number = std::min(threadIdx.x, p.tile_threads - 1);
  const uint32_t rest = p.by_inner_lanes.quotient(number), over = p.by_cross_lanes.quotient(rest);
  uint32_t cross = rest - over * p.cross_lanes;
  uint32_t inner = number - (rest - over) * p.inner_lanes;
  uint32_t slot = inner * kWidth * p.pitch + cross;
  const uint32_t next_slot = p.next_inner * kWidth * p.pitch + p.next_across;
  const bool indices = p.out.indices || p.out.pairs.words;
  const auto take = [&] {
    GatherPlace at[kUnits];
    uint32_t slots[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      at[i].from = tile.from[inner] + tile.from[p.inner_side + cross];
      if (Of::kMasked) at[i].mask = tile.mask[inner] + tile.mask[p.inner_side + cross];
      slots[i] = slot;
      inner += p.next_inner;
      cross += p.next_across;
      slot += next_slot;
    }
    const Bests bests(p, operands, Of::rows(p), at, indices);
    if (indices) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
#pragma unroll
        for (uint32_t e = 0; e < kWidth; ++e)
          tile.positions[slots[i] + e * p.pitch] = static_cast<uint8_t>(bests.position(i, e));
      }
    }
    if (p.out.values) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
#pragma unroll
        for (uint32_t e = 0; e < kWidth; ++e)
          tile.values[slots[i] + e * p.pitch] = bests.value(i, e);
      }
    }
  };
  take();
  if constexpr (Of::kHasLargeTiles) {
    REDUCEOPS_ROLLED
    for (uint32_t unit = kUnits; unit < p.tile_units; unit += kUnits) {
      if (inner < tile.inners && cross < tile.crosses) take();
    }
  }
  __syncthreads();
  tile.store();
}

// Threads of a block lie over units, and shares of them. Of says besides what is combined: `state(
// bests, output, position)` of what a thread found, whose position is in the group, and the results
// of a state, of whose group the first element has number `from`.
template <class Of>
__global__ void __launch_bounds__(kSharedGatherThreads, Of::kSharedBlocks)
    gather_shared(const typename Of::Operands operands, const __grid_constant__ GatherProblem p) {
  using Bests = typename Of::Bests;
  using State = typename Of::State;
  constexpr uint32_t kWidth = Bests::kWidth;
  auto* states = reinterpret_cast<State*>(dynamic_shared());  // [width][threads and one]
  const uint32_t pitch = blockDim.x + 1;
  const int shares_log2 = log2_of(p.shares), lanes_log2 = log2_of(blockDim.x) - shares_log2;
  const uint32_t lanes = 1u << lanes_log2, first = blockIdx.x << lanes_log2;
  const uint32_t share = threadIdx.x >> lanes_log2;
  GatherPlace at[1];
  at[0].template add_unit<(kWidth > 1)>(p,
                                        std::min(first + (threadIdx.x & (lanes - 1)), p.units - 1));
  const Rows rows{((p.rows - share - 1) >> shares_log2) + 1,
                  p.row_stride << shares_log2,
                  p.row_mask_stride << shares_log2,
                  true,
                  share * p.row_stride,
                  share * p.row_mask_stride};
  at[0].from += rows.behind;
  at[0].mask += rows.mask_behind;
  const Bests bests(p, operands, rows, at, Of::wants_positions(p.out));
#pragma unroll
  for (uint32_t e = 0; e < kWidth; ++e)
    states[e * pitch + threadIdx.x] =
        Of::state(bests, e, share + (bests.position(0, e) << shares_log2));
  __syncthreads();
  const uint32_t takers = std::clamp<uint32_t>(p.shares / kWidth, 1, 32);  // of an output
  const auto slots = [&](uint32_t item) { return states + item % kWidth * pitch + item / kWidth; };
  merge_items<State>(
      lanes * kWidth, takers, blockDim.x, p.shares, lanes, slots, [&](uint32_t item, State state) {
        const uint32_t lane = item / kWidth, e = item % kWidth;
        if (first + lane >= p.units) return;
        GatherPlace of;
        of.template add_unit<(kWidth > 1)>(p, first + lane);
        p.out.put(of.to + e * p.neighbour_step, Of::index(operands, state) * p.index_step,
                  [&] { return Of::value(p, operands, state, of.from + e); });
      });
}

template <class Of>
void launch_gather_shared(const Plan& plan, const GatherProblem& p,
                          const typename Of::Operands& operands, void* stream) {
  constexpr auto kState = static_cast<int64_t>(sizeof(typename Of::State));
  launch(gather_shared<Of>, plan, p, operands, stream,
         plan.gather.width(sizeof(typename Of::Key)) * (plan.threads + 1) * kState);
}

}  // namespace reduceops::cuda
