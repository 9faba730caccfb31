// What a plan is made from, with what several walks ask about it.
#pragma once

#include <numeric>

#include "cuda/mask_groups.h"
#include "cuda/option_policy.h"
#include "cuda/plan.h"
#include "cuda/slices.h"
#include "cuda/tuning.h"

namespace reduceops::cuda {

// What is stored of a result.
struct Stores {
  bool index = true, value = false;

  int64_t count() const { return index + value; }
  bool operator==(const Stores&) const = default;
};

struct PlanInput {
  // `bytes` per element; `address` of the input (its alignment is what counts).
  PlanInput(const Groups& groups, int64_t bytes, int64_t address, Limits limits,
            const Tuning& tuning, Task task = Task::kExtreme, Stores stores = {},
            bool folded = false)
      : groups(groups),
        tuning(tuning),
        multiprocessors(limits.multiprocessors),
        task(task),
        stores(stores),
        folded(folded),
        bulk(limits.bulk && tuning.bulk != 0),
        rows(is_rows(groups)),
        bytes(bytes),
        address(address),
        walk(walk_extent(groups.reduced)),
        total(groups.outputs * walk * bytes) {}
  // Of the groups that folding makes of those of `whole`.
  PlanInput(const PlanInput& whole, const Groups& folded)
      : PlanInput(folded, whole.bytes, whole.address, {whole.multiprocessors, whole.bulk},
                  whole.tuning, whole.task, {}, true) {}

  const Groups& groups;
  const Tuning& tuning;
  const int64_t multiprocessors;
  const Task task;
  const Stores stores;
  const bool folded;  // every group leaves a candidate
  const bool bulk;    // there are bulk copies and clusters
  const bool rows;    // the innermost dim is a reduced one
  const int64_t bytes, address;
  const int64_t walk;   // elements of a group
  const int64_t total;  // bytes of all of them

  const Dim& inner() const { return groups.axes.dim[0]; }
  const Dim& along() const { return groups.reduced.dim[0]; }
  int64_t slot_bytes() const { return std::max<int64_t>(4, bytes); }
  int64_t elements_of_load() const { return kLoadBytes / bytes; }
  bool large() const { return total >= tuning.bulk_bytes; }
  bool has_few_elements() const { return groups.outputs * walk <= tuning.small_elements; }
  // Of a tile that a block copies: less of small inputs, which do not fill the GPU with blocks.
  int64_t tile_bytes() const {
    if (total >= 12 << 20) return tuning.tile_bytes;
    const int64_t least = std::min(tuning.tile_bytes, tuning.small_tile_bytes);
    return std::clamp(total / (multiprocessors * 5), least, tuning.tile_bytes);
  }

  // Threads to a row of so many loads.
  int lanes_of(int64_t loads, int64_t of_lane, int64_t at_most = 32) const {
    return static_cast<int>(std::min(at_most, ceil_pow2(ceil_div(loads, of_lane))));
  }

  // Whether addresses are multiples of `alignment` wherever a walk goes past dim `from` of `dims`.
  bool strides_aligned(const Dims& dims, int from, int64_t alignment) const {
    int64_t strides = 0;
    for (int d = from; d < dims.count; ++d) strides |= dims.dim[d].stride;
    return (strides * bytes & (alignment - 1)) == 0;
  }
  bool address_aligned(int64_t alignment) const { return (address & (alignment - 1)) == 0; }

  // Whether rows begin and end where loads of 16 bytes do.
  bool rows_aligned() const {
    return address_aligned(kLoadBytes) && (walk * bytes & (kLoadBytes - 1)) == 0 &&
           strides_aligned(groups.axes, 0, kLoadBytes);
  }

  // Whether so many bytes of neighbouring columns are aligned wherever a walk goes.
  bool columns_aligned(int64_t to) const {
    return inner().stride == 1 && address_aligned(to) && (inner().size * bytes & (to - 1)) == 0 &&
           strides_aligned(groups.axes, 1, to) && strides_aligned(groups.reduced, 0, to);
  }

  // Of how many rows of columns from one to the next begin as far behind a block of 16 bytes.
  int64_t rows_of_shift() const {
    return kLoadBytes / std::gcd(kLoadBytes, along().stride * bytes);
  }

  // Whether offsets, in the mask, too, result indices and places of results have 31 bits. (Those of
  // a slice may lie apart.)
  bool has_short_places() const {
    int64_t last = groups.extent | groups.outputs * groups.copies;
    for (const auto stride : kPlaces) last |= last_place(groups, stride);
    return last >> 31 == 0;
  }

  static constexpr int64_t kShortRow = 7;

  // Under a mask, or of softmax_max, rows so short that loads of 16 bytes would leave most of their
  // elements to be loaded one after the other.
  bool has_short_rows() const {
    constexpr int64_t kLonger = 12, kBytesOfLonger = 32;
    return task != Task::kExtreme && rows &&
           (walk <= kShortRow || (walk <= kLonger && walk * bytes <= kBytesOfLonger) ||
            (task == Task::kMasked && has_few_aligned_loads() &&
             (bytes == 4 || along().mask_stride > 1)));
  }
  // The same where these loads may begin anywhere instead, which takes instructions; and where they
  // are so few that threads which hold whole rows would have none for most of theirs.
  bool has_rows_of_packs() const {
    return task != Task::kExtreme && rows && groups.reduced.count == 1 && along().stride == 1 &&
           along().mask_stride <= 1 && walk > kShortRow && walk * bytes < tuning.held_row_bytes &&
           (!rows_aligned() ||
            (has_few_aligned_loads() && !has_few_elements() && !has_short_rows()));
  }
  bool has_few_loads() const { return 2 * (walk * bytes / kLoadBytes) <= held_loads(bytes); }
  bool has_few_aligned_loads() const { return has_few_loads() && rows_aligned(); }

  // Whether positions over several reduced dims are found by divisions of 32 bits.
  bool has_flat_positions() const {
    const int count = groups.reduced.count;
    return 1 < count && count <= kFlatDims && groups.extent >> 32 == 0;
  }

  // Of one part, not cut yet.
  Plan empty_plan(Walk walk) const {
    Plan plan{};
    plan.walk = walk;
    plan.cluster = 1;
    plan.candidate_bytes = bytes_of_candidate();
    return plan;
  }
  // 8 if key and index fit; a sum needs 24.
  int bytes_of_candidate() const {
    if (task == Task::kSoftmax) return 24;
    return bytes <= 4 && groups.extent >> 32 == 0 ? 8 : 16;
  }
};

inline void keep_whole(Plan& plan, const PlanInput& in) {
  plan.parts = 1;
  plan.part_extent = in.walk;
}

// Cuts the reduced extent in at most `wanted` parts, as the workspace allows. (Groups of more than
// kMaxPartExtent positions have parts in any case. So many that their candidates take more than the
// workspace's size can only be groups that overlap in memory.)
inline void cut(Plan& plan, const PlanInput& in, int64_t wanted, int64_t multiple) {
  if (wanted <= 1 && in.walk <= kMaxPartExtent) return keep_whole(plan, in);
  const int64_t fits = kWorkspaceBytes / (plan.candidate_bytes * in.groups.outputs);
  const int64_t parts = std::max<int64_t>(1, std::min({wanted, fits, in.walk}));
  plan.part_extent = std::max<int64_t>(1, ceil_div(in.walk, parts));
  if (parts > 1) plan.part_extent = round_up(plan.part_extent, multiple);
  plan.part_extent = std::min(plan.part_extent, kMaxPartExtent);
  plan.parts = std::max<int64_t>(1, ceil_div(in.walk, plan.part_extent));
}

}  // namespace reduceops::cuda
