// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/thread_times.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

// Returns the times of the thread with that folder in /proc; none if it has ended meanwhile.
absl::StatusOr<ThreadTimes> Read(const std::filesystem::path& folder) {
  ThreadTimes times;
  times.threads = 1;
  // Nanoseconds on a processor, nanoseconds in the run queue, time slices.
  double running = 0, ready = 0;
  if (!(std::ifstream(folder / "schedstat") >> running >> ready)) {
    return absl::NotFoundError(absl::StrCat("cannot read ", folder.string(), "/schedstat"));
  }
  times.running_seconds = running / 1e9;
  times.ready_seconds = ready / 1e9;
  std::ifstream status(folder / "status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "voluntary_ctxt_switches:") && !absl::SimpleAtod(rest, &times.sleeps)) {
      return absl::NotFoundError(absl::StrCat("cannot read ", folder.string(), "/status"));
    }
  }
  return times;
}

}  // namespace

ThreadTimes& ThreadTimes::operator+=(const ThreadTimes& other) {
  threads += other.threads;
  running_seconds += other.running_seconds;
  ready_seconds += other.ready_seconds;
  sleeps += other.sleeps;
  return *this;
}

ThreadTimes ThreadTimes::Since(const ThreadTimes& earlier) const {
  return {threads, running_seconds - earlier.running_seconds, ready_seconds - earlier.ready_seconds,
          sleeps - earlier.sleeps};
}

absl::Status AddThreads(const std::string& process, pid_t pid, ThreadTable& table) {
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  std::error_code error;
  int found = 0;
  for (std::filesystem::directory_iterator task(tasks, error), end; !error && task != end; task.increment(error)) {
    const absl::StatusOr<ThreadTimes> times = Read(task->path());
    // It has ended meanwhile.
    if (!times.ok()) continue;
    std::string name;
    std::ifstream comm(task->path() / "comm");
    std::getline(comm, name);
    if (task->path().filename() == std::to_string(pid)) name = "main";
    table[{process, name}] += *times;
    ++found;
  }
  return found > 0 ? absl::OkStatus() : absl::NotFoundError(absl::StrCat("no threads in ", tasks));
}

}  // namespace ballast
