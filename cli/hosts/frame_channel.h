// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace ballast {

// Sends and receives messages through two non-blocking descriptors, such as the input and output of a remote shell.
// Each message is preceded by its length, 4 bytes in little-endian order. Owns the bytes that are not sent or parsed
// yet. Does not own the descriptors, and does not know what the messages mean. SIGPIPE must be ignored. Thread safety:
// none.
class FrameChannel {
 public:
  // A longer message ends the connection.
  static constexpr size_t kMaxMessage = 8 << 20;

  FrameChannel(int in, int out) : in_(in), out_(out) {}

  // Buffers the message; Flush writes it.
  void Send(const google::protobuf::MessageLite& message);
  void SendText(absl::string_view text) { unsent_.append(text.data(), text.size()); }
  size_t unsent() const { return unsent_.size() - sent_; }

  void AddDescriptors(std::vector<pollfd>& waiting) const;
  // Reads and writes as much as possible. Returns false once the connection has ended; what was read before that can
  // still be parsed.
  bool Exchange();
  // Blocks until at most `unsent` bytes are left to send. Returns false at the timeout or if the connection has ended.
  bool Flush(size_t unsent, int milliseconds);

  // Skips everything up to a line that begins with `start`, and returns the rest of that line; none if it has not
  // arrived. To be called before NextMessage. A login script may print what it likes before that line.
  std::optional<std::string> SkipToLine(absl::string_view start);
  // Returns the next whole message as bytes; none if it has not arrived.
  std::optional<std::string> NextMessage();
  // Returns whether the connection has ended because what arrived is no such line or message.
  bool garbled() const { return garbled_; }

 private:
  bool Read();
  bool Write();

  const int in_;
  const int out_;
  bool ended_ = false;
  bool garbled_ = false;
  std::string unsent_;
  size_t sent_ = 0;
  std::string received_;
  // Bytes of `received_` that were parsed.
  size_t parsed_ = 0;
};

}  // namespace ballast
