// SPDX-License-Identifier: Apache-2.0
#include "cli/cuda_facts.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

// A function of the driver's library (cuda.h); 0 is success.
template <typename... Args>
int CallDriver(void* library, const char* name, Args... args) {
  constexpr int kNotFound = 500;
  auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
  return function == nullptr ? kNotFound : function(args...);
}

std::string DescribeError(void* library, int error) {
  const char* text = nullptr;
  if (CallDriver(library, "cuGetErrorString", error, &text) != 0 || text == nullptr) text = "unknown";
  return absl::StrCat("error ", error, ", ", text);
}

std::string FindToolkit() {
  std::vector<std::string> folders;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* folder = std::getenv(variable); folder != nullptr && *folder != '\0') folders.push_back(folder);
  }
  folders.push_back("/usr/local/cuda");
  if (const char* path = std::getenv("PATH"); path != nullptr) {
    for (absl::string_view place : absl::StrSplit(path, ':', absl::SkipEmpty())) {
      folders.push_back(std::filesystem::path(std::string(place)).parent_path().string());
    }
  }
  std::error_code ignored;
  for (const std::string& folder : folders) {
    if (std::filesystem::exists(folder + "/bin/nvcc", ignored)) return folder;
  }
  return "";
}

// The first word of the kernel module's line that looks like "550.54.15".
std::string KernelDriver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    if (absl::ascii_isdigit(word[0]) && word.find('.') != absl::string_view::npos) return std::string(word);
  }
  return "";
}

GpuFacts DescribeGpu(void* library, int index) {
  constexpr int kMajor = 75, kMinor = 76;
  GpuFacts gpu;
  int device = 0, major = 0, minor = 0;
  char name[256] = "";
  size_t memory = 0;
  CallDriver(library, "cuDeviceGet", &device, index);
  CallDriver(library, "cuDeviceGetName", static_cast<char*>(name), static_cast<int>(sizeof(name)), device);
  CallDriver(library, "cuDeviceTotalMem_v2", &memory, device);
  CallDriver(library, "cuDeviceGetAttribute", &major, kMajor, device);
  CallDriver(library, "cuDeviceGetAttribute", &minor, kMinor, device);
  gpu.name = name;
  gpu.memory_bytes = memory;
  gpu.compute_capability = absl::StrCat(major, ".", minor);
  return gpu;
}

// Fills in driver and devices; answers why there is none to use.
std::string AskDriver(void* library, CudaFacts& facts) {
  if (int error = CallDriver(library, "cuInit", 0u); error != 0) {
    return absl::StrCat("the NVIDIA driver does not start: ", DescribeError(library, error));
  }
  int version = 0;
  CallDriver(library, "cuDriverGetVersion", &version);
  const std::string api = absl::StrCat("CUDA ", version / 1000, ".", version % 1000 / 10);
  facts.driver = facts.driver.empty() ? api : absl::StrCat(facts.driver, ", ", api);
  int count = 0;
  if (int error = CallDriver(library, "cuDeviceGetCount", &count); error != 0) {
    return absl::StrCat("the NVIDIA driver counts no GPUs: ", DescribeError(library, error));
  }
  for (int i = 0; i < count; ++i) facts.devices.push_back(DescribeGpu(library, i));
  return count == 0 ? "the NVIDIA driver finds no GPU" : "";
}

}  // namespace

CudaFacts ProbeCuda() {
  CudaFacts facts;
  facts.toolkit = FindToolkit();
  facts.driver = KernelDriver();
  // Stays loaded: the driver's threads do not survive its unloading.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  facts.reason = library == nullptr ? "no NVIDIA driver: libcuda.so.1 is not there" : AskDriver(library, facts);
  facts.usable = facts.reason.empty();
  return facts;
}

}  // namespace ballast
