// The table of torch_private.h for Python (customops/_torch_private.py): what this torch lacks.
#include "torch_private.h"

#include <iterator>
#include <vector>

namespace reduceops::torch_private {
namespace {

struct Entry {
  std::string name;
  const char* without;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
#define REDUCEOPS_ENTRY(name, type, mangled, without) {mangled, without},
    std::vector<Entry> list = {REDUCEOPS_TORCH_SYMBOLS(REDUCEOPS_ENTRY)};
#undef REDUCEOPS_ENTRY
    for (const char* device : {"cpu", "cuda"}) {
      for (const char* name : Kernels::kNames)
        list.push_back({Kernels::mangled(device, name), kNoEnable});
    }
    return list;
  }();
  return all;
}

}  // namespace
}  // namespace reduceops::torch_private

// The i-th symbol, what is lost without it, and whether it is there; null past the last. `cuda`:
// those of the CUDA library, too, which are the last.
extern "C" __attribute__((visibility("default"))) const char* reduceops_torch_symbol(
    size_t i, bool cuda, const char** without, bool* found) {
  using namespace reduceops::torch_private;
  if (i >= entries().size() - (cuda ? 0 : std::size(Kernels::kNames))) return nullptr;
  const auto& [name, lost] = entries()[i];
  *without = lost;
  *found = find<void*>(name.c_str()) != nullptr;
  return name.c_str();
}
