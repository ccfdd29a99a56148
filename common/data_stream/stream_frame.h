// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/trace/trace_context.h"

namespace ballast {

// A connection that a client opens to a server's port as a data stream begins with this text and a ticket, from
// v1.OpenDataStreamResponse. The server answers with the text. Neither a gRPC nor a TLS client begins like that.
inline constexpr absl::string_view kStreamOpening = "BALLAST1";
inline constexpr size_t kStreamTicketBytes = 16;

// Header of each message on a data stream; v1.OpenDataStreamResponse defines the bytes.
struct StreamFrame {
  enum class Kind : uint32_t {
    // From the client: begins a call with the message, or cancels it.
    kCall = 1,
    kCancel = 2,
    // From the server: ends a call with the message, or with an error.
    kResponse = 3,
  };
  Kind kind = Kind::kCall;
  // Names the call; chosen by the client, unique among those that have not ended.
  uint32_t number = 0;
  // Method of a kCall, an index in kDirectMethods. For a kResponse, gRPC's status code; unless it is 0, the message is
  // an error (EncodeDirectError).
  uint32_t subject = 0;
  // Size of the message that follows.
  uint32_t bytes = 0;
  // Number of bytes before the first large payload of the message, which the receiver aligns.
  uint32_t lead = 0;
  // Span that makes a kCall, as in `traceparent`; 0: the call is not traced.
  TraceContext caller;

  friend bool operator==(const StreamFrame&, const StreamFrame&) = default;
};

inline constexpr size_t kStreamFrameBytes = 48;

std::array<char, kStreamFrameBytes> EncodeStreamFrame(const StreamFrame& frame);

// INVALID_ARGUMENT if the bytes, of which there are kStreamFrameBytes, are no frame.
absl::StatusOr<StreamFrame> DecodeStreamFrame(absl::string_view bytes);

}  // namespace ballast
