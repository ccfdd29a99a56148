// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ballast {

// The remote shell and the program that it runs there.
struct RemoteShell {
  // Program and flags, such as {"ssh", "-p", "2222"}; the host and one word with the command follow.
  std::vector<std::string> words = {"ssh"};
  // Directory of the programs there; empty: that of `own_path`, or PATH.
  std::string remote_bin;
  // Path of this program.
  std::string own_path;
};

// Returns the words that run the agent on the host. ssh must not ask questions and not wait for long.
std::vector<std::string> AgentCommand(const RemoteShell& shell, const std::string& login);

// Returns what a user can do about an error that ssh printed; empty if the text is not known.
std::string ShellAdvice(absl::string_view error, const RemoteShell& shell, const std::string& login);

// Exit statuses of the remote shell: there is no agent on the host; ssh itself has failed.
inline constexpr int kExitNoAgent = 127;
inline constexpr int kExitShell = 255;

}  // namespace ballast
