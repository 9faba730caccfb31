// Runs a package of torch.export and AOTInductor that uses the operators, without Python:
//
//   aoti_cpp MODEL.pt2 SIZE,SIZE,... LIBRARY...
//
// LIBRARY is libreduceops.so of the installed customops and, for a package made for CUDA,
// libreduceops_cuda.so after it. The input is export.py's; the results are printed as export.py
// prints them.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// Loading the library registers the operators, which the package looks up by name.
void load(const char* library) {
  if (!dlopen(library, RTLD_NOW | RTLD_GLOBAL)) throw std::runtime_error(dlerror());
}

std::vector<int64_t> parse_sizes(const char* text) {
  std::vector<int64_t> sizes;
  std::istringstream stream(text);
  for (std::string size; std::getline(stream, size, ',');) {
    if (size.empty() || size.find_first_not_of("0123456789") != size.npos)
      throw std::runtime_error(std::string("sizes are numbers with commas, got ") + text);
    sizes.push_back(std::stoll(size));
  }
  return sizes;
}

at::Tensor make_input(at::IntArrayRef sizes, bool cuda) {
  const auto input = at::arange(c10::multiply_integers(sizes)).mul(7).remainder(11).sub(5);
  return input.to(at::kFloat).reshape(sizes).to(cuda ? at::kCUDA : at::kCPU);
}

void show(const at::Tensor& result) {
  std::cout << result.scalar_type() << ' ' << result.sizes() << ':';
  const auto flat = result.cpu().to(at::kLong).flatten();
  for (int64_t i = 0; i < flat.numel(); ++i) std::cout << ' ' << flat[i].item<int64_t>();
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: aoti_cpp MODEL.pt2 SIZE,SIZE,... LIBRARY...\n";
    return 2;
  }
  try {
    for (int i = 3; i < argc; ++i) load(argv[i]);
    torch::inductor::AOTIModelPackageLoader model(argv[1]);
    const bool cuda = model.get_metadata().at("AOTI_DEVICE_KEY") == "cuda";
    const auto results = model.run({make_input(parse_sizes(argv[2]), cuda)});
    for (const at::Tensor& result : results) {
      // Packages made by torch 2.10 go on after an operator has failed.
      if (!result.defined()) throw std::runtime_error("the model failed; the cause is above");
    }
    for (const at::Tensor& result : results) show(result);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
