// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ballast {

// Writes lines to a file descriptor from a thread of its own, so that whoever has something to say never waits for a
// terminal that stands still or a pipe that nobody reads. What such a reader leaves no room for is counted, and a line
// says how many lines are missing where they would have stood. Invariant: lines are written whole, in the order of
// Write.
// Thread safety: Write may be called from any thread.
class LineWriter {
 public:
  // `max_bytes`: of lines that wait for the reader; one may be longer. Does not own the descriptor, which stays open
  // as long as this, and changes nothing about it: a terminal or a pipe is opened once more.
  explicit LineWriter(int file, size_t max_bytes = 1 << 20);
  // Waits at most a second for the reader.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;

  // Does not wait. `line` has no newline at its end; one is written.
  void Write(absl::string_view line);

  // Lines that found no room.
  uint64_t left_out() const;

 private:
  void Run();
  // Whether everything was written; false if nobody can read it any more, or has by the latest time.
  bool WriteAll(absl::string_view text);
  bool AwaitRoom();
  // Waits a moment if a reader has no room though poll says so. False once it is too late.
  bool AwaitMoment();
  LineWriter(int file, int own_file, size_t max_bytes);
  bool DueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); }

  // The caller's descriptor; or one of the writer's own, on which write never waits.
  const int file_;
  const bool owns_file_;
  const size_t max_bytes_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time latest_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Lines; of the last ones the reader was not told. Invariant: none are untold while none wait.
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t untold_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace ballast
