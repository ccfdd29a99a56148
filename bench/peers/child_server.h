// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/peers/child_program.h"

namespace ballast {

// A new folder for a benchmark's files, removed with all that is in it.
// Thread safety: immutable.
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

// A child process that serves on a free port of the loopback. Killed when it goes out of scope.
// Thread safety: confined to the main thread.
class ChildServer {
 public:
  // Starts argv with --address_file and a file in `folder` behind it, and waits until the file is there: at most 15 s,
  // else DEADLINE_EXCEEDED with what it said last.
  static absl::StatusOr<ChildServer> Start(std::vector<std::string> argv, const ScratchFolder& folder);

  const std::string& address() const { return address_; }
  // That all its threads have used so far, in user and system mode; to 10 ms.
  double CpuSeconds() const;
  // The most memory that it ever had resident.
  uint64_t PeakMemoryBytes() const;

 private:
  ChildServer(ChildProgram program, std::string address) : program_(std::move(program)), address_(std::move(address)) {}

  ChildProgram program_;
  std::string address_;
};

// The servers of one job, as `ballast launch` starts them: [0] is the coordinator's. `flags` are for each of them.
absl::StatusOr<std::vector<ChildServer>> StartServers(int servers, int workers, const ScratchFolder& folder,
                                                      const std::vector<std::string>& flags = {});

// Of this process and the children together.
double CpuSecondsWith(absl::Span<const ChildServer> children);

}  // namespace ballast
