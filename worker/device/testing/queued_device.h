// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/device/device.h"

namespace ballast {

// A device for tests that computes in parallel with the host, like a GPU: it runs the CPU device's operations on its
// own thread, in memory that the host cannot address. A test tells it to stop, continue and fail, and so can check
// which calls wait for which operations. Like a GPU's, its downloads wait for all operations up to the next mark.
class QueuedDevice : public Device {
 public:
  // Computes only `operations` more until AllowAll. There is no limit at first.
  virtual void Allow(uint64_t operations) = 0;
  virtual void AllowAll() = 0;
  // Number of operations computed so far, and issued so far.
  virtual uint64_t done() const = 0;
  virtual uint64_t issued() const = 0;
  // Waits, at most a minute, until `operations` were issued; returns whether they were.
  virtual bool AwaitIssued(uint64_t operations) = 0;
  // Bytes that copies have written to the device, and read from it.
  virtual uint64_t uploaded() const = 0;
  virtual uint64_t downloaded() const = 0;
  // Waits, at most a minute, until `bytes` were downloaded; returns whether they were.
  virtual bool AwaitDownloaded(uint64_t bytes) = 0;
  // Each operation then takes at least this long.
  virtual void SetDuration(absl::Duration duration) = 0;
  // From now on copies and Synchronize fail with this status, including those that are waiting.
  virtual void Fail(absl::Status status) = 0;
};

std::unique_ptr<QueuedDevice> CreateQueuedDevice();
// The same device limited to `memory_bytes`.
std::unique_ptr<QueuedDevice> CreateQueuedDevice(int64_t memory_bytes);

}  // namespace ballast
