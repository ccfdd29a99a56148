// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ballast {

// A worker's memory by purpose, in bytes; excludes data sets, libraries and the program itself.
struct MemoryBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  // Outputs of layers and their gradients, the batch, and state that layers keep.
  int64_t activations = 0;
  // Scratch memory of the device for operations that need it.
  int64_t workspace = 0;
  // Host memory for transfers between the model and the servers, and the part of it that is pinned for device copies.
  int64_t staging = 0;
  int64_t pinned = 0;

  // Pinned memory is counted once, in staging.
  int64_t total() const { return weights + gradients + activations + workspace + staging; }
  // Adds the memory of another device.
  MemoryBytes& operator+=(const MemoryBytes& other);
};

// Returns "12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB"; omits parts that are 0.
std::string MemoryText(const MemoryBytes& bytes);

}  // namespace ballast
