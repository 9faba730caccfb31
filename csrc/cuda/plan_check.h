// What a plan promises to the kernel of its walk, said once more and apart from what makes plans:
// each output and each reduced position is taken exactly once (where packs of gather.cu overlap, an
// output twice), and every byte of shared memory, of the workspace and of the grid that a kernel
// touches is one it asked for. Host code for tests and for explain.cpp; no call of an operator runs
// it.
#pragma once

#include <bit>

#include "cuda/fold.h"
#include "cuda/option_policy.h"
#include "cuda/plan.h"

namespace reduceops::cuda {

class PlanCheck {
 public:
  PlanCheck(const FoldedPlan& plan, const Groups& groups, int64_t bytes, int64_t address,
            Limits limits, Task task)
      : plan_(plan),
        groups_(groups),
        limits_(limits),
        task_(task),
        bytes_(bytes),
        address_(address),
        walk_(walk_extent(groups.reduced)),
        width_(kLoadBytes / bytes),
        elements_(std::max<int64_t>(4, bytes) / bytes),
        near_bytes_(bytes == 8 ? 16 : 8) {
    all_walks();
    switch (plan.walk) {
      case Walk::kSmall:
        small();
        break;
      case Walk::kRows:
        rows();
        break;
      case Walk::kWholeRows:
        whole_rows();
        break;
      case Walk::kWholeColumns:
        whole_columns();
        break;
      case Walk::kColumns:
        columns();
        break;
      case Walk::kBoxes:
        boxes();
        break;
      case Walk::kBulkColumns:
        bulk_columns();
        break;
      case Walk::kTiles:
        tiles();
        break;
      case Walk::kGather:
        gather();
        break;
      case Walk::kFill:
        require(is_single(groups), "there is nothing to reduce");
        break;
    }
  }

  // The first promise that is broken; null if none is.
  const char* violation() const { return violation_; }

 private:
  void require(bool kept, const char* promise) {
    if (!kept && !violation_) violation_ = promise;
  }
  // `pieces` of `size` cover `total`, and none of them is empty.
  void require_cover(int64_t pieces, int64_t size, int64_t total, const char* promise) {
    require(size > 0 && pieces > 0 && pieces == ceil_div(total, size), promise);
  }

  const Dim& inner() const { return groups_.axes.dim[0]; }
  const Dim& along() const { return groups_.reduced.dim[0]; }
  int64_t outer_columns() const { return groups_.outputs / inner().size; }
  static bool is_power_of_two(int64_t x) { return std::has_single_bit(static_cast<uint64_t>(x)); }

  // Whether addresses are multiples of `alignment` wherever a walk goes past dim `from` of `dims`.
  bool strides_aligned(const Dims& dims, int from, int64_t alignment) const {
    for (int d = from; d < dims.count; ++d) {
      if (dims.dim[d].stride * bytes_ % alignment != 0) return false;
    }
    return true;
  }

  void all_walks() {
    const FoldedPlan& p = plan_;
    require(task_ == Task::kExtreme || p.walk == Walk::kSmall || p.walk == Walk::kRows ||
                p.walk == Walk::kColumns || p.walk == Walk::kWholeRows || p.walk == Walk::kGather,
            "there is a kernel of the walk");
    require(1 <= p.threads && p.threads <= 1024 && p.threads % 32 == 0,
            "a block is of whole warps, at most 1024 threads");
    require(p.blocks >= 1, "there is a block");
    require(task_ != Task::kSoftmax || groups_.reduced.count <= 1, "a sum is over one dim");
    require(1 <= p.cluster && p.cluster <= kCluster, "a cluster is one that every GPU takes");
    require(p.cluster == 1 || limits_.bulk, "only GPUs that have clusters get them");
    require(p.cluster == 1 || p.blocks % p.cluster == 0, "clusters are whole");
    require(p.parts >= 1 && p.parts % p.cluster == 0, "each cluster has as many parts as blocks");
    require(1 <= p.part_extent && p.part_extent <= kMaxPartExtent,
            "positions in a part fit 32 bits");
    // Blocks of a cluster may have nothing to do, but each cluster has something.
    require(p.parts * p.part_extent >= walk_ && (p.parts - p.cluster) * p.part_extent < walk_,
            "the parts cover the reduced extent once");
    if (p.split() || p.is_folded()) {
      // Groups of which the longest parts have more candidates lie in no memory, or overlap there.
      require(groups_.outputs * p.candidates() * p.candidate_bytes <= kWorkspaceBytes ||
                  p.part_extent == kMaxPartExtent,
              "the candidates fit the workspace");
      const bool handed_in =
          p.walk == Walk::kWholeRows && task_ == Task::kExtreme && !p.is_folded();
      require(!p.is_folded() || p.walk != Walk::kWholeRows ||
                  (p.whole_rows.batches > 0 && p.cluster == 1),
              "there is a kernel that leaves candidates of rows");
      require(handed_in == (p.candidate_bytes == kHandInBytes), "what a part hands in has room");
      require(p.candidate_bytes >= 16 || (bytes_ <= 4 && groups_.extent >> 32 == 0),
              "a candidate has room for key and index");
      require(p.candidate_bytes >= 24 || task_ != Task::kSoftmax,
              "a candidate has room for a sum as well");
    }
  }

  // Kernels without a loop over blocks.
  void require_grid() { require(plan_.blocks <= kMaxBlocks, "the blocks fit a grid"); }
  void require_one_part() {
    require(plan_.parts == 1 && plan_.part_extent == walk_, "a group is not cut");
  }
  void require_threads(int lanes, int64_t shares = 1) {
    require(lanes >= 1 && shares >= 1 && lanes * shares <= plan_.threads,
            "the threads of a group are of one block");
  }
  // Positions past the end of the last part are nobody's.
  void require_parts_with_work() {
    require((plan_.parts - 1) * plan_.part_extent < walk_, "each part has a position");
  }

  void small() {
    const SmallCut& own = plan_.small;
    const auto &kept = groups_.kept, &reduced = groups_.reduced;
    require_threads(own.lanes);
    require_grid();
    require_one_part();
    require(kept.count <= kSmallDims && reduced.count <= 1, "a few kept dims and a reduced one");
    require(!own.vector || (task_ != Task::kExtreme && reduced.count == 1 && own.lanes <= 32 &&
                            along().stride == 1 && along().mask_stride <= 1),
            "packs are of rows, whose mask lies as they do");
    require(
        plan_.threads == kSmallThreads && own.lanes <= plan_.threads && is_power_of_two(own.lanes),
        "a power of two of a block's threads to an output");
    require(plan_.blocks * plan_.threads >= groups_.outputs * own.lanes &&
                (plan_.blocks - 1) * plan_.threads < groups_.outputs * own.lanes,
            "the blocks cover the outputs once");
    const int64_t last = reach(kept) + reach(reduced);
    const int64_t last_mask = reach(kept, &Dim::mask_stride) + reach(reduced, &Dim::mask_stride);
    require(last_mask >> 32 == 0, "offsets in the mask fit 32 bits");
    require(reach(kept, &Dim::step) >> 32 == 0, "places of results fit 32 bits");
    require((plan_.blocks * plan_.threads - 1) >> 32 == 0 && last >> 32 == 0 &&
                groups_.extent >> 32 == 0 && (walk_ + 8 * own.lanes) >> 32 == 0,
            "numbers, offsets and indices fit 32 bits");
    require(groups_.outputs * groups_.copies >> 32 == 0, "places of results fit 32 bits");
  }

  void rows() {
    const FoldedPlan& p = plan_;
    const RowsCut& own = p.rows;
    require_threads(own.lanes);
    require_parts_with_work();
    require(p.threads == kThreads, "a block as the kernel is compiled for");
    require(own.lanes == p.threads || (own.lanes <= 32 && is_power_of_two(own.lanes)),
            "a row has the lanes of a warp, some of them, or a block");
    require_cover(p.blocks / p.parts, p.threads / own.lanes, groups_.outputs,
                  "the blocks cover the outputs once");
    require(p.blocks % p.parts == 0, "each output has all parts");
    require(p.cluster == 1 || (own.lanes == p.threads && p.cluster == p.parts),
            "a cluster combines all parts of the one row that each of its blocks has");
    require(!own.vector || (groups_.reduced.count > 0 && along().stride == 1 + own.spaced),
            "vectors lie along the row");
    require(!own.spaced || (own.vector && bytes_ <= 4 && task_ == Task::kExtreme),
            "there is a kernel of every second element");
    require(is_power_of_two(own.runs) && own.lanes % own.runs == 0,
            "each run has some of the lanes");
    require(!own.flat || (own.runs == 1 && 1 < groups_.reduced.count &&
                          groups_.reduced.count <= kFlatDims && groups_.extent >> 32 == 0),
            "elements of several dims are found by divisions of 32 bits");
    if (own.flat && own.vector) {
      require(task_ == Task::kExtreme && along().size >= width_ && walk_ >> 32 == 0,
              "there is a kernel for packs of several runs");
      require(p.parts == 1 || p.part_extent % along().size == 0, "parts are whole runs");
      require(own.realigned || (address_ % kLoadBytes == 0 && along().size % width_ == 0 &&
                                strides_aligned(groups_.axes, 0, kLoadBytes) &&
                                strides_aligned(groups_.reduced, 1, kLoadBytes)),
              "packs are blocks of 16 bytes");
    }
    require(!own.realigned || (own.flat && own.vector), "only packs of several runs are realigned");
  }

  void whole_rows() {
    const FoldedPlan& p = plan_;
    const WholeRowsCut& own = p.whole_rows;
    const bool plain = task_ == Task::kExtreme;
    const int64_t loads = plain ? kWholeLoads : held_loads(bytes_);
    require_threads(own.lanes);
    require_grid();
    require_parts_with_work();
    require(groups_.kept.count <= kWholeDims && is_run(groups_.reduced), "the rows are contiguous");
    require(plain || !own.mapped, "mapped rows are ones that there is a kernel for");
    require(own.mapped == (groups_.reduced.count > 1), "positions are indices where they can be");
    require(!own.mapped || (!own.vector && own.loads == kWholeLoads &&
                            groups_.reduced.count <= kMappedDims && groups_.extent >> 32 == 0),
            "mapped rows are ones that there is a kernel for");
    require(p.threads <= (plain || own.batches > 0 ? kWholeThreads : kThreads),
            "a block as the kernel is compiled for");
    require(!own.vector || (address_ % kLoadBytes == 0 && walk_ % width_ == 0 &&
                            strides_aligned(groups_.axes, 0, kLoadBytes)),
            "rows begin and end where vectors do");
    require(!own.vector || p.parts == 1 || p.part_extent % width_ == 0, "so do their parts");
    require(p.cluster == 1 || p.cluster == p.parts, "a cluster combines all parts of a row");
    if (own.batches > 0) {
      require(own.loads == loads, "loads that there is a kernel for");
      require(own.lanes == p.threads, "a block to a part");
      require(p.blocks == groups_.outputs * p.parts, "the blocks cover the outputs once");
      return;
    }
    require_one_part();
    require(
        (own.vector ? 1 : 2) <= own.loads && own.loads <= (plain ? loads : most_held_loads(bytes_)),
        "loads that there is a kernel for");
    require(plain || own.loads <= loads || along().mask_stride <= 1,
            "of bytes of a mask that are apart, too");
    require(plain || 2 * own.loads > loads, "most of a thread's loads are needed");
    require(own.lanes == p.threads || (is_power_of_two(own.lanes) && p.threads % own.lanes == 0),
            "the rows of a block are whole");
    require(p.blocks * p.threads >= groups_.outputs * own.lanes &&
                (p.blocks - 1) * p.threads < groups_.outputs * own.lanes,
            "the blocks cover the outputs once");
    require((p.blocks * p.threads - 1) >> 32 == 0, "threads have 32-bit numbers");
    require(walk_ / width_ <= int64_t(own.lanes) * own.loads, "a row's vectors are held");
    require(walk_ >= (own.vector ? width_ : 2 * width_ - 1), "a row has a whole vector");
    if (plain) return;
    // Before the first vector, and behind the last one of elements and of their mask.
    const bool masked = task_ == Task::kMasked;
    const int64_t kernel = held_kernel(own.loads);
    const int64_t vectors = (walk_ - (1 + masked) * (width_ - 1)) / width_;
    require(vectors >= 1 && vectors >= held_full(kernel, masked) * own.lanes,
            "a thread's first loads are of the row");
  }

  void whole_columns() {
    const int64_t columns = whole_columns_of_thread(bytes_), alignment = columns * bytes_;
    require_grid();
    require_one_part();
    require(alignment <= kLoadBytes, "a thread's columns are one load");
    require(groups_.axes.count <= kWholeDims && groups_.reduced.count == 1 && inner().stride == 1,
            "the columns lie side by side");
    require(in_order(groups_), "the results are in the order of memory");
    require(2 <= walk_ && walk_ <= whole_column_rows(bytes_), "a column is held");
    require(inner().size % columns == 0, "threads have all of their columns");
    require(address_ % alignment == 0 && strides_aligned(groups_.axes, 1, alignment) &&
                strides_aligned(groups_.reduced, 0, alignment),
            "loads are aligned");
    require(plan_.threads == kThreads, "a block as the kernel is compiled for");
    require_cover(plan_.blocks, columns * kThreads, groups_.outputs,
                  "the blocks cover the outputs once");
    require((groups_.outputs | groups_.extent) >> 32 == 0, "columns and indices fit 32 bits");
  }

  void columns() {
    const FoldedPlan& p = plan_;
    const ColumnsCut& own = p.columns;
    require_threads(own.lanes, own.shares);
    require_parts_with_work();
    require(own.staged ? p.threads <= kThreads && own.lanes % 32 == 0 &&
                             p.threads % (own.lanes * own.shares) == 0
                       : p.threads <= kThreads && p.threads % 32 == 0,
            "a block as the kernel is compiled for, and whole warps with segments");
    require(p.cluster == 1, "the kernel knows of no clusters");
    require(is_power_of_two(own.shares), "a power of two of threads shares a column");
    require(!own.staged || (task_ == Task::kMasked && bytes_ == 4 && inner().stride == 1 &&
                            inner().mask_stride == 1),
            "segments lie side by side, and so does their mask");
    require(!own.staged || (reach(groups_.axes, &Dim::mask_stride) +
                            reach(groups_.reduced, &Dim::mask_stride) + 1) %
                                   kLoadBytes ==
                               0,
            "the last block of a mask is whole");
    require(!own.listed || (task_ == Task::kMasked && inner().mask_stride == 0 && own.pairs &&
                            kThreads / (own.lanes * own.shares) * p.part_extent <= kMostListed),
            "rows are listed for all of their columns");
    const int64_t columns = own.vector || own.realigned || own.shifted || own.staged ? width_ : 1;
    require(
        !own.shifted || (task_ == Task::kExtreme && !own.vector && !own.realigned && !own.staged &&
                         !own.listed && inner().stride == 1 && along().stride > 0 && own.pairs &&
                         own.lanes > 1 && own.shares * along().stride * bytes_ % kLoadBytes == 0),
        "all packs of a thread begin as far before its columns");
    require(!own.realigned || (inner().stride == 1 && inner().mask_stride <= 1 &&
                               (own.listed                ? bytes_ <= 4
                                : task_ == Task::kMasked  ? bytes_ == 1 || bytes_ == 4
                                : task_ == Task::kExtreme ? bytes_ <= 2
                                                          : bytes_ <= 4)),
            "there is a kernel that realigns");
    require(!own.vector ||
                (inner().stride == 1 && inner().size % columns == 0 && address_ % kLoadBytes == 0 &&
                 strides_aligned(groups_.axes, 1, kLoadBytes) &&
                 strides_aligned(groups_.reduced, 0, kLoadBytes)),
            "vectors are aligned");
    require_cover(own.across, own.full_lanes() * columns, inner().size,
                  "the tiles cover the columns once");
    require(own.tiles == own.across * outer_columns(), "the tiles cover the outputs once");
    require_cover(p.blocks / p.parts, p.threads / (own.lanes * own.shares), own.tiles,
                  "the blocks cover the tiles once");
    require(p.blocks % p.parts == 0, "each tile has all parts");
    const bool unmasked = task_ == Task::kExtreme || own.listed;
    require(!own.pairs || (unmasked && has_room_for_pairs(p, groups_.reduced.count, bytes_)),
            "there is room for positions beside keys");
    require(!own.pairs || p.threads == kThreads, "blocks of pairs are as the kernel counts them");
    require(!unmasked || own.shares > 1 || own.across == 1 || 2 * own.lanes > kThreads,
            "the results of a block's columns follow each other");
    require(!own.flat || (groups_.reduced.count <= kFlatDims && groups_.extent >> 32 == 0),
            "positions over several dims are found by divisions of 32 bits");
    for (int d = 1; d < groups_.reduced.count; ++d)
      require(groups_.reduced.dim[d - 1].step < groups_.reduced.dim[d].step,
              "positions are in the order of indices");
  }

  // A block's shared memory: stages, their barriers and what is behind them.
  void require_ring() {
    const BulkColumnsCut& own = plan_.bulk_columns;
    require(limits_.bulk, "only GPUs that have bulk copies are asked for them");
    require(own.stages >= 1 && own.stage_bytes > 0 && own.scratch_bytes >= 0, "there is a ring");
    require(own.stage_bytes % kLineBytes == 0, "each stage begins where a line does");
    require(shared_bytes(own) <= kSharedBytes, "a block has that much shared memory");
  }
  // A stage holds `bytes` wherever in a line they begin, in whole blocks of a load.
  void require_stage(int64_t bytes, const char* promise) {
    require(kLineBytes - bytes_ + bytes <= plan_.bulk_columns.stage_bytes, promise);
  }
  // Slots of small elements come from the word that holds their first byte and the one behind it.
  int64_t behind_slots() const { return bytes_ < 4 ? 4 : 0; }

  void boxes() {
    const Box& box = plan_.box;
    const bool rows = is_rows(groups_);
    const int64_t column_stride = rows ? 1 : inner().stride;
    const bool scattered = groups_.reduced.count > 1;
    const int64_t last = (box.columns - 1) * box.column_pitch + reach(groups_.reduced) * bytes_;
    require_grid();
    require_one_part();
    require(plan_.blocks == box.tiles, "a block has a tile");
    require(plan_.threads == kGroupThreads, "a block as the kernel is compiled for");
    require(1 <= groups_.reduced.count && groups_.reduced.count <= kBoxReduced &&
                groups_.axes.count >= 1 && groups_.kept.count <= kBoxDims,
            "there are dims that the kernel takes");
    if (violation_) return;
    require(scattered == (box.reading == Box::kScattered), "several dims have a table");
    require(!scattered || (box.table_bytes >= 2 * walk_ && box.group_bytes >> 16 == 0),
            "the table has room for all offsets");
    require(box.of_columns != rows && box.columns == (rows ? 1 : inner().size),
            "an axis of columns is the innermost");
    require((scattered || box.row_pitch == along().stride * bytes_) &&
                box.column_pitch == column_stride * bytes_,
            "a group lies in shared memory as it does in memory");
    require(last + bytes_ == box.group_bytes, "all of a group is copied");
    require(is_power_of_two(box.lanes) && box.lanes <= 32, "the lanes of an output are of a warp");

    // How groups are numbered: along the axes behind the columns.
    const int first = box.of_columns;
    const Dim axis = first < groups_.axes.count ? groups_.axes.dim[first] : Dim{1, 0, 1};
    const int64_t count = groups_.outputs / box.columns;
    if (box.pieces) {
      require_cover(box.tiles, box.tile, count, "the blocks cover the groups once");
      require(is_power_of_two(box.copy_lanes) && box.copy_lanes <= 32,
              "the lanes of a piece are of a warp");
      require(box.group_pitch % kLoadBytes == 0 &&
                  box.group_pitch >= round_up(kLoadBytes - 1 + box.group_bytes, kLoadBytes),
              "a group has room wherever in a block of a load it begins");
      require(box.lead_bytes % kLoadBytes == 0 && box.lead_bytes >= 2 * box.tile,
              "where each group begins is written down");
      require(box.tile * box.group_pitch <= box.stage_bytes, "the tile holds what is copied to it");
    } else {
      require(box.tile <= axis.size && count % axis.size == 0 &&
                  box.tiles == count / axis.size * ceil_div(axis.size, box.tile),
              "the blocks cover the groups once");
      require(box.group_pitch == axis.stride * bytes_, "groups lie as they do in memory");
      require(box.lead_bytes == 0 && box.stage_bytes % kLineBytes == 0, "the tile begins a line");
      require(kLineBytes - bytes_ + (box.tile - 1) * box.group_pitch + box.group_bytes +
                      kLoadBytes - 1 <=
                  box.stage_bytes,
              "the tile holds what is copied to it");
    }
    require(shared_bytes(box) <= kStaticSharedBytes, "a block has that much shared memory");

    // Bytes that reading goes past a group.
    int64_t past = 0;
    if (box.reading == Box::kColumns) {
      require(column_stride == 1, "columns lie side by side");
      past = (round_up(box.columns, elements_) - box.columns) * bytes_ + behind_slots();
    } else if (box.reading != Box::kElements && !scattered) {
      require(rows && along().stride == 1, "rows are contiguous");
      require(box.reading == 0 || (!box.pieces && box.lanes == 1 && box.reading <= 4 &&
                                   box.reading == ceil_div(walk_ * bytes_, kLoadBytes)),
              "a thread holds a row as a whole");
      require(bytes_ >= 4 || box.reading > 0 || walk_ + 4 * box.lanes * elements_ <= 1 << 16,
              "indices of small elements fit 16 bits");
      past = round_up(walk_, elements_) * bytes_ - walk_ * bytes_ + behind_slots();
    }
    const int64_t last_group = (box.tile - 1) * box.group_pitch + box.group_bytes;
    require((box.pieces ? kLoadBytes : kLineBytes) - bytes_ + last_group + past <= box.stage_bytes,
            "slots are read from the tile");
    require((count * box.columns) >> 62 == 0 && box.tile * box.columns >> 31 == 0,
            "outputs of a tile have 32-bit numbers");
  }

  void gather() {
    const Gather& own = plan_.gather;
    const Dims dims = dims_of(own, groups_, bytes_);
    const Dims rows = by_step(groups_.reduced);
    const int64_t width = own.packed ? elements_ : 1;
    const int64_t units = dims.count > 0 ? units_of(own, groups_, bytes_) : 0;
    int64_t row_strides = 0;
    bool consecutive = true;
    for (int d = 0; d < rows.count; ++d) {
      row_strides |= rows.dim[d].stride;
      consecutive &= d == 0 || rows.dim[d].step == rows.dim[d - 1].step * rows.dim[d - 1].size;
    }
    require_grid();
    require_one_part();
    require(consecutive, "the indices of rows follow each other");
    require(reach(groups_.kept, &Dim::step) >> 32 == 0, "places of results fit 32 bits");
    require(1 <= dims.count && dims.count <= kGatherDims &&
                (groups_.reduced.count <= 1 || !own.shared()),
            "at most six kept dims, and a reduced one of many elements");
    const bool even = task_ == Task::kExtreme && groups_.reduced.count == 1;
    require(own.shared() ||
                (walk_ <= (even ? kEvenGatherRows : kGatherRows) && plan_.threads == kThreads),
            "the kernel is for such groups");
    require(own.shares >= 1, "each unit has a thread");
    if (violation_) return;
    if (own.shared()) {
      const int64_t lanes = plan_.threads / own.shares;
      require(std::has_single_bit(static_cast<uint32_t>(plan_.threads)) && plan_.threads >= 32 &&
                  plan_.threads <= kSharedGatherThreads,
              "there is a kernel for so many threads");
      require(std::has_single_bit(static_cast<uint32_t>(own.shares)) &&
                  own.shares <= std::min(walk_, kGatherShares) && lanes >= 1,
              "each thread has an element");
      const int64_t rows_of_share = task_ == Task::kExtreme ? kSharedGatherRows : kSharedItemRows;
      require(walk_ <= own.shares * rows_of_share, "a thread has numbers for its rows");
      require(!own.tiled() && own.units == 1, "threads have a unit");
      const int64_t sum = task_ == Task::kSoftmax ? 8 : 0;
      const int64_t state = sum + 2 * std::max<int64_t>(4, bytes_);
      require(width * (plan_.threads + 1) * state <= kStaticSharedBytes,
              "what threads found has room");
      require_cover(plan_.blocks, lanes, units, "the blocks cover the outputs once");
    } else if (own.tiled()) {
      const int across = dims_across(groups_);
      require(0 < across && across < dims.count && own.inner_side >= 1, "a tile has two sides");
      if (violation_) return;
      int64_t crosses = 1;
      for (int d = dims.count - across; d < dims.count; ++d) crosses *= dims.dim[d].size;
      require(own.units % kTileUnits == 0 && own.units >= kTileUnits &&
                  own.units <= (walk_ <= kKnownRows && task_ == Task::kExtreme ? kMostTileUnits
                                                                               : kTileUnits),
              "units come by as many as the kernel takes");
      require(own.inner_lanes >= 1 && own.cross_lanes >= 1 && own.inner_side >= 1 &&
                  own.tile_threads() <= kThreads &&
                  own.tile_threads() * own.units == own.inner_side * own.computed_cross(),
              "the threads have all of a tile");
      const int64_t of_lanes = own.inner_side / (own.along_cross() ? 1 : own.units);
      require(own.tile_threads() == of_lanes * own.cross_lanes && of_lanes % own.inner_lanes == 0,
              "threads lie over its sides");
      require(!own.copied ||
                  (across == 1 && dims.dim[dims.count - 1].stride == 0 && own.cross_lanes == 1),
              "copies are of one result");
      require(own.shared_bytes(bytes_) <= kStaticSharedBytes && walk_ <= 256,
              "the results of a tile have room");
      require(plan_.blocks ==
                  ceil_div(units / crosses, own.inner_side) * ceil_div(crosses, own.cross_side),
              "the blocks cover the outputs once");
    } else {
      require(task_ == Task::kExtreme
                  ? own.units == gather_units(walk_, own.packed, bytes_) ||
                        own.units == few_gather_units(walk_, own.packed, bytes_)
                  : own.units == item_units(own.packed, bytes_, own.masked) || own.units == 1,
              "there is a kernel for so many units");
      require_cover(plan_.blocks, kThreads, threads_of(own, groups_, bytes_),
                    "the blocks cover the outputs once");
      require(threads_of(own, groups_, bytes_) >> 31 == 0, "threads have 31-bit numbers");
    }
    if (own.row_loads) {
      int64_t strides = 0;
      for (int d = 0; d < dims.count; ++d) strides |= dims.dim[d].stride;
      require(!own.packed && may_load_rows(walk_, bytes_) && rows.count == 1 && row_strides == 1 &&
                  (strides * bytes_ | address_) % (walk_ * bytes_) == 0,
              "groups are aligned loads");
    }
    require(own.masked == (task_ == Task::kMasked), "places in a mask are kept if there is one");
    require(task_ == Task::kExtreme || !(own.row_loads || own.copied),
            "kernels of other tasks have only elements and packs");
    require(!own.realigned || (task_ != Task::kSoftmax && dims.dim[0].mask_stride <= 1),
            "packs that begin anywhere have bytes of a mask side by side, or one");
    require(!own.realigned || (own.packed && bytes_ == 1 && dims.dim[0].size >= kRealignedSide &&
                               (own.tiled() || own.shared())),
            "only packs of bytes are realigned, where the last one of a row may overlap another");
    if (own.packed) {
      require(bytes_ < 4 && dims.dim[0].stride == 1 && dims.dim[0].size >= width,
              "packs are of neighbouring outputs");
      int64_t strides = row_strides;
      for (int d = 1; d < dims.count; ++d) strides |= dims.dim[d].stride;
      require(own.realigned || (((strides | dims.dim[0].size) * bytes_) | address_) % 4 == 0,
              "packs are aligned");
    }
    require(walk_extent(dims) == groups_.outputs, "the dims have all outputs");
    const int64_t last = reach(dims) + reach(rows);
    const int64_t last_mask = reach(dims, &Dim::mask_stride) + reach(rows, &Dim::mask_stride);
    require((last | last_mask) >> 31 == 0 && groups_.extent >> 31 == 0 &&
                groups_.outputs * groups_.copies >> 31 == 0,
            "offsets, indices and places have 32 bits");
  }

  void tiles() {
    const Tiles& e = plan_.tiles;
    const Dims kept = by_stride(groups_.kept), reduced = by_stride(groups_.reduced);
    require_grid();
    require_one_part();
    require(plan_.threads == kGroupThreads, "a block as the kernel is compiled for");
    require(1 <= reduced.count && reduced.count <= kBoxReduced && 1 <= kept.count &&
                kept.count <= kBoxDims && e.column_dims <= kept.count &&
                e.inner_rows <= reduced.count,
            "there are dims that the kernel takes");
    // Each output is in one tile.
    const int64_t groups = walk_extent(other_dims(groups_, e.column_dims));
    int64_t inner_columns = 1, run = bytes_, aligned = address_, outer_rows = 1;
    bool side_by_side = true;
    int64_t next = 1;
    for (int d = 0; d < kept.count; ++d) {
      const Dim& dim = kept.dim[d];
      if (d + 1 < e.column_dims) inner_columns *= dim.size;
      if (d >= e.column_dims) aligned |= dim.stride * bytes_;
    }
    require(e.inner_columns == inner_columns && e.columns % inner_columns == 0,
            "of the column dims but the last a tile has all");
    const Dim cut = e.column_dims > 0 ? kept.dim[e.column_dims - 1] : Dim{1, 0, 0};
    const int64_t taken = e.columns / inner_columns;
    require_cover(e.chunks, taken, cut.size, "the chunks cover the columns once");
    require_cover(e.tiles, e.groups, groups, "the tiles cover the groups once");
    require(plan_.blocks == e.chunks * e.tiles, "a block has a tile");
    require(groups >> 32 == 0 && e.chunks >> 32 == 0 && e.groups * e.columns >> 31 == 0,
            "groups, and outputs of a tile, have 32-bit numbers");
    if (e.chunks > 1) aligned |= taken * cut.stride * bytes_;
    for (int d = 0; d < e.column_dims; ++d) {
      const Dim& dim = kept.dim[d];
      side_by_side &= dim.stride == next;
      next *= dim.size;
      run += ((d + 1 < e.column_dims ? dim.size : taken) - 1) * dim.stride * bytes_;
    }
    // Of rows that come with the columns; the pieces of the others are apart.
    for (int d = 0; d < e.inner_rows; ++d) {
      require(e.row_pitch[d] == reduced.dim[d].stride * bytes_,
              "rows lie in a piece as they do in memory");
      run += (reduced.dim[d].size - 1) * reduced.dim[d].stride * bytes_;
    }
    require(e.piece_bytes == run, "all of a piece is copied");
    for (int d = e.inner_rows; d < reduced.count; ++d) aligned |= reduced.dim[d].stride * bytes_;
    const bool is_aligned = aligned % kLoadBytes == 0;
    int64_t least = round_up(run, kLoadBytes) + (is_aligned ? 0 : kLoadBytes), last = 0;
    for (int d = e.inner_rows; d < reduced.count; ++d) {
      const Dim& dim = reduced.dim[d];
      require((e.row_pitch[d] - dim.stride * bytes_) % kLoadBytes == 0,
              "pieces lie in a tile as they do in a block of a load");
      require(e.row_pitch[d] >= least, "pieces are apart");
      least = dim.size * int64_t(e.row_pitch[d]);
      last += (dim.size - 1) * e.row_pitch[d];
      outer_rows *= dim.size;
    }
    require(e.outer_rows == outer_rows, "all pieces of a group are copied");
    require(is_power_of_two(e.copy_lanes) && e.copy_lanes <= 32,
            "the lanes of a piece are of a warp");
    require(
        e.group_pitch % kLoadBytes == 0 &&
            e.group_pitch >= round_up((is_aligned ? 0 : kLoadBytes - 1) + last + run, kLoadBytes),
        "a group has room wherever in a block of a load it begins");
    require(is_power_of_two(e.lanes) && e.lanes <= 32 && is_power_of_two(e.side) &&
                e.side * e.lanes <= kGroupThreads,
            "the lanes of an output are of a warp, and neighbours of a block");
    require(e.table_bytes % kLineBytes == 0 && e.table_bytes >= TileTables(e, walk_).end,
            "where groups, columns and rows begin is written down");
    int64_t past = 0;  // bytes that reading goes past a group
    if (e.reading > 0) {
      require(reduced.count == 1 && reduced.dim[0].stride == 1 && e.inner_rows == 1 && bytes_ < 4 &&
                  e.lanes == 1 && e.reading <= 4 && walk_ * bytes_ <= kLoadBytes * e.reading &&
                  (e.reading == 1 || 2 * walk_ * bytes_ > kLoadBytes * e.reading),
              "a thread holds a row as a whole");
      past = kLoadBytes * e.reading + behind_slots();
    } else if (e.reading == Tiles::kSlots) {
      require(reduced.count == 1 && (bytes_ >= 4 || side_by_side), "slots lie side by side");
      past = (round_up(e.columns, elements_) - e.columns) * bytes_ + behind_slots();
    } else {
      require(walk_ <= kBoxTable && last + run <= 1 << 16, "a table has room for the elements");
    }
    require(e.groups * e.group_pitch + past <= e.stage_bytes, "slots are read from the tile");
    require(shared_bytes(e) <= kStaticSharedBytes, "a block has that much shared memory");
  }

  void bulk_columns() {
    const FoldedPlan& p = plan_;
    const BulkColumnsCut& own = p.bulk_columns;
    const int64_t readers = p.threads - 32, slot = elements_ * bytes_;
    const int64_t of_reader = own.vector ? slots_per_reader(bytes_) : 1;
    const int64_t rows = std::min<int64_t>(own.stage_rows, p.part_extent);
    const bool one_stage = own.stage_rows >= p.part_extent;
    require_threads(own.lanes, own.shares);
    require_ring();
    const Dims reduced = by_stride(groups_.reduced);
    const int64_t pitch = reduced.dim[0].stride;
    require(is_one_in_memory(reduced), "the reduced dims are one in memory");
    require(own.mapped == (reduced.count > 1), "positions are indices where they can be");
    require(
        !own.mapped || (p.split() && p.cluster == 1 && reduced.dim[0].size % p.part_extent == 0),
        "indices of a part rise");
    require(inner().stride == 1, "the columns lie side by side");
    require(32 <= readers && readers <= kReaders, "a block as the kernel is compiled for");
    require(int64_t(own.lanes) * own.shares <= readers, "all who share a column read");
    require_cover(own.across, own.tile, inner().size, "the tiles cover the columns once");
    require(own.tiles == own.across * outer_columns(), "the tiles cover the outputs once");
    require(p.blocks <= own.tiles * p.parts, "each block has a tile");
    require(p.cluster == 1 || (p.blocks == own.tiles * p.parts && p.blocks <= kMaxBlocks),
            "a block of a cluster has one tile and one part");

    require(1 <= own.subtile && own.subtile <= own.tile, "a tile has subtiles");
    require(own.subtile == own.tile || (p.parts == 1 && one_stage && p.cluster == 1),
            "a tile that is taken by subtiles is in one stage");
    require(own.lanes * of_reader * elements_ >= own.subtile, "the readers cover a subtile");
    require(!own.vector || own.lanes % 32 == 0, "whole warps take several slots each");
    require(own.stage_rows >= 1 &&
                (one_stage || own.stage_rows % (rows_at_once(bytes_) * own.shares) == 0),
            "the batches and shares of a stage are whole");

    require(!own.contiguous ||
                (own.across == 1 && pitch == inner().size && own.stage_pitch == pitch * bytes_),
            "what comes in one copy is contiguous");
    require(own.contiguous || own.stage_pitch >= own.tile * bytes_ + 2 * (kLoadBytes - 1),
            "rows that are copied one by one are apart");
    require(own.stage_pitch % bytes_ == 0 && (own.stage_pitch - pitch * bytes_) % kLoadBytes == 0,
            "rows lie in a stage as they do in a block of a load");
    const int64_t last_row = (rows - 1) * own.stage_pitch;
    require_stage(last_row + own.tile * bytes_ + kLoadBytes - 1,
                  "a stage holds what is copied to it");
    const int64_t last_subtile = (ceil_div(own.tile, own.subtile) - 1) * own.subtile * bytes_;
    require_stage(last_row + last_subtile + own.lanes * of_reader * slot + behind_slots(),
                  "slots are read from a stage");

    const int64_t bests = own.shares * own.tile * near_bytes_;
    require(p.cluster > 1 || own.shares == 1 || bests <= own.scratch_bytes,
            "the bests of the shares fit behind the stages");
    require(p.cluster == 1 || bests <= int64_t(own.stages) * own.stage_bytes,
            "the bests of a cluster's block fit where the stages were");
  }

  const FoldedPlan& plan_;
  const Groups& groups_;
  const Limits limits_;
  const Task task_;
  const int64_t bytes_, address_, walk_;
  const int64_t width_;       // elements of a load
  const int64_t elements_;    // of a slot
  const int64_t near_bytes_;  // of a best in shared memory
  const char* violation_ = nullptr;
};

// Of what is folded: each element is in one column, and each column of one output.
inline const char* broken_fold(const FoldedPlan& plan, const Groups& groups, Task task) {
  const Fold& fold = plan.fold;
  const Dims& reduced = groups.reduced;
  if (task != Task::kExtreme || (plan.walk != Walk::kColumns && plan.walk != Walk::kBulkColumns &&
                                 plan.walk != Walk::kWholeRows))
    return "there is a kernel that leaves candidates";
  if (fold.count > kMostFolds || reduced.count > kFlatDims) return "there is room for the dims";
  for (int i = 0; i < fold.count; ++i) {
    const auto [dim, size] = fold.pieces[i];
    if (dim < 0 || dim >= reduced.count || size < 2 || reduced.dim[dim].size % size != 0)
      return "what is folded divides a reduced dim";
    for (int j = 0; j < i; ++j) {
      if (fold.pieces[j].dim == dim) return "a dim is folded once";
    }
  }
  const Folded folded(groups, fold);
  const FoldedColumns& columns = folded.columns;
  if (columns.of_output != fold.columns() ||
      folded.groups.outputs != groups.outputs * columns.of_output ||
      walk_extent(folded.groups.reduced) * columns.of_output != walk_extent(reduced))
    return "columns have all elements";
  int64_t next = 1;
  for (int d = 0; d < columns.count; ++d) {
    const Dim& dim = columns.dims[d];
    if (dim.stride % next != 0) return "columns have numbers of their own";
    next = dim.stride * dim.size;
  }
  if (folded.groups.outputs % next != 0) return "columns have numbers of their own";
  const auto offset = [](const Dims& dims, int64_t number) {
    return place(dims.dim, dims.count, number).offset;
  };
  for (const int64_t output : {int64_t(0), int64_t(1), groups.outputs / 2, groups.outputs - 1}) {
    if (output >= groups.outputs) continue;
    for (const int64_t column : {int64_t(0), int64_t(1), columns.of_output - 1}) {
      const Place at = place(columns.dims, columns.count, column);
      if (offset(folded.groups.axes, columns.first(output) + at.offset) !=
          offset(groups.axes, output) + offset_of(reduced.dim, reduced.count, at.step))
        return "a column is where its number says";
    }
  }
  return nullptr;
}

inline const char* broken_promise(const FoldedPlan& plan, const Groups& groups, int64_t bytes,
                                  int64_t address, Limits limits, Task task = Task::kExtreme) {
  if (!plan.is_folded()) return PlanCheck(plan, groups, bytes, address, limits, task).violation();
  if (const char* promise = broken_fold(plan, groups, task)) return promise;
  const Folded folded(groups, plan.fold);
  return PlanCheck(plan, folded.groups, bytes, address, limits, task).violation();
}

}  // namespace reduceops::cuda
