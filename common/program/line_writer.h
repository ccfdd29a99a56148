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

// Owns a thread that writes lines to a file descriptor, so that callers never block on a stopped terminal or an
// unread pipe. Lines for which the buffer has no room are dropped and counted, and a line in their place gives their
// number. Invariant: lines are written whole, in the order of Write. Thread safety: Write may be called from any
// thread.
class LineWriter {
 public:
  // `max_bytes` limits the buffered lines, except that one line may be longer. Does not own the descriptor, which
  // must outlive this object, and does not modify it: a terminal or a pipe is opened again.
  explicit LineWriter(int file, size_t max_bytes = 1 << 20);
  // Waits at most a second for the reader.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;

  // Never blocks. `line` has no newline at its end; Write adds one.
  void Write(absl::string_view line);

  // Number of dropped lines.
  uint64_t left_out() const;

 private:
  void Run();
  // Returns false if the reader is closed, or did not read everything before the deadline.
  bool WriteAll(absl::string_view text);
  bool AwaitRoom();
  // Pauses briefly if the reader has no room although poll reports some. Returns false after the deadline.
  bool AwaitMoment();
  LineWriter(int file, int own_file, size_t max_bytes);
  bool DueLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); }

  // The caller's descriptor, or a reopened one on which write never blocks.
  const int file_;
  const bool owns_file_;
  const size_t max_bytes_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time latest_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Dropped lines: all, and those not reported yet. Invariant: `unreported_` is 0 while no line is buffered.
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unreported_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace ballast
