// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/port/http2_inspector.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint32_t kHeadBytes = 9;

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;

constexpr uint8_t kAcknowledges = 1;
constexpr uint8_t kEndStream = 1;

}  // namespace

absl::Status Http2Inspector::Take(absl::string_view bytes, absl::Time now) {
  while (refused_.ok() && !bytes.empty()) {
    if (preface_bytes_ < kPreface.size()) {
      const size_t count = std::min(bytes.size(), kPreface.size() - preface_bytes_);
      if (bytes.substr(0, count) != kPreface.substr(preface_bytes_, count)) {
        refused_ = absl::InvalidArgumentError("got bytes that are not HTTP/2");
        break;
      }
      preface_bytes_ += static_cast<uint32_t>(count);
      bytes.remove_prefix(count);
    } else if (payload_left_ > 0) {
      const size_t count = std::min<size_t>(bytes.size(), payload_left_);
      payload_left_ -= static_cast<uint32_t>(count);
      bytes.remove_prefix(count);
    } else {
      const size_t count = std::min<size_t>(bytes.size(), kHeadBytes - head_bytes_);
      memcpy(head_ + head_bytes_, bytes.data(), count);
      head_bytes_ += static_cast<uint32_t>(count);
      bytes.remove_prefix(count);
      if (head_bytes_ < kHeadBytes) break;
      head_bytes_ = 0;
      refused_ = TakeHead(now);
    }
  }
  return refused_;
}

absl::Status Http2Inspector::TakeHead(absl::Time now) {
  const uint32_t size = head_[0] << 16 | head_[1] << 8 | head_[2];
  const uint8_t type = head_[3], flags = head_[4];
  payload_left_ = size;
  switch (type) {
    case kHeaders:
      block_bytes_ = 0;
      block_frames_ = 0;
      if (!acknowledged_ && ++early_calls_ > limits_.early_calls) {
        return absl::ResourceExhaustedError(
            absl::StrCat("got ", early_calls_, " calls, want the server's settings acknowledged first"));
      }
      [[fallthrough]];
    case kContinuation:
      block_bytes_ += size;
      ++block_frames_;
      if (block_bytes_ > limits_.header_bytes || block_frames_ > limits_.header_frames) {
        return absl::ResourceExhaustedError(absl::StrCat("got ", block_bytes_, " bytes of headers in ", block_frames_,
                                                         " frames, want at most ", limits_.header_bytes, " in ",
                                                         limits_.header_frames));
      }
      return absl::OkStatus();
    case kData:
      return size == 0 && (flags & kEndStream) == 0 ? CountIdle(now) : absl::OkStatus();
    case kWindowUpdate:
      // Not counted, because a pull causes thousands of them.
      return absl::OkStatus();
    case kSettings:
      acknowledged_ = acknowledged_ || (flags & kAcknowledges) != 0;
      return CountIdle(now);
    default:
      return CountIdle(now);
  }
}

absl::Status Http2Inspector::CountIdle(absl::Time now) {
  if (now > last_idle_) {
    const double seconds = std::min(absl::ToDoubleSeconds(now - last_idle_), 1e6);
    idle_frames_left_ = std::min(limits_.idle_frames, idle_frames_left_ + seconds * limits_.idle_frames_per_second);
    last_idle_ = now;
  }
  idle_frames_left_ -= 1;
  if (idle_frames_left_ >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("got more than ", limits_.idle_frames, " frames at once and ",
                                                   limits_.idle_frames_per_second,
                                                   " per second that carry no work, the last of type ", head_[3]));
}

}  // namespace ballast
