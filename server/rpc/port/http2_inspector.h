// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ballast {

// Reads along what a client sends on one HTTP/2 connection and refuses what would cost gRPC more than it costs the
// client, before gRPC parses it. gRPC 1.51 copies an unfinished header anew with each frame, and enforces its limits of
// metadata and of streams too late or not at all; decision 0023 says what was measured. Knows frames (RFC 9113) but
// neither HPACK nor calls; what it lets through may still be wrong, and gRPC says so. Holds no payload.
// Thread safety: none; confined to whoever reads the connection.
class Http2Inspector {
 public:
  struct Limits {
    // Bytes and frames of one header block, HEADERS and its CONTINUATIONs together. gRPC takes 8 KiB of metadata.
    uint32_t header_bytes = 16 << 10;
    uint32_t header_frames = 8;
    // Frames that cost the server something and give it no work: RST_STREAM, PING, SETTINGS, PRIORITY, empty DATA and
    // those of unknown types. So many at once, and so many a second in the long run.
    double idle_frames = 256;
    double idle_frames_per_second = 256;
    // Calls that a client may begin before it has acknowledged the server's settings, which limit its calls.
    uint32_t early_calls = 128;
  };

  explicit Http2Inspector(const Limits& limits) : limits_(limits), idle_frames_left_(limits.idle_frames) {}

  // Takes the next bytes, which came at `now`. RESOURCE_EXHAUSTED, saying which limit was passed, or INVALID_ARGUMENT
  // if this is no HTTP/2; then and from then on the connection is to be ended.
  absl::Status Take(absl::string_view bytes, absl::Time now);

 private:
  absl::Status TakeHead(absl::Time now);
  absl::Status CountIdle(absl::Time now);

  const Limits limits_;
  absl::Status refused_;
  // How many bytes of the preface and of the present frame's head have come.
  uint32_t preface_bytes_ = 0;
  uint32_t head_bytes_ = 0;
  uint8_t head_[9] = {};
  // Bytes of the present frame's payload that have not come.
  uint32_t payload_left_ = 0;
  // The header block that is not finished.
  uint64_t block_bytes_ = 0;
  uint32_t block_frames_ = 0;
  bool acknowledged_ = false;
  uint32_t early_calls_ = 0;
  double idle_frames_left_;
  absl::Time last_idle_ = absl::InfinitePast();
};

}  // namespace ballast
