// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// One of NVIDIA's shared libraries, never unloaded: the one linked, otherwise the loader's, otherwise the one of the
// build's toolkit or of a wheel (common/program/nvidia_libraries.h). See docs/decisions/0012. Thread safety: one
// thread.
class NvidiaLibrary {
 public:
  // For example "cuBLAS", 13 and "libcublas.so.13". The major version must match, because functions of another one
  // may take other arguments. FAILED_PRECONDITION says what is missing, where it was searched for, and what to do.
  static absl::StatusOr<NvidiaLibrary> Open(const std::string& product, int major, const std::string& file);

  // Sets `function` to the library's function, or to null if the library lacks it; status() then reports that.
  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(Find(name));
  }

  // FAILED_PRECONDITION if Find missed a function; the message names it.
  absl::Status status() const { return status_; }

 private:
  NvidiaLibrary(void* library, std::string product, int major, std::string file);

  void* Find(const char* name);

  void* library_;
  std::string product_;
  int major_;
  std::string file_;
  absl::Status status_;
};

}  // namespace ballast
