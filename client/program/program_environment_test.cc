// SPDX-License-Identifier: Apache-2.0
#include "client/program/program_environment.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace ballast {
namespace {

// Owns variables of the environment for the time of a test.
class ProgramEnvironmentTest : public testing::Test {
 protected:
  ~ProgramEnvironmentTest() override {
    for (const char* name : {"BALLAST_COORDINATOR", "BALLAST_RANK", "BALLAST_GATHER_TIMEOUT", "BALLAST_TLS_CA",
                             "BALLAST_TOKEN_FILE", "BALLAST_INSECURE", "BALLAST_JOB", "BALLAST_POLICY", "BALLAST_CODEC",
                             "BALLAST_DURABILITY", "BALLAST_RUN_DIR", "BALLAST_FLIGHT_DIR"}) {
      unsetenv(name);
    }
  }
};

TEST_F(ProgramEnvironmentTest, HasTheWorkersDefaults) {
  const absl::StatusOr<ProgramEnvironment> environment = ReadProgramEnvironment();
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->coordinator, "127.0.0.1:7700");
  EXPECT_FALSE(environment->rank.has_value());
  EXPECT_FALSE(environment->security.has_tls());
  EXPECT_FALSE(environment->security.insecure);
}

TEST_F(ProgramEnvironmentTest, ReadsTheWorkersVariables) {
  setenv("BALLAST_COORDINATOR", "10.0.0.1:7000", 1);
  setenv("BALLAST_RANK", "ballast-worker-3", 1);
  setenv("BALLAST_GATHER_TIMEOUT", "90", 1);
  setenv("BALLAST_TLS_CA", "ca.pem", 1);
  setenv("BALLAST_TOKEN_FILE", "token", 1);
  setenv("BALLAST_INSECURE", "true", 1);
  const absl::StatusOr<ProgramEnvironment> environment = ReadProgramEnvironment();
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->coordinator, "10.0.0.1:7000");
  EXPECT_EQ(environment->rank, 3);
  EXPECT_EQ(environment->gather_timeout, absl::Seconds(90));
  EXPECT_EQ(environment->security.tls.authorities, "ca.pem");
  EXPECT_EQ(environment->security.token_file, "token");
  EXPECT_TRUE(environment->security.insecure);
}

TEST_F(ProgramEnvironmentTest, ReplacesOnlyTheFieldsOfTheJobThatItHas) {
  v1::Job job;
  job.set_name("mine");
  job.mutable_policy()->mutable_async();
  job.mutable_durability()->set_return_seconds(7);
  setenv("BALLAST_DURABILITY", "wal_sync", 1);
  ReplaceFields(ReadProgramEnvironment().value(), job);
  EXPECT_EQ(job.name(), "mine");
  EXPECT_TRUE(job.policy().has_async());
  EXPECT_EQ(job.durability().mode(), v1::Durability::WAL_SYNC);
  EXPECT_EQ(job.durability().return_seconds(), 7);

  setenv("BALLAST_JOB", "other", 1);
  setenv("BALLAST_POLICY", "bounded { steps_ahead: 4 }", 1);
  setenv("BALLAST_CODEC", "gradients: ENCODING_INT8", 1);
  setenv("BALLAST_RUN_DIR", "runs/a", 1);
  setenv("BALLAST_FLIGHT_DIR", "runs/a/logs", 1);
  const ProgramEnvironment environment = ReadProgramEnvironment().value();
  EXPECT_EQ(environment.run_dir, "runs/a");
  EXPECT_EQ(environment.flight_dir, "runs/a/logs");
  ReplaceFields(environment, job);
  EXPECT_EQ(job.name(), "other");
  EXPECT_EQ(job.policy().bounded().steps_ahead(), 4);
  EXPECT_EQ(job.codec().gradients(), v1::ENCODING_INT8);
}

TEST_F(ProgramEnvironmentTest, NamesAVariableThatItCannotRead) {
  setenv("BALLAST_RANK", "first", 1);
  EXPECT_EQ(ReadProgramEnvironment().status(),
            absl::InvalidArgumentError("BALLAST_RANK: got \"first\", want a number or a name that ends in -N"));
  setenv("BALLAST_RANK", "1", 1);
  setenv("BALLAST_GATHER_TIMEOUT", "-1", 1);
  EXPECT_EQ(ReadProgramEnvironment().status(),
            absl::InvalidArgumentError("BALLAST_GATHER_TIMEOUT: got \"-1\", want a number of seconds, at least 1"));
  setenv("BALLAST_GATHER_TIMEOUT", "1", 1);
  setenv("BALLAST_INSECURE", "perhaps", 1);
  EXPECT_EQ(ReadProgramEnvironment().status(),
            absl::InvalidArgumentError("BALLAST_INSECURE: got \"perhaps\", want true or false"));
  unsetenv("BALLAST_INSECURE");
  setenv("BALLAST_DURABILITY", "disk", 1);
  EXPECT_EQ(
      ReadProgramEnvironment().status(),
      absl::InvalidArgumentError("BALLAST_DURABILITY: got \"disk\", want none, checkpoint, wal, wal_sync or standby"));
  unsetenv("BALLAST_DURABILITY");
  setenv("BALLAST_POLICY", "sometimes {}", 1);
  EXPECT_EQ(ReadProgramEnvironment().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
