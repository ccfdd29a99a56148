// SPDX-License-Identifier: Apache-2.0
#include "common/program/line_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
// Interval between checks whether to stop.
constexpr int kPollMilliseconds = 100;

// Opens the same terminal or pipe again, with writes that never block. A terminal may accept part of a line and block
// for the rest, and another process may fill a pipe between poll and write. Setting O_NONBLOCK on the descriptor
// itself would affect all processes that share it. Returns -1 for other files, and if the system does not allow it.
int OpenWithoutWaiting(int file) {
  struct stat about;
  if (fstat(file, &about) != 0) return -1;
  if (!S_ISFIFO(about.st_mode) && isatty(file) == 0) return -1;
  return open(absl::StrCat("/proc/self/fd/", file).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

LineWriter::LineWriter(int file, size_t max_bytes) : LineWriter(file, OpenWithoutWaiting(file), max_bytes) {}

LineWriter::LineWriter(int file, int own_file, size_t max_bytes)
    : file_(own_file >= 0 ? own_file : file),
      owns_file_(own_file >= 0),
      max_bytes_(max_bytes),
      thread_([this] { Run(); }) {}

LineWriter::~LineWriter() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    latest_ = absl::Now() + kCloseTimeout;
  }
  thread_.join();
  if (owns_file_) close(file_);
}

void LineWriter::Write(absl::string_view line) {
  absl::MutexLock lock(&mutex_);
  // Lines after a gap must not appear before the line that reports the gap.
  if (unreported_ > 0 || (!waiting_.empty() && waiting_bytes_ + line.size() > max_bytes_)) {
    ++left_out_;
    ++unreported_;
    return;
  }
  waiting_bytes_ += line.size();
  waiting_.push_back(absl::StrCat(line, "\n"));
}

uint64_t LineWriter::left_out() const {
  absl::MutexLock lock(&mutex_);
  return left_out_;
}

void LineWriter::Run() {
  // A closed pipe must be an error of write, not the end of the process.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  while (true) {
    std::string line;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &LineWriter::DueLocked));
      if (waiting_.empty()) return;
      line = std::move(waiting_.front());
      waiting_.pop_front();
      waiting_bytes_ -= line.size() - 1;
      if (waiting_.empty() && unreported_ > 0) {
        waiting_.push_back(absl::StrCat("(", std::exchange(unreported_, 0), " lines omitted: nobody read them)\n"));
        waiting_bytes_ = waiting_.front().size() - 1;
      }
    }
    if (!WriteAll(line)) return;
  }
}

bool LineWriter::WriteAll(absl::string_view text) {
  while (!text.empty()) {
    if (!AwaitRoom()) return false;
    // A pipe with room accepts this many bytes without blocking.
    const ssize_t count = write(file_, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    // AwaitMoment may change errno.
    const int error = count < 0 ? errno : 0;
    if (error == EAGAIN && !AwaitMoment()) return false;
    if (error != 0 && error != EINTR && error != EAGAIN) return false;
    text.remove_prefix(std::max<ssize_t>(count, 0));
  }
  return true;
}

bool LineWriter::AwaitRoom() {
  while (true) {
    pollfd waiting = {file_, POLLOUT, 0};
    if (poll(&waiting, 1, kPollMilliseconds) > 0) return true;
    absl::MutexLock lock(&mutex_);
    if (absl::Now() >= latest_) return false;
  }
}

bool LineWriter::AwaitMoment() {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Milliseconds(kPollMilliseconds));
  return absl::Now() < latest_;
}

}  // namespace ballast
