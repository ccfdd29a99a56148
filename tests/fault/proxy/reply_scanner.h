// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace ballast {

// Finds the ends of gRPC responses in a server's bytes: the HTTP/2 frames (RFC 9113, section 4.1) that carry headers
// and end a stream. Without such a frame a client has no response, whatever it received before. Thread safety: none.
class ReplyScanner {
 public:
  // Scans the connection's next bytes. If they complete the header of such a frame, returns the offset after it and
  // has consumed the bytes up to there; call it again with the rest. Otherwise returns nothing and has consumed all.
  std::optional<size_t> Next(absl::string_view bytes);

 private:
  static constexpr size_t kHeaderBytes = 9;

  uint8_t header_[kHeaderBytes] = {};
  // Bytes of the current header; 0 between frames and within a payload.
  size_t header_bytes_ = 0;
  // Bytes left of the current payload.
  size_t payload_left_ = 0;
};

}  // namespace ballast
