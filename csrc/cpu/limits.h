// How large the CPU's pieces of work are: tiles, copies, parts.
#pragma once

#include <algorithm>
#include <cstdint>

namespace reduceops::cpu {

// Worth waking a thread for: candidates to combine, bytes of what has no price, bytes of zeros.
constexpr int64_t kCombinedOfThread = 1 << 11, kGrainBytes = 128 << 10, kZeroBytes = 512 << 10;
constexpr double kThreadNanoseconds = 5000;  // and the price of a walk, if there is work for two

constexpr int64_t kWorkspaceBytes = 1 << 20;  // for candidates and ordered marks
constexpr int64_t kCandidateBytes = 2 * sizeof(int64_t);
constexpr int64_t kDecidedBytes = sizeof(int64_t);  // of an output: from which part on none is read
constexpr int64_t kSoftmaxWalk = 4096;  // elements that take long beside merging their sum
constexpr int64_t kSoftmaxBytes = kCandidateBytes + sizeof(double);  // of its candidates

// A tile's segment of one reduced position: wide enough to stream, and columns that fit the
// scratch.
constexpr int64_t kTileBytes = 32768, kTileColumns = 16384;
// Narrower tiles lose more to DRAM than they gain in threads that have work, or in balance.
constexpr int64_t kMinTileBytes = 512, kBalancedTileBytes = 4096;
// Columns are cut into parts, not into narrow tiles, if each part has so much of a column.
constexpr int64_t kPartColumnBytes = 4096;
constexpr int64_t kPassRows = 8;  // that columns take at once
// Elements for each column that folding makes: so few that combining them does not matter.
constexpr int64_t kFoldedWalk = 256;
// Columns that are gathered: as many as make a block of so many bytes with their rows.
constexpr int64_t kGatherBytes = 16384, kGatherRowBytes = 512, kGatherColumns = 1024;
constexpr int64_t kFarRowBytes = 2048;   // where each column has a line of its own
constexpr int64_t kResultsTogether = 8;  // a line of indices
constexpr int64_t kSameSets = 512;       // indices so far apart share the sets of a cache
// Elements of a group: up to kScatterWalk the order of the results decides how a gather goes, from
// kOrderedWalk on that of the elements.
constexpr int64_t kOrderedWalk = 32, kScatterWalk = 8;
constexpr int64_t kGatherAlong = 64, kGatherRunBytes = 128;  // in memory, where results lie across
constexpr int64_t kPlainBytes = 4096;     // of rows and columns that are walked where they lie
constexpr int64_t kWindowBytes = 256;     // of windows of one dim; longer ones are faster as rows
constexpr int64_t kCrossedWalk = 8;       // positions behind each crossed column, at least
constexpr int64_t kCacheBytes = 1 << 20;  // of a core, about
constexpr int64_t kPartBytes = kCacheBytes / 4;
constexpr int64_t kFarBytes = 32 << 20;         // too much for the caches of all cores
constexpr int64_t kCopyBytes = 64;              // a vector's, at most
constexpr int64_t kLostBytes = 2 * kCopyBytes;  // from here on, a gap has lines of its own
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kSpanBytes = 16;  // of each column that is copied with the gap behind it, at most
constexpr int64_t kGapWalk = 4;     // rows for each lane of a column and its gap
constexpr int64_t kSquareBytes = 16;          // of each of as many rows, which are transposed
constexpr int64_t kItemsOfThread = 8;         // to balance threads by, at most
constexpr int64_t kStreamedBytes = 10 << 20;  // of zeros, which else may as well stay in a cache

constexpr int64_t kSteppedRun = 32, kMostStep = 4;  // columns that are so copied, see is_stepped()

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns of a tile.
constexpr int64_t tile_of(int64_t bytes) { return std::min(kTileBytes / bytes, kTileColumns); }

// Of a gather whose runs are not copied: more columns than copies have room for, and longer runs.
constexpr int64_t staying_columns(int64_t bytes) { return std::min<int64_t>(8192, tile_of(bytes)); }
constexpr int64_t kStayingRunBytes = 512, kLeastStayingBytes = 256;

// How many narrow rows, `pitch` apart, count as one; 1 where that does not pay.
inline int64_t folded_rows(int64_t pitch, int64_t walk, int64_t bytes, int64_t lanes) {
  const int64_t tile = tile_of(bytes);
  const int64_t wide = std::clamp(pitch * walk / kFoldedWalk, lanes, tile);
  int64_t count = std::max(wide / pitch, ceil_div(lanes, pitch));
  // Some rows more where vectors would be half empty, as long as passes stay full.
  const int64_t most = std::min({2 * count + 1, walk / kPassRows, tile / pitch});
  const auto is_filled = [&](int64_t rows) {
    return 8 * rows * pitch >= 7 * ceil_div(rows * pitch, lanes) * lanes;
  };
  for (int64_t more = count; more <= most; ++more) {
    if (!is_filled(more)) continue;
    count = more;
    break;
  }
  count = std::min(count, walk);
  return count * pitch >= lanes ? count : 1;
}

}  // namespace reduceops::cpu
