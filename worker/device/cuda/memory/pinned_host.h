// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "worker/device/host_memory.h"

namespace ballast {

// Allocates or registers host memory that the GPU reads and writes by itself, and knows which memory that is. The
// operating system cannot page it out, so there is a limit. Thread safety: safe.
class PinnedHost {
 public:
  // Staging a smaller copy costs less than waiting for the GPU to read the memory.
  static constexpr int64_t kMinBytes = int64_t{1} << 20;
  static constexpr int64_t kMaxBytes = int64_t{4} << 30;

  explicit PinnedHost(int64_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  // Zeroed floats: pinned if that is worth it, within the limit, and possible; otherwise ordinary memory, with one
  // warning. This outlives them.
  std::unique_ptr<HostMemory> Allocate(int64_t floats) ABSL_LOCKS_EXCLUDED(mutex_);

  // Pins memory of another owner, such as memory shared with a server. Null, with one warning, if it is beyond the
  // limit or the driver refuses. This outlives the result.
  std::unique_ptr<HostRegistration> Register(absl::Span<char> memory) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns whether all the values are in one of the pieces that are pinned now.
  bool Contains(absl::Span<const float> values) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Piece;
  class Registration;

  void Add(const void* memory, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Also ends the reservation of the bytes.
  void Remove(const void* memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false if the limit would be exceeded.
  bool Reserve(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Release(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Warn(absl::string_view why) ABSL_LOCKS_EXCLUDED(mutex_);
  void WarnOfLimit() ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t max_bytes_;
  mutable absl::Mutex mutex_;
  // Keyed by the first byte; the value is the number of bytes.
  std::map<const char*, size_t> pieces_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool warned_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ballast
