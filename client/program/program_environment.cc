// SPDX-License-Identifier: Apache-2.0
#include "client/program/program_environment.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_file_checker.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

// Returns the variable's value; empty if it is not set.
std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Reads the text of a message, if the variable is set.
template <typename Message>
absl::Status ReadMessage(const char* name, Message* (v1::Job::*mutable_field)(), v1::Job& job) {
  const std::string text = Variable(name);
  if (text.empty()) return absl::OkStatus();
  return ParseMessageText(text, name, absl::StrCat("the variable ", name), (job.*mutable_field)());
}

absl::Status ReadJob(v1::Job& job) {
  if (const std::string name = Variable("BALLAST_JOB"); !name.empty()) job.set_name(name);
  absl::Status status = ReadMessage("BALLAST_POLICY", &v1::Job::mutable_policy, job);
  if (status.ok()) status = ReadMessage("BALLAST_CODEC", &v1::Job::mutable_codec, job);
  if (!status.ok()) return status;
  const std::string durability = Variable("BALLAST_DURABILITY");
  if (durability.empty()) return absl::OkStatus();
  v1::Durability::Mode mode;
  if (!v1::Durability::Mode_Parse(absl::AsciiStrToUpper(durability), &mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("BALLAST_DURABILITY: got \"", durability, "\", want none, checkpoint, wal, wal_sync or standby"));
  }
  job.mutable_durability()->set_mode(mode);
  return absl::OkStatus();
}

}  // namespace

void ReplaceFields(const ProgramEnvironment& environment, v1::Job& job) {
  const v1::Job& from = environment.job;
  if (!from.name().empty()) job.set_name(from.name());
  if (from.has_policy()) *job.mutable_policy() = from.policy();
  if (from.has_codec()) *job.mutable_codec() = from.codec();
  if (from.has_durability()) job.mutable_durability()->set_mode(from.durability().mode());
}

absl::StatusOr<ProgramEnvironment> ReadProgramEnvironment() {
  ProgramEnvironment environment;
  environment.coordinator = Variable("BALLAST_COORDINATOR");
  if (environment.coordinator.empty()) environment.coordinator = "127.0.0.1:7700";
  environment.security = {
      {Variable("BALLAST_TLS_CERT"), Variable("BALLAST_TLS_KEY"), Variable("BALLAST_TLS_CA")},
      Variable("BALLAST_TOKEN_FILE"),
      false,
  };
  if (const std::string insecure = Variable("BALLAST_INSECURE");
      !insecure.empty() && !absl::SimpleAtob(insecure, &environment.security.insecure)) {
    return absl::InvalidArgumentError(absl::StrCat("BALLAST_INSECURE: got \"", insecure, "\", want true or false"));
  }
  if (const std::string text = Variable("BALLAST_GATHER_TIMEOUT"); !text.empty()) {
    uint32_t seconds = 0;
    if (!absl::SimpleAtoi(text, &seconds) || seconds == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("BALLAST_GATHER_TIMEOUT: got \"", text, "\", want a number of seconds, at least 1"));
    }
    environment.gather_timeout = absl::Seconds(seconds);
  }
  if (const std::string text = Variable("BALLAST_RANK"); !text.empty()) {
    const int rank = ParseRank(text);
    if (rank < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("BALLAST_RANK: got \"", text, "\", want a number or a name that ends in -N"));
    }
    environment.rank = rank;
  }
  environment.run_dir = Variable("BALLAST_RUN_DIR");
  environment.flight_dir = Variable("BALLAST_FLIGHT_DIR");
  if (absl::Status status = ReadJob(environment.job); !status.ok()) return status;
  return environment;
}

}  // namespace ballast
