// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/device/device_types.h"
#include "worker/device/named_device.h"

namespace ballast {

// Sums matrices over the devices of one worker, in a fixed order, so that the same values give the same bits. It is
// created for certain devices, which outlive it.
// Thread safety: one sum at a time, on the thread that issues operations of the first device; any thread may call
// Abort().
class Reducer {
 public:
  virtual ~Reducer() = default;

  // The method of summing, for people.
  virtual std::string Describe() const = 0;
  // parts[0] becomes the sum of parts[i] over all devices i; the others are unchanged. They are floats, all of one
  // size. Operations issued on them before are included. Operations that the other devices' threads issue before it
  // returns must not touch them.
  virtual absl::Status Sum(absl::Span<const Matrix> parts) = 0;
  // Ends all waiting for a device that has failed. The result of the current sum is invalid, and each later sum may
  // fail.
  virtual void Abort() = 0;
};

// Copies the other devices' parts to the first device, one after the other, and adds them there. Works between any
// devices, through the host if one cannot reach the other. Needs room for the largest part on the first device:
// RESOURCE_EXHAUSTED if that is short.
absl::StatusOr<std::unique_ptr<Reducer>> CreateHostReducer(absl::Span<const NamedDevice> devices,
                                                           int64_t largest_elements);

}  // namespace ballast
