// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// W3C Trace Context, https://www.w3.org/TR/trace-context/: how a call names the trace and the span that caused it.
namespace ballast {

// Name of the gRPC metadata with a TraceContext.
inline constexpr char kTraceparent[] = "traceparent";

// A span, and the trace that it belongs to.
struct TraceContext {
  // The id's first and last eight bytes; not both are 0.
  uint64_t trace_high = 0;
  uint64_t trace_low = 0;
  // 0: no span.
  uint64_t span = 0;
  // The caller records the span, so that its callees should record theirs.
  bool sampled = false;

  // The trace's id as 32 hexadecimal digits.
  std::string TraceId() const;

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// A span's id as 16 hexadecimal digits.
std::string SpanIdText(uint64_t span);

// Returns a random id, which is not 0.
uint64_t NewSpanId();

// Returns a new trace without a span.
TraceContext NewTrace();

// Returns the value of a traceparent: "00-TRACE-SPAN-FLAGS". The context has a span.
std::string FormatTraceparent(const TraceContext& context);

// Parses such a value, also of a later version. INVALID_ARGUMENT states got and want.
absl::StatusOr<TraceContext> ParseTraceparent(absl::string_view text);

// Returns the context that the environment variable TRACEPARENT names: this process is part of a larger trace. nullopt
// without it, or if it is damaged, as the specification wants.
std::optional<TraceContext> TraceContextOfEnvironment();

}  // namespace ballast
