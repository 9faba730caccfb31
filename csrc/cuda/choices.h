// Which kernel of cuDNN (cudnn.h) a convolution is computed with, if any: found out in its first
// call and kept, for another one would change the last bits of its results.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "cuda/cudnn.h"
#include "cuda/sizes.h"

namespace reduceops::cuda {

// What a kernel is chosen for: a convolution on a device.
struct ConvolutionKey {
  FusedConvolution convolution;
  int64_t device;
  bool fastest;
  auto operator<=>(const ConvolutionKey&) const = default;
};
// The kernel, or null for the unfused form.
using Choice = std::shared_ptr<const FusedKernel>;

class Choices {
 public:
  // Convolutions that have kernels, of all devices. All of these are kept, for a CUDA graph may
  // hold them. One that is first called after these never gets one.
  static constexpr size_t kMostFused = 64;
  // Convolutions that are known, with a kernel or without.
  static constexpr size_t kMostKnown = 4096;

  // None where there is none yet.
  std::optional<Choice> find(const ConvolutionKey& key) {
    const std::lock_guard lock(mutex_);
    const auto at = choices_.find(key);
    return at == choices_.end() ? std::nullopt : std::optional(at->second);
  }

  // What finds channels is only made beside what has found their extremes.
  bool has_room(const ConvolutionKey& key) {
    const std::lock_guard lock(mutex_);
    return key.convolution.finds_channels || (fused_ < kMostFused && choices_.size() < kMostKnown);
  }

  void keep(const ConvolutionKey& key, Choice choice) {
    const std::lock_guard lock(mutex_);
    fused_ += choice && !key.convolution.finds_channels;
    choices_[key] = std::move(choice);
  }

  // Whether this call does without, for earlier ones have failed: where there is no memory, each
  // would take milliseconds to find that out.
  bool skips(const ConvolutionKey& key) {
    const std::lock_guard lock(mutex_);
    const auto at = failures_.find(key);
    if (at == failures_.end() || at->second.skipped == 0) return false;
    --at->second.skipped;
    return true;
  }
  // Twice as many calls do without after each failure in a row.
  void failed(const ConvolutionKey& key) {
    const std::lock_guard lock(mutex_);
    if (failures_.size() >= kMostKnown) failures_.clear();
    Failures& failures = failures_[key];
    failures.next = std::min(2 * failures.next, kMostSkipped);
    failures.skipped = failures.next;
  }
  void succeeded(const ConvolutionKey& key) {
    const std::lock_guard lock(mutex_);
    failures_.erase(key);
  }

  std::array<std::mutex, kDevices> making;  // of each device, one thread at a time

 private:
  // Calls that do without a kernel after it has failed again and again, at most.
  static constexpr int64_t kMostSkipped = 4096;

  struct Failures {
    int64_t next = 1, skipped = 0;
  };
  std::mutex mutex_;
  std::map<ConvolutionKey, Choice> choices_;
  size_t fused_ = 0;
  std::map<ConvolutionKey, Failures> failures_;
};

}  // namespace reduceops::cuda
