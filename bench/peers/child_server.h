// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/program/process.h"

namespace ballast {

// Owns a child process and its output. Killed with its process group by the destructor. Thread safety: confined to
// the main thread.
class ChildProgram {
 public:
  static absl::StatusOr<ChildProgram> Start(const std::vector<std::string>& argv);

  pid_t pid() const { return process_.pid(); }
  // The output and errors read so far.
  const std::string& said() const { return said_; }
  // "; it said: ..." with the end of its output, for an error message; empty without output.
  std::string LastWords() const;

  // Waits for output, at most for `timeout`; returns false at the end of the output.
  bool Hear(absl::Duration timeout);
  // Reads all output until the process exits. DEADLINE_EXCEEDED if that takes longer than `timeout`.
  absl::StatusOr<ExitStatus> HearToEnd(absl::Duration timeout);

 private:
  explicit ChildProgram(Process process) : process_(std::move(process)) {}

  Process process_;
  std::string said_;
};

// Owns a new directory for a benchmark's files, removed with its contents by the destructor. Thread safety:
// immutable.
class ScratchFolder {
 public:
  static absl::StatusOr<ScratchFolder> Create();
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();

  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

// Owns a child process that serves on a free loopback port. Killed by the destructor. Thread safety: confined to the
// main thread.
class ChildServer {
 public:
  // Starts argv with --address_file and a file in `folder` appended, and waits until the file exists: at most 15 s,
  // otherwise DEADLINE_EXCEEDED. FAILED_PRECONDITION with its exit status if the child exits instead. Both errors have
  // the end of the child's output.
  static absl::StatusOr<ChildServer> Start(std::vector<std::string> argv, const ScratchFolder& folder);

  const std::string& address() const { return address_; }
  pid_t pid() const { return program_.pid(); }
  // User and system CPU time of all its threads so far; resolution 10 ms.
  double CpuSeconds() const;
  // Peak resident memory, without the memory of its clients that it reads now: shared mappings that it may not write.
  uint64_t PeakMemoryBytes() const;

 private:
  ChildServer(ChildProgram program, std::string address) : program_(std::move(program)), address_(std::move(address)) {}

  ChildProgram program_;
  std::string address_;
};

// Starts the servers of one job like `ballast launch`: [0] hosts the coordinator. `flags` are passed to each.
absl::StatusOr<std::vector<ChildServer>> StartServers(int servers, int workers, const ScratchFolder& folder,
                                                      const std::vector<std::string>& flags = {});

// CPU seconds of the children together, and of this process and the children.
double CpuSecondsOf(absl::Span<const ChildServer> children);
double CpuSecondsWith(absl::Span<const ChildServer> children);

}  // namespace ballast
