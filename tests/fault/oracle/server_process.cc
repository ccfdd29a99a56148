// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/oracle/server_process.h"

#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr char kServes[] = " serves on ";

}  // namespace

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(std::string binary, const std::string& host,
                                                                    std::vector<std::string> flags) {
  std::unique_ptr<ServerProcess> server(new ServerProcess(std::move(binary), std::move(flags)));
  if (absl::Status status = server->Launch(host + ":0", absl::Seconds(30)); !status.ok()) return status;
  return server;
}

absl::Status ServerProcess::Launch(const std::string& listen, absl::Duration timeout) {
  std::vector<std::string> words = {binary_, "--listen", listen};
  words.insert(words.end(), flags_.begin(), flags_.end());
  program_.reset();
  auto program = Program::Start(std::move(words));
  if (!program.ok()) return program.status();
  program_ = *std::move(program);
  const absl::StatusOr<std::string> line = program_->AwaitLine(kServes, timeout);
  if (!line.ok()) return line.status();
  // Text after the address is not part of it.
  const size_t begin = line->find(kServes) + sizeof(kServes) - 1;
  address_ = line->substr(begin, line->find(' ', begin) - begin);
  return absl::OkStatus();
}

absl::Status ServerProcess::Restart(absl::Duration timeout) { return Launch(address_, timeout); }

absl::Status ServerProcess::End() {
  Signal(SIGTERM);
  const absl::StatusOr<ExitStatus> ended = program_->AwaitEnd(absl::Seconds(30));
  if (!ended.ok()) return ended.status();
  if (ended->ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("server on ", address_, " ", ended->ToString(), "; output:\n", output()));
}

}  // namespace ballast
