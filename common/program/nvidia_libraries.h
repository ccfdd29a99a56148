// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

// The search for NVIDIA's shared libraries, in one place so that `ballast doctor` and the worker agree.
namespace ballast {

// Directories to search after the loader's own: the toolkit's (empty: none), then those of PyTorch's wheels in the
// site-packages of the Python installations that PYTHONPATH, VIRTUAL_ENV, CONDA_PREFIX, PATH and HOME name. Wheels for
// another major version of CUDA do not count. Only directories that exist, except the toolkit's.
std::vector<std::string> NvidiaDirectories(const std::string& toolkit, int cuda_major);

// A library to search for. The major version must match, because functions of another one may take other arguments.
struct NvidiaProduct {
  // Such as "cuBLAS", 13 and "libcublas.so.13".
  std::string name;
  int major = 0;
  std::string file;
};

// A library, never unloaded, or the reason why there is none and what to do.
struct NvidiaSearchResult {
  // Null if there is a problem.
  void* handle = nullptr;
  // The file that was loaded.
  std::string path;
  // Such as "13.1.0"; empty: the library does not say.
  std::string version;
  std::string problem;
};

// Loads the library that the loader finds by its bare name (linked, or in LD_LIBRARY_PATH or ldconfig's directories),
// otherwise the first in `directories`.
NvidiaSearchResult OpenNvidiaLibrary(const NvidiaProduct& product, absl::Span<const std::string> directories);

}  // namespace ballast
