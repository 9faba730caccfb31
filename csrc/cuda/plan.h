// Which kernel a reduction runs on a GPU, and how it is cut: host code without CUDA calls, so that
// it is tested without a GPU (tests/test_plan.py).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/box.h"
#include "cuda/exchange.h"
#include "cuda/sizes.h"
#include "cuda/tuning.h"
#include "make_groups.h"

namespace reduceops::cuda {

struct Limits {
  int64_t multiprocessors;
  bool bulk;  // bulk copies, clusters and kSharedBytes: compute capability 9.0 on, but not all
};

constexpr int64_t kThreads = 256;       // per block of plain loads; the kernels are compiled for it
constexpr int64_t kSmallThreads = 128;  // per block of small inputs
constexpr int64_t kWholeThreads = 512;  // per block that holds rows as a whole, at most
constexpr int64_t kWholeLoads = 4;      // of a thread, at once
constexpr int kWholeDims = 5;           // kept ones of rows or columns that are held as a whole
constexpr int64_t kBatch = kWholeThreads * kWholeLoads;  // loads of a block at once, at most
// Elements of a column that is held as a whole, at most.
constexpr int64_t whole_column_rows(int64_t bytes) { return bytes == 4 ? 8 : 4; }
constexpr int64_t kRowLoads = 8192;  // that a multiprocessor has in flight where it reads rows
// Of a thread among them: many where it has several rounds of them to do, else so few that more
// blocks find room, of which some are at work while others begin or end.
constexpr int64_t kManyLoads = 16, kFewLoads = 8;
constexpr int kSharedBytes = 227 << 10;       // of a block at most, where there are rings
constexpr int kStageBarriers = 16;            // bytes behind a ring for each of its stages
constexpr int64_t kWorkspaceBytes = 1 << 20;  // for the candidates of the parts
constexpr int64_t kCluster = 8;               // blocks: the most that every GPU with clusters takes
constexpr int64_t kMaxPartExtent = int64_t(1) << 30;  // positions in a part fit 32 bits
// Of boxes: threads per block, and blocks that shall find room in a multiprocessor.
constexpr int64_t kGroupThreads = box::kGroupThreads;
constexpr int64_t kGroupBlocks = 8;
// Threads of a block that read a ring of bulk copies, and how many slots each of them takes at
// most.
constexpr int64_t kReaders = 256;
constexpr int64_t slots_per_reader(int64_t bytes) { return bytes == 4 ? 8 : bytes == 1 ? 2 : 4; }
// Reduced positions that a reader takes at once.
constexpr int64_t rows_at_once(int64_t bytes) { return bytes < 4 ? 8 : 4; }

enum class Walk : int {
  kRows,          // the reduced dim is innermost
  kColumns,       // a kept dim is
  kBoxes,         // small groups, by tiles of many in shared memory
  kBulkColumns,   // a kept dim is innermost, by tiles of columns
  kWholeRows,     // the reduced dim is innermost: rows of which all loads are in flight at once
  kWholeColumns,  // a kept dim is innermost, and the reduced one of a few elements
  kSmall,         // few elements, whatever their order
  kFill,          // every group is one element
  kExchange,      // small groups whose results lie in another order than memory
};

struct Plan {
  Walk walk;
  bool vector;          // 16-byte loads: along the row, or over neighbouring columns; exchange:
                        // slots of neighbouring columns
  int lanes;            // rows: threads per row; columns: threads side by side over columns
  int loads;            // rows: in flight of a thread
  int64_t batches;      // whole rows: of so many loads, in a part; 0: a row is held at once
  int shares;           // columns: threads that share a column
  int runs;             // rows: of the innermost reduced dim, that the lanes take side by side
  int threads;          // per block
  int cluster;          // blocks that combine their parts in shared memory
  int64_t blocks;       // of the whole grid, parts included
  int64_t parts;        // of the reduced extent
  int64_t part_extent;  // reduced positions in a part
  int candidate_bytes;  // of the best of an output in a part: 8 if key and index fit, else 16
  // Walks by bulk copies:
  int64_t tile;     // groups, or columns, in a tile
  int64_t tiles;    // of one part
  int64_t across;   // columns: tiles side by side
  int64_t subtile;  // columns: of a tile that are taken at once
  bool contiguous;  // columns, exchange: the rows of a tile follow each other in memory
  int stage_rows;   // columns: reduced positions in a stage
  int stage_pitch;  // columns: bytes from one position to the next
  int stage_bytes;
  int stages;
  int scratch_bytes;  // columns: of shared memory behind the stages
  Box box;
  Exchange exchange;

  // Whether candidates go through a workspace to a second kernel, and how many of an output.
  bool split() const { return parts > cluster; }
  REDUCEOPS_HD int64_t candidates() const { return parts / cluster; }
};

// Shared memory of a block that reads a ring of stages, and of the ring alone.
REDUCEOPS_HD int64_t ring_bytes(const Plan& plan) {
  return int64_t(plan.stages) * (plan.stage_bytes + kStageBarriers);
}
inline int64_t shared_bytes(const Plan& plan) { return ring_bytes(plan) + plan.scratch_bytes; }

// Cuts the reduced extent in at most `wanted` parts, as the workspace allows.
inline void cut(Plan& plan, int64_t outputs, int64_t walk, int64_t wanted, int64_t multiple) {
  const int64_t fits = kWorkspaceBytes / (plan.candidate_bytes * outputs);
  const int64_t parts = std::max<int64_t>(1, std::min({wanted, fits, walk}));
  plan.part_extent = std::max<int64_t>(1, ceil_div(walk, parts));
  if (parts > 1) plan.part_extent = round_up(plan.part_extent, multiple);
  plan.part_extent = std::min(plan.part_extent, kMaxPartExtent);
  plan.parts = std::max<int64_t>(1, ceil_div(walk, plan.part_extent));
}

// Puts dims in the order that the kernels go over them.
inline void arrange(Groups& groups, int64_t bytes) {
  if (!is_rows(groups)) {
    order_by_index(groups.reduced);
  } else if (groups.reduced.count == 1 && groups.reduced.dim[0].stride == 1 && !in_order(groups) &&
             groups.reduced.dim[0].size * bytes >= kBurstBytes) {
    // Rows that long are read as well in any order, and results written best in theirs.
    order_by_result(groups);
  }
}

class Planner {
 public:
  // `bytes` per element; `address` of the input (its alignment is what counts); `stores` of a
  // result.
  Planner(const Groups& groups, int64_t bytes, int64_t address, Limits limits, const Tuning& tuning,
          int64_t stores)
      : groups_(groups),
        tuning_(tuning),
        limits_{limits.multiprocessors, limits.bulk && tuning.bulk != 0},
        bytes_(bytes),
        address_(address),
        stores_(stores),
        walk_(walk_extent(groups.reduced)),
        total_(groups.outputs * walk_ * bytes) {}

  Plan plan() const {
    Plan plan = empty_plan();
    const bool large = total_ >= tuning_.bulk_bytes && groups_.reduced.count == 1;
    const bool bulk = limits_.bulk && large;
    if (is_single(groups_)) {
      fill(plan);
    } else if (is_small()) {
      small(plan);
    } else if (const auto found = exchanged()) {
      exchange(plan, *found);
    } else if (is_rows(groups_)) {
      if (is_whole_rows()) {
        whole_rows(plan);
      } else if (const auto found = large ? box(true) : std::nullopt) {
        boxes(plan, *found);
      } else {
        rows(plan);
      }
    } else if (is_whole_columns()) {
      whole_columns(plan);
    } else if (const auto found = large ? box(false) : std::nullopt) {
      boxes(plan, *found);
    } else if (bulk && wide_columns() && !plain_columns()) {
      bulk_columns(plan);
    } else {
      columns(plan);
    }
    // The constants may ask for more than there is; plain loads always fit.
    const int64_t bests = plan.shares * plan.tile * (bytes_ == 8 ? 16 : 8);
    const bool bests_fit = plan.cluster == 1 || bests <= int64_t(plan.stages) * plan.stage_bytes;
    if (plan.stages > 0 &&
        (shared_bytes(plan) > kSharedBytes || plan.blocks > kMaxBlocks || !bests_fit)) {
      plan = empty_plan();
      is_rows(groups_) ? rows(plan) : columns(plan);
    }
    return plan;
  }

 private:
  Plan empty_plan() const {
    Plan plan{};
    plan.cluster = plan.lanes = plan.shares = plan.runs = 1;
    plan.candidate_bytes = bytes_ <= 4 && groups_.extent >> 32 == 0 ? 8 : 16;
    return plan;
  }

  void fill(Plan& plan) const {
    plan.walk = Walk::kFill;
    plan.threads = kThreads;
    plan.blocks = plan.parts = plan.part_extent = 1;
  }

  const Dim& inner() const { return groups_.axes.dim[0]; }
  const Dim& along() const { return groups_.reduced.dim[0]; }
  int64_t slot_bytes() const { return std::max<int64_t>(4, bytes_); }
  int64_t multiprocessors() const { return limits_.multiprocessors; }
  int64_t resident() const { return multiprocessors() * tuning_.bulk_blocks; }

  // For a row of so many loads.
  int lanes_of(int64_t loads, int64_t at_most = 32) const {
    return static_cast<int>(std::min(at_most, ceil_pow2(ceil_div(loads, tuning_.lane_loads))));
  }

  // Also in 32-bit offsets, result indices and places of results.
  bool is_small() const {
    const Dims &kept = groups_.kept, &reduced = groups_.reduced;
    const bool rows = is_rows(groups_), whole = rows ? is_whole_rows() : is_whole_columns();
    const int64_t most = std::min({whole ? tuning_.small_whole_elements : kMaxPartExtent,
                                   tuning_.small_elements, kMaxPartExtent});
    const int64_t longest = rows ? tuning_.small_row : small_lanes() * tuning_.small_loads;
    if (groups_.outputs * walk_ > most || walk_ > longest || kept.count > 2 || reduced.count > 1 ||
        groups_.extent >> 31 != 0 || groups_.outputs * groups_.copies >> 31 != 0)
      return false;
    int64_t last = reduced.count ? (walk_ - 1) * along().stride : 0;
    for (int d = 0; d < kept.count; ++d) last += (kept.dim[d].size - 1) * kept.dim[d].stride;
    return last >> 31 == 0;
  }

  // More than a warp only where every multiprocessor has a block at most.
  int small_lanes() const {
    int lanes = lanes_of(walk_, kSmallThreads);
    while (lanes > 32 && groups_.outputs * lanes > multiprocessors() * kSmallThreads) lanes /= 2;
    return lanes;
  }

  void small(Plan& plan) const {
    plan.walk = Walk::kSmall;
    plan.lanes = small_lanes();
    plan.threads = kSmallThreads;
    plan.parts = 1;
    plan.part_extent = walk_;
    plan.blocks = ceil_div(groups_.outputs * plan.lanes, kSmallThreads);
  }

  int64_t vectors_of_row() const { return ceil_div(walk_ * bytes_, kLoadBytes); }
  int64_t threads_of_row() const {
    const int64_t vectors = vectors_of_row();
    return ceil_pow2(ceil_div(vectors, vectors <= tuning_.whole_few_vectors ? 2 : kWholeLoads));
  }
  // At once.
  bool is_held() const { return vectors_of_row() <= std::min(tuning_.whole_vectors, kBatch); }
  // Whether rows begin and end where vectors do.
  bool rows_aligned() const {
    bool aligned = address_ % kLoadBytes == 0 && walk_ * bytes_ % kLoadBytes == 0;
    for (int d = 0; d < groups_.axes.count; ++d)
      aligned &= groups_.axes.dim[d].stride * bytes_ % kLoadBytes == 0;
    return aligned;
  }

  bool is_whole_rows() const {
    if (groups_.kept.count > kWholeDims || groups_.reduced.count != 1 || along().stride != 1)
      return false;
    // From two vectors on, one is within the row wherever it begins.
    const int64_t shortest =
        rows_aligned() ? kLoadBytes : std::max(tuning_.whole_row_bytes, 2 * kLoadBytes);
    if (walk_ * bytes_ < shortest) return false;
    return tuning_.whole_rows &&
           groups_.outputs * (is_held() ? threads_of_row() : kWholeThreads) >> 32 == 0;
  }

  void whole_rows(Plan& plan) const {
    plan.walk = Walk::kWholeRows;
    plan.vector = rows_aligned();
    const int64_t vectors = vectors_of_row(), outputs = groups_.outputs;
    const int64_t full = multiprocessors() * tuning_.whole_blocks;
    int64_t wanted = std::min(full / outputs, ceil_div(vectors, kBatch));
    // A cluster combines its parts without a second kernel.
    if (limits_.bulk && wanted > kCluster && outputs * kCluster * 2 > full) wanted = kCluster;
    cut(plan, outputs, walk_, wanted, kLineBytes / bytes_);
    if (limits_.bulk && plan.parts <= kCluster) plan.cluster = static_cast<int>(plan.parts);
    const int64_t part_vectors = ceil_div(plan.part_extent * bytes_, kLoadBytes);
    if (is_held()) {
      plan.lanes = static_cast<int>(threads_of_row());
      // Where a row need not begin with a vector, there may be two.
      const int64_t least = plan.vector ? 1 : 2;
      plan.loads = static_cast<int>(std::max(least, ceil_div(vectors, plan.lanes)));
      plan.threads = std::max(plan.lanes, int(kThreads));
      plan.blocks = ceil_div(outputs * plan.lanes, plan.threads);
    } else {
      // A block to a part, with as many threads as its batches are full with.
      plan.batches = ceil_div(part_vectors, kBatch);
      plan.loads = kWholeLoads;
      plan.lanes = plan.threads =
          static_cast<int>(round_up(ceil_div(part_vectors, plan.batches * kWholeLoads), 32));
      plan.blocks = outputs * plan.parts;
    }
  }

  // Fours of columns, each aligned.
  bool is_whole_columns() const {
    const Dims &axes = groups_.axes, &reduced = groups_.reduced;
    if (axes.count > kWholeDims || reduced.count != 1 || inner().stride != 1) return false;
    if (!in_order(groups_)) return false;
    if (walk_ < 2 || walk_ > std::min(tuning_.whole_column, whole_column_rows(bytes_)))
      return false;
    const int64_t four = 4 * bytes_, alignment = std::min(four, kLoadBytes);
    bool aligned = address_ % alignment == 0 && along().stride * bytes_ % alignment == 0;
    for (int d = 1; d < axes.count; ++d) aligned &= axes.dim[d].stride * bytes_ % alignment == 0;
    return aligned && inner().size % 4 == 0 && groups_.outputs >> 32 == 0;
  }

  void whole_columns(Plan& plan) const {
    plan.walk = Walk::kWholeColumns;
    plan.threads = kThreads;
    plan.parts = 1;
    plan.part_extent = walk_;
    plan.blocks = ceil_div(groups_.outputs, 4 * kThreads);
  }

  // Small groups, whatever lies between them.
  std::optional<Box> box(bool rows) const {
    const int64_t most = rows ? tuning_.short_row_bytes : tuning_.small_group_bytes;
    return make_box(groups_, bytes_, rows, most, tuning_.tile_bytes);
  }

  void boxes(Plan& plan, const Box& box) const {
    plan.walk = Walk::kBoxes;
    plan.box = box;
    plan.parts = 1;
    plan.part_extent = walk_;
    plan.threads = kGroupThreads;
    plan.lanes = box.lanes;
    plan.tile = box.tile;
    plan.tiles = plan.blocks = box.tiles;
  }

  // Of results that would be written in parts of sectors.
  std::optional<Exchange> exchanged() const {
    const bool large = total_ + groups_.outputs * 8 >= tuning_.bulk_bytes;
    if (!large || in_order(groups_)) return {};
    return make_exchange(groups_, bytes_, tuning_.exchange_bytes, tuning_.tile_bytes, stores_);
  }

  void exchange(Plan& plan, const Exchange& exchange) const {
    plan.walk = Walk::kExchange;
    plan.exchange = exchange;
    plan.parts = 1;
    plan.part_extent = walk_;
    plan.threads = kGroupThreads;
    plan.vector = inner().stride == 1;
    plan.contiguous = !exchange.by_row;
    plan.tile = exchange.groups;
    plan.across = exchange.chunks;
    plan.tiles = plan.blocks = exchange.tiles * exchange.chunks;
  }

  // More blocks than fit the GPU at once let fast multiprocessors take more of them; each begins
  // with an empty ring, though.
  int64_t blocks_for(int64_t items) const {
    if (total_ < tuning_.waves_bytes) return std::min(items, resident());
    return std::min(items, std::max(resident(), total_ / tuning_.work_bytes));
  }

  // Room for so many bytes, wherever in a line they begin and for a slot past them.
  static int stage_bytes(int64_t bytes) {
    const int64_t most = std::min<int64_t>(bytes, kSharedBytes);  // more than that does not fit
    return static_cast<int>(round_up(most + kLineBytes + kLoadBytes, kLineBytes));
  }

  void ring(Plan& plan, int64_t bytes) const {
    plan.stage_bytes = stage_bytes(bytes);
    const int64_t block_bytes = bytes_ < 4 ? tuning_.small_block_bytes : tuning_.block_bytes;
    plan.stages = static_cast<int>(
        std::clamp<int64_t>((block_bytes - plan.scratch_bytes) / (plan.stage_bytes + 16), 2, 16));
  }

  bool wide_columns() const {
    if (inner().stride != 1) return false;
    return along().stride == inner().size || inner().size * bytes_ >= tuning_.least_segment_bytes;
  }

  // A grid of tiles: so wide that memory is read in long runs, and so many that they fill the GPU.
  void bulk_columns(Plan& plan) const {
    plan.walk = Walk::kBulkColumns;
    const int64_t outer = groups_.outputs / inner().size;
    const int64_t per_slot = slot_bytes() / bytes_, per_reader = slots_per_reader(bytes_);
    const int64_t widest =
        std::min(tuning_.segment_bytes / bytes_, kReaders * per_reader * per_slot);
    const int64_t unit = 32 * per_slot;  // a warp's slots
    const auto pitch_of = [&](int64_t tile) {
      const int64_t pitch = along().stride * bytes_;
      if (tile >= inner().size && along().stride == inner().size) return pitch;
      // As in memory, from one offset in a line to the next.
      const int64_t room = tile * bytes_ + 2 * kLoadBytes;
      return room + ((pitch - room) % kLineBytes + kLineBytes) % kLineBytes;
    };
    const auto rows_of = [&](int64_t tile) {
      return std::clamp<int64_t>(tuning_.stage_bytes / pitch_of(tile) / 4 * 4,
                                 std::min<int64_t>(4, walk_), walk_);
    };
    const int64_t fits = kWorkspaceBytes / (plan.candidate_bytes * groups_.outputs);
    // The widest tile with which nearly all of the GPU works, in one part, in parts with candidates
    // in the workspace, or in as many parts as a cluster has blocks. It is as if every round of
    // blocks took the time of a whole one.
    double best = 0;
    int64_t parts = 1;
    for (int64_t across = ceil_div(inner().size, widest), tile; best < 0.96;
         across = ceil_div(inner().size, tile - unit)) {
      tile = round_up(ceil_div(inner().size, across), unit);
      if (best > 0 && tile * bytes_ < tuning_.split_segment_bytes) break;
      const int64_t tiles = ceil_div(inner().size, tile) * outer;
      const int64_t most = std::max<int64_t>(1, walk_ / (2 * rows_of(tile)));
      // One copy to a stage is better than one to each row.
      const bool apart =
          tile < inner().size && inner().size <= widest && along().stride == inner().size;
      const auto consider = [&](int64_t cluster, int64_t of_cluster) {
        const int64_t wanted = cluster * of_cluster;
        // Clusters of more than two fit a GPU's processing clusters badly.
        const int64_t room = cluster <= 2
                                 ? resident()
                                 : std::max<int64_t>(1, resident() * (cluster == 4 ? 7 : 6) / 8);
        const auto rounds = static_cast<double>(ceil_div(tiles * wanted, room));
        double effort = cluster == 1 ? 1 : 1 + 0.01 * static_cast<double>(cluster);
        // Each round of clusters begins with empty rings.
        if (cluster > 1 && rounds > 1)
          effort += static_cast<double>(tuning_.stage_bytes * wanted) /
                    static_cast<double>(tile * walk_ * bytes_);
        const double run = tile * bytes_ < tuning_.full_segment_bytes ? 0.9 : apart ? 0.95 : 1;
        const double use = run * static_cast<double>(outer * inner().size * wanted) /
                           (rounds * static_cast<double>(resident() * tile) * effort);
        if (wanted <= most && use > best * 1.01) {
          best = use;
          parts = wanted;
          plan.tile = tile;
          plan.cluster = static_cast<int>(cluster);
        }
      };
      consider(1, 1);
      consider(1, std::max<int64_t>(1, std::min({resident() / tiles, fits, most})));
      for (int64_t cluster = 2; cluster <= kCluster; cluster *= 2)
        consider(cluster, std::max<int64_t>(1, std::min(resident() / (tiles * cluster), fits)));
      if (tile == unit) break;
    }
    plan.subtile = plan.tile = std::min(plan.tile, inner().size);
    // Short columns: as many side by side as fill a stage.
    const int64_t room = tuning_.stage_bytes * 9 / 8 / (walk_ * pitch_of(plan.tile));
    if (parts == 1 && plan.tile == widest && room > 1)
      plan.tile = std::min(room * plan.tile, inner().size);
    plan.stage_pitch = static_cast<int>(pitch_of(plan.tile));
    plan.across = ceil_div(inner().size, plan.tile);
    plan.tiles = plan.across * outer;
    plan.contiguous = plan.across == 1 && along().stride == inner().size;
    const int64_t slots = ceil_div(plan.subtile, per_slot);
    plan.vector = slots > 32 * (per_reader / 2);  // several slots to a thread
    plan.lanes = static_cast<int>(plan.vector ? round_up(ceil_div(slots, per_reader), 32) : slots);
    plan.shares = static_cast<int>(kReaders / plan.lanes);
    plan.threads = static_cast<int>(round_up(plan.lanes * plan.shares, 32)) + 32;
    const int64_t at_once = rows_at_once(bytes_) * plan.shares;
    const int64_t turns = (tuning_.stage_bytes / plan.stage_pitch + at_once / 2) / at_once;
    // Of subtiles, a stage has all rows.
    plan.stage_rows = static_cast<int>(
        plan.tile > plan.subtile ? walk_ : std::min(std::max<int64_t>(turns, 1) * at_once, walk_));
    // The bests of the shares. The blocks of a cluster have one tile each, so when it ends their
    // bests have the ring for themselves.
    if (plan.shares > 1 && plan.cluster == 1)
      plan.scratch_bytes = static_cast<int>(plan.shares * plan.tile * (bytes_ == 8 ? 16 : 8));
    // The last threads read past their row, which in the last one of a stage nothing is copied to.
    const int64_t past = plan.lanes * (plan.vector ? per_reader : 1) - slots;
    const int64_t past_tile = round_up(plan.tile, plan.subtile) - plan.tile;
    ring(plan, plan.stage_rows * plan.stage_pitch + past * slot_bytes() + past_tile * bytes_);
    plan.part_extent =
        std::min(round_up(ceil_div(walk_, parts), parts > 1 ? plan.stage_rows : 1), kMaxPartExtent);
    plan.parts = round_up(ceil_div(walk_, plan.part_extent), plan.cluster);
    plan.blocks = plan.tiles * plan.parts;
    if (plan.cluster == 1) plan.blocks = blocks_for(plan.blocks);
  }

  void rows(Plan& plan) const {
    plan.walk = Walk::kRows;
    plan.threads = kThreads;
    const auto& reduced = groups_.reduced;
    const int64_t width = kLoadBytes / bytes_;
    plan.vector = reduced.count > 0 && along().stride == 1 &&
                  (reduced.count == 1 || along().size >= tuning_.min_vector_run);
    const int64_t full = multiprocessors() * tuning_.blocks_per_multiprocessor;
    const int64_t loads = plan.vector ? ceil_div(walk_, width) : walk_;
    // A warp to a row or a block, whichever has fewer rounds of loads to wait for.
    const auto rounds = [&](int64_t lanes) {
      const int64_t rows_at_once = multiprocessors() * kRowLoads / (kFewLoads * lanes);
      return ceil_div(groups_.outputs, rows_at_once) * ceil_div(loads, lanes * kFewLoads);
    };
    // A row of several parts has a block to each: only such are combined by clusters.
    const bool whole_block = walk_ > kMaxPartExtent || rounds(kThreads) < rounds(32);
    plan.lanes = whole_block ? kThreads : lanes_of(loads);
    const int64_t units = ceil_div(groups_.outputs, kThreads / plan.lanes);
    int64_t wanted = 1;
    if (units < full && whole_block) {
      wanted = std::min(ceil_div(full, units), loads / (kThreads * tuning_.part_loads));
      // A cluster combines its parts without a second kernel.
      if (limits_.bulk && plan.vector && units * kCluster * 2 > multiprocessors())
        wanted = std::min(wanted, kCluster);
    }
    cut(plan, groups_.outputs, walk_, wanted, plan.vector ? 2048 / bytes_ : 1);
    if (limits_.bulk && plan.parts <= kCluster) plan.cluster = static_cast<int>(plan.parts);
    if (reduced.count > 1) {
      const int64_t of_run = plan.vector ? ceil_div(along().size, width) : along().size;
      const int64_t most = of_run > 32 * kManyLoads ? plan.lanes : std::min(plan.lanes, 32);
      plan.runs = static_cast<int>(plan.lanes /
                                   std::min(most, ceil_pow2(ceil_div(of_run, tuning_.lane_loads))));
    }
    const int64_t loads_of_part = plan.vector ? ceil_div(plan.part_extent, width) : 0;
    plan.loads = loads_of_part >= 2 * kManyLoads * plan.lanes ? kManyLoads : kFewLoads;
    plan.blocks = units * plan.parts;
  }

  // Whether so many bytes of neighbouring columns are aligned wherever the walk goes.
  bool columns_aligned(int64_t to = kLoadBytes) const {
    if (inner().stride != 1 || address_ % to != 0 || inner().size * bytes_ % to != 0) return false;
    const auto aligned = [&](const Dims& dims, int first) {
      for (int d = first; d < dims.count; ++d) {
        if (dims.dim[d].stride * bytes_ % to != 0) return false;
      }
      return true;
    };
    return aligned(groups_.axes, 1) && aligned(groups_.reduced, 0);
  }

  // Where plain loads are as fast as a ring, or faster.
  bool plain_columns() const {
    const int64_t shortest = bytes_ == 1   ? tuning_.column_walk_8
                             : bytes_ == 2 ? tuning_.column_walk_16
                             : bytes_ == 4 ? tuning_.column_walk_32
                                           : tuning_.column_walk_64;
    if (!columns_aligned(bytes_ < 4 ? kLoadBytes : kSectorBytes) || walk_ < shortest) return false;
    const bool many = groups_.outputs * bytes_ / kLoadBytes >= multiprocessors();
    return inner().size * bytes_ >= tuning_.column_row_bytes || (bytes_ <= 2 && many);
  }

  void columns(Plan& plan) const {
    plan.walk = Walk::kColumns;
    plan.threads = kThreads;
    plan.vector = columns_aligned();
    const int64_t full = multiprocessors() * tuning_.blocks_per_multiprocessor;
    const int64_t outer = groups_.outputs / inner().size;
    const int64_t columns = plan.vector ? inner().size * bytes_ / kLoadBytes : inner().size;
    // Whole warps of neighbouring columns, evenly cut.
    int64_t lanes = columns;
    if (columns > kThreads) lanes = round_up(ceil_div(columns, ceil_div(columns, kThreads)), 32);
    // Too few columns to fill the GPU: threads share a column, if need be fewer columns side by
    // side.
    const auto tiles = [&] { return outer * ceil_div(columns, lanes); };
    int64_t shares = 1;
    for (; tiles() * lanes * shares < full * kThreads; shares *= 2) {
      if (walk_ < tuning_.column_loads * shares * 2) break;
      if (lanes * shares * 2 > kThreads) {
        if (lanes <= 32) break;
        lanes = round_up(lanes / 2, 32);
        if (lanes * shares * 2 > kThreads) break;
      }
    }
    const int64_t units = ceil_div(tiles(), kThreads / (lanes * shares));
    // A second launch pays only where one leaves multiprocessors without a block, and much to do.
    int64_t wanted = 1;
    const int64_t loads = ceil_div(walk_, shares);
    if (units < multiprocessors() && loads >= tuning_.split_loads)
      wanted = std::min(ceil_div(full, units), loads / tuning_.part_loads);
    cut(plan, groups_.outputs, walk_, wanted, 1);
    plan.across = ceil_div(columns, lanes);
    plan.tiles = tiles();
    plan.lanes = static_cast<int>(lanes);
    plan.shares = static_cast<int>(shares);
    plan.blocks = units * plan.parts;
  }

  const Groups& groups_;
  const Tuning& tuning_;
  const Limits limits_;
  const int64_t bytes_, address_, stores_, walk_, total_;
};

inline Plan make_plan(const Groups& groups, int64_t bytes, int64_t address, Limits limits,
                      const Tuning& tuning = {}, int64_t stores = 1) {
  return Planner(groups, bytes, address, limits, tuning, stores).plan();
}

}  // namespace reduceops::cuda
