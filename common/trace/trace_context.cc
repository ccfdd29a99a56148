// SPDX-License-Identifier: Apache-2.0
#include "common/trace/trace_context.h"

#include <cstdlib>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ballast {
namespace {

constexpr size_t kLength = sizeof("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01") - 1;

// The number that `digits` lower-case hexadecimal digits at `from` are.
std::optional<uint64_t> Hexadecimal(absl::string_view text, size_t from, size_t digits) {
  uint64_t number = 0;
  for (const char digit : text.substr(from, digits)) {
    const bool decimal = digit >= '0' && digit <= '9';
    if (!decimal && (digit < 'a' || digit > 'f')) return std::nullopt;
    number = number << 4 | static_cast<uint64_t>(decimal ? digit - '0' : digit - 'a' + 10);
  }
  return number;
}

}  // namespace

std::string TraceContext::TraceId() const { return absl::StrFormat("%016x%016x", trace_high, trace_low); }

std::string SpanIdText(uint64_t span) { return absl::StrFormat("%016x", span); }

uint64_t NewSpanId() {
  thread_local absl::BitGen random;
  return absl::Uniform<uint64_t>(absl::IntervalClosed, random, 1, ~uint64_t{0});
}

TraceContext NewTrace() { return {.trace_high = NewSpanId(), .trace_low = NewSpanId()}; }

std::string FormatTraceparent(const TraceContext& context) {
  return absl::StrCat("00-", context.TraceId(), "-", SpanIdText(context.span), context.sampled ? "-01" : "-00");
}

absl::StatusOr<TraceContext> ParseTraceparent(absl::string_view text) {
  const auto refuse = [&](absl::string_view want) {
    return absl::InvalidArgumentError(
        absl::StrCat("got \"", absl::CHexEscape(text.substr(0, kLength)), "\", want ", want));
  };
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') {
    return refuse("VERSION-TRACE-SPAN-FLAGS with 2, 32, 16 and 2 hexadecimal digits");
  }
  const auto version = Hexadecimal(text, 0, 2), high = Hexadecimal(text, 3, 16), low = Hexadecimal(text, 19, 16),
             span = Hexadecimal(text, 36, 16), flags = Hexadecimal(text, 53, 2);
  if (!version || !high || !low || !span || !flags) return refuse("lower-case hexadecimal digits");
  // A later version may have more fields after another dash; 255 never is one.
  const bool more = text.size() > kLength;
  if (*version == 255 || (more && (*version == 0 || text[kLength] != '-'))) return refuse("version 00");
  if ((*high | *low) == 0 || *span == 0) return refuse("ids that are not 0");
  return TraceContext{*high, *low, *span, (*flags & 1) != 0};
}

std::optional<TraceContext> TraceContextOfEnvironment() {
  const char* const text = getenv("TRACEPARENT");
  if (text == nullptr) return std::nullopt;
  const absl::StatusOr<TraceContext> context = ParseTraceparent(text);
  return context.ok() ? std::optional(*context) : std::nullopt;
}

}  // namespace ballast
