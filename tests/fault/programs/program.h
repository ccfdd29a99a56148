// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/program/process.h"

namespace ballast {

// Current resource use of a process; zeros if it has ended.
struct ProcessUse {
  uint64_t resident_bytes = 0;
  uint64_t peak_resident_bytes = 0;
  uint64_t descriptors = 0;

  static ProcessUse Of(pid_t pid);
};

// Current children of a process whose program path ends with `program`.
std::vector<pid_t> ChildrenOf(pid_t parent, const std::string& program);

// Moves the calling thread, or the process, to new kernel namespaces such as CLONE_NEWNET; without privileges, as
// superuser of a new user namespace. Returns false, with errno, if that is not permitted.
bool EnterNamespaces(int flags);

// Owns a running program and its output, the end of which errors contain. Killed when it goes out of scope.
// Thread safety: confined to the main thread, like Process.
class Program {
 public:
  // words[0] is its path.
  static absl::StatusOr<std::unique_ptr<Program>> Start(std::vector<std::string> words);

  pid_t pid() const { return process_.pid(); }
  // Sends SIGSTOP, SIGCONT or another signal to its process group.
  void Signal(int signal) { process_.Signal(signal); }
  // Returns false if it has ended by itself.
  bool Runs() { return !process_.Reap(); }

  // Output so far: all of it, or at least the last half megabyte.
  const std::string& output();
  // Returns the next whole line that contains `text`; skips those before it. UNAVAILABLE if the program ends or
  // prints no such line in time.
  absl::StatusOr<std::string> AwaitLine(absl::string_view text, absl::Duration timeout);

  // DEADLINE_EXCEEDED if it still runs at the timeout.
  absl::StatusOr<ExitStatus> AwaitEnd(absl::Duration timeout);
  // Sends SIGKILL; returns after it has ended.
  absl::Status Kill();

  // Reads the output of programs until `deadline`, so that none blocks on a full pipe.
  static void Hear(absl::Span<Program* const> programs, absl::Time deadline);

 private:
  Program(std::string name, Process process) : name_(std::move(name)), process_(std::move(process)) {}
  // Returns true if there may be more output.
  bool ReadOutput();

  const std::string name_;
  Process process_;
  std::string output_;
  // Lines before this position were returned or skipped.
  size_t heard_ = 0;
};

// Owns a real ballast_server that can be killed and restarted on its port, with the same flags.
// Thread safety: confined to the main thread, like Process.
class ServerProcess {
 public:
  // Listens on a free port of `host`. `binary` is the server's path, `flags` all flags except --listen. Errors
  // contain the server's output.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(std::string binary, const std::string& host,
                                                              std::vector<std::string> flags);
  // Kills the process if it still runs.
  ~ServerProcess() = default;

  // host:port; never changes.
  const std::string& address() const { return address_; }
  pid_t pid() const { return program_->pid(); }
  // Output of the present process so far.
  const std::string& output() { return program_->output(); }

  // Sends SIGKILL; returns after it has ended.
  absl::Status Kill() { return program_->Kill(); }
  // Starts a new process on the same port after the old one has ended; returns when it serves.
  absl::Status Restart(absl::Duration timeout = absl::Seconds(30));
  // Sends SIGTERM; OK if it exits with 0.
  absl::Status End();
  void Signal(int signal) { program_->Signal(signal); }
  // Returns false if it has ended by itself.
  bool Runs() { return program_->Runs(); }

  // The present process, and its resource use.
  Program* program() { return program_.get(); }
  ProcessUse use() const { return ProcessUse::Of(program_->pid()); }

 private:
  ServerProcess(std::string binary, std::vector<std::string> flags)
      : binary_(std::move(binary)), flags_(std::move(flags)) {}
  absl::Status Launch(const std::string& listen, absl::Duration timeout);

  const std::string binary_;
  const std::vector<std::string> flags_;
  std::string address_;
  std::unique_ptr<Program> program_;
};

}  // namespace ballast
