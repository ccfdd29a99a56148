// SPDX-License-Identifier: Apache-2.0
#include "common/trace/trace_context.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// The example of the specification.
constexpr char kExample[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContextTest, ReadsTheExampleOfTheSpecification) {
  const absl::StatusOr<TraceContext> context = ParseTraceparent(kExample);
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ(context->TraceId(), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(SpanIdText(context->span), "00f067aa0ba902b7");
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(FormatTraceparent(*context), kExample);
}

TEST(TraceContextTest, FlagsThatItDoesNotKnowAreNoSample) {
  EXPECT_FALSE(ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe")->sampled);
  EXPECT_TRUE(ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff")->sampled);
}

TEST(TraceContextTest, ALaterVersionMayHaveMoreFields) {
  EXPECT_TRUE(ParseTraceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-is-new").ok());
  EXPECT_TRUE(ParseTraceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").ok());
}

TEST(TraceContextTest, WhatIsNoTraceparentIsRefused) {
  const std::string cases[] = {
      "",
      "00",
      std::string(55, '-'),
      std::string(55, '\0'),
      std::string(1000, '0'),
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
      "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
      "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
  };
  for (const std::string& text : cases) {
    const absl::Status status = ParseTraceparent(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(", want ")) << text;
    EXPECT_LT(status.message().size(), 400u) << text;
  }
}

TEST(TraceContextTest, TheEnvironmentNamesALargerTrace) {
  unsetenv("TRACEPARENT");
  EXPECT_FALSE(TraceContextOfEnvironment().has_value());
  setenv("TRACEPARENT", "damaged", 1);
  EXPECT_FALSE(TraceContextOfEnvironment().has_value());
  const std::string text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  setenv("TRACEPARENT", text.c_str(), 1);
  ASSERT_TRUE(TraceContextOfEnvironment().has_value());
  EXPECT_EQ(FormatTraceparent(*TraceContextOfEnvironment()), text);
  unsetenv("TRACEPARENT");
}

TEST(TraceContextTest, NewIdsAreNotZeroAndDiffer) {
  TraceContext one = NewTrace();
  const TraceContext other = NewTrace();
  EXPECT_NE(one.TraceId(), other.TraceId());
  one.span = NewSpanId();
  EXPECT_NE(one.span, NewSpanId());
  EXPECT_EQ(ParseTraceparent(FormatTraceparent(one)).value(), one);
}

}  // namespace
}  // namespace ballast
