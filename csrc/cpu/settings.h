// What the environment chooses for the CPU, read once when the library is loaded.
#pragma once

#include <string>

#include "cpu/kernels.h"

namespace reduceops::cpu {

// The kernels of one instruction set.
struct Variant {
  const char* name;
  const Kernels* kernels;
  bool runs_here;
};

struct Settings {
  const Variant* variant;  // REDUCEOPS_CPU_ISA, or the best that runs here
  bool huge_pages;         // REDUCEOPS_HUGE_PAGES
  std::string error;       // what the environment asks for in vain; no operator runs then
};

extern const Settings settings;

}  // namespace reduceops::cpu
