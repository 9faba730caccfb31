// How large the CPU's pieces of work are: tiles, copies, parts.
#pragma once

#include <cstdint>

namespace reduceops::cpu {

constexpr int64_t kCombinedOfThread = 1 << 14;  // candidates worth waking a thread for
constexpr int64_t kWorkspaceBytes = 1 << 20;    // for candidates of parts and of crossed columns
constexpr int64_t kCandidateBytes = 2 * sizeof(int64_t);
constexpr int64_t kSoftmaxBytes = kCandidateBytes + sizeof(double);  // of its candidates

// A tile's segment of one reduced position: wide enough to stream, and columns that fit a stack.
constexpr int64_t kTileBytes = 32768, kTileColumns = 16384;
constexpr int64_t kMinTileBytes =
    512;  // narrower tiles lose more to DRAM than they gain in balance
// Columns that are gathered: as many as make a block of so many bytes with their rows.
constexpr int64_t kGatherBytes = 16384, kGatherRowBytes = 512, kGatherColumns = 1024;
constexpr int64_t kResultsTogether = 8;  // a line of indices
constexpr int64_t kScatterWalk = 8;      // elements of a group, of which results count more
constexpr int64_t kGatherAlong = 64;     // groups in memory to a tile, where results lie across
constexpr int64_t kPlainBytes = 4096;    // of rows and columns that are walked where they lie
constexpr int64_t kCrossedWalk = 8;      // positions behind each crossed column, at least
constexpr int64_t kMostCrossed = kWorkspaceBytes / kCandidateBytes;  // columns at once
constexpr int64_t kCacheBytes = 1 << 20;                             // of a core, at least
constexpr int64_t kPartBytes = kCacheBytes / 4;
constexpr int64_t kCopyBytes = 64;          // a vector's, at most
constexpr int64_t kItemsOfThread = 8;       // to balance threads by, at most
constexpr int64_t kGrainBytes = 128 << 10;  // worth waking a thread for

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace reduceops::cpu
