// SPDX-License-Identifier: Apache-2.0
#include "common/program/env_flags.h"

#include <cstdlib>

#include "absl/flags/flag.h"
#include "gtest/gtest.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7700", "Where to listen.");
ABSL_FLAG(int, servers, 1, "How many.");
ABSL_FLAG(bool, reflection, false, "Whether.");
ABSL_FLAG(std::string, state_dir, "", "For the state.");

namespace ballast {
namespace {

absl::Status Parse(std::vector<std::string> words) {
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return ParseFlags(argv.size(), argv.data(), "usage", {"listen", "servers", "reflection", "state_dir"});
}

TEST(EnvFlagsTest, TakesValuesAfterEqualsAndAfterASpace) {
  ASSERT_TRUE(Parse({"--listen=a:1", "--servers", "3", "--reflection"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_listen), "a:1");
  EXPECT_EQ(absl::GetFlag(FLAGS_servers), 3);
  EXPECT_TRUE(absl::GetFlag(FLAGS_reflection));
  ASSERT_TRUE(Parse({"--noreflection"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_reflection));
}

TEST(EnvFlagsTest, TakesDashForUnderscoreAndTheLastOfARepeatedFlag) {
  ASSERT_TRUE(Parse({"--state_dir=a", "--state-dir=b", "--reflection", "--reflection=false"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_state_dir), "b");
  EXPECT_FALSE(absl::GetFlag(FLAGS_reflection));
  EXPECT_EQ(Parse({"--state-dri=a"}).message(), "unknown flag --state-dri; did you mean \"--state_dir\"?");
  EXPECT_EQ(Parse({"--reflection=maybe"}).message(), "flag --reflection: got \"maybe\", want true or false");
  for (const char* word : {"--noservers", "--noreflection=1"}) {
    EXPECT_NE(Parse({word}).message().find("unknown flag --no"), std::string::npos) << word;
  }
}

TEST(EnvFlagsTest, CommandLineWinsOverEnvironment) {
  setenv("BALLAST_SERVERS", "5", 1);
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_servers), 5);
  ASSERT_TRUE(Parse({"--servers=2"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_servers), 2);
  unsetenv("BALLAST_SERVERS");
}

TEST(EnvFlagsTest, NamesWhatItDoesNotUnderstand) {
  EXPECT_EQ(Parse({"--sevrers=2"}).message(), "unknown flag --sevrers; did you mean \"--servers\"?");
  EXPECT_EQ(Parse({"--xyzzy"}).message(), "unknown flag --xyzzy; see --help");
  EXPECT_EQ(Parse({"stray"}).message(), "unexpected argument \"stray\"; see --help");
  EXPECT_EQ(Parse({"--servers"}).message(), "flag --servers wants a value: How many.");
  EXPECT_EQ(Parse({"--servers=two"}).message(), "flag --servers: got \"two\", want a whole number");
  setenv("BALLAST_SERVERS", "many", 1);
  EXPECT_EQ(Parse({}).message(), "environment variable BALLAST_SERVERS: got \"many\", want a whole number");
  unsetenv("BALLAST_SERVERS");
}

}  // namespace
}  // namespace ballast
