// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/program_words.h"

#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

LaunchPlan Plan() {
  LaunchPlan plan;
  plan.workers = 3;
  plan.threads = 0;
  plan.run_dir = "/runs/a";
  plan.program = {"python3", "train.py", "--epochs", "3"};
  plan.program_directory = "/home/me";
  plan.program_variables = {"BALLAST_JOB=train"};
  plan.worker_security = {"--tls_ca", "/runs/a/security/ca.pem", "--insecure"};
  return plan;
}

TEST(ProgramWordsTest, SetTheVariablesOfTorchrunAndOfTheClient) {
  const std::vector<std::string> words = ProgramWords(Plan(), 1, 8, "127.0.0.1:7701");
  EXPECT_EQ(words[0], "--chdir=/home/me");
  EXPECT_THAT(words,
              IsSupersetOf({"RANK=1", "WORLD_SIZE=3", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
                            "OMP_NUM_THREADS=2", "BALLAST_RANK=1", "BALLAST_COORDINATOR=127.0.0.1:7701",
                            "BALLAST_GATHER_TIMEOUT=300", "BALLAST_RUN_DIR=/runs/a", "BALLAST_FLIGHT_DIR=/runs/a/logs",
                            "BALLAST_TLS_CA=/runs/a/security/ca.pem", "BALLAST_INSECURE=true", "BALLAST_JOB=train"}));
}

TEST(ProgramWordsTest, EndWithTheProgram) {
  const std::vector<std::string> words = ProgramWords(Plan(), 0, 8, "127.0.0.1:7701");
  const std::vector<std::string> last(words.end() - 4, words.end());
  EXPECT_THAT(last, ElementsAre("python3", "train.py", "--epochs", "3"));
}

TEST(ProgramWordsTest, LocalRanksCountOnEachHost) {
  LaunchPlan plan = Plan();
  plan.hosts = {{.login = "a", .address = "a", .workers = 1}, {.login = "b", .address = "b", .workers = 2}};
  const std::vector<std::string> words = ProgramWords(plan, 2, 8, "a:7701");
  EXPECT_THAT(words,
              IsSupersetOf({"RANK=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=a", "OMP_NUM_THREADS=4"}));
  EXPECT_THAT(ProgramWords(plan, 1, 8, "a:7701"), Contains("LOCAL_RANK=0"));
}

}  // namespace
}  // namespace ballast
