// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "cli/command/command.h"
#include "common/status/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{{"json", "", "Print JSON."}, {"size", "N", "A size."}};
  return *flags;
}

const std::vector<FlagSpec>& NoJson() {
  static const auto* flags = new std::vector<FlagSpec>{{"size", "N", "A size."}};
  return *flags;
}

// Fails as its first word says; "prints" prints an object before that.
CommandResult Fake(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const std::string how = args.empty() ? "" : args[0];
  if (how == "works") out << "{\"size\":3}\n";
  if (how == "works") return kExitSuccess;
  if (how == "prints") out << "{\"ready\":false}\n";
  if (how == "silent") return 130;
  if (how == "refused") {
    return Fail(err, WithReason(v1::ERROR_REASON_WRONG_JOB, absl::FailedPreconditionError("another job")), 1);
  }
  return Fail(err, absl::NotFoundError("no \"file\"\nat all"), 2);
}

// Runs the command; returns what it printed.
std::string Printed(std::vector<std::string> args, int exit_status, FlagTable* flags = Flags) {
  std::ostringstream out, err;
  EXPECT_EQ(RunWithJson({"fake", "", Fake, "", "", flags}, args, out, err), exit_status);
  return out.str();
}

TEST(JsonFailureTest, IsOneObjectWithErrorReasonAndExitCode) {
  EXPECT_EQ(Printed({"fails", "--json"}, 2),
            "{\"error\":\"no \\\"file\\\"\\nat all\",\"reason\":\"NOT_FOUND\",\"exit_code\":2}\n");
  EXPECT_EQ(Printed({"silent", "--json"}, 130),
            "{\"error\":\"exit code 130\",\"reason\":\"UNKNOWN\",\"exit_code\":130}\n");
}

TEST(JsonFailureTest, NamesTheServersReason) {
  EXPECT_EQ(Printed({"refused", "--json"}, 1),
            "{\"error\":\"another job\",\"reason\":\"WRONG_JOB\",\"exit_code\":1}\n");
}

TEST(JsonFailureTest, JoinsTheObjectThatTheCommandPrints) {
  EXPECT_EQ(Printed({"prints", "--json"}, 2),
            "{\"ready\":false,\"error\":\"no \\\"file\\\"\\nat all\",\"reason\":\"NOT_FOUND\",\"exit_code\":2}\n");
}

TEST(JsonFailureTest, LeavesSuccessAsItIs) { EXPECT_EQ(Printed({"works", "--json"}, 0), "{\"size\":3}\n"); }

TEST(JsonFailureTest, PrintsNothingUnlessAsked) {
  EXPECT_EQ(Printed({"fails"}, 2), "");
  EXPECT_EQ(Printed({"fails", "--", "--json"}, 2), "");
  EXPECT_EQ(Printed({"fails", "--json"}, 2, NoJson), "");
}

TEST(JsonFailureTest, SaysThatAnotherProgramThatParsesTheFlagsCannotRun) {
  EXPECT_EQ(Printed({"fails", "--json"}, 2, nullptr),
            "{\"error\":\"no \\\"file\\\"\\nat all\",\"reason\":\"NOT_FOUND\",\"exit_code\":2}\n");
}

TEST(CommandResultTest, KeepsTheErrorThatIsPrinted) {
  std::ostringstream err;
  const CommandResult result = Fail(err, absl::DataLossError("one\ntwo"), 1);
  EXPECT_EQ(result, 1);
  EXPECT_EQ(result.error, absl::DataLossError("one\ntwo"));
  EXPECT_EQ(err.str(), "error: one\nerror: two\n");
}

}  // namespace
}  // namespace ballast
