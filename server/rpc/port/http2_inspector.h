// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ballast {

// Owns the state of one HTTP/2 connection's input, and refuses input that would cost gRPC more than the client,
// before gRPC parses it. gRPC 1.51 copies an unfinished header again with each frame, and enforces its limits on
// metadata and streams too late or not at all; decision 0023 has the measurements. Knows frames (RFC 9113) but
// neither HPACK nor calls; input that it accepts may still be invalid, which gRPC reports. Keeps no payload.
// Thread safety: none; confined to the thread that reads the connection.
class Http2Inspector {
 public:
  struct Limits {
    // Limits on one header block, HEADERS and its CONTINUATIONs together. gRPC accepts 8 KiB of metadata.
    uint32_t header_bytes = 16 << 10;
    uint32_t header_frames = 8;
    // Limits on frames that cost the server time but carry no work: RST_STREAM, PING, SETTINGS, PRIORITY, empty DATA
    // and unknown types. A burst, and a long-term rate.
    double idle_frames = 256;
    double idle_frames_per_second = 256;
    // Calls that a client may begin before it has acknowledged the server's settings, which limit its calls.
    uint32_t early_calls = 128;
  };

  explicit Http2Inspector(const Limits& limits) : limits_(limits), idle_frames_left_(limits.idle_frames) {}

  // Takes the next bytes, received at `now`. RESOURCE_EXHAUSTED that names the limit exceeded, or INVALID_ARGUMENT if
  // this is not HTTP/2; every later call returns the same error, and the connection must be ended.
  absl::Status Take(absl::string_view bytes, absl::Time now);

 private:
  absl::Status TakeHead(absl::Time now);
  absl::Status CountIdle(absl::Time now);

  const Limits limits_;
  absl::Status refused_;
  // Bytes received of the preface and of the current frame's head.
  uint32_t preface_bytes_ = 0;
  uint32_t head_bytes_ = 0;
  uint8_t head_[9] = {};
  // Bytes of the current frame's payload not yet received.
  uint32_t payload_left_ = 0;
  // The unfinished header block.
  uint64_t block_bytes_ = 0;
  uint32_t block_frames_ = 0;
  bool acknowledged_ = false;
  uint32_t early_calls_ = 0;
  double idle_frames_left_;
  absl::Time last_idle_ = absl::InfinitePast();
};

}  // namespace ballast
