// Columns by bulk copies: a kept dim is innermost. A block takes a tile of neighbouring columns and
// walks down the reduced dim; the rows of the tile come through a ring of stages in shared memory,
// so their pitch need not suit 16-byte loads. Where a tile is narrow, threads share its columns by
// turns; where tiles are few, the reduced extent is cut into parts.
//
// Several reduced dims that are one in memory, but not in the order of the index, are cut into
// parts within which it rises (mapped columns): read in its order, rows of columns would lie far
// apart.
//
// Bound by reading memory; short columns by the work per output.
#include "cuda/combine.cuh"
#include "cuda/results.cuh"
#include "cuda/ring.cuh"
#include "cuda/trackers.cuh"

namespace reduceops::cuda {
namespace {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// A tile of columns over one part of the reduced extent.
struct Item {
  int64_t outer, part, group;  // of parts, a cluster's
  int64_t column, columns;     // of the inner dim
  int64_t begin, stop;         // reduced positions
  int64_t offset;              // of the element at column `column`, position 0
  const char* origin;          // that element

  template <class Key>
  __device__ static Item of(const Problem& p, int64_t number) {
    Item item;
    const Dim inner = p.axes()[0];
    const auto [unit, rank] = split(number, p.plan.cluster);
    const auto [group, tile] =
        p.plan.parts == 1 ? Split{0, unit} : split(unit, p.plan.bulk_columns.tiles);
    const int64_t part = group * p.plan.cluster + rank;
    const auto [outer, across] = split(tile, p.plan.bulk_columns.across);
    item.outer = outer;
    item.part = part;
    item.group = group;
    item.column = across * p.plan.bulk_columns.tile;
    item.columns = std::min(p.plan.bulk_columns.tile, inner.size - item.column);
    item.begin = part * p.plan.part_extent;
    item.stop = std::max(item.begin, std::min(item.begin + p.plan.part_extent, p.walk));
    item.offset = place(p.axes() + 1, p.axis_count - 1, outer).offset + item.column;
    item.origin = p.input + item.offset * int64_t(sizeof(Key));
    return item;
  }

  // Positions count from the begin of the cluster's first part.
  template <class Element>
  __device__ Results<Element> results(const Problem& p) const {
    const int64_t first = group * p.plan.cluster * p.plan.part_extent;
    const int64_t output = outer * p.axes()[0].size + column;
    return {p, offset, 1, output, group, place(p.reduced(), p.reduced_count, first).step};
  }
};

// Rows apart from each other: each lane of the producing warp copies some of them.
__device__ inline void fill_rows(const Problem& p, const Ring& ring, Turn turn, const char* first,
                                 uint32_t rows, int64_t pitch, int64_t width) {
  const uint32_t lane = threadIdx.x % 32, stage_pitch = p.plan.bulk_columns.stage_pitch;
  char* buffer = ring.buffer(turn) + lead_of(first);
  ring.wait_empty(turn);
  uint32_t bytes = 0;
  REDUCEOPS_ROLLED
  for (uint32_t r = lane; r < rows; r += 32) {
    const char* from = first + r * pitch;
    const Span span(from, from + width, p.whole_blocks);
    span.copy_rest(buffer + r * stage_pitch - (from - span.begin), from + width);
    bytes += span.bytes();
  }
  bytes = __reduce_add_sync(~0u, bytes);
  __syncwarp();  // what lanes copied by hand comes before lane 0 says so
  if (lane == 0) ring.expect(turn, bytes);
  __syncwarp();
  REDUCEOPS_ROLLED
  for (uint32_t r = lane; r < rows; r += 32) {
    const char* from = first + r * pitch;
    const Span span(from, from + width, p.whole_blocks);
    ring.copy(turn, buffer + r * stage_pitch - (from - span.begin), span.begin, span.bytes());
  }
}

template <class Key>
__device__ void produce(const Problem& p, const Ring& ring) {
  const int64_t pitch = p.reduced()[0].stride * int64_t(sizeof(Key));
  Turn turn;
  for (int64_t number = blockIdx.x; number < p.plan.bulk_columns.tiles * p.plan.parts;
       number += gridDim.x) {
    const Item item = Item::of<Key>(p, number);
    const int64_t width = item.columns * int64_t(sizeof(Key));
    for (int64_t j = item.begin; j < item.stop; j += p.plan.bulk_columns.stage_rows) {
      const auto rows =
          static_cast<uint32_t>(std::min<int64_t>(p.plan.bulk_columns.stage_rows, item.stop - j));
      const char* first = item.origin + j * pitch;
      if (!p.plan.bulk_columns.contiguous) {
        fill_rows(p, ring, turn, first, rows, pitch, width);
      } else if (threadIdx.x % 32 == 0) {
        ring.fill(turn, first, first + (rows - 1) * pitch + width, p.whole_blocks);
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
  const uint32_t lanes = p.plan.bulk_columns.lanes, shares = p.plan.bulk_columns.shares;
  const uint32_t lane = threadIdx.x % lanes, share = threadIdx.x / lanes;
  const uint32_t first_slot = kSlots > 1 ? lane / 32 * 32 * kSlots + lane % 32 : lane;
  const Dim along = p.reduced()[0];
  const int64_t pitch = along.stride * int64_t(sizeof(Key));
  constexpr int kRowsAtOnce = rows_at_once(sizeof(Key));
  const uint32_t stage_pitch = p.plan.bulk_columns.stage_pitch;
  const uint32_t stage_rows = p.plan.bulk_columns.stage_rows;
  const bool alone = shares == 1 && p.plan.cluster == 1;
  // The columns that threads keep at once: all of a tile, unless a stage holds all of its rows.
  const auto subtile = static_cast<uint32_t>(p.plan.bulk_columns.subtile);
  const auto tile_columns = static_cast<uint32_t>(p.plan.bulk_columns.tile);
  auto* nears = reinterpret_cast<Near<Key>*>(scratch);  // [shares][tile]
  Turn stage;
  for (int64_t number = blockIdx.x; number < p.plan.bulk_columns.tiles * p.plan.parts;
       number += gridDim.x) {
    const Item item = Item::of<Key>(p, number);
    const auto columns = static_cast<uint32_t>(item.columns);
    for (uint32_t left = 0; left < columns; left += subtile) {
      Tracker<Element, kSlots> tracker;  // of positions item.begin + share + turn * shares
      uint32_t turn = 0;
      const auto extent = static_cast<uint32_t>(item.stop - item.begin);
      const char* from = item.origin + item.begin * pitch;
      for (uint32_t done = 0; done < extent; done += stage_rows) {
        const uint32_t rows = std::min(stage_rows, extent - done);
        const char* buffer = ring.buffer(stage);
        uint32_t at = lead_of(from) + first_slot * kSlotBytes + share * stage_pitch +
                      left * uint32_t(sizeof(Key));
        if (left == 0) ring.wait_full(stage);
        uint32_t j = share;
        const auto take = [&]<int kTaken>(std::integral_constant<int, kTaken>) {
          typename S::Slot slot[kSlots][kTaken];
#pragma unroll
          for (int r = 0; r < kTaken; ++r) {
            const typename S::Row row(buffer, at + r * shares * stage_pitch);
#pragma unroll
            for (int u = 0; u < kSlots; ++u) slot[u][r] = row[u * 32];
          }
          tracker.take(element, slot, turn);
          turn += kTaken;
          j += kTaken * shares;
          at += kTaken * shares * stage_pitch;
        };
        REDUCEOPS_ROLLED
        while (j + (kRowsAtOnce - 1) * shares < rows)
          take(std::integral_constant<int, kRowsAtOnce>());
        REDUCEOPS_ROLLED
        while (j + shares < rows) take(std::integral_constant<int, 2>());
        if (j < rows) take(std::integral_constant<int, 1>());
        if (left + subtile >= columns) {
          ring.release(stage);
          ring.next(stage);
        }
        from += stage_rows * pitch;
      }
      const Results<Element> results = item.template results<Element>(p);
      if (p.plan.cluster > 1) sync_readers();  // the ring has been read: its memory is free
      tracker.finish();
      if (alone) {
        // Indices of any type; values of neighbours where a slot has several.
        if (results.side_by_side() && (kElements > 1 || !p.out.values)) {
          const int64_t output = item.outer * p.axes()[0].size + item.column;
#pragma unroll
          for (int u = 0; u < kSlots; ++u) {
            const uint32_t here = left + (first_slot + u * 32) * kElements;
            uint32_t positions[kElements];
#pragma unroll
            for (int e = 0; e < kElements; ++e) positions[e] = tracker.turn(u, e);
            if (!p.out.values) {
              if (here < columns) p.out.put_indices(output + here, columns - here, positions);
              continue;
            }
            if constexpr (kElements > 1) {
              Key keys[kElements];
#pragma unroll
              for (int e = 0; e < kElements; ++e) keys[e] = tracker.key(element, u, e);
              results.put_run(element, here, columns, keys, positions);
            }
          }
        } else {
          Key keys[kSlots * kElements];
          uint32_t positions[kSlots * kElements];
#pragma unroll
          for (int i = 0; i < kSlots * kElements; ++i) {
            keys[i] = tracker.key(element, i / kElements, i % kElements);
            positions[i] = tracker.turn(i / kElements, i % kElements);
          }
          REDUCEOPS_ROLLED
          for (int i = 0; i < kSlots * kElements; ++i) {
            const uint32_t here =
                left + (first_slot + i / kElements * 32) * kElements + i % kElements;
            if (here < columns) results.put(element, here, keys[i], positions[i]);
          }
        }
        continue;
      }
      if (share < shares) {
#pragma unroll
        for (int u = 0; u < kSlots; ++u) {
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            const uint32_t here = left + (first_slot + u * 32) * kElements + e;
            if (here >= columns) continue;
            const Near<Key> found{tracker.key(element, u, e), share + tracker.turn(u, e) * shares};
            // A share past the extent has nothing.
            nears[share * tile_columns + here] = share < extent ? found : Near<Key>();
          }
        }
      }
      sync_readers();
      // Where columns are few, shares are many: several lanes combine those of a column.
      const uint32_t end = std::min(left + subtile, columns);
      const uint32_t readers = blockDim.x - kProducers;
      const uint32_t takers = 1u << log2_of(std::clamp(readers / subtile, 1u, 32u));
      merge_items<Near<Key>>(
          end - left, takers, readers, shares, tile_columns,
          [&](uint32_t i) { return nears + left + i; },
          [&](uint32_t i, Near<Key> found) {
            if (p.plan.cluster > 1) {
              nears[left + i] = found;
            } else {
              results.put(element, left + i, found.key, found.index);
            }
          });
      sync_readers();
    }
  }
}

// The blocks of a cluster have walked down one part of the same tile each: every block combines
// some of the columns.
template <class Element, class Key = typename Element::Key>
__device__ void combine_cluster(const Problem& p, Element element, Near<Key>* nears) {
  const Item item = Item::of<Key>(p, blockIdx.x);
  const Results<Element> results = item.template results<Element>(p);
  const uint32_t cluster = p.plan.cluster, rank = blockIdx.x % cluster;
  REDUCEOPS_ROLLED
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
    bulk_columns(const Element element, const __grid_constant__ Problem p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Key = typename Element::Key;
  char* shared = dynamic_shared();
  if (p.candidates) let_next_launch();
  const Ring ring(shared, p.plan.bulk_columns.stages, p.plan.bulk_columns.stage_bytes);
  char* scratch = p.plan.cluster > 1 ? shared : shared + ring_bytes(p.plan.bulk_columns);
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

// Reduced dims are in the order of memory.
void launch_in_memory(const Reduction& r, const Problem& problem, void* stream) {
  visit_input_element(r, [&](auto element) {
    using Element = decltype(element);
    constexpr int kSlots = slots_per_reader(sizeof(typename Element::Key));
    if (problem.plan.bulk_columns.vector) {
      launch_ring<bulk_columns<kSlots, Element>>(problem, element, stream);
    } else {
      launch_ring<bulk_columns<1, Element>>(problem, element, stream);
    }
  });
}

}  // namespace

void launch_bulk_columns(const Reduction& r, const Problem& problem, void* stream) {
  if (!problem.plan.bulk_columns.mapped) return launch_in_memory(r, problem, stream);
  Problem in_memory = problem;
  const Dims reduced = by_stride(r.groups.reduced);
  std::copy_n(reduced.dim, reduced.count, in_memory.dims + in_memory.kept_count);
  launch_in_memory(r, in_memory, stream);
}

}  // namespace reduceops::cuda
