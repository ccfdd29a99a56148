// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/library/nvidia_library.h"

#include <ballast_cuda_build.h>
#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/program/nvidia_libraries.h"

namespace ballast {

NvidiaLibrary::NvidiaLibrary(void* library, std::string product, int major, std::string file)
    : library_(library), product_(std::move(product)), major_(major), file_(std::move(file)) {}

absl::StatusOr<NvidiaLibrary> NvidiaLibrary::Open(const std::string& product, int major, const std::string& file) {
  const NvidiaSearchResult found =
      OpenNvidiaLibrary({product, major, file}, NvidiaDirectories(BALLAST_CUDA_LIBRARIES, BALLAST_CUDA_VERSION / 1000));
  if (found.handle == nullptr) return absl::FailedPreconditionError(found.problem);
  return NvidiaLibrary(found.handle, product, major, file);
}

void* NvidiaLibrary::Find(const char* name) {
  void* const function = dlsym(library_, name);
  if (function == nullptr) {
    status_.Update(absl::FailedPreconditionError(
        absl::StrCat(product_, ": ", file_, " has no ", name, "; install a newer ", product_, " ", major_)));
  }
  return function;
}

}  // namespace ballast
