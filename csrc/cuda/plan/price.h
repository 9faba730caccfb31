// What a plan would cost, in microseconds on an H200: enough to compare walks, not to predict a
// time. The machine's constants and most instruction counts were fitted to 1 749 measured random
// layouts, those of gather to 86 on an H100; those of rows, small and bulk_columns, of which there
// were too few, were set so that the walks measured to be best stay the cheapest. What is still
// wrong by kernel and size of an element, measured.h corrects.
//
//   start of a kernel, which grows with its bytes, for the short ones end before memory is busy
//   + the longest of: bytes of memory, sectors of L2, instructions, loads waited for
//   + a part of the shorter of bytes and instructions, for they overlap badly
//   + what the walk alone costs: rings that fill, clusters, a second launch
//
// Of another GPU, its multiprocessors are taken to have the bandwidth of those of an H200.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/plan/input.h"

namespace reduceops::cuda {

// Of elements of 1, 2, 4 and 8 bytes.
using PerBytes = std::array<double, 4>;
inline double of_bytes(const PerBytes& values, int64_t bytes) {
  return values[bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3];
}

namespace price {

constexpr double kMultiprocessors = 132;
constexpr double kMemory = 4.55, kL2 = 6.5;  // MB in a microsecond
constexpr double kInstructions = 23.4;       // millions of a lane: 3/4 of what is issued
constexpr double kLatency = 0.9;             // of a load from memory
constexpr double kInFlight = 64e-3;          // MB of loads of a multiprocessor, at most
constexpr double kOverlap = 0.15;            // of what is done meanwhile
// Of combining parts: in a cluster, in a second kernel, by their last block.
constexpr double kCluster = 1.5, kWorkspace = 4.5, kHandIn = 1.5;
constexpr double kItem =
    1.3;  // of a tile that comes through a ring, before its block takes the next
constexpr double kScattered = 1.3;  // how much slower memory is by loads of an element
constexpr double kIndexBytes = 8;   // of a result; that it may be less is not known
// A store that does not fill its sector counts as so many bytes of L2.
constexpr double kStoreL2 = 144;
// And as so many of memory, if more than kOpen MB are read or written before the next store to that
// sector: then L2 has written it back half full.
constexpr double kStoreMemory = 192, kOpen = 8;
constexpr double kOfSector = 4;  // indices
constexpr double kPlace = 25;    // instructions, to find the place of a result over a dim
constexpr double kValue = 15;    // to have its value

// Instructions of a lane for an element, by how it is taken.
constexpr PerBytes kHeldRow = {2, 1.4, 2, 4};     // 16-byte loads that are held
constexpr PerBytes kLoopedRow = {3, 2.1, 3, 5};   // in rounds
constexpr PerBytes kColumn = {5, 3.4, 3.6, 5.5};  // 16-byte loads of neighbouring columns
// The same where key and position are one integer; more for each share of a pack of columns, and
// for each result.
constexpr PerBytes kPackedColumn = {1.4, 4.0, 0, 0};
constexpr double kPackedShare = 150, kPackedResult = 45;
constexpr int64_t kLongColumn = 24, kLongColumns = 60 << 20;  // elements; bytes of 8-bit ones
// More for each share of a column: its first rows all win.
constexpr PerBytes kColumnResult = {120, 60, 20, 15};
// More for each share of a load of columns, and of a column that is loaded by itself.
constexpr double kShareOfLoad = 90, kScalarShare = 270;
constexpr PerBytes kBoxRow = {4.5, 5.5, 7, 10};  // from shared memory
constexpr PerBytes kBoxColumn = {4.5, 4.5, 6, 9};
// Of an element before or after the loads of a row.
constexpr PerBytes kEdge = {36, 26, 15, 15};
constexpr double kFlatDim = 25;  // of finding an element over one dim more
// Of finding a column's element in the run of the last one, and in another over each dim.
constexpr double kSameRun = 6, kNextRun = 65;
constexpr double kRealigning = 40;  // of a pack of columns
constexpr double kConflict = 4;     // of a lane that waits for a bank of shared memory
constexpr double kScalarRow = 12, kScalarColumn = 10;  // loads of an element
// Tiles: an element of a group that a thread holds, a slot, and an element that is looked at by
// itself, of fewer than 4 bytes or more.
constexpr double kHeldInTile = 3.5, kSlotInTile = 8, kSmallInTile = 14, kInTile = 10;
// For each result there; for each array that it is stored to; more where its group is held, and for
// each lane that shares the group; for all results of a group of columns.
constexpr double kTileResult = 45, kTileStore = 15, kHeldGroup = 45, kTileLane = 40,
                 kTileGroup = 100;
constexpr double kTileBlock = 25;  // of 16 bytes that is copied
constexpr double kPieceEnds = 24;  // bytes of the sectors in which pieces begin and end

// Bytes that are written of a result.
inline double of_result(const PlanInput& in) {
  return (in.stores.index ? kIndexBytes : 0) +
         (in.stores.value ? static_cast<double>(in.bytes) : 0);
}

}  // namespace price

// What a walk has to do, all of its blocks together.
struct Work {
  double read = 0;          // MB from memory; more where it is slower than at its best
  double sectors = 0;       // MB that loads ask of L2
  double stores = 0;        // MB more that stores ask of it, of sectors they do not fill
  double instructions = 0;  // millions, of a lane
  double in_flight = price::kInFlight;  // MB of loads of a multiprocessor
  bool in_order = false;                // results are stored in their order, whatever that is
  double extra = 0;                     // microseconds
  double share = 1;                     // measured times over all this
};

// What all walks have to move.
struct Traffic {
  double elements, outputs;  // millions
  double bytes;              // MB of elements
  double read, written;      // MB of memory
  // Where results are stored in another order than theirs, one by one:
  double scattered;        // MB of memory
  double sectors_written;  // MB of L2
  double placing;          // millions of instructions
  double start;            // microseconds

  explicit Traffic(const PlanInput& in) {
    const Groups& groups = in.groups;
    const auto stores = static_cast<double>(in.stores.count());
    elements = static_cast<double>(groups.outputs * in.walk) * 1e-6;
    outputs = static_cast<double>(groups.outputs) * 1e-6;
    bytes = elements * static_cast<double>(in.bytes);
    read = elements * bytes_of_element(in);
    const double of_result = price::of_result(in);
    scattered = sectors_written = written = outputs * of_result;
    placing = 0;
    start = 5.3 + 8.5 * (1 - std::exp((read + written) * -0.01));
    if (in_order(groups)) return;
    // Outputs from one to the next in the order of the results.
    double between = 1;
    const Dims& kept = groups.kept;
    int first = 0;
    for (int d = 1; d < kept.count; ++d) {
      if (kept.dim[d].step < kept.dim[first].step) first = d;
    }
    for (int d = 0; d < first; ++d) between *= static_cast<double>(kept.dim[d].size);
    const double of_sector =
        std::clamp(32 / between, 1., price::kOfSector);  // that a warp stores at once
    const double stores_of_sectors = outputs * stores / of_sector;
    sectors_written = std::max(written, stores_of_sectors * price::kStoreL2);
    if (between * 1e-6 * (read / outputs + of_result) > price::kOpen)
      scattered = std::max(written, stores_of_sectors * price::kStoreMemory);
    placing = price::kPlace * kept.count * outputs;
  }

 private:
  // That memory delivers for one: runs of memory are read in whole bursts.
  static double bytes_of_element(const PlanInput& in) {
    const Dims& reduced = in.groups.reduced;
    // For a mask they may be in another order (mask_groups.h).
    const Dims kept = in.task == Task::kMasked ? by_stride(in.groups.axes) : in.groups.axes;
    const auto bytes = static_cast<double>(in.bytes);
    double run = bytes, elements = 1;
    for (const Dims* dims : {&kept, &reduced}) {  // copies, wherever they are among the dims
      for (int d = 0; d < dims->count; ++d) {
        if (dims->dim[d].stride == 0) elements *= static_cast<double>(dims->dim[d].size);
      }
    }
    for (int k = 0, r = 0; k < kept.count || r < reduced.count;) {
      const bool is_kept =
          r == reduced.count || (k < kept.count && kept.dim[k].stride < reduced.dim[r].stride);
      const Dim& dim = is_kept ? kept.dim[k++] : reduced.dim[r++];
      if (dim.stride == 0) continue;
      const double pitch = static_cast<double>(dim.stride) * bytes;
      if (pitch > run + kSectorBytes) return std::min(pitch, run + kBurstBytes - bytes) / elements;
      run += static_cast<double>(dim.size - 1) * pitch;
      elements *= static_cast<double>(dim.size);
    }
    return run / elements;
  }
};

inline double microseconds(const PlanInput& in, const Plan& plan, const Traffic& traffic,
                           const Work& work) {
  using namespace price;
  const bool in_order = work.in_order;
  const double memory = (work.read + (in_order ? traffic.written : traffic.scattered)) / kMemory;
  const double sectors =
      (work.sectors + work.stores + (in_order ? traffic.written : traffic.sectors_written)) / kL2;
  const double values = kValue * static_cast<double>(in.stores.count() - 1) * traffic.outputs;
  const double instructions =
      (work.instructions + (in_order ? 0 : traffic.placing) + values) / kInstructions;
  const double loads =
      kLatency * work.sectors / (kMultiprocessors * std::min(work.in_flight, kInFlight));
  const double bytes = std::max(memory, sectors);
  const double longest = std::max({bytes, instructions, loads});
  const double hidden = std::min(bytes, instructions);
  const double share = kMultiprocessors / static_cast<double>(in.multiprocessors);
  double extra = work.extra;
  if (plan.split()) extra += plan.has_combine() ? kWorkspace : kHandIn;
  if (plan.cluster > 1) extra += price::kCluster;
  return work.share * (traffic.start + (longest + kOverlap * hidden) * share + extra);
}

// Bytes of sectors for an element of which a warp loads `count` at once, `pitch` bytes apart.
inline double sectors_of(double count, double pitch, int64_t bytes) {
  if (pitch >= kSectorBytes) return kSectorBytes;
  return ((count - 1) * pitch + static_cast<double>(bytes + kSectorBytes / 2)) / count;
}

// Instructions for what is before and after the loads of a row that is not aligned, which is taken
// element by element.
inline double edges_of_row(const PlanInput& in) {
  return of_bytes(price::kEdge, in.bytes) * static_cast<double>(in.elements_of_load());
}

// MB of loads in flight of a multiprocessor, of which `resident` blocks find room in it; `bytes` of
// a thread.
template <class Bytes>
double in_flight(const PlanInput& in, const Plan& plan, double resident, Bytes bytes) {
  const double blocks = static_cast<double>(plan.blocks) / static_cast<double>(in.multiprocessors);
  return std::min(blocks, resident) * plan.threads * static_cast<double>(bytes) * 1e-6;
}

}  // namespace reduceops::cuda
