// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_request.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/command/command.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

absl::StatusOr<LaunchRequest> Read(const std::vector<std::string>& words,
                                   const std::string& own_path = "/bin/ballast") {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(RunFlags(), words);
  if (!arguments.ok()) return arguments.status();
  return ReadRunRequest(*arguments, own_path);
}

std::string Error(const std::vector<std::string>& words) { return std::string(Read(words).status().message()); }

TEST(JobNameOfTest, IsTheNameOfTheScript) {
  EXPECT_EQ(JobNameOf({"python3", "-u", "examples/Fashion MNIST.v2.py", "--epochs", "3"}), "fashion_mnist_v2");
  EXPECT_EQ(JobNameOf({"/usr/local/bin/train"}), "train");
  EXPECT_EQ(JobNameOf({"python3", "3d.py"}), "job_3d");
  EXPECT_EQ(JobNameOf({std::string(100, 'a')}), std::string(63, 'a'));
}

TEST(ReadRunRequestTest, KeepsTheProgramsOwnFlags) {
  const absl::StatusOr<LaunchRequest> request = Read({"--workers", "3", "--", "sh", "-c", "exit 0", "--workers", "7"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->plan.workers, 3);
  EXPECT_THAT(request->plan.program, ElementsAre("sh", "-c", "exit 0", "--workers", "7"));
  EXPECT_EQ(request->plan.program_directory, std::filesystem::current_path().string());
}

TEST(ReadRunRequestTest, TellsTheProgramWhatTheFlagsSay) {
  const absl::StatusOr<LaunchRequest> request = Read({"--job", "mine", "--mode", "bounded", "--steps-ahead", "4",
                                                      "--codec", "int8", "--durability", "wal", "--", "sh"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->plan.durability.mode(), v1::Durability::WAL);
  EXPECT_THAT(request->plan.program_variables, Contains("BALLAST_JOB=mine"));
  EXPECT_THAT(request->plan.program_variables, Contains("BALLAST_POLICY=bounded { steps_ahead: 4 }"));
  EXPECT_THAT(request->plan.program_variables, Contains(StartsWith("BALLAST_CODEC=gradients: ENCODING_INT8")));
  EXPECT_THAT(request->plan.program_variables, Contains("BALLAST_DURABILITY=wal"));
  EXPECT_THAT(request->plan.program_variables, Contains(StartsWith("MASTER_PORT=")));
}

TEST(ReadRunRequestTest, LeavesThePolicyToTheProgramWithoutAFlag) {
  const absl::StatusOr<LaunchRequest> request = Read({"--", "sh"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->plan.program_variables, Not(Contains(StartsWith("BALLAST_POLICY="))));
  EXPECT_THAT(request->plan.program_variables, Contains("BALLAST_JOB=sh"));
}

TEST(ReadRunRequestTest, MakesThePackageOfTheSameBuildKnown) {
  const std::string root = testing::TempDir() + "/built";
  std::filesystem::create_directories(root + "/python/ballast");
  std::ofstream(root + "/python/ballast/libballast.so") << "library";
  setenv("PYTHONPATH", "/mine", 1);
  const absl::StatusOr<LaunchRequest> request = Read({"--", "sh"}, root + "/cli/ballast");
  unsetenv("PYTHONPATH");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->plan.program_variables, Contains("PYTHONPATH=/mine:" + root + "/python"));
  EXPECT_THAT(Read({"--", "sh"})->plan.program_variables, Not(Contains(StartsWith("PYTHONPATH="))));
}

TEST(ReadRunRequestTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error({}), HasSubstr("run: got no program, want one after --"));
  EXPECT_EQ(Error({"--", "no-such-program"}), "run: there is no program no-such-program on PATH");
  EXPECT_EQ(Error({"--", "./nothing"}), "run: ./nothing is not an executable file");
  EXPECT_EQ(Error({"--", "A=1"}), "run: got \"A=1\" after --, want a program's name");
  EXPECT_THAT(Error({"--job", "My job", "--", "sh"}), HasSubstr("flag --job: got \"My job\", want a-z"));
  EXPECT_THAT(Error({"--workers", "0", "--", "sh"}), HasSubstr("flag --workers"));
  EXPECT_THAT(Error({"--durability", "disk", "--", "sh"}), HasSubstr("durability: got \"disk\""));
  EXPECT_THAT(Error({"--chaos", "kill-server=1s", "--", "sh"}), HasSubstr("flag --chaos: got kill-server"));
  EXPECT_THAT(Error({"--device", "cpu", "--", "sh"}), HasSubstr("unknown flag --device"));
}

}  // namespace
}  // namespace ballast
