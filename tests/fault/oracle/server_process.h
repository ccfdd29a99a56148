// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/programs/process_use.h"
#include "tests/fault/programs/program.h"

namespace ballast {

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
