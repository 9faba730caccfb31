// Columns of 32 bits under a mask whose bytes lie as they do, wherever rows begin in memory. Each
// warp goes down a segment of columns: it copies its part of some rows to shared memory while it
// looks at others, so that copies are in flight at any time and take no registers, and it waits for
// nobody else. Warps beside each other have neighbouring segments; where columns are few, warps
// share them by turns and the reduced extent is cut into parts as well.
//
// Bound by reading memory and the mask: 1.17 times the time of reading both, of 32 bits in columns
// of 1024. Without it each thread loads its own 16 bytes and the mask of these (columns.cuh), which
// takes a tenth more; and columns at other pitches are read one by one.
#pragma once

#include "cuda/option_policy.h"
#include "cuda/reducer.cuh"

namespace reduceops::cuda {

// How a warp has a part of a row in shared memory. It begins at the offset in a block of 16 bytes
// that it has in memory.
template <class Source>
struct Segment {
  using Element = typename Source::Element;
  using Key = typename Source::Key;
  using Slot = typename Slots<Element>::Slot;
  static_assert(Source::kMasked && sizeof(Slot) == sizeof(Key) && sizeof(Key) == 4);
  static constexpr int kColumns = kSegmentBytes / sizeof(Key);
  static constexpr int kSlots = kColumns / 32;  // of a lane
  static constexpr int kElementBytes = kSegmentBytes + 2 * kLoadBytes;
  static constexpr int kRowBytes = kElementBytes + kColumns + 2 * kLoadBytes;
  static constexpr StagedRoom kRoom = kStagedRoom;
  static constexpr int kStageBytes = kRoom.rows * kRowBytes;
  // Behind the stages: of each of their rows, where in a block it begins.
  static constexpr int kLeads = kRoom.stages * kStageBytes;
  static constexpr int kWarpBytes = kLeads + kRoom.stages * kRoom.rows * 4;
};

// The lane's share of copying `bytes` bytes to shared memory, by `lanes` lanes, in whole blocks of
// which there is one more than lanes at most. `to`: where a block begins.
template <class T>
__device__ void copy_blocks(const T* from, uint32_t bytes, char* to, uint32_t lane,
                            uint32_t lanes) {
  const uint32_t lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) % kLoadBytes;
  const char* first = reinterpret_cast<const char*>(from) - lead;
  if (lane * kLoadBytes < lead + bytes)
    copy_async<kLoadBytes>(to + lane * kLoadBytes, first + lane * kLoadBytes);
  if (lane == 0 && lanes * kLoadBytes < lead + bytes)
    copy_async<kLoadBytes>(to + lanes * kLoadBytes, first + lanes * kLoadBytes);
}

template <class T>
__device__ T* of_lane(T* pointer, uint32_t lane) {
  return reinterpret_cast<T*>(__shfl_sync(~0u, reinterpret_cast<uintptr_t>(pointer), lane));
}

template <int kBlocks, class Source, class Reducer>
__global__ void __launch_bounds__(kThreads, kBlocks)
    staged_columns(const Source source, const Reducer reducer, const __grid_constant__ Problem p) {
  using Own = Segment<Source>;
  using Element = typename Source::Element;
  using Key = typename Source::Key;
  using Slot = typename Own::Slot;
  using At = typename Source::At;
  using State = typename Reducer::template State<Key, uint32_t>;
  constexpr int kRows = Own::kRoom.rows, kStages = Own::kRoom.stages, kSlots = Own::kSlots;
  constexpr int kColumns = Own::kColumns;
  static_assert(kColumns * sizeof(State) <= Own::kLeads && Own::kWarpBytes % kLoadBytes == 0);
  if (p.candidates) let_next_launch();
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t segments = p.plan.columns.lanes / 32,
                 shares = p.plan.columns.shares;  // shares: a power of two
  const int shares_log2 = log2_of(shares);
  const uint32_t groups = blockDim.x / (p.plan.columns.lanes * shares);
  const uint32_t row_of_warps = warp / segments, segment = warp - row_of_warps * segments;
  const uint32_t share = row_of_warps & (shares - 1), group = row_of_warps >> shares_log2;
  char* const own = dynamic_shared() + warp * Own::kWarpBytes;
  auto* const leads = reinterpret_cast<uint32_t*>(own + Own::kLeads);
  const Dim inner = p.axes()[0];
  const auto base_of = [&](int64_t outer, int64_t column) {
    const At at = source.move(source.begin(p), p.axes() + 1, p.axis_count - 1, outer).at;
    return source.along(at, inner, column);
  };
  const auto row_at = [&](At base, int64_t position) {
    if (p.reduced_count == 1) return source.along(base, p.reduced()[0], position);
    return source.move(base, p.reduced(), p.reduced_count, position).at;
  };
  for (int64_t block = blockIdx.x; block < p.plan.blocks; block += gridDim.x) {
    const auto [unit, part] = split(block, p.plan.parts);
    const int64_t begin = part * p.plan.part_extent;
    const auto extent =
        static_cast<uint32_t>(std::min<int64_t>(p.plan.part_extent, p.walk - begin));
    const int64_t tile = unit * groups + group;
    const auto [outer, across] = split(tile, p.plan.columns.across);
    const int64_t column = (across * segments + segment) * kColumns;
    const bool inside = tile < p.plan.columns.tiles && column < inner.size && share < extent;
    const auto columns =
        static_cast<uint32_t>(inside ? std::min<int64_t>(inner.size - column, kColumns) : 0);
    // Of positions begin + share + turn * shares.
    const int turns = inside ? static_cast<int>((extent - share - 1) >> shares_log2) + 1 : 0;

    typename Reducer::template Columns<Source, 1> trackers[kSlots];
    uint32_t seen[kSlots]{};  // of the mask, of any turn
    if (turns > 0) {
      const At base = base_of(outer, column);
      const uint32_t bytes = columns * sizeof(Key);
      // Whether whole blocks may be copied of all rows: the last one of all lies behind the others.
      const At last = row_at(base, p.walk - 1);
      bool whole = reinterpret_cast<const char*>(last.input + columns) <= p.whole_blocks;
      whole &= reinterpret_cast<const char*>(last.mask + columns) <= source.whole_blocks;
      // Where rows lie alike in blocks of 16 bytes, the lane's blocks of each are a step apart.
      constexpr uint32_t kMaskLanes = std::max<uint32_t>(kColumns / kLoadBytes, 1);  // to a row
      constexpr uint32_t kMaskRows = std::min<uint32_t>(32 / kMaskLanes, kRows);     // at once
      const At first = row_at(base, begin + share);
      const int64_t step = p.reduced()[0].stride * shares * int64_t(sizeof(Key));
      const int64_t mask_step = p.reduced()[0].mask_stride * shares;
      const uint32_t lead_of_first = reinterpret_cast<uintptr_t>(first.input) % kLoadBytes;
      const char* const blocks =
          reinterpret_cast<const char*>(first.input) - lead_of_first + lane * kLoadBytes;
      const bool even =
          whole && p.reduced_count == 1 && step % kLoadBytes == 0 && mask_step % kLoadBytes == 0;
      const uint32_t leads_of_first =
          lead_of_first | reinterpret_cast<uintptr_t>(first.mask) % kLoadBytes << 8;
      if (even && lane < kStages * kRows) leads[lane] = leads_of_first;
      const auto ask_even = [&](int turn, uint32_t stage) {
        char* to = own + stage * Own::kStageBytes;
        const bool mine = lane * kLoadBytes < lead_of_first + bytes;
        const bool one_more = lane == 0 && kSegmentBytes < lead_of_first + bytes;
        const char* from = blocks + turn * step;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (mine) copy_async<kLoadBytes>(to + lane * kLoadBytes + r * Own::kRowBytes, from);
          if (one_more)
            copy_async<kLoadBytes>(to + kSegmentBytes + r * Own::kRowBytes, from + kSegmentBytes);
          from += step;
        }
        const uint32_t row = lane / kMaskLanes, block = lane % kMaskLanes;
        const uint32_t end = leads_of_first / 256 + columns;
        const uint8_t* mask =
            first.mask - leads_of_first / 256 + block * kLoadBytes + (turn + int(row)) * mask_step;
        to += row * Own::kRowBytes + Own::kElementBytes + block * kLoadBytes;
#pragma unroll
        for (uint32_t r = 0; r < kRows; r += kMaskRows) {
          if (row < kMaskRows && block * kLoadBytes < end)
            copy_async<kLoadBytes>(to, reinterpret_cast<const char*>(mask));
          if (row < kMaskRows && block == 0 && kMaskLanes * kLoadBytes < end)
            copy_async<kLoadBytes>(to + kMaskLanes * kLoadBytes,
                                   reinterpret_cast<const char*>(mask) + kMaskLanes * kLoadBytes);
          to += kMaskRows * Own::kRowBytes;
          mask += kMaskRows * mask_step;
        }
      };
      const auto ask = [&](int turn, uint32_t stage) {
        if (even && turn + kRows <= turns) return ask_even(turn, stage);
        // Each of some lanes finds where a row begins. Past the end there is the last one again.
        const int of_mine = std::min<int>(turn + lane % kRows, turns - 1);
        const At mine = row_at(base, begin + share + int64_t(of_mine) * shares);
        if (lane < kRows)
          leads[stage * kRows + lane] = reinterpret_cast<uintptr_t>(mine.input) % kLoadBytes |
                                        reinterpret_cast<uintptr_t>(mine.mask) % kLoadBytes << 8;
        char* const rows = own + stage * Own::kStageBytes;
        if (!whole) {
          REDUCEOPS_ROLLED
          for (int r = 0; r < kRows; ++r) {
            const auto copy = [&](const auto* begin, uint32_t bytes, char* to, const char* end) {
              const auto* from = reinterpret_cast<const char*>(of_lane(begin, r));
              copy_piece(from, to + reinterpret_cast<uintptr_t>(from) % kLoadBytes, bytes, end,
                         lane, 32);
            };
            char* const row = rows + r * Own::kRowBytes;
            copy(mine.input, bytes, row, p.whole_blocks);
            copy(mine.mask, columns, row + Own::kElementBytes, source.whole_blocks);
          }
          return;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          copy_blocks(of_lane(mine.input, r), bytes, rows + r * Own::kRowBytes, lane, 32);
#pragma unroll
        for (uint32_t r = 0; r < kRows; r += kMaskRows) {
          const uint32_t row = r + lane / kMaskLanes;
          const uint8_t* from = of_lane(mine.mask, row % kRows);
          char* const to = rows + row * Own::kRowBytes + Own::kElementBytes;
          if (lane / kMaskLanes < kMaskRows)
            copy_blocks(from, columns, to, lane % kMaskLanes, kMaskLanes);
        }
      };

      constexpr int kAhead = (kStages - 1) * kRows;
      uint32_t asked = 0, stage = 0;
#pragma unroll 1
      for (int turn = -kAhead; turn < turns; turn += kRows) {
        if (turn + kAhead < turns) ask(turn + kAhead, asked);
        commit_copies();
        asked = asked + 1 < kStages ? asked + 1 : 0;
        if (turn < 0) continue;
        wait_for_copies<kStages - 1>();
        __syncwarp();  // what other lanes copied is here
        uint32_t lead[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) lead[r] = leads[stage * kRows + r];
#pragma unroll
        for (int u = 0; u < kSlots; ++u) {
          if (u * 32 >= columns) continue;  // nobody's
          Slot slots[1][kRows];
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const uint32_t row = stage * Own::kStageBytes + r * Own::kRowBytes;
            const uint32_t at = row + lead[r] % 256 + lane * sizeof(Slot);
            slots[0][r] = typename Slots<Element>::Row(own, at)[u * 32];
            const uint32_t mask_at = row + Own::kElementBytes + lead[r] / 256 + lane + u * 32;
            const uint32_t mask = static_cast<uint8_t>(own[mask_at]);
            seen[u] |= mask;
            if (!mask) slots[0][r] = static_cast<Slot>(source.absent());
          }
          trackers[u].take(source, slots, turn);
        }
        __syncwarp();  // all have looked at what is overwritten next
        stage = stage + 1 < kStages ? stage + 1 : 0;
      }
    }

    // The states take the place of the stages, by the number of the column in the segment.
    auto* const states = reinterpret_cast<State*>(own);
#pragma unroll
    for (int u = 0; u < kSlots; ++u) {
      trackers[u].finish();
      State state;
      if (seen[u] != 0) {
        state = trackers[u].state(source, 0, 0);
        // Should somebody have written to the last row while it was read again, it is that one.
        state.index = share + std::min<uint32_t>(state.index, turns - 1) * shares;
      }
      states[u * 32 + lane] = state;
    }
    __syncthreads();
    const uint32_t of_tile = segments * kColumns;
    REDUCEOPS_ROLLED
    for (uint32_t i = threadIdx.x; i < groups * of_tile; i += blockDim.x) {
      const uint32_t group = i / of_tile, here = i - group * of_tile;
      const int64_t tile = unit * groups + group;
      const auto [outer, across] = split(tile, p.plan.columns.across);
      const int64_t column = across * of_tile + here;
      if (tile >= p.plan.columns.tiles || column >= inner.size) continue;
      State state;
      REDUCEOPS_ROLLED
      for (uint32_t s = 0; s < shares; ++s) {
        const uint32_t warp = (group * shares + s) * segments + here / kColumns;
        const char* of_warp = dynamic_shared() + warp * Own::kWarpBytes;
        merge(state, reinterpret_cast<const State*>(of_warp)[here % kColumns]);
      }
      const At base = base_of(outer, column);
      // All that are present equal absent ones, and the first of them is to be found.
      if (!state.none() && state.key == source.element.key(source.absent())) {
        find_first_present<1>(
            source, 1, extent, [&](uint32_t position) { return row_at(base, begin + position); },
            inner, [&](int, uint32_t first) { state.index = first; });
      }
      typename Reducer::template State<Key, int64_t> found;
      if (!state.none())
        found = widen(state, place(p.reduced(), p.reduced_count, begin + state.index).step);
      emit(p, source, reducer, outer * inner.size + column, base.input, part, found);
    }
    __syncthreads();
  }
}

template <class Source, class Reducer>
void launch_staged_columns_of(const Problem& p, const Source& source, const Reducer& reducer,
                              void* stream) {
  using Own = Segment<Source>;
  constexpr auto kernel = staged_columns<Own::kRoom.blocks, Source, Reducer>;
  allow_shared<kernel>();
  enqueue(kernel, p.plan, stream, p.plan.threads / 32 * Own::kWarpBytes, source, reducer, p);
}

}  // namespace reduceops::cuda
