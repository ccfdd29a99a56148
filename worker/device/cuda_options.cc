// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda_options.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

CudaOptions CachingCudaOptions() {
  CudaOptions options;
  const std::string cache = Environment("XDG_CACHE_HOME"), home = Environment("HOME");
  if (!cache.empty()) {
    options.cache_folder = absl::StrCat(cache, "/ballast/gpu");
  } else if (!home.empty()) {
    options.cache_folder = absl::StrCat(home, "/.cache/ballast/gpu");
  }
  return options;
}

}  // namespace ballast
