#include "cpu/settings.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <cstdlib>
#include <iterator>

namespace reduceops::cpu {
namespace {

#ifdef __x86_64__
// All that -march=x86-64-v3 and -v4 let the compiler use. __builtin_cpu_supports() knows what the
// system saves of the wide registers, but not in every compiler the names of the last few.
bool has_avx2() {
  constexpr unsigned kBasic = bit_CMPXCHG16B | bit_MOVBE | bit_OSXSAVE | bit_F16C;
  constexpr unsigned kExtended = bit_LAHF_LM | bit_LZCNT;
  unsigned eax, ebx, basic, extended, edx;
  return __builtin_cpu_supports("sse3") && __builtin_cpu_supports("ssse3") &&
         __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") &&
         __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("avx") &&
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma") &&
         __get_cpuid(1, &eax, &ebx, &basic, &edx) && (basic & kBasic) == kBasic &&
         __get_cpuid(0x80000001, &eax, &ebx, &extended, &edx) &&
         (extended & kExtended) == kExtended;
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

// Best first.
const Variant variants[] = {
#ifdef __x86_64__
    {"avx512", &kernels_avx512, has_avx512()},
    {"avx2", &kernels_avx2, has_avx2()},
#endif
    {"baseline", &kernels_baseline, true},
};

std::string names(bool runnable, const char* separator) {
  std::string all;
  for (const Variant& variant : variants) {
    if (variant.runs_here || !runnable) all.append(all.empty() ? "" : separator) += variant.name;
  }
  return all;
}

// A variable's value; empty where it is not set.
std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Settings read_environment() {
  Settings chosen{};
  const auto refuse = [&](const std::string& why) {
    chosen.error += (chosen.error.empty() ? "" : ". ") + why;
  };
  const std::string isa = environment("REDUCEOPS_CPU_ISA");
  for (const Variant& variant : variants) {
    if (!chosen.variant && variant.runs_here && (isa.empty() || isa == variant.name))
      chosen.variant = &variant;
  }
  if (!chosen.variant) {
    chosen.variant = std::end(variants) - 1;
    refuse("REDUCEOPS_CPU_ISA is \"" + isa + "\"; there are " + names(false, ", ") +
           ", and this CPU runs " + names(true, ", "));
  }
  const std::string huge_pages = environment("REDUCEOPS_HUGE_PAGES");
  chosen.huge_pages = huge_pages == "1";
  if (!chosen.huge_pages && !huge_pages.empty() && huge_pages != "0")
    refuse("REDUCEOPS_HUGE_PAGES is \"" + huge_pages + "\"; it takes 0 or 1");
  return chosen;
}

}  // namespace

#ifdef __x86_64__
const bool asks_in_streams = !__builtin_cpu_is("amd");

// (GCC takes the attribute only where no vector registers are used, and then knows no prefetch.)
__attribute__((no_caller_saved_registers, target("general-regs-only"))) void ask_into_l2(
    const void* from) {
  asm volatile("prefetcht1 (%0)\n\tprefetcht1 64(%0)\n\tprefetcht1 128(%0)\n\tprefetcht1 192(%0)"
               :
               : "r"(from));
}
#else
const bool asks_in_streams = true;
#endif

const Settings settings = read_environment();

}  // namespace reduceops::cpu

using reduceops::cpu::settings;

// For `import customops`: null, or what the environment asks for in vain.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cpu_error() {
  return settings.error.empty() ? nullptr : settings.error.c_str();
}

// For `python -m customops`.
extern "C" __attribute__((visibility("default"))) const char* reduceops_cpu_isa() {
  return settings.variant->name;
}

extern "C" __attribute__((visibility("default"))) const char* reduceops_cpu_isas() {
  static const std::string runnable = reduceops::cpu::names(true, ",");
  return runnable.c_str();
}
