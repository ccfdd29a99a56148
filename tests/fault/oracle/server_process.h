// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/process.h"

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
  pid_t pid() const { return process_->pid(); }
  // What the present process said so far.
  const std::string& output();

  // With SIGKILL; returns when it is gone.
  absl::Status Kill();
  // A new process on the same port; returns when it serves. The old one has ended.
  absl::Status Restart(absl::Duration patience = absl::Seconds(30));
  // With SIGTERM; OK where it ended with 0.
  absl::Status End();
  // SIGSTOP, SIGCONT …
  void Signal(int signal) { process_->Signal(signal); }
  // Whether it has not ended by itself.
  bool Runs();

  // Of the present process: resident memory now and at most, and open descriptors; 0 where it has ended.
  uint64_t resident_bytes() const;
  uint64_t peak_resident_bytes() const;
  int descriptors() const;

 private:
  ServerProcess(std::string binary, std::vector<std::string> flags)
      : binary_(std::move(binary)), flags_(std::move(flags)) {}
  absl::Status Launch(const std::string& listen, absl::Duration patience);
  absl::Status AwaitEnd(absl::Duration patience);
  // Whether there may be more to come.
  bool ReadOutput();

  const std::string binary_;
  const std::vector<std::string> flags_;
  std::string address_;
  std::optional<Process> process_;
  std::string output_;
};

}  // namespace ballast
