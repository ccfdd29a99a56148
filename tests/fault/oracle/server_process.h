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

// A real ballast_server that can be killed and started again on its port, with the same flags.
// Thread safety: confined to the main thread, as Process is.
class ServerProcess {
 public:
  // On a free port of `host`. `binary` is the server's path, `flags` all but --listen. An error has what the server
  // said.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(std::string binary, const std::string& host,
                                                              std::vector<std::string> flags);
  // Killed, where it still runs.
  ~ServerProcess() = default;

  // host:port, the same for ever.
  const std::string& address() const { return address_; }
  pid_t pid() const { return program_->pid(); }
  // What the present process said so far.
  const std::string& output() { return program_->output(); }

  // With SIGKILL; returns when it is gone.
  absl::Status Kill() { return program_->Kill(); }
  // A new process on the same port; returns when it serves. The old one has ended.
  absl::Status Restart(absl::Duration patience = absl::Seconds(30));
  // With SIGTERM; OK where it ended with 0.
  absl::Status End();
  // SIGSTOP, SIGCONT …
  void Signal(int signal) { program_->Signal(signal); }
  // Whether it has not ended by itself.
  bool Runs() { return program_->Runs(); }

  // The present process, and what it holds.
  Program* program() { return program_.get(); }
  ProcessUse use() const { return ProcessUse::Of(program_->pid()); }

 private:
  ServerProcess(std::string binary, std::vector<std::string> flags)
      : binary_(std::move(binary)), flags_(std::move(flags)) {}
  absl::Status Launch(const std::string& listen, absl::Duration patience);

  const std::string binary_;
  const std::vector<std::string> flags_;
  std::string address_;
  std::unique_ptr<Program> program_;
};

}  // namespace ballast
