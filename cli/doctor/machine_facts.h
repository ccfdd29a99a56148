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

}  // namespace ballast
