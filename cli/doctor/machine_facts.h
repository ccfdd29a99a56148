// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ballast {

struct CpuFacts {
  std::string model;
  int cores = 0;
  bool avx2 = false;
  bool avx512 = false;
};

struct MemoryFacts {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
};

struct ProgramFacts {
  // Empty: not found.
  std::string path;
  // OK if it starts, otherwise the reason.
  absl::Status starts;
};

CpuFacts ProbeCpu();
MemoryFacts ProbeMemory();
// Returns OpenBLAS's description of itself; empty if there is no shared library.
std::string ProbeBlas();
// OK if a server could listen on the loopback address.
absl::Status ProbeLoopback();
// Runs `ballast_<role> --help` for at most 5 s. Call it before any thread starts, because it forks.
ProgramFacts ProbeProgram(const std::string& role);
// Returns the bytes available to this user in the working directory; 0 if unknown.
uint64_t ProbeDiskBytes();
// Returns the directory of the Fashion-MNIST files; empty: not installed.
std::string ProbeDataset();

struct GpuFacts {
  std::string name;
  // Such as "9.0".
  std::string compute_capability;
  uint64_t memory_bytes = 0;
  // The reason why workers cannot compute on this GPU; empty: they can.
  std::string unfit;
};

// An NVIDIA library, searched for like the worker does.
struct LibraryFacts {
  // Such as "libcublasLt.so.13".
  std::string name;
  // The worker's use of it, and the consequence if it is missing.
  std::string use;
  // Without it, workers cannot compute on a GPU.
  bool needed = false;
  // Empty: not found.
  std::string path;
  // Such as "13.1.0"; empty: unknown.
  std::string version;
  // The reason if not found, worded like the worker's error.
  std::string problem;
};

// The CUDA installation of this machine.
struct CudaFacts {
  // Directory of the toolkit with which Bazel would build; empty: none.
  std::string toolkit;
  // Such as "550.54.15, CUDA 12.4"; empty: none.
  std::string driver;
  std::vector<GpuFacts> devices;
  std::vector<LibraryFacts> libraries;
  // A worker of this build can compute on a GPU of this machine.
  bool usable = false;
  // The reason if not `usable`, worded like the worker's error.
  std::string reason;
};

// Loads the driver's library, if there is one, which starts threads.
CudaFacts ProbeCuda();

// Returns the problem of the first missing library that the worker needs; empty: none is missing.
std::string WhyLibraryMissing(const std::vector<LibraryFacts>& libraries);

}  // namespace ballast
