// How a reduction is cut into work items for the CPU: which walk, and how many parts of the reduced
// extent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/limits.h"
#include "cpu/mask_order.h"
#include "cpu/price.h"
#include "narrow.h"

namespace reduceops::cpu {

enum class Walks { kRows, kColumns, kGather };  // of a gather, all outputs are columns

struct Plan {
  Walks walk;
  bool copies;          // rows are copied, run behind run, in the order of the index
  int64_t tile;         // columns per unit; 1 for rows
  int64_t tiles;        // units along the columns
  int64_t units;        // outputs (rows) or tiles (columns)
  int64_t parts;        // of the reduced extent; their candidates are combined afterwards
  int64_t part_extent;  // reduced positions in a part
  int64_t grain;        // items (units x parts) per thread at least
  bool by_parts;        // items are all units of a part, then those of the next, not the other way
  bool folds;           // several rows of the columns may count as one (columns.h)
  // Where reduced dims are crossed (crossed_groups): into how many columns each output is split,
  // and how many slices of the outputs are reduced one after the other; this is the plan of the
  // first.
  int64_t columns = 1, slices = 1;
  bool hides = false;   // a mask is left to the results (hides_groups)
  bool orders = false;  // a mask is copied into the order of the input (mask_order.h)
  bool stays = false;   // the runs of a gather are long, and read where they lie
};

// The groups where the innermost `count` reduced dims are crossed: each position along them is a
// column of its own, reduced over the other dims, and these columns are combined afterwards. So
// memory is read in its order where that is not the index's. The steps of kept dims count
// candidates: of each output, all columns one after the other.
inline Groups crossed_groups(const Groups& groups, int count) {
  Groups crossed;
  int64_t columns = 1;
  for (int d = 0; d < groups.reduced.count; ++d) {
    Dim dim = groups.reduced.dim[d];
    if (d >= count) {
      insert(crossed.reduced, dim, &Dim::step);
      continue;
    }
    dim.step = columns;
    columns *= dim.size;
    insert(crossed.kept, dim);
  }
  int64_t step = columns;
  for (int d = 0; d < groups.kept.count; ++d) {
    Dim dim = groups.kept.dim[d];
    dim.step = step;
    step *= dim.size;
    insert(crossed.kept, dim);
  }
  crossed.outputs = step;
  crossed.extent = groups.extent;
  merge_kept(crossed);
  return crossed;
}

// Kept dims along which nothing is read, but a mask differs, are the outermost where the others are
// columns then. (As the innermost they make rows, of which each is read once for all of them.)
inline void put_unread_outermost(Groups& groups) {
  Dims& kept = groups.kept;
  if (kept.count < 2 || kept.dim[0].stride != 0) return;
  Groups moved = groups;
  std::stable_partition(moved.kept.dim, moved.kept.dim + kept.count,
                        [](const Dim& dim) { return dim.stride != 0; });
  merge_kept(moved);
  if (!is_rows(moved)) groups = moved;
}

// How groups are to be walked, and what that would take.
struct Choice {
  Walks walk;
  bool copies;  // rows are copied, run behind run, in the order of the index
  double price;
};

// Whether the outputs are rows of several runs, and between two runs of one lie those of all
// others.
inline bool are_in_turns(const Groups& groups) {
  const Dims &kept = groups.kept, &reduced = groups.reduced;
  return is_rows(groups) && reduced.count > 1 && is_ordered(reduced) &&
         kept.dim[kept.count - 1].stride < reduced.dim[1].stride;
}

// Whether enough results follow each other of `width` outputs that follow each other in memory:
// more where all of them would go to the same sets of a cache.
inline bool are_results_together(const Groups& groups, int64_t width) {
  const Dims& kept = groups.kept;
  int64_t line = 1;
  for (int d = 0; d < kept.count; ++d) {
    if (kept.dim[d].stride != line * groups.axes.dim[0].stride || line > kGatherColumns) break;
    if (kept.dim[d].step == 1) {
      const int64_t least = kResultsTogether * (kept.dim[0].step % kSameSets == 0 ? 4 : 1);
      return std::min(kept.dim[d].size, width / line) >= least;
    }
    line *= kept.dim[d].size;
  }
  return false;
}

// Whether the outputs are neighbours in memory that are walked where they lie. Where windows move,
// neighbouring elements of a row are those of neighbouring outputs, too: they are columns if they
// are short or have several dims, and where windows stay, so that only marks differ. Results that
// lie apart, each by itself, are as much to write as the elements are to read.
inline bool are_columns(const Groups& groups, int64_t walk, int64_t bytes) {
  const Dim inner = groups.axes.dim[0];
  const bool scatters =
      walk <= kScatterWalk && !in_order(groups) && !are_results_together(groups, tile_of(bytes));
  const bool windows =
      groups.reduced.count > 1 || walk * bytes <= kWindowBytes || groups.reduced.dim[0].stride == 0;
  return inner.stride == 1 && inner.mask_stride <= 1 && !scatters && (windows || !is_rows(groups));
}

// The cheapest walk. There are reduced dims. `row_price` is what each row takes besides.
inline Choice cheapest(const Groups& groups, int64_t walk, int64_t bytes, bool softmax,
                       double row_price = 0) {
  const price::Rows rows = price::rows(groups, walk, bytes, softmax);
  const bool copies = rows.copied <= rows.in_runs;
  const double whole = copies ? rows.copied : rows.in_runs;
  Choice best{Walks::kRows, copies, whole + groups.outputs * row_price};
  if (groups.kept.count == 0) return best;
  const double gather = price::gather(groups, walk, bytes);
  if (gather < best.price) best = {Walks::kGather, false, gather};
  if (!are_columns(groups, walk, bytes)) return best;
  const double columns = price::columns(groups, walk, bytes, softmax);
  return columns < best.price ? Choice{Walks::kColumns, false, columns} : best;
}

// The same, where what is plain needs no prices and gets none.
inline Choice choose(const Groups& groups, int64_t walk, int64_t bytes, bool softmax) {
  if (groups.reduced.count == 0) return {Walks::kRows, false, 0};
  if (groups.reduced.count == 1) {
    const Dim down = groups.reduced.dim[0];
    if (groups.kept.count == 0 && down.stride == 1) return {Walks::kRows, false, 0};
    if (groups.kept.count > 0) {
      const Dim across = groups.axes.dim[0];
      if (down.stride == 1 && down.size * bytes >= kPlainBytes && !price::are_marks_across(groups))
        return {Walks::kRows, false, 0};
      if (across.size * bytes >= kPlainBytes && are_columns(groups, walk, bytes))
        return {Walks::kColumns, false, 0};
    }
  }
  return cheapest(groups, walk, bytes, softmax);
}

// The cheapest walk of crossed columns, or of a slice of them, of which rows are reduced one by
// one.
inline Choice choose_crossed(const Groups& groups, int64_t walk, int64_t bytes) {
  return cheapest(groups, walk, bytes, false, price::kCrossedRow);
}

// How many elements are worth a thread, and from how many on there is work for more than one. By
// the price of their walk; what is plain has no price and takes as long as its lines and results.
// Of what a price does not tell, by their bytes: of exponentials, marks and products of 16 bits.
struct ThreadWork {
  int64_t of_one, of_several;
};
inline ThreadWork thread_work(const Groups& groups, const Choice& choice, int64_t walk,
                              int64_t bytes, bool unpriced) {
  if (unpriced) return {kGrainBytes / bytes, kGrainBytes / bytes + 1};
  const double plain = bytes * price::kLine / kCopyBytes + price::result(groups) / walk;
  const double each = std::max(choice.price / (groups.outputs * walk), plain);
  const auto worth = static_cast<int64_t>(kThreadNanoseconds / each) + 1;
  return {worth, 2 * worth};
}

// Slices of the outputs whose candidates have room at once, where reduced dims are crossed: some
// positions of one kept dim, and one of each that lies outside it.
struct Slices {
  int dim;        // the kept dim that is cut; the number of kept dims where none is
  int64_t most;   // positions of that dim in a slice, at most
  int64_t count;  // of slices
};
inline Slices slices_of(const Groups& groups, int crossed, int64_t room) {
  const Dims &kept = groups.kept, &reduced = groups.reduced;
  const int64_t most = room / kCandidateBytes;
  int64_t candidates = 1;
  for (int d = 0; d < crossed; ++d) candidates *= reduced.dim[d].size;
  Slices slices{0, 1, 1};
  int& d = slices.dim;
  for (; d < kept.count && kept.dim[d].size <= most / candidates; ++d)
    candidates *= kept.dim[d].size;
  if (d == kept.count) return slices;
  slices.most = most / candidates;
  slices.count = ceil_div(kept.dim[d].size, slices.most);
  for (int outer = d + 1; outer < kept.count; ++outer) slices.count *= kept.dim[outer].size;
  return slices;
}

// The groups of the first slice.
inline Groups first_slice(Groups groups, const Slices& slices) {
  while (groups.kept.count > slices.dim + 1) shorten(groups, groups.kept.count - 1, 1);
  if (groups.kept.count > slices.dim) shorten(groups, slices.dim, slices.most);
  return groups;
}

// How many of the reduced dims are crossed, the innermost first, where the groups would else be
// walked for `price`. `bools`: rows of them end where they find one, by half on the average.
inline int crossed_dims(const Groups& groups, int64_t bytes, bool bools, double price,
                        int64_t room) {
  const Dims& reduced = groups.reduced;
  double least = bools && is_ordered(reduced) ? price / 2 : price;
  int best = 0;
  int64_t columns = 1;
  const int64_t extent = walk_extent(reduced);
  for (int count = 1; count < reduced.count && least > price::kSlice; ++count) {
    columns *= reduced.dim[count - 1].size;
    const int64_t walk = extent / columns;
    if (columns > room / kCandidateBytes || walk < kCrossedWalk) break;
    const Slices slices = slices_of(groups, count, room);
    // Not where slices of what lies between the columns would each read all of it.
    const Dim last = reduced.dim[count - 1];
    if (slices.count > 1 && groups.kept.dim[slices.dim].stride < last.stride * last.size) break;
    const Groups slice = first_slice(groups, slices), crossed = crossed_groups(slice, count);
    const Choice choice = choose_crossed(crossed, walk, bytes);
    const double candidates = static_cast<double>(groups.outputs) * columns;
    const double crossing = choice.price / crossed.outputs * candidates +
                            candidates * price::kCandidate + groups.outputs * price::kCombined +
                            slices.count * price::kSlice;
    if (crossing < least) least = crossing, best = count;
  }
  return best;
}

// Where results do not follow each other as the groups do, a gather goes over runs of neighbours in
// memory, and of those over the results that follow each other, so that a tile has neighbours of
// both kinds: first the innermost dims, of the last of them some positions, then the other dims as
// the results have them, then what is left of the one that is cut. `copies`: runs are copied, as
// under a mask, even where they are long.
struct GatherOrder {
  int dims;       // of a run; 0 where the groups stay as they are
  int64_t along;  // positions of the last of them, all or as many as fit
};
inline GatherOrder gather_order(const Groups& groups, int64_t walk, int64_t bytes, bool copies) {
  const Dims& kept = groups.kept;
  if (in_order(groups) || walk > kOrderedWalk) return {0, 1};
  int64_t across = 1;  // results that follow each other
  const Dims results = by_step(kept);
  for (int d = 0; d < results.count && results.dim[d].step == across; ++d)
    across *= results.dim[d].size;
  // The positions of a run that leave room for neighbours among the results.
  const auto longest = [&](int64_t columns, int64_t along) {
    return std::max(along, columns / std::min(across, columns / along));
  };
  const int64_t copied =
      longest(kGatherColumns, std::clamp(kGatherRunBytes / bytes, kGatherAlong / 2, kGatherAlong));
  const int64_t lanes = kCopyBytes / bytes;
  const int64_t most =
      copies || kept.dim[0].stride != 1 || groups.axes.dim[0].size * bytes < kLeastStayingBytes
          ? copied
          : longest(staying_columns(bytes), kStayingRunBytes / bytes) / lanes * lanes;
  int64_t run = 1;
  for (int d = 0; d < kept.count; ++d) {
    const Dim dim = kept.dim[d];
    if (dim.step == 1) return {0, 1};  // they are neighbours among the results too
    const bool adjacent =
        dim.stride == kept.dim[0].stride * run && dim.mask_stride == kept.dim[0].mask_stride * run;
    const bool near = dim.step < kResultsTogether;
    if (d > 0 && !(adjacent && run < (near ? copied : most))) return {d, kept.dim[d - 1].size};
    if (run * dim.size > 2 * most) return {d + 1, most / run};
    run *= dim.size;
  }
  return {0, 1};
}

// Positions of a dim of that size that make whole runs.
inline int64_t whole_runs(int64_t size, const GatherOrder& order) {
  return size / order.along * order.along;
}

// The groups in this order, in which a dim is cut where `along` divides it.
inline void order_for_gather(Groups& groups, const GatherOrder& order) {
  if (!order.dims) return;
  Dims& kept = groups.kept;
  Dim& last = kept.dim[order.dims - 1];
  std::sort(kept.dim + order.dims, kept.dim + kept.count,
            [](const Dim& a, const Dim& b) { return a.step < b.step; });
  if (last.size > order.along && last.size % order.along == 0 && kept.count < kMaxDims) {
    kept.dim[kept.count++] = {last.size / order.along, last.stride * order.along,
                              last.step * order.along, last.mask_stride * order.along};
    last.size = order.along;
  }
  merge_axes(groups);
}

// How to reduce over the dims that are not crossed; where that is by gathering, in its order.
inline Choice order_crossed(Groups& crossed, int64_t bytes, bool masked) {
  const int64_t walk = walk_extent(crossed.reduced);
  const Choice choice = choose_crossed(crossed, walk, bytes);
  if (choice.walk == Walks::kGather)
    order_for_gather(crossed, gather_order(crossed, walk, bytes, masked));
  return choice;
}

// Into how many parts, `least` or more, each of `units` is cut: for each of the threads to have
// work, and all of them about as much as far as `most` parts achieve that.
inline int64_t useful_parts(int64_t units, int64_t threads, int64_t least, int64_t most) {
  const auto idle = [&](int64_t parts) {  // of what all threads could do meanwhile
    const int64_t items = units * parts;
    return 1 - static_cast<double>(items) / static_cast<double>(ceil_div(items, threads) * threads);
  };
  constexpr double kLittle = 1. / (kItemsOfThread + 1);
  int64_t best = std::max(least, threads / units);
  for (int64_t parts = best;
       idle(best) > kLittle && parts < most && units * parts < kItemsOfThread * threads;) {
    if (idle(++parts) < idle(best)) best = parts;
  }
  return best;
}

// The sums of softmax_max depend on the parts, on folding and on the tiles of a gather. So these
// follow from the shape alone: as if there were so many threads.
constexpr int64_t kSoftmaxThreads = 128;

// `walk` is the number of positions a walk over the reduced dims visits; `room`: bytes for
// candidates.
inline Plan make_plan(const Groups& groups, const Choice& choice, int64_t walk, int64_t bytes,
                      int64_t threads, ThreadWork work, bool masked, bool softmax, int64_t room) {
  Plan plan{};
  plan.walk = choice.walk;
  plan.copies = choice.copies;
  const int64_t elements = groups.outputs * walk;
  const auto useful_of = [&](int64_t threads) {
    return std::clamp<int64_t>(elements / work.of_one, 1, threads);
  };
  const int64_t useful = useful_of(softmax ? kSoftmaxThreads : threads);
  plan.tile = plan.tiles = 1;
  plan.units = groups.outputs;
  const bool gathers = choice.walk == Walks::kGather;
  const int64_t inner = choice.walk == Walks::kColumns ? groups.axes.dim[0].size : groups.outputs;
  const int64_t outer = groups.outputs / inner;
  // Tiles of up to `most` columns, all about as wide, of which each is there so many `times`:
  // narrower ones where threads would have no work, or less than others; but only so many narrow
  // ones as `parts` of the reduced extent leave threads without work.
  const auto cut = [&](int64_t most, int64_t times, int64_t threads, int64_t parts = 1) {
    const int64_t least = ceil_div(inner, most), lanes = kCopyBytes / bytes;
    const int64_t balanced = inner * bytes / kBalancedTileBytes;
    const int64_t narrow =
        std::min(ceil_div(inner * bytes, kMinTileBytes), ceil_div(threads, times * parts));
    const int64_t tiles = std::min(useful_parts(times, threads, least, balanced),
                                   std::max({least, balanced, narrow}));
    plan.tile = ceil_div(ceil_div(inner, tiles), lanes) * lanes;
    plan.tiles = ceil_div(inner, plan.tile);
    plan.units = outer * plan.tiles;
  };
  if (gathers) {
    constexpr int64_t kWhole = kCopyBytes;  // so that a tile has whole vectors of any type
    const Span span = span_of(groups, walk, bytes);
    const int64_t column = bytes * ceil_div(span.size, span.count);  // with its gap
    const int64_t cached = kGatherBytes / column / walk;
    const Dim across = groups.axes.dim[0];
    const bool far = across.size > 1 && across.stride * bytes >= kCopyBytes / 2 && !is_rows(groups);
    const int64_t least =
        std::clamp((far ? kFarRowBytes : kGatherRowBytes) / column, kWhole, kGatherColumns);
    const int64_t most = staying_columns(bytes);
    const int64_t run = across.size <= most ? across.size : groups.kept.dim[0].size;
    plan.stays = !masked && !softmax && !in_order(groups) && across.stride == 1 &&
                 run * bytes >= kLeastStayingBytes && run <= most;
    if (plan.stays) {  // whole runs
      const int64_t runs = std::clamp<int64_t>(groups.outputs / run / useful, 1, most / run);
      plan.tile = run * runs;
      plan.tiles = plan.units = ceil_div(groups.outputs, plan.tile);
    } else {
      cut(std::clamp(cached, least, kGatherColumns) / kWhole * kWhole, 1, useful);
    }
  }
  const bool decides = choice.walk == Walks::kRows && !softmax;
  const int64_t fits = (room / groups.outputs - (decides ? kDecidedBytes : 0)) /
                       (softmax ? kSoftmaxBytes : kCandidateBytes);
  const bool merges_slowly = softmax && choice.walk != Walks::kRows;
  const int64_t most = std::min(merges_slowly ? walk / kSoftmaxWalk : walk, fits);
  if (choice.walk == Walks::kColumns) {
    // Folding is worth more than tiles, where parts are as many.
    const bool one_tile = softmax && inner <= tile_of(bytes) && most >= kItemsOfThread;
    const int64_t cheap_parts = std::min(most, walk * bytes / kPartColumnBytes);
    cut(tile_of(bytes), outer, one_tile ? 1 : useful, std::max<int64_t>(1, cheap_parts));
    plan.folds = plan.tiles == 1;
  }
  const int64_t worth_a_thread = ceil_div(ceil_div(elements, plan.units), work.of_one);
  const int64_t most_parts = std::max<int64_t>(1, std::min(most, worth_a_thread));
  plan.parts = std::min(useful_parts(plan.units, useful, 1, most_parts), most_parts);
  // Outputs that share lines, of marks or, where they are too few to be columns, of elements, or
  // whose runs lie in turns, are read together part by part, of which each stays in cache.
  const Dims& reduced = groups.reduced;
  int64_t whole = 1;  // positions that a part has a multiple of
  if (choice.walk == Walks::kRows && groups.outputs > 1) {
    const bool in_turns = are_in_turns(groups) && plan.copies;
    const bool of_elements = in_turns || !is_rows(groups);
    const Dim inner = reduced.dim[0];
    const bool of_marks = groups.kept.dim[0].mask_stride < inner.mask_stride;
    const int64_t apart = of_elements ? inner.stride * bytes : of_marks ? inner.mask_stride : 0;
    const int64_t lines = walk * std::min(apart, kCopyBytes);
    const int64_t span = in_turns ? lines * groups.outputs : lines;
    const int64_t part = in_turns ? kCacheBytes : kPartBytes;
    plan.by_parts = span > (in_turns ? kFarBytes : kCacheBytes);
    if (plan.by_parts)
      plan.parts = std::max(plan.parts, std::min({ceil_div(span, part), walk, fits}));
    if (in_turns) whole = inner.size;
  }
  plan.part_extent = ceil_div(ceil_div(walk, plan.parts), whole) * whole;
  plan.parts = ceil_div(walk, plan.part_extent);
  // Where sums do not depend on the tiles, these are as wide as the threads there are allow.
  if (softmax && choice.walk == Walks::kColumns && !plan.folds)
    cut(tile_of(bytes), outer * plan.parts, useful_of(threads));
  const int64_t item_elements = std::max<int64_t>(1, elements / (plan.units * plan.parts));
  plan.grain = elements < work.of_several ? plan.units * plan.parts  // all items to one thread
                                          : std::max<int64_t>(1, work.of_one / item_elements);
  return plan;
}

// How the values of groups of one element are copied.
struct Filling {
  Dims dims;       // of the results
  bool across;     // by blocks: the innermost dim of memory is dim 1
  int64_t block;   // positions along that
  int64_t blocks;  // along that
  int64_t chunks;  // along dim 0, of kFillChunk
  int64_t units;   // results, or chunks of all blocks of all outer positions
  int64_t grain;   // of them per thread
};
constexpr int64_t kFillBlock = 64, kFillResults = kFillBlock * kFillBlock;  // of a block
constexpr int64_t kFillChunk = 4096;

// `plain`: the values are the elements, or follow from each of them.
inline Filling make_filling(const Groups& groups, bool plain, int64_t bytes) {
  const int64_t results = groups.outputs * groups.copies;
  Filling filling{result_dims(groups), false, 1, 1, 1, results, kGrainBytes / bytes};
  Dims& dims = filling.dims;
  int innermost = 0;
  for (int d = 0; d < dims.count; ++d)
    if (dims.dim[d].stride && dims.dim[d].stride < dims.dim[innermost].stride) innermost = d;
  if (!plain || innermost == 0) return filling;
  // Few neighbours, of which a line holds several, or so few that blocks have little to do: they
  // are read in the order of the results.
  constexpr int64_t kSmallBlock = 16;  // results
  const bool transposes = dims.dim[innermost].size * bytes >= kSquareBytes;
  if (!transposes && (dims.dim[0].stride * bytes < kCopyBytes ||
                      dims.dim[0].size * dims.dim[innermost].size <= kSmallBlock))
    return filling;
  std::rotate(dims.dim + 1, dims.dim + innermost, dims.dim + innermost + 1);
  filling.across = true;
  filling.block = kFillResults / std::min(dims.dim[0].size, kFillBlock);
  filling.blocks = (dims.dim[1].size + filling.block - 1) / filling.block;
  filling.chunks = ceil_div(dims.dim[0].size, kFillChunk);
  filling.units = results / dims.dim[0].size / dims.dim[1].size * filling.blocks * filling.chunks;
  filling.grain = std::max<int64_t>(1, filling.grain * filling.units / results);
  return filling;
}

// Whether the mask leaves out whole groups, some here and some there, which are short, have short
// runs, or whose lines are read for their neighbours anyhow: those are reduced, too, and their
// results replaced; and so are groups of one element that are copied by blocks. `written`: bytes of
// each result.
inline bool hides_groups(const Groups& groups, int64_t bytes, int64_t written) {
  if (!is_mask_of_groups(groups) || groups.kept.count == 0) return false;
  constexpr int64_t kWorthTwice = 1 << 12;  // results to go over
  if (is_single(groups))
    return groups.outputs >= kWorthTwice && make_filling(without_mask(groups), true, bytes).across;
  const int64_t read = walk_extent(groups.reduced) * bytes;
  const int64_t stride = groups.axes.dim[0].mask_stride;
  if (is_rows(groups)) return groups.reduced.dim[0].size * bytes <= 2 * kCopyBytes;
  if (stride == 0) return read <= 2 * kCopyBytes;
  constexpr int64_t kWorthReading = 8;  // bytes for each of a result
  return stride != 1 || read >= kWorthReading * written;
}

// The plan of a call, or of the first of the slices in which it is carried out. `written`: bytes of
// each result.
inline Plan plan_of(Groups groups, int64_t bytes, int64_t threads, bool masked, bool bools,
                    bool softmax, int64_t written, int64_t room = kWorkspaceBytes) {
  if (masked && hides_groups(groups, bytes, written)) {
    Plan plan = plan_of(without_mask(groups), bytes, threads, false, bools, softmax, written);
    plan.hides = true;
    return plan;
  }
  if (masked && orders_mask(groups, bytes)) {
    room -= order_marks(groups).outputs;
    Plan plan = plan_of(groups, bytes, threads, true, bools, softmax, written, room);
    plan.orders = true;
    return plan;
  }
  put_unread_outermost(groups);
  const int64_t walk = walk_extent(groups.reduced);
  const Choice choice = choose(groups, walk, bytes, softmax);
  const int count = crossed_dims(groups, bytes, bools, choice.price, room);
  if (!count) {
    if (choice.walk == Walks::kGather) {
      const GatherOrder order = gather_order(groups, walk, bytes, masked || softmax);
      const int last = order.dims - 1;
      if (last >= 0) shorten(groups, last, whole_runs(groups.kept.dim[last].size, order));
      order_for_gather(groups, order);
    }
    const ThreadWork work = thread_work(groups, choice, walk, bytes, masked || softmax);
    return make_plan(groups, choice, walk, bytes, threads, work, masked, softmax, room);
  }
  const Slices slices = slices_of(groups, count, room);
  const Groups slice = first_slice(groups, slices);
  Groups crossed = crossed_groups(slice, count);
  const int64_t columns = crossed.outputs / slice.outputs;
  const Choice of_crossed = order_crossed(crossed, bytes, masked);
  const int64_t walk_of_crossed = walk / columns;
  const ThreadWork work = thread_work(crossed, of_crossed, walk_of_crossed, bytes, masked);
  Plan plan =
      make_plan(crossed, of_crossed, walk_of_crossed, bytes, threads, work, masked, false, room);
  plan.columns = columns;
  plan.slices = slices.count;
  return plan;
}

}  // namespace reduceops::cpu
