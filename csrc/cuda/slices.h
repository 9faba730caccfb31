// Outputs that are reduced one slice after the other: where the candidates of all do not find room
// in the workspace, or where all together lie beyond what walks of 31 bits reach.
#pragma once

#include <algorithm>
#include <numeric>

#include "cuda/sizes.h"
#include "narrow.h"

namespace reduceops::cuda {

// Where an element lies, its byte of the mask and its result.
constexpr int64_t Dim::* kPlaces[] = {&Dim::stride, &Dim::mask_stride, &Dim::step};

// The last of all. (Reduced dims do not lead to other results.)
inline int64_t last_place(const Groups& groups, int64_t Dim::* stride) {
  return reach(groups.kept, stride) + (stride == &Dim::step ? 0 : reach(groups.reduced, stride));
}

// Of one kept dim.
struct Slices {
  int64_t count = 1;  // with one there is nothing to cut
  int64_t size = 0;   // positions of all but the last
  int dim = 0;

  // Of at most `most` positions of a dim, a multiple of some and about as many in each; one if
  // those would be too many slices, or if there is no need.
  static Slices cut(const Groups& all, int dim, int64_t most, int64_t multiple) {
    const Dim& cut = all.kept.dim[dim];
    const int64_t count =
        most < multiple ? kMost + 1 : ceil_div(cut.size, most / multiple * multiple);
    if (count == 1 || count > kMost) return {};
    const int64_t size = round_up(ceil_div(cut.size, count), multiple);
    return {ceil_div(cut.size, size), size, dim};
  }

  // Of at most so many outputs, where the most positions are.
  static Slices of_outputs(const Groups& all, int64_t most) {
    int largest = 0;
    for (int d = 1; d < all.kept.count; ++d) {
      if (all.kept.dim[d].size > all.kept.dim[largest].size) largest = d;
    }
    return cut(all, largest, most / (all.outputs / all.kept.dim[largest].size), 1);
  }

  // So many that each has short places (plan/input.h), of the outermost dim of the results that can
  // be cut so. The results of each begin where 16-byte stores may. `dense`: of none but the
  // outermost of all, so that the results of each lie one behind the other.
  static Slices with_short_places(const Groups& all, bool dense) {
    const Dims kept = by_step(all.kept);
    Slices slices;
    for (int i = kept.count - 1; i >= 0 && slices.count == 1; --i) {
      const Dim& dim = kept.dim[i];
      int64_t most = dim.size;
      for (const auto stride : kPlaces) {
        const int64_t others = last_place(all, stride) - (dim.size - 1) * dim.*stride;
        most = std::min(most, most_short(others, dim.*stride));
      }
      int number = 0;  // of the dim in the order of memory
      while (all.kept.dim[number].step != dim.step) ++number;
      // Of so many positions, results begin at a multiple of 16 bytes whatever their width.
      const int64_t multiple = kLoadBytes / std::gcd(kLoadBytes, dim.step);
      slices = cut(all, number, most, multiple);
      if (dense) break;
    }
    return slices;
  }

  // Whether the results of each lie one behind the other.
  bool are_dense(const Groups& all) const {
    return by_step(all.kept).dim[all.kept.count - 1].step == all.kept.dim[dim].step;
  }

  int64_t begin(int64_t number) const { return number * size; }
  int64_t positions(const Groups& all, int64_t number) const {
    return std::min(size, all.kept.dim[dim].size - begin(number));
  }
  Groups groups(const Groups& all, int64_t number) const {
    Groups slice = all;
    shorten(slice, dim, positions(all, number));
    return slice;
  }

 private:
  static constexpr int64_t kMost = 32, kLastShort = (int64_t{1} << 31) - 1;

  // Positions of a dim that are reached by 31 bits from the last one of others on.
  static int64_t most_short(int64_t others, int64_t stride) {
    if (others > kLastShort) return 0;
    return stride == 0 ? kLastShort : (kLastShort - others) / stride + 1;
  }
};

}  // namespace reduceops::cuda
