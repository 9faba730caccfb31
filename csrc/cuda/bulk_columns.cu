// Columns by bulk copies: a kept dim is innermost. A block takes a tile of neighbouring columns and
// walks down the reduced dim; the rows of the tile come through a ring of stages in shared memory,
// so their pitch need not suit 16-byte loads. Where a tile is narrow, threads share its columns by
// turns; where tiles are few, the reduced extent is cut into parts.
//
// Bound by reading memory; for 8-bit types the key arithmetic is near.
#include "cuda/keys.cuh"
#include "cuda/results.cuh"
#include "cuda/ring.cuh"

namespace reduceops::cuda {
namespace {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// A tile of columns over one part of the reduced extent.
struct Item {
  int64_t outer, part, group;  // of parts, a cluster's
  int64_t column, columns;     // of the inner dim
  int64_t begin, stop;         // reduced positions
  const char* origin;          // the element at column `column`, position 0

  template <class Key>
  __device__ static Item of(const Problem& p, int64_t number) {
    Item item;
    const Dim inner = p.kept()[0];
    const auto [unit, rank] = split(number, p.plan.cluster);
    const auto [group, tile] = split(unit, p.plan.tiles);
    const int64_t part = group * p.plan.cluster + rank;
    const auto [outer, across] = split(tile, p.plan.across);
    item.outer = outer;
    item.part = part;
    item.group = group;
    item.column = across * p.plan.tile;
    item.columns = std::min(p.plan.tile, inner.size - item.column);
    item.begin = part * p.plan.part_extent;
    item.stop = std::max(item.begin, std::min(item.begin + p.plan.part_extent, p.walk));
    item.origin = p.input + (place(p.kept() + 1, p.kept_count - 1, outer).offset + item.column) *
                                int64_t(sizeof(Key));
    return item;
  }

  // Positions count from the begin of the cluster's first part.
  template <class Element>
  __device__ Results<Element> results(const Problem& p) const {
    const Dim inner = p.kept()[0];
    const Place at = place(p.kept() + 1, p.kept_count - 1, outer);
    return {p,     {at.offset + column, at.step + column * inner.step},
            inner, outer * inner.size + column,
            group, group * p.plan.cluster * p.plan.part_extent};
  }
};

template <class Key>
__device__ void produce(const Problem& p, const Ring& ring) {
  const int64_t pitch = p.reduced()[0].stride * int64_t(sizeof(Key));
  const uint32_t lane = threadIdx.x % 32, stage_pitch = p.plan.stage_pitch;
  Turn turn;
  for (int64_t number = blockIdx.x; number < p.plan.tiles * p.plan.parts; number += gridDim.x) {
    const Item item = Item::of<Key>(p, number);
    const int64_t width = item.columns * int64_t(sizeof(Key));
    for (int64_t j = item.begin; j < item.stop; j += p.plan.stage_rows) {
      const auto rows = static_cast<uint32_t>(std::min<int64_t>(p.plan.stage_rows, item.stop - j));
      // Rows that follow each other are one span; else each lane copies some rows.
      const uint32_t spans = p.plan.contiguous ? 1 : rows;
      const int64_t span_width = p.plan.contiguous ? (rows - 1) * pitch + width : width;
      const char* first = item.origin + j * pitch;
      ring.wait_empty(turn);
      uint32_t bytes = 0;
      for (uint32_t s = lane; s < spans; s += 32) {
        const char* from = first + s * pitch;
        const Span span(from, from + span_width, p.whole_blocks);
        span.copy_rest(ring.buffer(turn) + s * stage_pitch, from + span_width);
        bytes += span.bytes();
      }
      bytes = __reduce_add_sync(~0u, bytes);
      if (lane == 0) ring.expect(turn, bytes);
      __syncwarp();
      for (uint32_t s = lane; s < spans; s += 32) {
        const char* from = first + s * pitch;
        const Span span(from, from + span_width, p.whole_blocks);
        if (span.bytes())
          ring.copy(turn, ring.buffer(turn) + s * stage_pitch, span.begin, span.bytes());
      }
      ring.next(turn);
    }
  }
}

// How threads lie over a tile: kSlots slots each, those of a warp side by side, or one slot each in
// a narrow tile; where there are fewer than threads, several share a column by turns.
template <int kSlots, class Element>
__device__ void read(const Problem& p, Element element, const Ring& ring, char* scratch) {
  using S = Slots<Element>;
  using Key = typename S::Key;
  constexpr int kSlotBytes = sizeof(typename S::Slot), kElements = S::kElements;
  constexpr int kRows = kRowsAtOnce;
  const uint32_t lanes = p.plan.lanes, shares = p.plan.shares;
  const uint32_t lane = threadIdx.x % lanes, share = threadIdx.x / lanes;
  const uint32_t first_slot = kSlots > 1 ? lane / 32 * 32 * kSlots + lane % 32 : lane;
  const Dim inner = p.kept()[0], along = p.reduced()[0];
  const int64_t pitch = along.stride * int64_t(sizeof(Key));
  // Row j of a stage is where its bytes fell: at their offset in a 16-byte block.
  const uint32_t stage_pitch = p.plan.stage_pitch;
  const uint32_t shift = p.plan.contiguous ? 0 : static_cast<uint32_t>(pitch) % kLoadBytes;
  const uint32_t stage_rows = p.plan.stage_rows;
  const bool alone = shares == 1 && p.plan.cluster == 1;
  auto* nears = reinterpret_cast<Near<Key>*>(scratch);  // [shares][tile]
  Turn turn;
  for (int64_t number = blockIdx.x; number < p.plan.tiles * p.plan.parts; number += gridDim.x) {
    const Item item = Item::of<Key>(p, number);
    const auto slots = static_cast<uint32_t>((item.columns + kElements - 1) / kElements);
    Tracker<Element> tracker[kSlots];  // of positions from item.begin on
#pragma unroll
    for (int u = 0; u < kSlots; ++u) tracker[u] = Tracker<Element>(share);
    const auto extent = static_cast<uint32_t>(item.stop - item.begin);
    auto lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(item.origin)) +
                static_cast<uint32_t>(item.begin) * static_cast<uint32_t>(pitch);
    for (uint32_t done = 0; done < extent; done += stage_rows) {
      const uint32_t rows = std::min(stage_rows, extent - done);
      const char* buffer = ring.buffer(turn);
      const auto row_at = [&](uint32_t j) {
        return first_slot * kSlotBytes + j * stage_pitch + (lead + j * shift) % kLoadBytes;
      };
      ring.wait_full(turn);
      uint32_t j = share;
      for (; j + (kRows - 1) * shares < rows; j += kRows * shares) {
        typename S::Slot slot[kSlots][kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const typename S::Row row(buffer, row_at(j + r * shares));
#pragma unroll
          for (int u = 0; u < kSlots; ++u) slot[u][r] = row[u * 32];
        }
#pragma unroll
        for (int u = 0; u < kSlots; ++u) tracker[u].take(element, slot[u], done + j, shares);
      }
#pragma unroll 1
      for (; j < rows; j += shares) {
        const typename S::Row row(buffer, row_at(j));
#pragma unroll
        for (int u = 0; u < kSlots; ++u) tracker[u].take(element, {row[u * 32]}, done + j, shares);
      }
      ring.release(turn);
      ring.next(turn);
      lead += stage_rows * static_cast<uint32_t>(pitch);
    }
    const Results<Element> results = item.template results<Element>(p);
    if (p.plan.cluster > 1) sync_readers();  // the ring has been read: its memory is free
#pragma unroll
    for (int u = 0; u < kSlots; ++u) {
      const uint32_t slot = first_slot + u * 32;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const uint32_t here = slot * kElements + e;
        if (slot >= slots || here >= item.columns) continue;
        if (alone) {
          results.put(element, here, tracker[u].key(element, e), tracker[u].index(e));
        } else if (share < shares) {
          // A share past the extent has nothing.
          nears[share * p.plan.tile + here] = {tracker[u].key(element, e),
                                               share < extent ? tracker[u].index(e) : ~0u};
        }
      }
    }
    if (alone) continue;
    sync_readers();
    for (uint32_t here = threadIdx.x; here < item.columns; here += blockDim.x - kProducers) {
      Near<Key> found = nears[here];
      for (uint32_t s = 1; s < shares; ++s) {
        const Near<Key> other = nears[s * p.plan.tile + here];
        if (other.index != ~0u) found.take(other.key, other.index);
      }
      if (p.plan.cluster > 1) {
        nears[here] = found;
      } else {
        results.put(element, here, found.key, found.index);
      }
    }
    sync_readers();
  }
}

// The blocks of a cluster have walked down one part of the same tile each: every block combines
// some of the columns.
template <class Element, class Key = typename Element::Key>
__device__ void combine_cluster(const Problem& p, Element element, Near<Key>* nears) {
  const Item item = Item::of<Key>(p, blockIdx.x);
  const Results<Element> results = item.template results<Element>(p);
  const uint32_t cluster = p.plan.cluster, rank = blockIdx.x % cluster;
  for (uint32_t here = rank * blockDim.x + threadIdx.x; here < item.columns;
       here += cluster * blockDim.x) {
    Near<Key> found = *in_block(nears + here, 0);
    uint32_t from = 0;
    for (uint32_t c = 1; c < cluster; ++c) {
      const Near<Key> other = *in_block(nears + here, c);
      if (other.index != ~0u && other.key < found.key) {
        found = other;
        from = c;
      }
    }
    results.put(element, here, found.key, from * p.plan.part_extent + found.index);
  }
}

#endif

template <int kSlots, class Element>
__global__ void __launch_bounds__(kReaders + kProducers, 2)
    bulk_columns(const __grid_constant__ Problem p, const Element element) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Key = typename Element::Key;
  extern __shared__ __align__(128) char shared[];
  if (p.candidates) let_next_launch();
  const Ring ring(shared, p.plan.stages, p.plan.stage_bytes);
  char* scratch = p.plan.cluster > 1 ? shared : shared + ring_bytes(p.plan);
  if (threadIdx.x >= blockDim.x - kProducers) {
    produce<Key>(p, ring);
  } else {
    read<kSlots>(p, element, ring, scratch);
  }
  if (p.plan.cluster > 1) {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    combine_cluster(p, element, reinterpret_cast<Near<Key>*>(scratch));
    __syncwarp();
    cluster_arrive();  // no block leaves while another reads it
    cluster_wait();
  }
#endif
}

}  // namespace

void launch_bulk_columns(const Reduction& r, const Problem& problem, void* stream) {
  visit_device_element(r, [&](auto element) {
    using Element = decltype(element);
    const Kernel<Element> kernel =
        problem.plan.vector ? bulk_columns<slots_per_reader(sizeof(typename Element::Key)), Element>
                            : bulk_columns<1, Element>;
    launch(kernel, problem.plan.blocks, problem, element,
           ring_bytes(problem.plan) + problem.plan.scratch_bytes, stream);
  });
}

}  // namespace reduceops::cuda
