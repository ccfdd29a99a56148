// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/device/device_types.h"

namespace ballast {

// Adds up what the devices of one worker hold, in an order that does not change, so that the same values give the same
// bits. It is made for certain devices; these outlive it.
// Thread safety: one sum at a time, by the thread that issues operations of the first device; Abort() by any.
class Reducer {
 public:
  virtual ~Reducer() = default;

  // For people.
  virtual std::string Describe() const = 0;
  // parts[0] becomes the sum of parts[i] over all devices i; the others stay as they are. They are floats, of one size.
  // Whatever was issued on them before is taken into account; what the other devices' threads issue before it returns
  // may not touch them.
  virtual absl::Status Sum(absl::Span<const Matrix> parts) = 0;
  // One of the devices has failed: nobody goes on waiting for it in a sum. What is being summed is void, and each later
  // sum may fail.
  virtual void Abort() = 0;
};

}  // namespace ballast
