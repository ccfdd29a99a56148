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

// Which algorithm was measured to be the fastest for which shape: in memory, and in a file of lines "shape value" for
// the next run. The file is a help and no more: where it cannot be read or written, or a line of it makes no sense, all
// goes on without. Thread safety: safe; processes that write the same file at once may lose each other's lines.
class AlgorithmCache {
 public:
  // Empty `path`: no file. A folder that is missing is made when something is first written.
  explicit AlgorithmCache(std::string path);

  // Neither shapes nor values have spaces or line ends.
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

// The number of the candidate, 0 to count - 1, that takes the least time. `measure` answers milliseconds; each
// candidate is measured several times and its best time counts, for what disturbs a measurement only makes it longer.
// Candidates that fail are left out; the last error where all do.
absl::StatusOr<int> FindFastest(int count, const std::function<absl::StatusOr<float>(int)>& measure);

}  // namespace ballast
