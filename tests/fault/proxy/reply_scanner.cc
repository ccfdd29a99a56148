// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/proxy/reply_scanner.h"

#include <algorithm>

namespace ballast {
namespace {

constexpr uint8_t kHeadersFrame = 1;
constexpr uint8_t kEndStream = 1;

}  // namespace

std::optional<size_t> ReplyScanner::Next(absl::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (payload_left_ > 0) {
      const size_t skipped = std::min(payload_left_, bytes.size() - at);
      payload_left_ -= skipped;
      at += skipped;
      continue;
    }
    header_[header_bytes_++] = static_cast<uint8_t>(bytes[at++]);
    if (header_bytes_ < kHeaderBytes) continue;
    header_bytes_ = 0;
    payload_left_ = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
    if (header_[3] == kHeadersFrame && (header_[4] & kEndStream) != 0) return at;
  }
  return std::nullopt;
}

}  // namespace ballast
