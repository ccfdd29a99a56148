// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

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

// One of Ballast's programs.
struct ProgramFacts {
  // Empty: not found.
  std::string path;
  // OK: it starts. Else why not.
  absl::Status starts;
};

CpuFacts ProbeCpu();
MemoryFacts ProbeMemory();
// What the BLAS library calls itself; empty where it is not found as a shared library.
std::string ProbeBlas();
// Whether a server could listen on this machine's loopback address.
absl::Status ProbeLoopback();
// Runs `ballast_<role> --help`, for at most five seconds. Before any thread is started.
ProgramFacts ProbeProgram(const std::string& role);
// Free for us, in the folder that we are in.
uint64_t ProbeDiskBytes();
// The folder of Fashion-MNIST's files; empty: not installed.
std::string ProbeDataset();

}  // namespace ballast
