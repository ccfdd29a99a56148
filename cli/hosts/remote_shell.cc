// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/remote_shell.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/command/command.h"

namespace ballast {
namespace {

std::string Quoted(absl::string_view word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

}  // namespace

std::vector<std::string> AgentCommand(const RemoteShell& shell, const std::string& login) {
  std::vector<std::string> words = shell.words;
  const std::string program = std::filesystem::path(words[0]).filename().string();
  if (program == "ssh") {
    // An option that the user gave comes first, and ssh takes the first.
    for (const char* option :
         {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=4"}) {
      words.insert(words.end(), {"-o", option});
    }
    words.push_back("-T");
  }
  const std::string there = shell.remote_bin.empty() ? shell.own_path : absl::StrCat(shell.remote_bin, "/ballast");
  // Without --remote-bin, the same path as here, otherwise PATH.
  const std::string otherwise =
      shell.remote_bin.empty() ? "if command -v ballast >/dev/null; then exec ballast host-agent; fi; " : "";
  const std::string script = absl::StrCat(
      "if [ -x ", Quoted(there), " ]; then exec ", Quoted(there), " host-agent; fi; ", otherwise, "echo ",
      Quoted(absl::StrCat("no program ", there, shell.remote_bin.empty() ? ", and no ballast on PATH" : "")),
      " >&2; exit ", kExitNoAgent);
  words.push_back(login);
  words.push_back(absl::StrCat("exec /bin/sh -c ", Quoted(script)));
  return words;
}

std::string ShellAdvice(absl::string_view error, const RemoteShell& shell, const std::string& login) {
  if (absl::StrContains(error, "REMOTE HOST IDENTIFICATION HAS CHANGED")) {
    return "the host's key is not the one that ssh knows: if the host was reinstalled, remove the old key with "
           "ssh-keygen -R and accept the new one; otherwise someone may pose as the host";
  }
  if (absl::StrContains(error, "Host key verification failed")) {
    return absl::StrCat("ssh does not know the host's key: run `", absl::StrJoin(shell.words, " "), " ", login,
                        " true` once, compare the fingerprint, and accept it");
  }
  if (absl::StrContains(error, "Permission denied")) {
    return absl::StrCat("ssh must log in without a password: run `ssh-copy-id ", login, "`, or start ssh-agent");
  }
  if (absl::StrContains(error, "unknown command \"host-agent\"")) {
    return absl::StrCat("another version of Ballast; want ", VersionText(), " as on this machine");
  }
  if (absl::StrContains(error, "Could not resolve hostname")) return "no such host: see the spelling in --hosts";
  return "";
}

}  // namespace ballast
