// SPDX-License-Identifier: Apache-2.0
#include "common/data_stream/stream_frame.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr uint32_t kSampled = 1;
// Receivers refuse, and skip, a message that is larger than they take. Beyond this it is no message.
constexpr uint32_t kMaxFrameBytes = 64 << 20;

// The bytes, in the order of the host, which is little-endian.
struct Layout {
  uint32_t kind, number, subject, bytes, lead, flags;
  uint64_t trace_high, trace_low, span;
};
static_assert(sizeof(Layout) == kStreamFrameBytes);

}  // namespace

std::array<char, kStreamFrameBytes> EncodeStreamFrame(const StreamFrame& frame) {
  const Layout layout = {static_cast<uint32_t>(frame.kind),
                         frame.number,
                         frame.subject,
                         frame.bytes,
                         frame.lead,
                         frame.caller.sampled ? kSampled : 0,
                         frame.caller.trace_high,
                         frame.caller.trace_low,
                         frame.caller.span};
  std::array<char, kStreamFrameBytes> bytes;
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  return bytes;
}

absl::StatusOr<StreamFrame> DecodeStreamFrame(absl::string_view bytes) {
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  const auto least = static_cast<uint32_t>(StreamFrame::Kind::kCall);
  const auto most = static_cast<uint32_t>(StreamFrame::Kind::kResponse);
  if (layout.kind < least || layout.kind > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of a data stream: got kind ", layout.kind, ", want ", least, " to ", most));
  }
  if (layout.bytes > kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame of a data stream: got a message of ", layout.bytes,
                                                   " bytes, want at most ", kMaxFrameBytes));
  }
  return StreamFrame{static_cast<StreamFrame::Kind>(layout.kind),
                     layout.number,
                     layout.subject,
                     layout.bytes,
                     layout.lead,
                     {layout.trace_high, layout.trace_low, layout.span, (layout.flags & kSampled) != 0}};
}

}  // namespace ballast
