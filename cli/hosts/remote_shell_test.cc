// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/remote_shell.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(AgentCommandTest, LetsSshAskNothingAndTheUsersOptionsComeFirst) {
  const std::vector<std::string> words =
      AgentCommand({.words = {"/usr/bin/ssh", "-p", "2222"}, .own_path = "/it's/ballast"}, "me@b");
  ASSERT_EQ(words.size(), 14u);
  EXPECT_EQ(words[1], "-p");
  EXPECT_THAT(words, ::testing::Contains("BatchMode=yes"));
  EXPECT_EQ(words[12], "me@b");
  EXPECT_THAT(words[13], StartsWith("exec /bin/sh -c 'if [ -x "));
  EXPECT_THAT(AgentCommand({.words = {"rsh.sh"}, .own_path = "/b"}, "b"), ElementsAre("rsh.sh", "b", HasSubstr("/b")));
}

TEST(ShellAdviceTest, SaysWhatAUserCanDo) {
  const RemoteShell shell = {.words = {"ssh", "-p", "2222"}};
  const std::pair<const char*, const char*> cases[] = {
      {"Host key verification failed.", "run `ssh -p 2222 me@b true` once"},
      {"WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.", "ssh-keygen -R"},
      {"me@b: Permission denied (publickey).", "run `ssh-copy-id me@b`"},
      {"ssh: Could not resolve hostname b: Name or service not known", "see the spelling in --hosts"},
      {"error: unknown command \"host-agent\"", "another version of Ballast; want ballast "},
  };
  for (const auto& [error, advice] : cases) EXPECT_THAT(ShellAdvice(error, shell, "me@b"), HasSubstr(advice));
  EXPECT_EQ(ShellAdvice("ssh: connect to host b port 22: No route to host", shell, "b"), "");
}

}  // namespace
}  // namespace ballast
