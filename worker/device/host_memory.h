// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ballast {

// Owns floats on the host for copies to and from a device. Thread safety: that of the floats.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  virtual absl::Span<float> values() = 0;
  // Returns whether the device reads and writes it by itself, so that copies need no staging memory.
  virtual bool pinned() const = 0;
};

// Keeps memory of another owner known to a device, until destruction. Thread safety: none.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
};

// Ordinary memory, zeroed.
class UnpinnedMemory : public HostMemory {
 public:
  explicit UnpinnedMemory(int64_t floats) : values_(floats) {}

  absl::Span<float> values() override { return absl::MakeSpan(values_); }
  bool pinned() const override { return false; }

 private:
  std::vector<float> values_;
};

}  // namespace ballast
