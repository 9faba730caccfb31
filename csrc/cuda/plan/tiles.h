// tiles.cu: small groups of any layout, by tiles of which results, too, lie side by side.
#pragma once

#include "cuda/plan/boxes.h"

namespace reduceops::cuda {

// Finds the tiles of a layout: none where a group does not find room in shared memory.
class TilesMaker {
 public:
  // A group has at most `most` bytes, a tile some `tile_bytes`; all offsets of elements are
  // multiples of `bytes`, but where the input begins is one of `address`.
  TilesMaker(const Groups& groups, int64_t bytes, int64_t address, int64_t most, int64_t tile_bytes,
             int64_t side, int64_t copy_blocks)
      : groups_(groups),
        kept_(by_stride(groups.kept)),
        reduced_(by_stride(groups.reduced)),
        bytes_(bytes),
        address_(address),
        walk_(walk_extent(groups.reduced)),
        most_(most),
        tile_bytes_(tile_bytes),
        side_(side),
        copy_blocks_(copy_blocks) {}

  std::optional<Tiles> make() {
    if (kept_.count == 0 || kept_.count > kBoxDims || reduced_.count == 0 ||
        reduced_.count > kBoxReduced || walk_ * bytes_ > most_ || walk_ > kBoxTable)
      return {};
    for (int64_t part = 1; part <= 4; part *= 2) {
      if (!cut(Tiles::kPieceBytes / part, 32 / part)) continue;
      const int64_t count = group_count();
      if (plan_.groups < std::min<int64_t>(columns_follow_ ? 1 : part < 4 ? 32 : 8, count))
        continue;
      // Where there are few groups, a tile is as large with more columns.
      const int64_t times = tile_bytes_ / (plan_.groups * plan_.group_pitch);
      if (plan_.groups == count && times > 1) {
        const Tiles before = plan_;
        if (!cut(Tiles::kPieceBytes / part * times, 32 / part * times) || plan_.groups < count)
          plan_ = before;
      }
      return finished();
    }
    return {};
  }

  // Results that a tile has side by side.
  int64_t neighbours(const Tiles& plan) const {
    int64_t side_by_side = 1;
    const Dims dims = by_step(groups_.kept);
    int64_t in_tile = plan.groups;
    for (int d = 0; d < dims.count && dims.dim[d].step == side_by_side; ++d) {
      const Dim& dim = dims.dim[d];
      int column = 0;
      while (column < plan.column_dims && kept_.dim[column].step != dim.step) ++column;
      int64_t taken = dim.size;
      if (column + 1 == plan.column_dims) taken = plan.columns / plan.inner_columns;
      if (column == plan.column_dims) {
        taken = std::min(dim.size, in_tile);
        in_tile = std::max<int64_t>(1, in_tile / dim.size);
      }
      side_by_side *= taken;
      if (taken < dim.size) break;
    }
    return side_by_side;
  }

 private:
  int64_t group_count() const {
    int64_t count = 1;
    for (int d = plan_.column_dims; d < kept_.count; ++d) count *= kept_.dim[d].size;
    return count;
  }

  // Tiles whose pieces have some `want` bytes, and as many columns as `follow` where the results of
  // these follow each other.
  bool cut(int64_t want, int64_t follow) {
    plan_ = {};
    columns_follow_ = false;
    plan_.inner_columns = plan_.columns = plan_.chunks = plan_.outer_rows = 1;
    int64_t run = bytes_, chunk_pitch = 0;
    int64_t aligned = address_;  // bits of all offsets at which pieces begin
    bool closed = false;         // nothing joins the piece any more
    for (int k = 0, r = 0; r < reduced_.count || k < kept_.count;) {
      const bool is_kept =
          r == reduced_.count || (k < kept_.count && kept_.dim[k].stride < reduced_.dim[r].stride);
      const Dim& dim = is_kept ? kept_.dim[k++] : reduced_.dim[r++];
      const int64_t pitch = dim.stride * bytes_;
      // Gaps are read with what is around them.
      const bool joins = !closed && pitch <= box::kMostBytes && box::without_gaps(pitch, run);
      if (!is_kept) {
        closed = !joins || run + (dim.size - 1) * pitch > box::kMostBytes;
        if (closed) {
          plan_.outer_rows *= dim.size;
          aligned |= pitch;
        } else {
          plan_.row_pitch[plan_.inner_rows++] = static_cast<int>(pitch);
          run += (dim.size - 1) * pitch;
        }
        continue;
      }
      const int64_t enough = dim.step == 1 ? std::max(want, follow * pitch) : want;
      int64_t taken = 1;
      if (joins && run + (dim.size - 1) * pitch <= 2 * enough) {
        taken = dim.size;
      } else if (joins) {
        taken = std::max<int64_t>(1, (enough - run) / pitch + 1);
      }
      const int64_t most = Tiles::kMostColumns / plan_.columns;
      if (taken > most) taken = std::max<int64_t>(1, most);
      if (taken == 1 || closed) {
        closed = true;
        aligned |= pitch;
        continue;
      }
      ++plan_.column_dims;
      columns_follow_ |= dim.step == 1;
      plan_.inner_columns = plan_.columns;
      plan_.columns *= taken;
      plan_.chunks = ceil_div(dim.size, taken);
      run += (taken - 1) * pitch;
      if (taken < dim.size) {
        closed = true;
        chunk_pitch = taken * pitch;
      }
    }
    aligned |= chunk_pitch;
    const bool is_aligned = aligned % kLoadBytes == 0;
    plan_.piece_bytes = static_cast<int>(run);
    int64_t last = 0, pitch = round_up(run, kLoadBytes);
    // Blocks of 16 bytes that hold two pieces are apart, and pieces at their offsets in them.
    if (!is_aligned) pitch = run + 2 * kLoadBytes;
    for (int d = plan_.inner_rows; d < reduced_.count; ++d) {
      const Dim& dim = reduced_.dim[d];
      pitch += ((dim.stride * bytes_ - pitch) % kLoadBytes + kLoadBytes) % kLoadBytes;
      if (pitch * dim.size > box::kMostBytes) return false;
      plan_.row_pitch[d] = static_cast<int>(pitch);
      last += (dim.size - 1) * pitch;
      pitch *= dim.size;
    }
    int64_t room = round_up((is_aligned ? 0 : kLoadBytes - 1) + last + run, kLoadBytes);
    if (room % 32 == 0) room += kLoadBytes;  // neighbours begin in other banks
    const int64_t count = group_count(), with_tables = room + 20;
    const int64_t least = columns_follow_ ? 1 : std::min(count, Tiles::kLeastNeighbours);
    if (with_tables * least > box::kMostBytes) return false;
    plan_.group_pitch = static_cast<int>(room);
    const int64_t fit =
        std::clamp(tile_bytes_, std::min(32 * with_tables, box::kMostBytes), box::kMostBytes) /
        with_tables;
    plan_.groups = std::min({fit, Tiles::kMostGroups, count});
    if (plan_.groups >= 32) {
      plan_.groups -= plan_.groups % 32;
    } else if (plan_.groups < count && plan_.groups > 8) {
      plan_.groups -= plan_.groups % 8;
    }
    plan_.tiles = ceil_div(count, plan_.groups);
    // A piece that begins anywhere may touch one block more.
    const int64_t blocks = ceil_div(run, kLoadBytes) + (is_aligned ? 0 : 1);
    plan_.copy_lanes = box::lanes_to_copy(blocks, plan_.groups * plan_.outer_rows, copy_blocks_);
    return true;
  }

  std::optional<Tiles> finished() {
    const int64_t slot = std::max<int64_t>(4, bytes_) / bytes_;
    const bool one_dim = reduced_.count == 1;
    bool side_by_side = true;  // columns
    int64_t next = 1;
    for (int d = 0; d < plan_.column_dims; ++d) {
      side_by_side &= kept_.dim[d].stride == next;
      next *= kept_.dim[d].size;
    }
    const int64_t vectors = ceil_div(walk_ * bytes_, kLoadBytes);
    plan_.reading = Tiles::kScattered;
    if (one_dim && bytes_ < 4 && reduced_.dim[0].stride == 1 && plan_.inner_rows == 1 &&
        vectors <= box::kHeldVectors) {
      plan_.reading = static_cast<int>(ceil_pow2(vectors));
    } else if (one_dim && (bytes_ >= 4 || (side_by_side && plan_.columns > 1))) {
      plan_.reading = Tiles::kSlots;
    }
    const int64_t across =
        plan_.reading == Tiles::kSlots ? ceil_div(plan_.columns, slot) : plan_.columns;
    plan_.lanes = plan_.reading > 0 ? 1 : box::lanes_for(plan_.groups * across, walk_);
    // Neighbouring threads take so many groups that their results fill sectors, and no more than
    // leave the others a column each.
    const int64_t units = kGroupThreads / plan_.lanes;
    int64_t side = std::max<int64_t>(1, units / ceil_pow2(across));
    if (!columns_follow_) side = std::max(side, std::min<int64_t>(units, ceil_pow2(side_)));
    plan_.side = static_cast<int>(std::min(side, ceil_pow2(plan_.groups)));

    plan_.table_bytes = static_cast<int>(round_up(TileTables(plan_, walk_).end, kLineBytes));
    const int64_t past = plan_.reading > 0 ? kLoadBytes * plan_.reading : kLoadBytes;
    plan_.stage_bytes = static_cast<int>(
        round_up(plan_.groups * plan_.group_pitch + past + box::kSlack, kLineBytes));
    if (plan_.chunks >> 31 || plan_.tiles >> 31 || plan_.chunks * plan_.tiles > kMaxBlocks ||
        group_count() >> 32 || shared_bytes(plan_) > kStaticSharedBytes)
      return {};
    return plan_;
  }

  const Groups& groups_;
  bool columns_follow_ = false;  // the results of some columns follow each other
  const Dims kept_, reduced_;
  const int64_t bytes_, address_, walk_, most_, tile_bytes_, side_, copy_blocks_;
  Tiles plan_{};
};

struct TilesPlan {
  // Where results would be written in parts of sectors, or elements read one by one.
  static bool fits(const PlanInput& in) {
    const Groups& groups = in.groups;
    if (in.task != Task::kExtreme || groups.reduced.count == 0) return false;
    if (in.total + groups.outputs * 8 < std::min(in.tuning.bulk_bytes, kLeast)) return false;
    if (groups.reduced.count > 1 || !in_order(groups)) return true;
    const bool is_run = in.rows && in.along().stride == 1 && in.walk * in.bytes >= kBurstBytes;
    return groups.axes.count > 1 && !is_run;
  }
  static bool usual(const PlanInput&) { return false; }  // its price says so

  static bool make(const PlanInput& in, Plan& plan) {
    const bool several = in.groups.reduced.count > 1;
    const int64_t most = several ? in.tuning.small_group_bytes : in.tuning.one_dim_bytes;
    TilesMaker maker(in.groups, in.bytes, in.address, most, in.tile_bytes(), in.tuning.tile_side,
                     in.tuning.copy_blocks);
    const auto found = maker.make();
    if (!found) return false;
    // Rows that fill more than a sector are read as fast by boxes.
    const bool wide = in.rows && in.bytes >= 4 && in.walk * in.bytes > kSectorBytes;
    if (!several && !asked_for(in) &&
        (found->groups == 1 || wide || found->reading == Tiles::kScattered))
      return false;
    plan = in.empty_plan(Walk::kTiles);
    keep_whole(plan, in);
    plan.tiles = *found;
    plan.tiles.in_result_order = maker.neighbours(*found) >= Tiles::kLeastNeighbours;
    plan.threads = kGroupThreads;
    plan.blocks = found->tiles * found->chunks;
    return true;
  }
  static bool asked_for(const PlanInput& in) {
    return in.tuning.walk == static_cast<int>(Walk::kTiles) + 1;
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const Tiles& tiles = plan.tiles;
    const auto walk = static_cast<double>(in.walk), columns = static_cast<double>(tiles.columns);
    const double pieces = static_cast<double>(tiles.outer_rows) / columns;  // of an output
    const auto blocks = static_cast<double>(tiles.piece_bytes) / kLoadBytes + 1;
    const bool held = tiles.reading > 0, slots = tiles.reading == Tiles::kSlots,
               small = in.bytes < 4;
    const double of_element = held    ? price::kHeldInTile
                              : slots ? price::kSlotInTile * static_cast<double>(in.bytes) /
                                            static_cast<double>(in.slot_bytes())
                              : small ? price::kSmallInTile
                                      : price::kInTile;
    const double rounds = std::ceil(blocks / tiles.copy_lanes) * tiles.copy_lanes;
    const double of_output = price::kTileResult +
                             price::kTileStore * static_cast<double>(in.stores.count()) +
                             (held ? price::kHeldGroup : 0) + of_element * walk +
                             (tiles.lanes > 1 ? price::kTileLane * tiles.lanes : 0) +
                             pieces * price::kTileBlock * rounds + price::kTileGroup / columns;
    const bool aligned = tiles.piece_bytes % kSectorBytes == 0 && in.address_aligned(kSectorBytes);
    Work work{.read = traffic.read,
              .sectors = traffic.outputs * pieces *
                         (tiles.piece_bytes + (aligned ? 0 : price::kPieceEnds)),
              .instructions = of_output * traffic.outputs,
              .in_order = tiles.in_result_order,
              .extra = 1.5};
    const double together = stored_together(in, tiles);
    if (tiles.in_result_order && together < price::kOfSector)
      work.stores =
          traffic.outputs * static_cast<double>(in.stores.count()) * price::kStoreL2 / together;
    // Measured times of 158 layouts over these prices.
    const bool one_dim = in.groups.reduced.count == 1;
    work.share = held ? 1.1 : small ? 1.3 : slots && one_dim ? 1.25 : 1.1;
    return work;
  }

 private:
  static constexpr int64_t kLeast = 2 << 20;

  // Indices that a warp stores side by side. Its lanes lie over columns in the order of memory: if
  // results follow each other along one of their dims, those before it come between.
  static double stored_together(const PlanInput& in, const Tiles& tiles) {
    const Dims kept = by_stride(in.groups.kept);
    double between = 1;
    for (int d = 0; d < tiles.column_dims; ++d) {
      const Dim& dim = kept.dim[d];
      if (dim.step > 1) {
        between *= static_cast<double>(dim.size);
        continue;
      }
      const int64_t in_slot = tiles.reading == Tiles::kSlots ? in.slot_bytes() / in.bytes : 1;
      const double slots = std::max(1., between / static_cast<double>(in_slot));
      return std::max(1., 32. / (tiles.lanes * tiles.side) / slots);
    }
    return price::kOfSector;
  }
};

}  // namespace reduceops::cuda
