// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ballast {

// What a worker's memory goes to, in bytes; data sets, libraries and the program itself not among it.
struct MemoryBytes {
  int64_t weights = 0;
  int64_t gradients = 0;
  // Layers' outputs and their gradients, the batch, and what layers keep.
  int64_t activations = 0;
  // The device's own, for operations that need room.
  int64_t workspace = 0;
  // On the host: what is on its way between the model and the servers. Of it, what the device copies to and from by
  // itself.
  int64_t staging = 0;
  int64_t pinned = 0;

  // Pinned memory is counted once, in staging.
  int64_t total() const { return weights + gradients + activations + workspace + staging; }
  // Of several devices.
  MemoryBytes& operator+=(const MemoryBytes& other);
};

// "12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB"; what is 0 is left out.
std::string MemoryText(const MemoryBytes& bytes);

}  // namespace ballast
