// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// Remembers the algorithm measured to be fastest for each shape: in memory, and for later runs in a file of lines
// "shape value". The file is optional: if it cannot be read or written, or a line is malformed, the cache works
// without. Thread safety: safe; processes that write the same file at once may lose each other's lines.
class AlgorithmCache {
 public:
  // Empty `path`: no file. A missing directory is created at the first write.
  explicit AlgorithmCache(std::string path);

  // Shapes and values contain no spaces or line ends.
  std::optional<std::string> Find(absl::string_view shape) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Add(absl::string_view shape, absl::string_view value) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Values = std::map<std::string, std::string, std::less<>>;

  static Values Read(const std::string& path);
  static void Write(const std::string& path, const Values& values);

  const std::string path_;
  mutable absl::Mutex mutex_;
  Values values_ ABSL_GUARDED_BY(mutex_);
};

// Returns the index of the fastest candidate, 0 to count - 1. `measure` returns milliseconds. Each candidate is
// measured several times and its best time counts, because disturbances only add time. Candidates that fail are
// skipped; if all fail, returns the last error.
absl::StatusOr<int> FindFastest(int count, const std::function<absl::StatusOr<float>(int)>& measure);

}  // namespace ballast
