// What a plan would cost, in microseconds on an H200: enough to compare walks, not to predict a
// time. Few constants, from measurements of 1 300 random layouts, whose times the sum of these
// meets within 8 % for half of them and 31 % for nine tenths; differences below that mean little.
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

namespace price {

constexpr double kMultiprocessors = 132;
constexpr double kMemory = 4.55, kL2 = 6.5;         // MB in a microsecond
constexpr double kInstructions = 23.4;              // millions of a lane: 3/4 of what is issued
constexpr double kLatency = 0.9;                    // of a load from memory
constexpr double kInFlight = 64e-3;                 // MB of loads of a multiprocessor, at most
constexpr double kOverlap = 0.15;                   // of what is done meanwhile
constexpr double kCluster = 1.5, kWorkspace = 3.5;  // of combining parts
constexpr double kBurst = 64;                       // bytes that memory delivers at once
constexpr double kScattered = 1.3;  // how much slower memory is by loads of an element
constexpr double kIndexBytes = 8;   // of a result; that it may be less is not known

}  // namespace price

// Of elements of 1, 2, 4 and 8 bytes.
using PerBytes = std::array<double, 4>;
inline double of_bytes(const PerBytes& values, int64_t bytes) {
  return values[bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3];
}

// What a walk has to do, all of its blocks together.
struct Work {
  double read = 0;                      // MB that memory would deliver meanwhile
  double sectors = 0;                   // MB that loads ask of L2
  double instructions = 0;              // millions, of a lane
  double in_flight = price::kInFlight;  // MB of loads of a multiprocessor
  double extra = 0;                     // microseconds
};

// What all walks have to move.
struct Traffic {
  double elements, outputs;  // millions
  double bytes;              // MB of elements
  double read, written;      // MB of memory
  double sectors_written;    // MB
  double start;              // microseconds

  explicit Traffic(const PlanInput& in) {
    const Groups& groups = in.groups;
    elements = static_cast<double>(groups.outputs * in.walk) * 1e-6;
    outputs = static_cast<double>(groups.outputs) * 1e-6;
    bytes = elements * static_cast<double>(in.bytes);
    read = elements * bytes_of_element(in);
    written = outputs * price::kIndexBytes;
    sectors_written = in_order(groups) ? written : outputs * kSectorBytes;
    start = 5.3 + 8.5 * (1 - std::exp((read + written) * -0.01));
  }

 private:
  // That memory delivers for one: runs of memory are read in whole bursts.
  static double bytes_of_element(const PlanInput& in) {
    const Dims &kept = in.groups.axes, &reduced = in.groups.reduced;
    const auto bytes = static_cast<double>(in.bytes);
    double run = bytes, elements = 1;
    for (int k = 0, r = 0; k < kept.count || r < reduced.count;) {
      const bool is_kept =
          r == reduced.count || (k < kept.count && kept.dim[k].stride < reduced.dim[r].stride);
      const Dim& dim = is_kept ? kept.dim[k++] : reduced.dim[r++];
      const double pitch = static_cast<double>(dim.stride) * bytes;
      if (pitch > run + kSectorBytes)
        return std::min(pitch, run + price::kBurst - bytes) / elements;
      run += static_cast<double>(dim.size - 1) * pitch;
      elements *= static_cast<double>(dim.size);
    }
    return run / elements;
  }
};

inline double microseconds(const PlanInput& in, const Plan& plan, const Traffic& traffic,
                           const Work& work) {
  using namespace price;
  const double memory = (work.read + traffic.written) / kMemory;
  const double sectors = (work.sectors + traffic.sectors_written) / kL2;
  const double instructions = work.instructions / kInstructions;
  const double loads =
      kLatency * work.sectors / (kMultiprocessors * std::min(work.in_flight, kInFlight));
  const double bytes = std::max(memory, sectors);
  const double longest = std::max({bytes, instructions, loads});
  const double hidden = std::min(bytes, instructions);
  const double share = kMultiprocessors / static_cast<double>(in.multiprocessors);
  double extra = work.extra;
  if (plan.split()) extra += kWorkspace;
  if (plan.cluster > 1) extra += price::kCluster;
  return traffic.start + (longest + kOverlap * hidden) * share + extra;
}

// Bytes of sectors for an element of which a warp loads `count` at once, `pitch` bytes apart.
inline double sectors_of(double count, double pitch, int64_t bytes) {
  if (pitch >= kSectorBytes) return kSectorBytes;
  return ((count - 1) * pitch + static_cast<double>(bytes + kSectorBytes / 2)) / count;
}

// MB of loads in flight of a multiprocessor, of which `resident` blocks find room in it; `bytes` of
// a thread.
template <class Bytes>
double in_flight(const PlanInput& in, const Plan& plan, double resident, Bytes bytes) {
  const double blocks = static_cast<double>(plan.blocks) / static_cast<double>(in.multiprocessors);
  return std::min(blocks, resident) * plan.threads * static_cast<double>(bytes) * 1e-6;
}

}  // namespace reduceops::cuda
