// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/frame_channel.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ballast {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kReadBytes = 64 * 1024;
// Reads per exchange, so that a peer with endless output cannot starve the others.
constexpr int kReadsPerExchange = 16;
// Limit on what is skipped before the first message.
constexpr size_t kMaxSkipped = 1 << 20;

bool Later() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

void FrameChannel::Send(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  for (size_t i = 0; i < kLengthBytes; ++i) unsent_.push_back(static_cast<char>(bytes.size() >> (8 * i)));
  unsent_ += bytes;
}

void FrameChannel::AddDescriptors(std::vector<pollfd>& waiting) const {
  if (ended_) return;
  waiting.push_back({in_, POLLIN, 0});
  if (unsent() > 0) waiting.push_back({out_, POLLOUT, 0});
}

bool FrameChannel::Exchange() {
  if (ended_) return false;
  // Both: what the peer sent before it ended is of use.
  const bool reads = Read(), writes = Write();
  ended_ = !reads || !writes;
  return !ended_;
}

bool FrameChannel::Write() {
  while (unsent() > 0) {
    const ssize_t wrote = write(out_, unsent_.data() + sent_, unsent());
    if (wrote < 0) return Later();
    sent_ += wrote;
    if (sent_ == unsent_.size() || sent_ > kMaxMessage) {
      unsent_.erase(0, sent_);
      sent_ = 0;
    }
  }
  return true;
}

bool FrameChannel::Read() {
  for (int reads = 0; reads < kReadsPerExchange; ++reads) {
    char buffer[kReadBytes];
    const ssize_t got = read(in_, buffer, sizeof(buffer));
    if (got <= 0) return got < 0 && Later();
    received_.append(buffer, got);
    if (received_.size() - parsed_ > kMaxMessage + kLengthBytes) return true;
  }
  return true;
}

bool FrameChannel::Flush(size_t unsent, int milliseconds) {
  const absl::Time deadline = absl::Now() + absl::Milliseconds(milliseconds);
  while (this->unsent() > unsent) {
    pollfd waiting = {out_, POLLOUT, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (ended_ || left <= 0 || poll(&waiting, 1, static_cast<int>(left)) < 0) return false;
    if (!Write()) ended_ = true;
  }
  return true;
}

std::optional<std::string> FrameChannel::SkipToLine(absl::string_view start) {
  const size_t at = received_.find(std::string(start));
  const size_t end = at == std::string::npos ? at : received_.find('\n', at);
  if (end == std::string::npos) {
    if (received_.size() > kMaxSkipped) ended_ = garbled_ = true;
    return std::nullopt;
  }
  parsed_ = end + 1;
  return received_.substr(at + start.size(), end - at - start.size());
}

std::optional<std::string> FrameChannel::NextMessage() {
  const absl::string_view rest = absl::string_view(received_).substr(parsed_);
  size_t length = 0;
  if (rest.size() >= kLengthBytes) {
    for (size_t i = 0; i < kLengthBytes; ++i) length |= size_t{static_cast<unsigned char>(rest[i])} << (8 * i);
    if (length > kMaxMessage) ended_ = garbled_ = true;
  }
  if (garbled_) return std::nullopt;
  if (rest.size() < kLengthBytes + length || rest.size() < kLengthBytes) {
    received_.erase(0, parsed_);
    parsed_ = 0;
    return std::nullopt;
  }
  parsed_ += kLengthBytes + length;
  return std::string(rest.substr(kLengthBytes, length));
}

}  // namespace ballast
