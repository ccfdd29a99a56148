// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/device/device.h"

namespace ballast {

// A device for tests that computes beside the host, as a GPU does: the CPU device's operations on a thread of its own,
// in memory that the host cannot address. It stops, goes on and fails as it is told to, so that a test can tell what
// waits for what. As a GPU's, its downloads wait for all that was issued up to the next mark.
class QueuedDevice : public Device {
 public:
  // From now on only so many operations more are computed; then all again. At first all are.
  virtual void Allow(uint64_t operations) = 0;
  virtual void AllowAll() = 0;
  // That were computed so far, and that were issued.
  virtual uint64_t done() const = 0;
  virtual uint64_t issued() const = 0;
  // Waits, at most a minute, until so many were; whether they were.
  virtual bool AwaitIssued(uint64_t operations) = 0;
  // Bytes that copies have brought to it, and taken from it.
  virtual uint64_t uploaded() const = 0;
  virtual uint64_t downloaded() const = 0;
  // Waits, at most a minute, until so many were taken; whether they were.
  virtual bool AwaitDownloaded(uint64_t bytes) = 0;
  // Each operation then takes at least so long.
  virtual void SetDuration(absl::Duration duration) = 0;
  // From now on copies and Synchronize fail with this, those that wait, too.
  virtual void Fail(absl::Status status) = 0;
};

std::unique_ptr<QueuedDevice> CreateQueuedDevice();
// With so much memory.
std::unique_ptr<QueuedDevice> CreateQueuedDevice(int64_t memory_bytes);

}  // namespace ballast
