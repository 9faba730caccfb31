// The constants of the plan, in one table, as measured on an H200. REDUCEOPS_CUDA_TUNING changes
// them for a run.
#pragma once

#include <algorithm>
#include <cstdint>

namespace reduceops::cuda {

struct Tuning {
  int64_t margin = 98;  // percent of the usual walk's price below which another is taken; 0: never
  int64_t walk = 0;     // that is taken wherever it fits: a Walk and 1 more; 0: none
  int64_t fold = 85;    // percent of the best other price below which groups are folded; 0: never
  int64_t fold_bytes = 4 << 20;  // of the smallest input whose groups are folded
  // Walks by bulk copies, and clusters.
  int64_t bulk = 1;                       // 0: keep to what GPUs before Hopper can do
  int64_t bulk_bytes = 8 << 20;           // least input
  int64_t block_bytes = 72 << 10;         // shared memory of a block
  int64_t small_block_bytes = 112 << 10;  // the same for 8- and 16-bit types
  int64_t stage_bytes = 32 << 10;         // of a stage of columns
  int64_t small_tile_bytes = 4 << 10;     // of a small input, at least
  int64_t tile_bytes = 24 << 10;          // of a tile of groups
  int64_t bulk_blocks = 2;                // blocks per multiprocessor
  int64_t ring_fill = 10;                 // percent that rings take longer on the smallest inputs,
  int64_t ring_fill_16 = 35;              // and of types of 16 bits
  int64_t segment_bytes = 8 << 10;        // widest tile of columns
  int64_t least_segment_bytes = 1 << 10;  // narrowest that is copied row by row
  int64_t full_segment_bytes = 2 << 10;   // narrowest that is read at full speed
  int64_t split_segment_bytes = 1 << 10;  // narrowest that tiles are made to be more of them
  int64_t mapped_part_bytes = 16 << 10;   // shortest part of mapped columns
  int64_t waves_bytes = 384 << 20;    // input from which on there are more blocks than fit at once
  int64_t work_bytes = 128 << 10;     // input of each
  int64_t short_row_bytes = 4 << 10;  // longest row that is taken in tiles of many
  int64_t small_group_bytes = 12 << 10;  // the same of a group of columns
  int64_t copy_blocks = 4;               // of 16 bytes that a lane copies of a piece at least
  int64_t tile_side = 32;                // results side by side that a tile stores at once
  int64_t one_dim_bytes = 256;           // largest group over one dim that comes in tiles
  // Walks by plain loads.
  int64_t small_elements = 1 << 20;        // of the largest input that is taken as a small one
  int64_t tiny_elements = 1 << 17;         // of the largest of these that is never another
  int64_t small_loads = 32;                // most loads of a lane there
  int64_t small_row = 256;                 // elements of the longest row there
  int64_t small_whole_elements = 1 << 16;  // of the largest such input that could be held whole
  int64_t whole_rows = 1;                  // 0: no row is held as a whole
  int64_t whole_row_bytes = 1024;          // shortest row that is held as a whole, if not aligned
  int64_t held_row_bytes = 256;            // the same under a mask, and of softmax_max
  int64_t whole_vectors = 2048;            // of the longest row that is held at once
  int64_t whole_few_vectors = 8;           // longest aligned row of which a thread holds 2 vectors
  int64_t whole_blocks = 2;                // per multiprocessor that few rows are cut into
  int64_t held_threads = 768;              // of a multiprocessor that must be left if those of
                                           // rows of 16 bits have twice as many loads
  int64_t held_batches = 16;               // most rounds of loads of a multiprocessor that has one
                                           // block of rows under a mask, or of softmax_max
  int64_t whole_column = 16;               // elements of the longest column that is held so
  int64_t blocks_per_multiprocessor = 3;   // that fill it
  int64_t lane_loads = 4;                  // loads of a lane of small.cu
  int64_t row_loads = 8;                   // of other rows, and there of some that lie apart
  int64_t run_loads = 8;                   // the same of a lane of one of several runs
  int64_t realigned = 1;                   // 0: columns that are not aligned are taken one by one
  int64_t gather_tiles = 1;     // 0: short groups are gathered in the order of their results
  int64_t gather_few = 4096;    // outputs per multiprocessor up to which threads have fewer of
                                // them: they wait for memory more than they compute
  int64_t tile_rounds = 32;     // tiles of these to a multiprocessor from which on they are larger
  int64_t gathered_masks = 8;   // elements of the longest group that is gathered with a mask of
                                // whole groups, instead of without it
  int64_t share_threads = 850;  // per multiprocessor, about, that share groups that are gathered
  int64_t share_loads = 4;      // loads of a thread for which no others share them
  int64_t column_loads = 4;     // fewest loads of a thread worth sharing a column for
  int64_t shifted_loads = 8;    // the same where packs of columns are shifted
  int64_t column_walk_8 = 512;  // elements of the shortest column that is read so where
  int64_t column_walk_16 = 12;  // it could come through a ring, by the bits of a type
  int64_t column_walk_32 = 32;
  int64_t column_walk_64 = 1024;
  int64_t column_row_bytes = 1 << 10;  // of the shortest row of columns there
  int64_t column_rounds = 4;  // of blocks that large ones are cut into where no ring takes them,
                              // for multiprocessors to have as much to do, and
  int64_t round_loads = 64;   // the fewest loads of a thread worth more of them
  int64_t staged_walk = 128;  // elements of the shortest column that warps copy ahead
  int64_t part_loads = 4;     // fewest loads of a thread worth splitting off
  int64_t split_loads = 32;   // fewest loads of a thread worth a second kernel, for columns
  int64_t packed_run_bytes = 256;  // longest of several runs whose packs are counted through
  int64_t min_vector_run = 64;     // shortest run read in 16-byte loads where there are several
};

// What of a value is taken: the nearest from `least` to `most`, so that no value makes a plan
// wrong.
struct Tunable {
  const char* name;
  int64_t Tuning::* value;
  int64_t least = 0;
  int64_t most = int64_t(1) << 40;  // products with it fit 64 bits
};
inline constexpr Tunable kTunables[] = {
    {"margin", &Tuning::margin, 0, 1000},
    {"walk", &Tuning::walk},
    {"fold", &Tuning::fold, 0, 1 << 20},
    {"fold_bytes", &Tuning::fold_bytes},
    {"bulk", &Tuning::bulk},
    {"bulk_bytes", &Tuning::bulk_bytes},
    {"block_bytes", &Tuning::block_bytes, 0, 227 << 10},
    {"small_block_bytes", &Tuning::small_block_bytes, 0, 227 << 10},
    {"small_tile_bytes", &Tuning::small_tile_bytes, 1, 227 << 10},
    {"tile_bytes", &Tuning::tile_bytes, 1, 227 << 10},
    {"stage_bytes", &Tuning::stage_bytes, 1, 227 << 10},
    {"bulk_blocks", &Tuning::bulk_blocks, 1},
    {"ring_fill", &Tuning::ring_fill, 0, 1000},
    {"ring_fill_16", &Tuning::ring_fill_16, 0, 1000},
    {"segment_bytes", &Tuning::segment_bytes, 8},
    {"least_segment_bytes", &Tuning::least_segment_bytes},
    {"full_segment_bytes", &Tuning::full_segment_bytes},
    {"split_segment_bytes", &Tuning::split_segment_bytes},
    {"mapped_part_bytes", &Tuning::mapped_part_bytes},
    {"waves_bytes", &Tuning::waves_bytes},
    {"work_bytes", &Tuning::work_bytes, 1},
    {"short_row_bytes", &Tuning::short_row_bytes, 0, 48 << 10},
    {"small_group_bytes", &Tuning::small_group_bytes},
    {"one_dim_bytes", &Tuning::one_dim_bytes, 0, 4 << 10},
    {"small_elements", &Tuning::small_elements},
    {"tiny_elements", &Tuning::tiny_elements},
    {"small_loads", &Tuning::small_loads},
    {"small_row", &Tuning::small_row},
    {"small_whole_elements", &Tuning::small_whole_elements},
    {"whole_rows", &Tuning::whole_rows},
    {"whole_row_bytes", &Tuning::whole_row_bytes},
    {"held_row_bytes", &Tuning::held_row_bytes},
    {"whole_vectors", &Tuning::whole_vectors},
    {"whole_few_vectors", &Tuning::whole_few_vectors, 0, 1024},
    {"whole_blocks", &Tuning::whole_blocks, 1},
    {"held_threads", &Tuning::held_threads, 0, 1 << 20},
    {"held_batches", &Tuning::held_batches},
    {"whole_column", &Tuning::whole_column},
    {"blocks_per_multiprocessor", &Tuning::blocks_per_multiprocessor, 1},
    {"lane_loads", &Tuning::lane_loads, 1},
    {"row_loads", &Tuning::row_loads, 1},
    {"run_loads", &Tuning::run_loads, 1},
    {"copy_blocks", &Tuning::copy_blocks, 1, 64},
    {"tile_side", &Tuning::tile_side, 1, 128},
    {"realigned", &Tuning::realigned},
    {"gather_tiles", &Tuning::gather_tiles},
    {"gather_few", &Tuning::gather_few, 0, 1 << 20},
    {"tile_rounds", &Tuning::tile_rounds, 0, 1 << 20},
    {"gathered_masks", &Tuning::gathered_masks},
    {"share_threads", &Tuning::share_threads, 1, 1 << 20},
    {"share_loads", &Tuning::share_loads, 1},
    {"column_loads", &Tuning::column_loads},
    {"shifted_loads", &Tuning::shifted_loads, 1, 1 << 20},
    {"column_walk_8", &Tuning::column_walk_8},
    {"column_walk_16", &Tuning::column_walk_16},
    {"column_walk_32", &Tuning::column_walk_32},
    {"column_walk_64", &Tuning::column_walk_64},
    {"column_row_bytes", &Tuning::column_row_bytes},
    {"column_rounds", &Tuning::column_rounds, 1, 1 << 10},
    {"round_loads", &Tuning::round_loads, 1},
    {"staged_walk", &Tuning::staged_walk},
    {"part_loads", &Tuning::part_loads, 1},
    {"split_loads", &Tuning::split_loads},
    {"packed_run_bytes", &Tuning::packed_run_bytes, 0, 1 << 20},
    {"min_vector_run", &Tuning::min_vector_run},
};

inline void set(Tuning& tuning, const Tunable& tunable, int64_t value) {
  tuning.*tunable.value = std::clamp(value, tunable.least, tunable.most);
}

}  // namespace reduceops::cuda
