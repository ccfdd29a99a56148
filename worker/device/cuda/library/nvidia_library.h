// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast {

// One of NVIDIA's shared libraries, never unloaded: what the build linked, else what the loader finds, else what the
// build's toolkit has. See docs/decisions/0012. Thread safety: one thread.
class NvidiaLibrary {
 public:
  // "cuBLAS" and 13 for a `file` "libcublas.so.13": with the major version, for another one's functions may take other
  // arguments. FAILED_PRECONDITION says what is missing, where it was looked for, and what to do.
  static absl::StatusOr<NvidiaLibrary> Open(const std::string& product, int major, const std::string& file);

  // Sets `function` to the library's, or to null where it lacks it, which status() then tells.
  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(Find(name));
  }

  // FAILED_PRECONDITION names a function that the library lacks.
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
