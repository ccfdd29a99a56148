// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace ballast {

// Finds where the answers of gRPC calls end in what a server sends: the HTTP/2 frames (RFC 9113, section 4.1) that
// carry headers and end a stream. Without such a frame a client has no answer, whatever it got before. Thread safety:
// none.
class ReplyScanner {
 public:
  // Looks at the connection's next bytes. Where the header of such a frame ends within them: the offset behind it, up
  // to which the bytes are done with; ask again with the rest. Else nothing, and all are.
  std::optional<size_t> Next(absl::string_view bytes);

 private:
  static constexpr size_t kHeaderBytes = 9;

  uint8_t header_[kHeaderBytes] = {};
  // Of the header that is under way; 0 between frames and within a payload.
  size_t header_bytes_ = 0;
  // Of the payload that is under way.
  size_t payload_left_ = 0;
};

}  // namespace ballast
