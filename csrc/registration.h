// STABLE_TORCH_LIBRARY and STABLE_TORCH_LIBRARY_IMPL for a library of which a process may load two
// copies: torch would crash at operators that are registered twice, so the second registers none.
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace reduceops {

#ifdef USE_CUDA
inline constexpr const char* kExported = "reduceops_cuda_architectures";
#else
inline constexpr const char* kExported = "reduceops_cpu_isa";
#endif

// Where another copy of this library was loaded from; empty if there is none.
inline std::string other_copy() {
  static const int here = 0;
  Dl_info own{};
  dladdr(&here, &own);
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* found) {
        if (object->dlpi_name && *object->dlpi_name)
          static_cast<std::vector<std::string>*>(found)->emplace_back(object->dlpi_name);
        return 0;
      },
      &paths);
  for (const std::string& path : paths) {
    void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) continue;
    void* const function = dlsym(handle, kExported);
    dlclose(handle);
    Dl_info other{};
    if (function && dladdr(function, &other) && other.dli_fbase != own.dli_fbase) return path;
  }
  return "";
}

class Registration {
 public:
  using Library = torch::stable::detail::StableLibrary;

  // Of the schemas if `key` is null, else of kernels for that dispatch key.
  Registration(void (*init)(Library&), const char* key, const char* file, uint32_t line) {
    static const std::string other = other_copy();
    if (other.empty()) {
      const auto kind = key ? Library::Kind::IMPL : Library::Kind::DEF;
      init_.emplace(kind, init, "reduceops", key, file, line);
    } else if (!key) {
      std::fprintf(stderr, "reduceops: a second copy registers nothing beside that of %s\n",
                   other.c_str());
    }
  }

 private:
  std::optional<torch::stable::detail::StableTorchLibraryInit> init_;
};

}  // namespace reduceops

#define REDUCEOPS_REGISTER(name, key, m)                                                    \
  static void register_##name(reduceops::Registration::Library&);                           \
  static const reduceops::Registration registration_##name(&register_##name, key, __FILE__, \
                                                           __LINE__);                       \
  void register_##name(reduceops::Registration::Library& m)
#define REDUCEOPS_LIBRARY(m) REDUCEOPS_REGISTER(schemas, nullptr, m)
#define REDUCEOPS_LIBRARY_IMPL(key, m) REDUCEOPS_REGISTER(key, #key, m)
