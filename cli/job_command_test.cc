// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/command/command.h"
#include "common/job/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class JobCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(path_) << "name: \"tiny\" data { train { csv { path: \"train.csv\" } } }\n"
                            "model { layers { dense { units: 1 } } loss { mean_squared_error {} } }\n"
                            "training { epochs: 3 batch_size: 8 } optimizer { sgd { learning_rate: 0.5 } }\n";
  }

  int Run(std::vector<std::string> args) {
    out_.str("");
    err_.str("");
    return JobCommand(args, out_, err_);
  }

  const std::string path_ = ::testing::TempDir() + "/job_command_test.textproto";
  std::ostringstream out_, err_;
};

TEST_F(JobCommandTest, PrintsTheJobThatWouldRun) {
  ASSERT_EQ(Run({path_, "--set", "training.epochs=5"}), 0) << err_.str();
  const absl::StatusOr<v1::Job> job = ParseJob(out_.str(), "output");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->training().epochs(), 5);
  EXPECT_EQ(job->training().wait_seconds(), 60);
  EXPECT_EQ(job->data().train().csv().path(), std::filesystem::path(path_).replace_filename("train.csv"));
}

TEST_F(JobCommandTest, RefusesWhatLaunchRefuses) {
  EXPECT_EQ(Run({path_, "--set", "epochs=5"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean training.epochs?"));
  EXPECT_EQ(Run({path_, "--set", "training.epochs=0"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--set training.epochs=0: training.epochs: got 0, want 1 to 1000000"));
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("job: got 0 job files, want exactly one"));
}

}  // namespace
}  // namespace ballast
