// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_tracing.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace ballast {
namespace {

using ::testing::ElementsAre;

class CallTracingTest : public ::testing::Test {
 protected:
  static CallSpan Call(bool sampled) {
    CallSpan call;
    call.method = "/ballast.v1.ParameterService/Push";
    call.context = {.trace_high = 1, .trace_low = 2, .span = 3, .sampled = sampled};
    call.parent = 4;
    return call;
  }

  std::vector<std::string> lines_;
  ManualClock clock_;
  CallTimeline calls_;
  CallTracing tracing_{&calls_, [this](const std::string& line) { lines_.push_back(line); }, &clock_};
};

TEST_F(CallTracingTest, OnlySampledCallsAreRecorded) {
  tracing_.Add(Call(false));
  tracing_.Add(Call(true));
  EXPECT_EQ(calls_.Copy().calls.size(), 1u);
  CallTracing without(nullptr, nullptr);
  EXPECT_FALSE(without.Records(Call(true).context));
  without.Add(Call(true));
  without.LogFailure(Call(true), "ipv4:127.0.0.1:1", absl::UnavailableError("gone"));
}

TEST_F(CallTracingTest, FailureNamesTheTraceAndWhy) {
  tracing_.LogFailure(Call(false), "ipv4:127.0.0.1:1", absl::UnavailableError("two\nlines"));
  EXPECT_THAT(lines_, ElementsAre("ParameterService/Push from ipv4:127.0.0.1:1 failed: UNAVAILABLE: two\\nlines; trace "
                                  "00000000000000010000000000000002, span 0000000000000003, of span "
                                  "0000000000000004"));
}

TEST_F(CallTracingTest, ManyFailuresTakeFewLines) {
  for (int i = 0; i < 1000; ++i) {
    tracing_.LogFailure(Call(false), "ipv4:127.0.0.1:1", absl::UnavailableError("gone"));
    clock_.Advance(absl::Milliseconds(1));
  }
  ASSERT_EQ(lines_.size(), 10u);
  EXPECT_THAT(lines_[1], ::testing::EndsWith("; 99 failures before it"));
}

}  // namespace
}  // namespace ballast
