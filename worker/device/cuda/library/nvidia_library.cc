// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/library/nvidia_library.h"

#include <ballast_cuda_build.h>
#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {

NvidiaLibrary::NvidiaLibrary(void* library, std::string product, int major, std::string file)
    : library_(library), product_(std::move(product)), major_(major), file_(std::move(file)) {}

absl::StatusOr<NvidiaLibrary> NvidiaLibrary::Open(const std::string& product, int major, const std::string& file) {
  // The bare name finds a linked library, or one in the loader's search path (LD_LIBRARY_PATH, ldconfig).
  for (const std::string& path : {file, absl::StrCat(BALLAST_CUDA_LIBRARIES, "/", file)}) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return NvidiaLibrary(library, product, major, file);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      product, " not found: ", file, " is neither in the loader's search path nor in ", BALLAST_CUDA_LIBRARIES,
      "; install ", product, " ", major, ", or add its directory to LD_LIBRARY_PATH"));
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
