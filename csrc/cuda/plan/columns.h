// columns.cu: a kept dim is innermost; any columns.
#pragma once

#include "cuda/plan/shifted_columns.h"

namespace reduceops::cuda {

struct ColumnsPlan {
  static bool fits(const PlanInput& in) { return !in.rows; }

  static bool usual(const PlanInput&) { return true; }

  static bool make(const PlanInput& in, Plan& plan) {
    if (!(has_common_mask(in) && make_listed(in, plan)) &&
        !(ShiftedColumns::fits(in) && ShiftedColumns::make(in, plan)))
      make(in, plan, false);
    plan.columns.pairs = takes_pairs(in, plan);
    return true;
  }

  // False where there is no room for lists, or for positions beside keys.
  static bool make_listed(const PlanInput& in, Plan& plan) {
    make(in, plan, true);
    const int64_t groups = kThreads / (plan.columns.lanes * plan.columns.shares);
    return has_room_for_pairs(plan, 1, in.bytes) && groups * plan.part_extent <= kMostListed;
  }

  // Of 32 bits it is no gain where nothing is combined and results are scattered.
  static bool takes_pairs(const PlanInput& in, const Plan& plan) {
    const ColumnsCut& cut = plan.columns;
    return (in.task == Task::kExtreme || cut.listed) &&
           has_room_for_pairs(plan, in.groups.reduced.count, in.bytes) &&
           (in.bytes <= 2 || cut.shares > 1 || cut.listed || cut.shifted || in_order(in.groups));
  }

  // `listed`: if the rows that take part are listed, the rest is as of the input alone.
  static void make(const PlanInput& in, Plan& plan, bool listed) {
    plan = in.empty_plan(Walk::kColumns);
    plan.columns = {};
    plan.threads = kThreads;
    const Dim& inner = in.inner();
    const bool unmasked = in.task == Task::kExtreme || listed;
    plan.columns.listed = listed;
    plan.columns.staged = !listed && is_staged(in);
    plan.columns.vector = !plan.columns.staged && in.columns_aligned(kLoadBytes);
    plan.columns.realigned =
        !plan.columns.staged && !plan.columns.vector && (listed || is_realigned(in));
    plan.columns.flat = in.has_flat_positions();
    const bool packs = plan.columns.vector || plan.columns.realigned;
    const int64_t full = in.multiprocessors * in.tuning.blocks_per_multiprocessor;
    const int64_t outer = in.groups.outputs / inner.size;
    int64_t columns = packs ? ceil_div(inner.size * in.bytes, kLoadBytes) : inner.size;
    if (plan.columns.staged) columns = 32 * ceil_div(inner.size * in.bytes, kSegmentBytes);
    // Whole warps of neighbouring columns, evenly cut.
    int64_t lanes = columns;
    if (columns > kThreads) lanes = round_up(ceil_div(columns, ceil_div(columns, kThreads)), 32);
    // Where neighbouring columns have no bytes of the mask near each other, but the next columns of
    // other groups do, or other elements, those are read together, with about eight columns each,
    // of each of which a warp reads a sector of the mask: a line of packs, or a sector of elements.
    constexpr int64_t kFew = 8;
    const bool masked = in.task == Task::kMasked && !listed;
    const bool along_mask = masked && is_mask_across(inner, in.groups.reduced.dim[0]);
    const bool in_lines =
        along_mask || (masked && is_mask_across(in.groups.axes.dim, in.groups.axes.count));
    const bool in_sectors = along_mask && !plan.columns.vector;
    // The same where these columns come again, with bytes of the mask between those of the first.
    const Dims& axes = in.groups.axes;
    const bool repeated = masked && !in_lines && are_columns_repeated(axes.dim, axes.count);
    if (in_lines || repeated) {
      const int64_t most = repeated && !packs ? std::max(kFew, 32 / axes.dim[1].size) : kFew;
      const int64_t cuts = packs || columns >= 2 * most ? 0 : columns <= most * 3 / 2 ? 1 : 2;
      lanes = cuts > 0 ? ceil_div(columns, cuts) : std::min(lanes, most);
    }
    // Threads to a column that read a sector of its mask, if each has more to do than to combine.
    constexpr int64_t kLong = 512;
    const int64_t mask_shares = in_sectors ? 32 / kFew : kSectorBytes;
    const bool shares_mask =
        along_mask && (in.groups.reduced.dim[0].mask_stride == 1 || in.walk >= kLong);
    // Too few columns to fill the GPU: threads share a column, if need be fewer columns side by
    // side.
    int64_t across = ceil_div(columns, lanes), shares = 1;
    // Where no ring takes large ones, several rounds of blocks even out what multiprocessors do.
    const bool rounds = !unmasked && !in_lines && !repeated && in.total >= in.tuning.bulk_bytes;
    const auto few = [&](int64_t blocks) {
      return outer * across * lanes * shares / kThreads < blocks;
    };
    // Fewer lanes than a warp's, whose packs still fill a line: worth it where so many more blocks
    // spare a second kernel, and for small types, which combine fast.
    const int64_t of_line = kLineBytes / kLoadBytes;
    const bool narrow = packs && unmasked && in.bytes <= 4 &&
                        (in.bytes <= 2 || outer * ceil_div(columns, of_line) >= in.multiprocessors);
    const int64_t resident = in.multiprocessors * packed_blocks(plan.columns.realigned);
    // Where the next element of a column lies in the same line or the next one: so many threads to
    // a long column that a warp's loads fill lines (up to 1.75 times as fast, of 90 random layouts
    // on an H200; columns that leave a thread fewer loads are slower).
    constexpr int64_t kLoadsOfLines = 48;
    const bool adjoining = packs && unmasked && in.along().stride * in.bytes <= kLineBytes;
    const auto fills_lines = [&] { return !adjoining || lanes * shares >= of_line; };
    for (; few(rounds ? in.tuning.column_rounds * full : full) || !fills_lines() ||
           (shares_mask && shares < mask_shares);
         shares *= 2) {
      const int64_t least = few(full) || along_mask ? in.tuning.column_loads
                            : !fills_lines()        ? kLoadsOfLines
                                                    : in.tuning.round_loads;
      if (in.walk < least * shares * 2) break;
      int64_t halved = lanes;
      if (lanes * shares * 2 > kThreads) {
        halved = lanes > 32 ? round_up(lanes / 2, 32) : ceil_div(lanes, 2);
        if (halved < (narrow ? of_line : 32)) break;
      }
      // A few blocks more than find room at once would run by themselves in the end.
      const int64_t tiles = outer * ceil_div(columns, halved);
      const int64_t blocks = ceil_div(tiles, kThreads / (halved * shares * 2));
      const bool limited =
          in.bytes <= 2 ? halved >= of_line : halved < std::min<int64_t>(lanes, 32);
      if (narrow && limited && blocks > resident) break;
      lanes = halved;
      across = ceil_div(columns, lanes);
    }
    if (!packs && !plan.columns.staged && !in_lines) {
      const Threads threads = one_by_one(in, outer, columns, {lanes, shares});
      lanes = threads.lanes;
      shares = threads.shares;
      across = ceil_div(columns, lanes);
      plan.threads = static_cast<int>(threads.of_block());
    } else if (packs && unmasked) {
      int64_t least = across == 1 ? 1 : 2;
      if (adjoining)
        least = std::max(least, std::min(ceil_div(of_line, lanes), in.walk / kLoadsOfLines));
      const Threads threads = packs_at_once(in, outer, columns, {lanes, shares}, least, plan);
      lanes = threads.lanes;
      shares = threads.shares;
      across = ceil_div(columns, lanes);
    }
    plan.columns.across = across;
    plan.columns.tiles = outer * across;
    if (plan.columns.staged || in_lines)  // no warp without a segment, or columns
      plan.threads = static_cast<int>(Threads{lanes, shares}.of_block());
    const int64_t units = ceil_div(plan.columns.tiles, plan.threads / (lanes * shares));
    // A second launch pays only where one leaves multiprocessors without a block, or most of memory
    // waiting, and much to do.
    int64_t wanted = 1;
    const int64_t loads = ceil_div(in.walk, shares);
    const auto bytes = static_cast<double>(in.total) * 1e-6;
    const int64_t of_thread = packs || unmasked ? 4 * kLoadBytes : item_loads(in) * in.bytes;
    const int64_t busy =
        packs || unmasked ? kThreads : plan.threads / (lanes * shares) * (lanes * shares);
    const double in_flight = static_cast<double>(units * busy * of_thread) * 1e-6;
    const bool waits =
        units < full && !plan.columns.staged && !in_lines &&
        bytes * (price::kLatency / in_flight - 1 / price::kMemory) > price::kWorkspace;
    if ((units < in.multiprocessors || waits) && loads >= in.tuning.split_loads)
      wanted = std::min({ceil_div(in.large() ? full : 2 * in.multiprocessors, units),
                         resident / units, loads / in.tuning.part_loads});
    cut(plan, in, wanted, 1);
    plan.columns.lanes = static_cast<int>(lanes);
    plan.columns.shares = static_cast<int>(shares);
    plan.blocks = units * plan.parts;
  }

  // How threads lie over columns.
  struct Threads {
    int64_t lanes, shares;
    int64_t groups() const { return kThreads / (lanes * shares); }
    int64_t of_block() const { return round_up(groups() * lanes * shares, 32); }  // whole warps
    int64_t blocks(int64_t outer, int64_t columns) const {
      return ceil_div(outer * ceil_div(columns, lanes), groups());
    }
  };

  static constexpr double kWorthwhile = 0.8;  // of the time

  // Loads of a thread, and blocks that find room beside them, of elements one by one.
  // (Of sums of 64 bits, which wait for exponentials, as many as if loads were all.)
  static int64_t item_loads(const PlanInput& in) {
    return column_loads(in.bytes, false) / (in.task == Task::kSoftmax && in.bytes < 8 ? 2 : 1);
  }
  static int64_t item_blocks(const PlanInput& in) {
    return in.task == Task::kSoftmax && in.bytes == 8 ? 3 : column_blocks(in.bytes, false);
  }

  // Microseconds of blocks that run at once and wait for their loads, so many of a thread at a
  // time.
  static double of_wave(const PlanInput& in, const Threads& t, int64_t loads) {
    constexpr double kBlock = 1.5;
    return static_cast<double>(ceil_div(ceil_div(in.walk, t.shares), loads)) * price::kLatency +
           kBlock;
  }

  // Where columns fill no line, but those of neighbouring groups lie in it, too: so few threads to
  // a column that a block has as many groups as a line, if blocks still fill the GPU, or are so few
  // that they are cut into parts.
  static int64_t shares_beside_neighbours(const PlanInput& in, int64_t outer, int64_t columns,
                                          Threads usual) {
    const Dims& axes = in.groups.axes;
    const int64_t pitch = axes.count > 1 ? axes.dim[1].stride * in.bytes : 0;
    if (in.task != Task::kExtreme || pitch == 0 || pitch > kBurstBytes ||
        axes.dim[1].size * pitch < kLineBytes || usual.lanes != columns ||
        in.along().stride * in.bytes <= pitch)
      return usual.shares;
    int64_t best = usual.shares;
    for (Threads t = usual; t.groups() * pitch < kLineBytes && t.shares > 1;) {
      t.shares /= 2;
      const int64_t blocks = ceil_div(outer, t.groups());
      if (blocks < in.multiprocessors || blocks >= 2 * in.multiprocessors) best = t.shares;
    }
    return best;
  }

  // Of elements that are loaded one by one: what takes time is to wait for them. Blocks that find
  // no room at once take as long again, and so do lanes that lie beside the last column. So columns
  // are cut less, and shared by more threads or fewer, where that saves a fifth.
  static Threads one_by_one(const PlanInput& in, int64_t outer, int64_t columns, Threads usual) {
    const int64_t most_loads = item_loads(in);
    const auto blocks = [&](const Threads& t) { return t.blocks(outer, columns); };
    const auto waves = [&](const Threads& t) {
      const int64_t room = item_blocks(in) * kThreads / t.of_block();
      return ceil_div(blocks(t), in.multiprocessors * room);
    };
    const auto time = [&](const Threads& t) {
      return static_cast<double>(waves(t)) * of_wave(in, t, most_loads);
    };
    // Threads to one that has a column: of few blocks, which are cut into parts that fill the GPU.
    const auto idle = [&](const Threads& t) {
      return static_cast<double>(blocks(t) * t.of_block()) /
             static_cast<double>(outer * columns * t.shares);
    };
    const int64_t beside = shares_beside_neighbours(in, outer, columns, usual);
    if (beside < usual.shares) return {usual.lanes, beside};
    if (waves(usual) == 1 && idle(usual) < 1 / kWorthwhile) return usual;
    const bool few = blocks(usual) < in.multiprocessors;
    if (few && in.task != Task::kExtreme) return usual;  // whose candidates may be too many
    const auto cost = [&](const Threads& t) { return few ? idle(t) : time(t); };
    Threads best = usual;
    double least = kWorthwhile * cost(usual);
    for (const int64_t lanes : {usual.lanes, std::min<int64_t>(columns, kThreads)}) {
      // Where threads are alone with their columns, the results of a block follow each other.
      for (int64_t shares = lanes < columns ? 2 : 1; lanes * shares <= kThreads; shares *= 2) {
        const Threads other{lanes, shares};
        if (in.walk < in.tuning.column_loads * shares) break;
        if ((blocks(other) < in.multiprocessors) != few || cost(other) > least) continue;
        least = cost(other);
        best = other;
      }
    }
    return best;
  }

  // Of packs, fewer threads to a column where blocks find room at once then, or more of them, if
  // need be of fewer columns, where a few blocks are left in the end, which memory has to wait for
  // (1.09 times as fast, of 58 random layouts on an H200).
  static Threads packs_at_once(const PlanInput& in, int64_t outer, int64_t columns, Threads usual,
                               int64_t least, const Plan& plan) {
    constexpr double kWorthSharing = 0.9;                               // of the time
    const bool packed = in.bytes <= 4 && in.groups.reduced.count == 1;  // packed_columns.cuh
    const int64_t room =
        in.multiprocessors * (packed ? packed_blocks(plan.columns.realigned)
                                     : column_blocks(in.bytes, plan.columns.vector));
    const int64_t loads = packed ? kPackedLoads : column_loads(in.bytes, plan.columns.vector);
    const auto blocks = [&](const Threads& t) { return t.blocks(outer, columns); };
    const auto time = [&](const Threads& t) {
      return static_cast<double>(ceil_div(blocks(t), room)) * of_wave(in, t, loads);
    };
    // Where threads are alone with their columns, the results of a block follow each other.
    if (2 * usual.lanes > kThreads) least = 1;
    Threads fewer = usual;
    while (fewer.shares > least && blocks(fewer) > room) fewer.shares /= 2;
    const bool fill = blocks(fewer) >= in.multiprocessors;
    if (fill && time(fewer) <= kWorthwhile * time(usual)) return fewer;
    if (!plan.columns.vector || blocks(usual) <= room) return usual;
    const double read = static_cast<double>(in.total) * 1e-6 / price::kMemory;
    const auto time_of_all = [&](const Threads& t) {
      const double of_block = read / static_cast<double>(blocks(t));
      const auto of = [&](int64_t count) { return of_block * static_cast<double>(count); };
      return static_cast<double>(blocks(t) / room) * std::max(of_wave(in, t, loads), of(room)) +
             of(blocks(t) % room) + wait_of_last(in, t, loads, blocks(t), room, read);
    };
    Threads best = usual;
    double shortest = kWorthSharing * time_of_all(usual);
    for (Threads more = usual;;) {
      more.shares *= 2;
      if (in.walk < 3 * loads * more.shares) break;
      if (more.lanes * more.shares > kThreads) {
        if (more.lanes <= 32) break;
        more.lanes = round_up(more.lanes / 2, 32);
      }
      if (time_of_all(more) >= shortest) continue;
      best = more;
      shortest = time_of_all(more);
    }
    return best;
  }

  // Long columns of 32 bits under a mask whose bytes lie as they do; of other types and of shorter
  // ones this is slower. The last block of the mask is copied byte by byte if it is not whole,
  // which may be one that many rows need.
  static bool is_staged(const PlanInput& in) {
    const Dim& inner = in.inner();
    if (in.task != Task::kMasked || in.bytes != 4 || inner.stride != 1 || inner.mask_stride != 1)
      return false;
    const int64_t mask_bytes =
        reach(in.groups.axes, &Dim::mask_stride) + reach(in.groups.reduced, &Dim::mask_stride) + 1;
    return in.walk >= in.tuning.staged_walk && mask_bytes % kLoadBytes == 0 &&
           inner.size * in.bytes >= kSegmentBytes && in.large();
  }

  // Whether a mask is the same for all columns of a row, of which packs are not nearly empty. (Of
  // 32 bits it takes long columns or long rows until it pays to list these.)
  static bool has_common_mask(const PlanInput& in) {
    constexpr int64_t kLong = 128, kLongRow = 512;
    const Dim& inner = in.inner();
    const int64_t row = inner.size * in.bytes;
    return in.task == Task::kMasked && in.groups.reduced.count == 1 && inner.stride == 1 &&
           inner.mask_stride == 0 && row > kSectorBytes &&
           (in.tuning.realigned != 0 || in.columns_aligned(kLoadBytes)) &&
           (in.bytes <= 2 || (in.bytes == 4 && (in.walk >= kLong || row >= kLongRow)));
  }

  // Packs of neighbouring columns that begin anywhere: of small types, for a load of four bytes by
  // each lane is as good, if that is all it loads and does. Under a mask, and of a sum, packs keep
  // fewer loads in flight: longer columns than these were measured to be slower so.
  static bool has_realigned_packs(const PlanInput& in) {
    constexpr int64_t kMasked = 160, kSummed = 4;
    switch (in.task) {
      case Task::kExtreme:
        return in.bytes <= 2;
      case Task::kMasked:
        return in.bytes == 1 || (in.bytes == 4 && in.walk < kMasked && in.large());
      default:
        return in.bytes <= 4 && in.walk <= kSummed;
    }
  }
  // Of long narrow columns packs would be nearly empty.
  static bool is_realigned(const PlanInput& in) {
    const Dim& inner = in.inner();
    return inner.stride == 1 && inner.mask_stride <= 1 && has_realigned_packs(in) &&
           in.tuning.realigned != 0 &&
           (inner.size * in.bytes > kSectorBytes ||
            (in.walk <= 4 && in.bytes <= 2 && in.task != Task::kSoftmax));
  }

  // Microseconds that the last blocks, fewer than find room at once, wait for their loads while
  // memory, which takes `read` for all blocks, has little to do.
  static double wait_of_last(const PlanInput& in, const Threads& t, int64_t loads, int64_t blocks,
                             int64_t room, double read) {
    const int64_t last = blocks % room;
    if (blocks < room || last == 0) return 0;
    const double part = static_cast<double>(last) / static_cast<double>(blocks);
    return std::max(0., of_wave(in, t, loads) - read * part);
  }

  static Work work(const PlanInput& in, const Plan& plan, const Traffic& traffic) {
    if (plan.columns.shifted) return ShiftedColumns::work(in, plan, traffic);
    const bool packed = plan.columns.pairs && in.bytes <= 2;
    const double resident = packed ? packed_blocks(plan.columns.realigned)
                                   : column_blocks(in.bytes, plan.columns.vector);
    const int64_t loads =
        std::min<int64_t>(packed ? kPackedLoads : column_loads(in.bytes, plan.columns.vector),
                          ceil_div(plan.part_extent, plan.columns.shares));
    const double shares = traffic.outputs * static_cast<double>(plan.columns.shares * plan.parts);
    // The last blocks leave multiprocessors idle.
    const double waves =
        static_cast<double>(plan.blocks) / (resident * static_cast<double>(in.multiprocessors));
    // A few rounds of loads of a column's only thread: it waits for each.
    const int64_t extent = plan.part_extent;
    const double rounds = plan.columns.shares == 1 && 2 * loads < extent && extent <= 64 ? 1.08 : 1;
    const double read = traffic.read * (1 + 0.03 / std::max(1., waves)) * rounds;
    double extra = plan.columns.shares > 1 ? 2 : 1;
    if (plan.columns.vector && plan.parts == 1) {
      const int64_t room = in.multiprocessors * static_cast<int64_t>(resident);
      extra += wait_of_last(in, {plan.columns.lanes, plan.columns.shares}, loads, plan.blocks, room,
                            traffic.read / price::kMemory);
    }
    // Over several dims it takes divisions to find the next run, which is that of the next element
    // if runs are short.
    const int dims = in.groups.reduced.count;
    const double next_run =
        dims > 1 ? price::kSameRun + price::kNextRun * dims *
                                         std::min(1., static_cast<double>(plan.columns.shares) /
                                                          static_cast<double>(in.along().size))
                 : 0;
    const double results = of_bytes(price::kColumnResult, in.bytes) * shares;
    if (packed) {
      const double width = static_cast<double>(in.elements_of_load());
      const auto columns = static_cast<double>(in.inner().size);
      const double packs = std::ceil(columns / width) / columns;  // for a column
      const double joining = plan.columns.realigned ? price::kRealigning : 0;
      // A ring is faster, for its price, on long columns of large inputs: of 8 bits, and of 16
      // where many threads share a column.
      const bool many = in.bytes == 1 || (plan.columns.shares >= 16 && plan.parts == 1);
      const bool long_columns = plan.columns.realigned && many && in.walk >= price::kLongColumn &&
                                in.total >= in.bytes * price::kLongColumns;
      return {.read = read,
              .sectors = traffic.bytes +
                         (plan.columns.realigned ? traffic.elements / columns * kSectorBytes : 0),
              .instructions = (of_bytes(price::kPackedColumn, in.bytes) * width + joining) * packs *
                                  traffic.elements +
                              price::kPackedShare * packs * shares +
                              price::kPackedResult * traffic.outputs,
              .in_flight = in_flight(in, plan, resident, loads * kLoadBytes),
              .extra = extra,
              .share = long_columns ? 1.2 : 1};
    }
    if (plan.columns.vector)
      return {.read = read,
              .sectors = traffic.bytes,
              .instructions =
                  of_bytes(price::kColumn, in.bytes) * traffic.elements +
                  price::kShareOfLoad * shares * static_cast<double>(in.bytes) / kLoadBytes +
                  results,
              .in_flight = in_flight(in, plan, resident, loads * kLoadBytes),
              .extra = extra};
    if (plan.columns.realigned) {
      // The last pack of a row is not full, and each takes instructions of its own.
      const double width = static_cast<double>(in.elements_of_load());
      const auto columns = static_cast<double>(in.inner().size);
      const double packs = std::ceil(columns / width) / columns;  // for a column
      return {.read = read,
              .sectors = traffic.bytes + traffic.elements / columns * kSectorBytes,
              .instructions =
                  (of_bytes(price::kColumn, in.bytes) * width + price::kRealigning + next_run) *
                      packs * traffic.elements +
                  price::kShareOfLoad * shares * packs + results,
              .in_flight = in_flight(in, plan, in.bytes == 1 ? 2 : 3, 4 * kLoadBytes),
              .extra = extra};
    }
    // Lanes that lie beside the last column take as long as others.
    const double idle = static_cast<double>(plan.columns.across * plan.columns.lanes) /
                        static_cast<double>(std::max<int64_t>(1, in.inner().size));
    const double of_element = price::kScalarColumn + next_run;
    const double sector = sectors_of(std::min(32, plan.columns.lanes),
                                     static_cast<double>(in.inner().stride * in.bytes), in.bytes);
    return {.read = read,
            .sectors = traffic.elements * sector,
            .instructions = of_element * idle * traffic.elements + price::kScalarShare * shares,
            .in_flight = in_flight(in, plan, resident, static_cast<double>(loads) * sector),
            .extra = extra};
  }
};

}  // namespace reduceops::cuda
