// gather.cu: groups of a few elements, wherever they lie.
#pragma once

#include <utility>

#include "cuda/plan/columns.h"
#include "cuda/plan/price.h"
#include "cuda/plan/whole_columns.h"
#include "cuda/repeat.h"

namespace reduceops::cuda {

struct GatherPlan {
  // Of the input alone there are kernels that know small numbers of rows (gather.cu), and not of
  // other tasks (gather_items.cuh).
  static bool is_of_input(const PlanInput& in) { return in.task == Task::kExtreme; }
  static bool is_shared(const PlanInput& in) { return in.walk > kGatherRows && shares_of(in) > 1; }
  static int64_t known_rows(const PlanInput& in) { return is_of_input(in) ? kKnownRows : 0; }

  static bool fits(const PlanInput& in) {
    const Groups& groups = in.groups;
    const Dims &kept = groups.kept, &reduced = groups.reduced;
    if (kept.count < 1 || kept.count > kGatherDims || !has_consecutive_indices(reduced))
      return false;
    if (in.walk > kGatherRows) {
      if (reduced.count != 1 || in.rows) return false;
      const int64_t shares = shares_of(in);
      if (shares > 1)
        return in.walk <= std::min(shares * rows_of_share(in), longest_shared(in)) &&
               in.has_short_places();
      if (in.walk > kEvenGatherRows) return false;
    }
    // These are as fast or faster, but know nothing of copies of results.
    if (WholeColumnsPlan::fits(in) && !has_repeats_as_outputs(groups, in.task)) return false;
    // Rows that each thread goes along by itself would fall out of L1.
    int64_t pitch = kept.dim[0].stride;  // but for a dim that comes first for its mask
    for (int d = 1; d < kept.count && pitch == 0; ++d) pitch = kept.dim[d].stride;
    if (reduced.count > 0 && in.along().stride < pitch &&
        in.along().size * in.along().stride * in.bytes >= kBurstBytes)
      return false;
    return in.has_short_places();
  }

  // Of the input alone, its price says so. Of other tasks, shorter groups are faster than on other
  // walks (170 random layouts on an H200: 1.9 times in the geometric mean), whatever prices say.
  static bool usual(const PlanInput& in) {
    constexpr int64_t kShortMasked = 16, kShortSummed = 12;
    switch (in.task) {
      case Task::kExtreme:
        return false;
      case Task::kMasked:
        // Rows that are 16-byte loads with their mask are better there, and so are columns of which
        // only the rows that take part are read.
        return in.walk <= kShortMasked && !has_rows_apart(in) &&
               !(in.rows ? is_better_as_rows(in)
                         : in_order(in.groups) && ColumnsPlan::has_common_mask(in));
      case Task::kSoftmax:
        return in.walk <= kShortSummed && !has_rows_apart(in);
    }
    return false;
  }

  // Of other tasks, whether groups that threads would share are those of columns that keep memory
  // busier: staged ones, and large ones of 32-bit sums by 16-byte loads.
  static bool is_better_as_columns(const PlanInput& in, const Plan& columns) {
    constexpr int64_t kLargeSummed = 300 << 20;
    if (columns.walk != Walk::kColumns) return false;
    return in.task == Task::kSoftmax
               ? columns.columns.vector && in.bytes == 4 && in.total >= kLargeSummed
               : columns.columns.staged;
  }

  // Whether 16-byte loads are of rows and of what there is beside their elements.
  static bool is_better_as_rows(const PlanInput& in) {
    return in.groups.reduced.count > 0 && in.rows_aligned() && in.along().stride == 1 &&
           in.along().mask_stride <= 1 && !in.has_few_loads();
  }

  // Rows of half a sector and more of which each is in sectors of its own: a warp's loads of one
  // element each would ask for as many. (Not where they would of a mask that lies across rows.)
  static bool has_rows_apart(const PlanInput& in) {
    if (!in.rows || in.groups.kept.count == 0 || in.groups.reduced.count == 0 ||
        in.along().stride != 1 || is_mask_sparse(in.along()))
      return false;
    const int64_t row = in.along().size, pitch = in.groups.kept.dim[0].stride;
    return 2 * row * in.bytes >= kSectorBytes && pitch >= 2 * row;
  }

  static bool make(const PlanInput& in, Plan& plan) {
    start(in, plan);
    Gather& gather = plan.gather;
    gather.packed = has_packs(in);
    gather.realigned = !gather.packed && has_packs_anywhere(in);
    gather.packed |= gather.realigned;
    if (is_shared(in)) {
      gather.units = 1;
      gather.shares = static_cast<int>(shares_of(in));
      plan.threads = static_cast<int>(
          std::clamp(gather.shares * kSharedGatherLanes, kThreads, kSharedGatherThreads));
      plan.blocks = ceil_div(units_of(gather, in.groups, in.bytes), plan.threads / gather.shares);
      return true;
    }
    const int across = in.tuning.gather_tiles != 0 ? dims_across(in.groups) : 0;
    if (across == 0) {
      by_results(in, plan);
      return true;
    }
    gather.row_loads = !gather.packed && has_row_loads(in);
    const Dims dims = by_step(in.groups.kept);
    const Dim cross = dims.dim[0];
    const Dim innermost = in.groups.kept.dim[0];
    int64_t crosses = 1, before = 1;  // units, of dims that are not across
    for (int d = 0; d < dims.count; ++d) {
      const Dim& dim = dims.dim[d];
      if (d < across) {
        crosses *= dim.size;
      } else if (0 < dim.stride && dim.stride < cross.stride) {
        before *= dim.step == innermost.step ? gather.units_of(dim, in.bytes) : dim.size;
      }
    }
    const int64_t inner =
        in.groups.outputs / crosses / innermost.size * gather.units_of(innermost, in.bytes);
    gather.copied = cross.stride == 0 && cross.mask_stride == 0;
    const bool is_large = !gather.copied && in.walk <= known_rows(in);
    int64_t most = is_large ? kMostTileUnits : kTileUnits;
    cut_tile(gather, in, inner, crosses, before, most);
    for (; most > kTileUnits && gather.shared_bytes(in.bytes) > kStaticSharedBytes; most /= 2)
      cut_tile(gather, in, inner, crosses, before, most / 2);
    plan.blocks = ceil_div(inner, gather.inner_side) * ceil_div(crosses, gather.cross_side);
    return gather.shared_bytes(in.bytes) <= kStaticSharedBytes && plan.blocks <= kMaxBlocks;
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const Gather& gather = plan.gather;
    if (gather.shared()) return shared_work(in, plan, traffic);
    const double width = outputs_of_unit(in, gather);
    const auto rows = static_cast<double>(in.walk);
    const auto dims = static_cast<double>(in.groups.kept.count);
    const double resident =
        std::min(static_cast<double>(plan.blocks) / static_cast<double>(in.multiprocessors), 8.) *
        kThreads * (gather.tiled() ? kTileUnits : gather.units) * width;
    const double sectors = sectors_read(in, gather, resident);
    // Millions of outputs, but of copies across a tile only one.
    const double computed =
        traffic.outputs / (gather.copied ? static_cast<double>(gather.cross_side) : 1);
    // Threads of tiles that are not whole have nothing to do.
    const double used =
        computed * 1e6 / static_cast<double>(plan.blocks * plan.threads * gather.units) / width;
    const bool known_size =
        in.walk <= (gather.tiled() ? kKnownRows : known_rows_of_units(in.bytes));
    const Apart apart = stored_apart(in, gather, traffic);
    const double at_once =
        known_size ? rows : std::min(rows, loads_at_once(in.bytes) / (gather.units > 1 ? 2. : 1.));
    const double in_flight_of_thread =
        sectors / rows * width * at_once * (gather.tiled() ? kTileUnits : gather.units) * used;
    const double of_row = gather.row_loads               ? 5
                          : in.bytes == 1                ? of_byte_row(in.walk)
                          : in.bytes == 2 && in.walk > 4 ? (in.stores.index ? 10 : kValueRow)
                                                         : 9;
    const double of_rows = (of_row + (gather.realigned ? kRealigned : 0)) * rows;
    // Of groups of which a kernel knows the size, fewer.
    const double known = !known_size ? 1 : gather.tiled() ? kKnownSizeTiled : kKnownSize;
    // What a thread does once; prices were fitted where it had one or two units. (Those of groups
    // that are tiled, by all their units, but for copied values.)
    const double once = (30 + 12 * dims) * std::min(1., 2. / gather.units);
    const double once_tiled = in.walk > 1 ? 40 : 40. * kTileUnits / gather.units;
    const double of_unit = gather.tiled() ? (once_tiled + kTiledRow * of_rows) * known / used
                                          : (once + of_rows + 15 * width) * known;
    const double of_result = gather.copied    ? kCopied * stores(in)
                             : gather.tiled() ? (20 + 10 * stores(in)) * known / used
                                              : 0;
    const bool read_once = gather.tiled() || stays_in_cache(in);
    // What lies beside what a warp asks for is delivered with it, and again when it is asked for.
    const double delivered = in_order(in.groups) ? sectors : by_warps(in, kBurstBytes);
    const double read = read_once ? traffic.read : std::max(traffic.read, delivered * computed);
    return {.read = read + apart.memory,
            .sectors = sectors * computed,
            .stores = apart.l2,
            .instructions = of_unit * computed / width + of_result * traffic.outputs,
            .in_flight = in_flight(in, plan, 8, in_flight_of_thread),
            .in_order = true,
            .extra = -1,
            .share = (plan.blocks < 2 * in.multiprocessors ? kFewBlocks : 1) *
                     (in.rows && in.walk > kShortRow ? kLongRow : 1) *
                     (1 + (gather.tiled() ? kLargeTiled : kLarge) *
                              (1 - std::exp(traffic.bytes / -60)))};
  }

  // Of groups that threads share.
  static Work shared_work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    const Gather& gather = plan.gather;
    const double width = outputs_of_unit(in, gather);
    const auto shares = static_cast<double>(gather.shares);
    const auto dims = static_cast<double>(in.groups.kept.count);
    const double rows = std::ceil(static_cast<double>(in.walk) / shares);  // of a thread
    const Dim inner = in.groups.kept.dim[0];
    const double lanes = std::min(32., plan.threads / shares) * width;
    const double sector =
        sectors_of(std::min(lanes, static_cast<double>(inner.size)),
                   static_cast<double>(inner.stride * in.bytes), in.bytes);  // of an element
    const double of_row = (in.bytes <= 2 ? 11 : 9) + (gather.realigned ? kRealigned : 0);
    const double of_unit = (60 + 12 * dims + 25 * width + of_row * rows) * shares + 60 * width;
    const double loads = std::min(rows, static_cast<double>(loads_at_once(in.bytes)));
    const int blocks = is_of_input(in) ? kSharedGatherBlocks : kSharedItemBlocks;
    return {.read = traffic.read,
            .sectors = sector * traffic.elements,
            .instructions = of_unit * traffic.outputs / width,
            .in_flight = in_flight(
                in, plan, static_cast<double>(blocks * kSharedGatherThreads) / plan.threads,
                sector * width * loads),
            .share = is_of_input(in) ? 1 : kSharedItems};
  }

 protected:
  static void start(const PlanInput& in, Plan& plan) {
    plan = in.empty_plan(Walk::kGather);
    keep_whole(plan, in);
    plan.threads = kThreads;
    plan.gather = {};
    plan.gather.shares = 1;
    plan.gather.masked = in.task == Task::kMasked;
  }

  // Whether packs of 4 bytes are of neighbouring outputs, and aligned.
  static bool has_packs(const PlanInput& in) {
    const Dims& kept = in.groups.kept;
    return in.bytes < 4 && kept.dim[0].stride == 1 && in.address_aligned(4) &&
           (kept.dim[0].size * in.bytes) % 4 == 0 && in.strides_aligned(kept, 1, 4) &&
           in.strides_aligned(in.groups.reduced, 0, 4);
  }

  // Whether there are packs of bytes that begin anywhere, which take two loads instead of four. (Of
  // 16 bits, two either way.)
  static bool has_packs_anywhere(const PlanInput& in) {
    const Dim& inner = in.groups.kept.dim[0];
    if (in.task == Task::kSoftmax || inner.mask_stride > 1 || in.tuning.realigned == 0 ||
        in.bytes != 1 || inner.stride != 1 || inner.size < kRealignedSide)
      return false;
    // With a mask, those of threads that share long groups alone, and not where there would be few.
    return is_of_input(in) || (in.walk > kGatherRows && in.groups.outputs / 4 * kGatherShares >=
                                                            in.multiprocessors * kFewSharedThreads);
  }

  // Results of a warp whose lanes lie over results in their order.
  static int64_t results_of_warp(const PlanInput& in) {
    return 32 * (has_packs(in) && has_neighbours_first(in.groups.kept) ? 4 / in.bytes : 1);
  }
  static bool has_neighbours_first(const Dims& kept) {
    return by_step(kept).dim[0].step == kept.dim[0].step;
  }

  // The sides of tiles of so many units and positions across, where the next position is behind
  // `before` units in memory, and how threads lie over them, with at most so many units each.
  static void cut_tile(Gather& gather, const PlanInput& in, int64_t inner, int64_t crosses,
                       int64_t before, int64_t most) {
    const int64_t positions = gather.copied ? 1 : crosses;
    // Larger tiles, for which a block finds its place once, where there are enough of them.
    int64_t units = kTileUnits;
    while (units < most &&
           inner * positions >= 2 * units * kThreads * in.tuning.tile_rounds * in.multiprocessors)
      units *= 2;
    const int64_t side = units > kTileUnits ? 2 * kWarp : kWarp;
    // Threads lie side by side in memory, as far as it goes.
    const bool is_short = before < kWarp;
    int64_t most_lanes = is_short ? before : std::min<int64_t>(inner, kThreads);
    // A sector of elements, where near bytes of the mask lie across.
    const bool crosses_mask =
        gather.masked && is_mask_across(in.groups.kept.dim[0], by_step(in.groups.kept).dim[0]);
    if (crosses_mask)
      most_lanes = std::min(most_lanes, kSectorBytes / in.bytes / gather.width(in.bytes));
    int64_t lanes, across;
    if (std::min<int64_t>(before, kWarp) * positions <= kThreads) {
      across = positions;
      lanes = std::min(most_lanes, kThreads / across);
    } else {
      // Of positions that are a few more than a tile has, tiles have about as many each.
      const int64_t even = round_up(ceil_div(crosses, ceil_div(crosses, side)), kEvenSide);
      across = ceil_div(even * 5 <= side * 4 ? even : std::min(side, crosses), units);
      // Of few units, more positions across, so many that results fill sectors.
      const int64_t beside = kThreads / std::min<int64_t>(inner, kThreads);
      if (across < beside) across = std::max(across, beside - beside % (kWarp / 2 / kTileUnits));
      if (is_short) across = std::min(across, kThreads / before);
      lanes = std::min(most_lanes, kThreads / across);
    }
    const int64_t high = is_short || crosses_mask
                             ? std::min(kThreads / (lanes * across), ceil_div(inner, lanes))
                             : 1;
    const bool along_cross = across < positions;
    const int64_t all = along_cross ? ceil_div(positions, across) : ceil_div(inner, lanes * high);
    units = std::min(units, round_up(all, kTileUnits));
    gather.units = static_cast<int>(units);
    gather.inner_lanes = static_cast<int>(lanes);
    gather.cross_lanes = static_cast<int>(across);
    gather.inner_side = static_cast<int>(lanes * high * (along_cross ? 1 : units));
    gather.cross_side = static_cast<int>(gather.copied ? std::min(crosses, kGatherCopies)
                                         : along_cross ? across * units
                                                       : across);
  }

  // Pieces of memory, of so many bytes, that hold an element of each of these results.
  static int64_t pieces_of_warp(const PlanInput& in, int64_t piece) {
    const Dims dims = by_step(in.groups.kept);
    int64_t pieces = 1, results = results_of_warp(in);
    for (int d = 0; d < dims.count && results > 1; ++d) {
      const int64_t taken = std::min(results, dims.dim[d].size);
      const int64_t pitch = dims.dim[d].stride * in.bytes;
      pieces *= pitch < piece ? (taken - 1) * pitch / piece + 1 : taken;
      results = ceil_div(results, taken);
    }
    return pieces;
  }

  // Whether L2 keeps what is read until all that lies in its sectors is read.
  static bool stays_in_cache(const PlanInput& in) {
    const Dims& kept = in.groups.kept;
    int64_t between = kept.dim[0].step;
    for (int d = 1; d < kept.count; ++d) {  // all of them: copies, of stride 0, come last
      if (kept.dim[d].stride * in.bytes < kSectorBytes)
        between = std::max(between, kept.dim[d].step);
    }
    const int64_t of_output = in.walk * in.bytes + static_cast<int64_t>(price::kIndexBytes);
    return static_cast<double>(between * of_output) * 1e-6 <= price::kOpen;
  }

  // Threads lie over results in their order.
  static void by_results(const PlanInput& in, Plan& plan) {
    Gather& gather = plan.gather;
    // Where packs begin anywhere, so do their results, which would be stored one by one.
    gather.packed &= !gather.realigned && has_neighbours_first(in.groups.kept);
    gather.realigned = false;
    gather.row_loads = !gather.packed && has_row_loads(in);
    gather.units = units_of_thread(in, gather);
    plan.blocks = ceil_div(threads_of(gather, in.groups, in.bytes), kThreads);
  }

 private:
  static int units_of_thread(const PlanInput& in, const Gather& gather) {
    const bool has_few = in.groups.outputs <= in.multiprocessors * in.tuning.gather_few;
    if (is_of_input(in)) {
      return has_few ? few_gather_units(in.walk, gather.packed, in.bytes)
                     : gather_units(in.walk, gather.packed, in.bytes);
    }
    return has_few || in.walk > item_unit_rows(gather.masked)
               ? 1
               : item_units(gather.packed, in.bytes, gather.masked);
  }

  // Of the time: where blocks do not fill multiprocessors; of large inputs, which loads that are
  // wider, or copies, keep memory busier with.
  static constexpr double kFewBlocks = 1.2, kLarge = 0.06, kLargeTiled = 0.15;
  // Of rows of more than so many elements, which lie far apart for the threads that go along them.
  static constexpr double kLongRow = 1.25;
  static constexpr int64_t kShortRow = 16;
  // Instructions, and shares of them where a kernel knows the size of groups; of an element of a
  // tile.
  static constexpr double kValueRow = 6;  // of a row of 16 bits of which the value alone counts
  static constexpr double of_byte_row(int64_t rows) {
    return rows == 1 ? 7 : rows <= kKnownRows ? 4 : 8;
  }
  static constexpr double kCopied = 8;  // of a copy that a tile stores, of an index or a value
  static constexpr double kKnownSize = 0.6, kKnownSizeTiled = 0.75, kTiledRow = 1.3;
  static constexpr int64_t kWarp = 32;
  static constexpr int64_t kEvenSide = 4;  // so that runs of results are aligned where they can be
  static constexpr double kRealigned = 7;  // of a row of a pack that begins anywhere
  static constexpr double kMostSharedThreads = 2048;  // of a multiprocessor
  static constexpr int64_t kFewSharedThreads = 512;
  static constexpr double kSharedItems = 0.75;  // of the time of shared groups of other tasks
  static constexpr double kApartMemory = 420;   // bytes of memory for a result that fills no sector
  static constexpr double kL1 = 250e3;          // bytes that L1 serves twice, as it turns out

  // Elements of a group that a thread has, at most, where others have the rest.
  static int64_t rows_of_share(const PlanInput& in) {
    return is_of_input(in) ? kSharedGatherRows : kSharedItemRows;
  }

  // Elements of a group that threads share. Of these types, what is longer under a mask is better
  // cut into parts, or read in packs of 16 bytes.
  static int64_t longest_shared(const PlanInput& in) {
    const bool is_limited = in.task == Task::kMasked && (in.bytes == 1 || in.bytes == 4);
    return is_limited ? kGatherShares * kSharedGatherRows : kGatherShares * rows_of_share(in);
  }

  // Threads to a group that is too long for one: so many that multiprocessors have about as many as
  // were measured to be best (64 random layouts on an H200), while each has more loads than are
  // worth sharing; and up to as many as find room at once, if each would have too many rows else.
  // Of other tasks than extremes at least two.
  static int64_t shares_of(const PlanInput& in) {
    const int64_t width = has_packs(in) || has_packs_anywhere(in) ? 4 / in.bytes : 1;
    const int64_t neighbours = in.groups.kept.dim[0].size;
    const int64_t units = in.groups.outputs / neighbours * ceil_div(neighbours, width);
    const auto of_share = static_cast<double>(units) / static_cast<double>(in.multiprocessors);
    // Of eight bytes a thread has fewer loads on their way.
    const double wanted = static_cast<double>(in.tuning.share_threads) * (in.bytes == 8 ? 1.5 : 1);
    int64_t shares = is_of_input(in) ? 1 : 2;
    const auto is_nearer = [&] {  // with twice as many
      const double threads = of_share * static_cast<double>(shares);
      return 2 * threads * threads <= wanted * wanted;
    };
    const auto is_needed = [&] {
      return in.walk > shares * rows_of_share(in) &&
             of_share * static_cast<double>(shares * 2) <= kMostSharedThreads;
    };
    while (shares < kGatherShares && shares * 2 <= in.walk &&
           in.walk > shares * in.tuning.share_loads && (is_nearer() || is_needed()))
      shares *= 2;
    return shares;
  }

  // Of results of tiles that fill no sectors: MB more of memory, and of L2.
  struct Apart {
    double memory = 0, l2 = 0;
  };
  static Apart stored_apart(const PlanInput& in, const Gather& gather, const Traffic& traffic) {
    Apart apart;
    if (!gather.tiled()) return apart;
    const Dims dims = dims_of(gather, in.groups, in.bytes), by_result = by_step(in.groups.kept);
    const int across = dims_across(in.groups);
    // Results that a tile stores side by side, and to their next row; outputs to others of the row.
    int64_t crosses = 1;
    for (int d = 0; d < across; ++d) crosses *= by_result.dim[d].size;
    int64_t run = std::min<int64_t>(gather.cross_side, crosses), pitch = crosses;
    int64_t between = 0;
    if (run < crosses) {
      const auto band = static_cast<int64_t>(static_cast<double>(kGatherBand * gather.inner_side) *
                                             outputs_of_unit(in, gather));
      between = std::min(in.groups.outputs / crosses, band) * run;
    }
    for (int i = across; i < dims.count && between == 0; ++i) {
      const Dim& dim = by_result.dim[i];
      int64_t before = 1;
      for (int d = 0; dims.dim[d].step != dim.step; ++d) before *= dims.dim[d].size;
      const auto side = static_cast<int64_t>(gather.inner_side * outputs_of_unit(in, gather));
      const int64_t taken = std::clamp<int64_t>(side / before, 1, dim.size);
      run *= taken;
      pitch *= dim.size;
      if (taken < dim.size) between = before * gather.cross_side;
    }
    if (between == 0) return apart;
    const auto runs = traffic.outputs / static_cast<double>(run);
    const double of_output = (traffic.read + traffic.written) / traffic.outputs;
    const bool kept_open = static_cast<double>(between) * 1e-6 * of_output <= price::kOpen;
    // (A value alone is priced as an index, as it was measured; but not copies of one.)
    const bool as_index = in.stores.index || !gather.copied;
    for (const int64_t bytes : {as_index ? int64_t(price::kIndexBytes) : in.bytes,
                                in.stores.count() > 1 ? in.bytes : 0}) {
      if ((run | pitch) * bytes % kSectorBytes == 0) continue;
      const double ends = run * bytes > kSectorBytes ? 2 * runs : runs;
      apart.l2 += ends * price::kStoreL2;
      if (!kept_open) apart.memory += ends * kApartMemory;
    }
    return apart;
  }

  static double outputs_of_unit(const PlanInput& in, const Gather& gather) {
    return static_cast<double>(in.groups.outputs) /
           static_cast<double>(units_of(gather, in.groups, in.bytes));
  }
  static double stores(const PlanInput& in) { return static_cast<double>(in.stores.count()); }

  // Whether the indices of rows follow each other as rows do, in the order of indices.
  static bool has_consecutive_indices(const Dims& reduced) {
    const Dims dims = by_step(reduced);
    for (int d = 1; d < dims.count; ++d) {
      if (dims.dim[d].step != dims.dim[d - 1].step * dims.dim[d - 1].size) return false;
    }
    return true;
  }

  static bool has_row_loads(const PlanInput& in) {
    const int64_t bytes = in.walk * in.bytes;
    return in.walk <= known_rows(in) && may_load_rows(in.walk, in.bytes) &&
           in.groups.reduced.count == 1 && in.along().stride == 1 && in.address_aligned(bytes) &&
           in.strides_aligned(in.groups.kept, 0, bytes);
  }

  // Bytes from the first to the last element of a run of a group, and how many runs it has.
  static std::pair<double, double> runs_of(const PlanInput& in) {
    const Dim along = in.groups.reduced.count > 0 ? in.along() : Dim{1, 0, 0};
    return {static_cast<double>((along.size - 1) * along.stride * in.bytes),
            static_cast<double>(in.walk / along.size)};
  }
  // Of an output, where warps lie over results: bytes of the pieces of memory that a warp asks for.
  // Elements of a run of a group that share one come from L1 after the first.
  static double by_warps(const PlanInput& in, int64_t piece) {
    const auto [run, runs] = runs_of(in);
    const double of_run = static_cast<double>(in.walk) / runs;
    return runs * std::min(of_run, 1 + run / static_cast<double>(piece)) *
           static_cast<double>(pieces_of_warp(in, piece) * piece) /
           static_cast<double>(results_of_warp(in));
  }

  // Of an output: bytes of the sectors that a warp asks for, where so many outputs are on their way
  // in a multiprocessor. What lies beside its units in memory is mostly for other warps of the
  // block.
  static double sectors_read(const PlanInput& in, const Gather& gather, double resident) {
    const Dims& kept = in.groups.kept;
    if (!gather.tiled() && !in_order(in.groups)) return by_warps(in, kSectorBytes);
    const auto [run, runs] = runs_of(in);
    const Dim inner = dims_of(gather, in.groups, in.bytes).dim[0];
    int64_t count = inner.size;
    for (int d = 0; d < kept.count; ++d) {
      if (kept.dim[d].stride == inner.stride * count) count *= kept.dim[d].size;
    }
    const auto lanes = static_cast<double>(std::min<int64_t>(32, count));
    const auto pitch = static_cast<double>(inner.stride * in.bytes);
    const double apart = static_cast<double>(in.walk) * sectors_of(lanes, pitch, in.bytes);
    const double reused =
        runs * (std::min(pitch, run + kSectorBytes) + run / lanes + kSectorBytes / lanes);
    // If L1 holds what all outputs need that are on their way.
    const double held = std::min(1., kL1 / (resident * reused));
    return std::min(apart, apart + (reused - apart) * held * held);
  }
};

// The same in the order of the results where tiles could go across both, if a warp's elements lie
// in few sectors: what else these hold is read by others soon.
struct GatherByResultsPlan : GatherPlan {
  static bool fits(const PlanInput& in) {
    // For each row a thread asks for as many sectors again, so for long groups fewer are few.
    const int64_t few = in.walk > kGatherRows ? kFewSectors / 2 : kFewSectors;
    return GatherPlan::fits(in) && !is_shared(in) && in.tuning.gather_tiles != 0 &&
           dims_across(in.groups) > 0 && stays_in_cache(in) &&
           pieces_of_warp(in, kSectorBytes) <= few;
  }

  static bool make(const PlanInput& in, Plan& plan) {
    start(in, plan);
    by_results(in, plan);
    return true;
  }

 private:
  static constexpr int64_t kFewSectors = 16;
};

}  // namespace reduceops::cuda
