// bulk_columns.cu: a kept dim is innermost, by tiles of columns that come through a ring.
#pragma once

#include "cuda/plan/shifted_columns.h"

namespace reduceops::cuda {

class BulkColumnsPlan {
 public:
  static bool fits(const PlanInput& in) {
    if (in.task != Task::kExtreme || !in.bulk || in.rows || in.inner().stride != 1) return false;
    return in.groups.reduced.count == 1 || mapped_part(in) > 0;
  }

  // False where its ring needs more shared memory than there is.
  static bool make(const PlanInput& in, Plan& plan) {
    BulkColumnsPlan(in, plan).make();
    const int64_t bests = plan.bulk_columns.shares * plan.bulk_columns.tile * bytes_of_best(in);
    return shared_bytes(plan.bulk_columns) <= kSharedBytes && plan.blocks <= kMaxBlocks &&
           (plan.cluster == 1 ||
            bests <= int64_t(plan.bulk_columns.stages) * plan.bulk_columns.stage_bytes);
  }

  // Where copies are long, and plain loads are not as fast or faster.
  static bool usual(const PlanInput& in) {
    const Tuning& tuning = in.tuning;
    const int64_t row_bytes = in.inner().size * in.bytes;
    if (!in.large()) return false;
    if (pitch(in) != in.inner().size && row_bytes < tuning.least_segment_bytes) return false;
    const int64_t shortest = in.bytes == 1   ? tuning.column_walk_8
                             : in.bytes == 2 ? tuning.column_walk_16
                             : in.bytes == 4 ? tuning.column_walk_32
                                             : tuning.column_walk_64;
    const bool aligned = in.columns_aligned(in.bytes < 4 ? kLoadBytes : kSectorBytes);
    if (in.walk < shortest || !(aligned || ShiftedColumns::fits(in))) return true;
    const bool many = in.groups.outputs * in.bytes / kLoadBytes >= in.multiprocessors;
    return row_bytes < tuning.column_row_bytes && !(in.bytes <= 2 && many);
  }

  // What rings take longer on small inputs falls by e with so many MB.
  static constexpr double kFewBytes = 40;

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const auto resident = static_cast<double>(in.multiprocessors * in.tuning.bulk_blocks);
    const double rounds = static_cast<double>(plan.bulk_columns.tiles * plan.parts) / resident;
    const double columns = static_cast<double>(in.inner().size) /
                           static_cast<double>(plan.bulk_columns.across * plan.bulk_columns.tile);
    // Each row of a tile is a copy, and short copies take as long as those of 1 KiB.
    double use = columns * std::min(1., rounds / std::ceil(rounds));
    const int64_t copy = plan.bulk_columns.tile * in.bytes;
    if (!plan.bulk_columns.contiguous && copy < in.tuning.full_segment_bytes)
      use *= kSlow * std::min(1., static_cast<double>(copy) / 1024);
    const double shares =
        traffic.outputs * static_cast<double>(plan.bulk_columns.shares * plan.parts);
    // Of small types, clusters whose candidates a second kernel combines.
    const double both = in.bytes <= 2 && plan.cluster > 1 && plan.split() ? 3 : 0;
    const int64_t fill = in.bytes == 2 ? in.tuning.ring_fill_16 : in.tuning.ring_fill;
    const double begin = in.bytes == 1 || in.bytes == 4 ? 1.5 : 0.5;  // as measured
    return {.read = 0.96 * traffic.read / use,
            .sectors = traffic.bytes,
            .instructions = of_bytes(price::kColumn, in.bytes) * traffic.elements +
                            90 * shares / static_cast<double>(slots_per_reader(in.bytes)),
            .extra = begin + price::kItem * rounds + both,
            .share = 1 + static_cast<double>(fill) / 100 * std::exp(traffic.bytes / -kFewBytes)};
  }

 private:
  BulkColumnsPlan(const PlanInput& in, Plan& plan)
      : in_(in),
        plan_(plan),
        columns_(in.inner().size),
        outer_(in.groups.outputs / columns_),
        per_slot_(in.slot_bytes() / in.bytes),
        per_reader_(slots_per_reader(in.bytes)),
        unit_(32 * per_slot_),
        units_(ceil_div(columns_, unit_)),
        widest_(std::min(in.tuning.segment_bytes / in.bytes, kReaders * per_reader_ * per_slot_)),
        resident_(in.multiprocessors * in.tuning.bulk_blocks),
        mapped_part_(in.groups.reduced.count > 1 ? mapped_part(in) : 0),
        row_pitch_(pitch(in)),
        gapless_(row_pitch_ == columns_),
        columns_used_(static_cast<double>(outer_ * columns_) / static_cast<double>(resident_)),
        begin_(static_cast<double>(in.tuning.stage_bytes) /
               static_cast<double>(in.walk * in.bytes)),
        of_workspace_(kWorkspaceBytes / (in.bytes_of_candidate() * in.groups.outputs)) {
    plan = in.empty_plan(Walk::kBulkColumns);
    plan.bulk_columns = {};
  }

  // Elements from a row of columns to the next.
  static int64_t pitch(const PlanInput& in) {
    int64_t pitch = in.along().stride;
    for (int d = 1; d < in.groups.reduced.count; ++d)
      pitch = std::min(pitch, in.groups.reduced.dim[d].stride);
    return pitch;
  }

  // Rows of a part of several reduced dims that are one in memory: of the innermost, whose rows
  // follow each other in the index too, or of a fraction of it, if more parts are to fill the GPU.
  // 0 where parts are too short, or too many for the workspace.
  static int64_t mapped_part(const PlanInput& in) {
    const Dims reduced = by_stride(in.groups.reduced);
    if (!is_one_in_memory(reduced)) return 0;
    const int64_t row_bytes = in.inner().size * in.bytes;
    const int64_t tiles =
        ceil_div(row_bytes, in.tuning.segment_bytes) * (in.groups.outputs / in.inner().size);
    const int64_t most = kWorkspaceBytes / (in.bytes_of_candidate() * in.groups.outputs);
    const auto fits = [&](int64_t rows) {
      return in.walk / rows <= most && rows * row_bytes >= in.tuning.mapped_part_bytes;
    };
    int64_t rows = reduced.dim[0].size;
    while (rows % 2 == 0 && fits(rows / 2) &&
           (rows > kMaxPartExtent || in.walk / rows * tiles < in.multiprocessors))
      rows /= 2;
    return fits(rows) && rows <= kMaxPartExtent ? rows : 0;
  }

  static int64_t bytes_of_best(const PlanInput& in) { return in.bytes == 8 ? 16 : 8; }

  int64_t pitch_of(int64_t tile) const {
    const int64_t pitch = row_pitch_ * in_.bytes;
    if (tile >= columns_ && gapless_) return pitch;
    // As in memory, from one offset in a line to the next.
    const int64_t room = tile * in_.bytes + 2 * kLoadBytes;
    return room + ((pitch - room) & (kLineBytes - 1));
  }
  int64_t rows_of(int64_t tile) const {
    return std::clamp<int64_t>(in_.tuning.stage_bytes / pitch_of(tile) / 4 * 4,
                               std::min<int64_t>(4, in_.walk), in_.walk);
  }

  static constexpr double kSlow = 0.9;  // speed of narrow tiles

  // How a grid of tiles uses the GPU: 1 where all of it reads at full speed until the end.
  struct Cut {
    double use = 0;
    int64_t units = 0, parts = 1;  // a tile's, of a warp's slots
    int cluster = 1;
  };

  // A tile's speed, and the share of its block's time in which an empty ring fills.
  double speed_of(int64_t tile) const {
    // One copy to a stage is better than one to each row.
    const bool apart = tile < columns_ && columns_ <= widest_ && gapless_;
    return tile * in_.bytes < in_.tuning.full_segment_bytes ? kSlow : apart ? 0.95 : 1;
  }
  double begin_of(int64_t tile) const { return begin_ / static_cast<double>(tile); }

  // The best of a tile of so many warps' slots in one part, in parts with candidates in the
  // workspace, or in as many parts as a cluster has blocks. It is as if every round of blocks took
  // the time of a whole one. `share`: blocks that could be at a tile at once.
  void consider(int64_t units, int64_t tiles, int64_t share, Cut& best) const {
    const int64_t tile = units * unit_;
    const double of_one = speed_of(tile) * columns_used_ / static_cast<double>(tile);
    const double least = best.use * 1.01 / of_one;
    const double one_part = share > 0 ? 1 : 1 / static_cast<double>(ceil_div(tiles, resident_));
    // What no other way of cutting exceeds: parts in one round, or clusters in several.
    const double bound = share > 1 ? static_cast<double>(share)
                                   : static_cast<double>(resident_) /
                                         (static_cast<double>(tiles) * (1.02 + 2 * begin_of(tile)));
    if (std::max(bound, one_part) <= least) return;
    const auto take = [&](double use, int64_t wanted, int cluster) {
      if (of_one * use > best.use * 1.01) best = {of_one * use, units, wanted, cluster};
    };
    take(one_part, 1, 1);
    if (bound <= least) return;
    const int64_t most = in_.walk / (2 * rows_of(tile));  // parts
    const int64_t split = std::min({share, of_workspace_, most});
    if (split > 1) take(static_cast<double>(split), split, 1);
    for (int log2 = 1; log2 <= 3 && 1 << log2 <= most; ++log2) {
      const int64_t wanted = std::max<int64_t>(1, std::min(share >> log2, of_workspace_)) << log2;
      if (wanted > most) continue;
      // Clusters of more than two fit a GPU's processing clusters badly.
      const int64_t room = std::max<int64_t>(1, resident_ * (log2 == 1 ? 8 : 9 - log2) / 8);
      double effort = 1 + 0.01 * (1 << log2), rounds = 1;
      if (tiles * wanted > room) {
        // Each round of clusters begins with empty rings.
        effort += begin_of(tile) * static_cast<double>(wanted);
        rounds = static_cast<double>(ceil_div(tiles * wanted, room));
      }
      take(static_cast<double>(wanted) / (rounds * effort), wanted, 1 << log2);
    }
  }
  void consider(int64_t units, Cut& best) const {
    const int64_t tiles = ceil_div(units_, units) * outer_;
    consider(units, tiles, resident_ / tiles, best);
  }

  // The widest tile with which nearly all of the GPU works. Only such are looked at as are wide or
  // narrow as may be for a number of rounds of blocks, or of blocks to a tile.
  Cut choose() const {
    Cut best;
    const auto units_of = [&](int64_t bytes) {
      return std::max<int64_t>(1, ceil_div(bytes, in_.bytes * unit_));
    };
    const int64_t full = units_of(in_.tuning.full_segment_bytes);
    const int64_t least = units_of(in_.tuning.split_segment_bytes);
    int64_t units = ceil_div(units_, ceil_div(columns_, widest_));
    consider(units, best);
    while (best.use < 0.96 && units > least && (units > full || best.use * 1.01 < kSlow)) {
      const int64_t across = ceil_div(units_, units - 1), tiles = across * outer_;
      const int64_t share = resident_ / tiles;
      const int64_t widest = ceil_div(units_, across);
      if (widest < least) break;
      consider(widest, tiles, share, best);
      // As many tiles as there may be with as many blocks to each, or in as many half rounds.
      const int64_t most =
          share > 0 ? resident_ / share : ceil_div(2 * tiles, resident_) * resident_ / 2;
      units = widest;
      if (most >= tiles + outer_) {
        if (share >= 4) {  // clusters of four, for which there is less room
          const int64_t room = most * 7 / 8;
          if (room > tiles) consider(std::max(ceil_div(units_, room / outer_), least), best);
        }
        const int64_t next = std::max(ceil_div(units_, most / outer_), least);
        units = next < full && full < widest ? full : next;
        if (units < widest) consider(units, best);
      }
    }
    // Between them a narrower tile may be too short for as many parts.
    for (units = 0; units != best.units && best.use < 0.96 && best.units > least;) {
      units = best.units;
      consider(units - 1, best);
    }
    return best;
  }

  // In the parts that the index allows.
  Cut widest() const {
    Cut cut;
    cut.units = ceil_div(units_, ceil_div(columns_, widest_));
    cut.parts = in_.walk / mapped_part_;
    return cut;
  }

  // More blocks than fit the GPU at once let fast multiprocessors take more of them; each begins
  // with an empty ring, though.
  int64_t blocks_for(int64_t items) const {
    if (in_.total < in_.tuning.waves_bytes) return std::min(items, resident_);
    return std::min(items, std::max(resident_, in_.total / in_.tuning.work_bytes));
  }

  void ring(int64_t bytes) {
    BulkColumnsCut& own = plan_.bulk_columns;
    // Room wherever in a line they begin and for a slot past them; more than a block's does not
    // fit.
    const int64_t most = std::min<int64_t>(bytes, kSharedBytes);
    own.stage_bytes = static_cast<int>(round_up(most + kLineBytes + kLoadBytes, kLineBytes));
    const int64_t block_bytes =
        in_.bytes < 4 ? in_.tuning.small_block_bytes : in_.tuning.block_bytes;
    own.stages = static_cast<int>(std::clamp<int64_t>(
        (block_bytes - own.scratch_bytes) / (own.stage_bytes + kStageBarriers), 2, 16));
  }

  void make() {
    Plan& plan = plan_;
    BulkColumnsCut& own = plan.bulk_columns;
    const Cut cut = mapped_part_ ? widest() : choose();
    const int64_t walk = in_.walk, parts = cut.parts;
    own.mapped = mapped_part_ > 0;
    plan.cluster = cut.cluster;
    own.subtile = own.tile = std::min(cut.units * unit_, columns_);
    // Short columns: as many side by side as fill a stage.
    if (parts == 1 && own.tile == widest_) {
      const int64_t room = in_.tuning.stage_bytes * 9 / 8 / (walk * pitch_of(own.tile));
      if (room > 1) own.tile = std::min(room * own.tile, columns_);
    }
    own.stage_pitch = static_cast<int>(pitch_of(own.tile));
    own.across = ceil_div(columns_, own.tile);
    own.tiles = own.across * outer_;
    own.contiguous = own.across == 1 && gapless_;
    const int64_t slots = ceil_div(own.subtile, per_slot_);
    own.vector = slots > 32 * (per_reader_ / 2);  // several slots to a thread
    own.lanes = static_cast<int>(own.vector ? round_up(ceil_div(slots, per_reader_), 32) : slots);
    own.shares = static_cast<int>(kReaders / own.lanes);
    plan.threads = static_cast<int>(round_up(own.lanes * own.shares, 32)) + 32;
    const int64_t at_once = rows_at_once(in_.bytes) * own.shares;
    const int64_t turns = (in_.tuning.stage_bytes / own.stage_pitch + at_once / 2) / at_once;
    // Of subtiles, a stage has all rows.
    own.stage_rows = static_cast<int>(
        own.tile > own.subtile ? walk : std::min(std::max<int64_t>(turns, 1) * at_once, walk));
    // The bests of the shares. The blocks of a cluster have one tile each, so when it ends their
    // bests have the ring for themselves.
    if (own.shares > 1 && plan.cluster == 1)
      own.scratch_bytes = static_cast<int>(own.shares * own.tile * bytes_of_best(in_));
    // The last threads read past their row, which in the last one of a stage nothing is copied to.
    const int64_t past = own.lanes * (own.vector ? per_reader_ : 1) - slots;
    const int64_t past_tile = round_up(own.tile, own.subtile) - own.tile;
    ring(own.stage_rows * own.stage_pitch + past * in_.slot_bytes() + past_tile * in_.bytes);
    plan.part_extent =
        std::min(round_up(ceil_div(walk, parts), parts > 1 ? own.stage_rows : 1), kMaxPartExtent);
    if (own.mapped) plan.part_extent = mapped_part_;
    plan.parts = round_up(ceil_div(walk, plan.part_extent), plan.cluster);
    plan.blocks = own.tiles * plan.parts;
    if (plan.cluster == 1) plan.blocks = blocks_for(plan.blocks);
  }

  const PlanInput& in_;
  Plan& plan_;
  const int64_t columns_, outer_;  // side by side; and how often
  const int64_t per_slot_, per_reader_;
  const int64_t unit_;         // columns of a warp's slots
  const int64_t units_;        // of all columns
  const int64_t widest_;       // tile
  const int64_t resident_;     // blocks of the GPU at once
  const int64_t mapped_part_;  // rows of a part of mapped columns, else 0
  const int64_t row_pitch_;    // elements
  const bool gapless_;         // rows of columns follow each other in memory
  const double columns_used_;  // of all, by a block
  const double begin_;
  const int64_t of_workspace_;
};

}  // namespace reduceops::cuda
