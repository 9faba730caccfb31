// To channels_last through tiles in shared memory, so that loads and stores are of whole lines.
// Bound by memory.
#include "cuda/layout.h"

#include "cuda/device.cuh"
#include "cuda/sizes.h"

namespace reduceops::cuda {
namespace {

constexpr int kLanes = 32, kWarps = 8, kTileThreads = kLanes * kWarps;
// A tile: words of 4 bytes, each of which holds the one or two neighbouring channels of a position.
constexpr int kTileWords = 32, kTilePositions = 128;
// Of a row in shared memory: no two lanes share a bank.
constexpr int kTilePitch = kTilePositions + 1;
constexpr int kRuns = kTilePositions / kLanes;

struct Tiles {
  Images images;
  int64_t channel_tiles, position_tiles;
};

// `channel` and `position` are its first.
struct TilePlace {
  int64_t image, channel, position;
};

template <class T>
__device__ TilePlace tile_of(const Tiles& t, int64_t index) {
  constexpr int kChannels = kTileWords * sizeof(uint32_t) / sizeof(T);
  const int64_t rest = index / t.channel_tiles;
  return {rest / t.position_tiles, index % t.channel_tiles * kChannels,
          rest % t.position_tiles * kTilePositions};
}

// Where a position of a tile lies in its rows: two neighbours come in one load of 2-byte elements,
// and go to different halves, for lanes next to each other are to write next to each other.
template <class T>
__device__ int position_at(int place) {
  if constexpr (sizeof(T) == 4) return place;
  return place < kTilePositions / 2 ? 2 * place : 2 * (place - kTilePositions / 2) + 1;
}

__device__ inline void read_tile(const Images& i, const TilePlace& tile, uint32_t* shared,
                                 const uint32_t*) {
  const auto* from = static_cast<const uint32_t*>(i.from) + tile.image * i.image_stride;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  uint32_t words[kTileWords / kWarps][kRuns];
#pragma unroll
  for (int row = 0; row < kTileWords / kWarps; ++row) {
    const int64_t channel = tile.channel + warp + row * kWarps;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int64_t position = tile.position + lane + run * kLanes;
      const bool inside = channel < i.channels && position < i.positions;
      words[row][run] = inside ? from[channel * i.channel_stride + position] : 0;
    }
  }
#pragma unroll
  for (int row = 0; row < kTileWords / kWarps; ++row) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run)
      shared[(warp + row * kWarps) * kTilePitch + lane + run * kLanes] = words[row][run];
  }
}

// Two neighbours of a row, where there are so many: in one load if all rows are aligned.
__device__ inline uint32_t load_pair(const uint16_t* from, int64_t left, bool aligned) {
  if (left >= 2 && aligned) return *reinterpret_cast<const uint32_t*>(from);
  uint32_t pair = 0;
  if (left >= 1) pair = from[0];
  if (left >= 2) pair |= uint32_t(from[1]) << 16;
  return pair;
}

__device__ inline void read_tile(const Images& i, const TilePlace& tile, uint32_t* shared,
                                 const uint16_t*) {
  const auto* from = static_cast<const uint16_t*>(i.from) + tile.image * i.image_stride;
  const bool aligned = reinterpret_cast<uintptr_t>(i.from) % 4 == 0 && i.channel_stride % 2 == 0 &&
                       i.image_stride % 2 == 0;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  uint32_t pairs[kTileWords / kWarps][kRuns];  // of positions, of two channels after each other
#pragma unroll
  for (int row = 0; row < kTileWords / kWarps; ++row) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int64_t channel = tile.channel + 2 * (warp + row * kWarps) + run % 2;
      const int64_t position = tile.position + 2 * (lane + run / 2 * kLanes);
      const int64_t left = channel < i.channels ? i.positions - position : 0;
      pairs[row][run] = load_pair(from + channel * i.channel_stride + position, left, aligned);
    }
  }
#pragma unroll
  for (int row = 0; row < kTileWords / kWarps; ++row) {
    uint32_t* to = shared + (warp + row * kWarps) * kTilePitch + lane;
#pragma unroll
    for (int run = 0; run < kRuns; run += 2) {
      const uint32_t a = pairs[row][run], b = pairs[row][run + 1];
      to[run / 2 * kLanes] = __byte_perm(a, b, 0x5410);
      to[run / 2 * kLanes + kTilePositions / 2] = __byte_perm(a, b, 0x7632);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    channels_last_kernel(const __grid_constant__ Tiles t) {
  constexpr int kPerLoad = kLoadBytes / sizeof(T), kWordsPerLoad = kLoadBytes / sizeof(uint32_t);
  constexpr int kStoringLanes = kTileWords / kWordsPerLoad, kAtOnce = kTileThreads / kStoringLanes;
  auto* shared = reinterpret_cast<uint32_t*>(dynamic_shared());
  const Images& i = t.images;
  const TilePlace tile = tile_of<T>(t, blockIdx.x);
  read_tile(i, tile, shared, static_cast<const T*>(nullptr));
  __syncthreads();

  const int word = threadIdx.x % kStoringLanes * kWordsPerLoad;
  const int64_t channel = tile.channel + word * (sizeof(uint32_t) / sizeof(T));
  T* const to = static_cast<T*>(i.to) + tile.image * i.positions * i.channels + channel;
  for (int place = threadIdx.x / kStoringLanes; place < kTilePositions; place += kAtOnce) {
    const int64_t position = tile.position + position_at<T>(place);
    if (position >= i.positions || channel >= i.channels) continue;
    Vector<T> vector;
    uint32_t words[kWordsPerLoad];
#pragma unroll
    for (int w = 0; w < kWordsPerLoad; ++w) words[w] = shared[(word + w) * kTilePitch + place];
    memcpy(&vector, words, sizeof vector);
    T* const out = to + position * i.channels;
    if (i.channels % kPerLoad == 0) {
      *reinterpret_cast<uint4*>(out) = uint4{words[0], words[1], words[2], words[3]};
    } else {
      for (int n = 0; n < kPerLoad && channel + n < i.channels; ++n) out[n] = vector.at[n];
    }
  }
}

template <class T>
void launch_channels_last_of(const Images& images, void* stream) {
  constexpr int64_t kChannels = kTileWords * sizeof(uint32_t) / sizeof(T);
  const Tiles tiles{images, ceil_div(images.channels, kChannels),
                    ceil_div(images.positions, kTilePositions)};
  const auto config =
      launch_config(images.images * tiles.channel_tiles * tiles.position_tiles, kTileThreads,
                    stream, kTileWords * kTilePitch * sizeof(uint32_t));
  check(cudaLaunchKernelEx(&config, channels_last_kernel<T>, tiles));
}

}  // namespace

void launch_channels_last(const Images& images, int bytes, void* stream) {
  bytes == 2 ? launch_channels_last_of<uint16_t>(images, stream)
             : launch_channels_last_of<uint32_t>(images, stream);
}

}  // namespace reduceops::cuda
