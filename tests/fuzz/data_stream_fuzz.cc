// SPDX-License-Identifier: Apache-2.0
// A data stream whose other side sends anything: messages are those that were sent, each within its memory, and what is
// no frame ends the stream.
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/data_stream/message_stream.h"
#include "common/data_stream/stream_frame.h"
#include "common/data_stream/stream_socket.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

std::string Message(StreamFrame frame, absl::string_view message) {
  frame.bytes = static_cast<uint32_t>(message.size());
  const auto header = EncodeStreamFrame(frame);
  return absl::StrCat(absl::string_view(header.data(), header.size()), message);
}

// Compares what arrives with what was sent.
class Receiver : public MessageReceiver {
 public:
  // `most`: bytes of a message that go to one place, if not 0.
  Receiver(absl::string_view sent, uint32_t skipped, size_t most) : sent_(sent), skipped_(skipped), most_(most) {}

  absl::StatusOr<char*> Room(const StreamFrame& frame) override {
    const auto header = EncodeStreamFrame(frame);
    Require(sent_.size() >= header.size(), "a frame was sent");
    sent_.remove_prefix(header.size());
    Require(frame.bytes <= 64 << 20, "a message is no larger than allowed");
    // Exactly as large as what can come, so that a sanitizer sees each byte too many.
    bytes_ = frame.bytes;
    message_ = std::make_unique<char[]>(std::min<size_t>(frame.bytes, sent_.size()));
    return frame.number % 4 == skipped_ ? nullptr : message_.get();
  }
  absl::Span<char> Place(size_t received) override {
    if (most_ == 0) return {};
    Require(received < bytes_, "a place is for bytes that the message has");
    return {message_.get() + received, std::min(most_, bytes_ - received)};
  }
  absl::Status Received(const StreamFrame& frame) override {
    Require(sent_.size() >= frame.bytes, "a message was sent");
    Require(
        frame.number % 4 == skipped_ || absl::string_view(message_.get(), frame.bytes) == sent_.substr(0, frame.bytes),
        "a message is the one that was sent");
    sent_.remove_prefix(frame.bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Time> Tick(absl::Time now) override { return now + absl::Seconds(1); }

 private:
  absl::string_view sent_;
  const uint32_t skipped_;
  const size_t most_;
  size_t bytes_ = 0;
  std::unique_ptr<char[]> message_;
};

}  // namespace

std::vector<std::string> FuzzSeeds() {
  StreamFrame call, cancel, response;
  call.number = 1;
  call.subject = 2;
  call.caller = {1, 2, 3, true};
  cancel.kind = StreamFrame::Kind::kCancel;
  cancel.number = 2;
  response.kind = StreamFrame::Kind::kResponse;
  response.number = 7;
  return {absl::StrCat("\x01", Message(call, "a request"), Message(cancel, ""), Message(call, std::string(300, 'x'))),
          absl::StrCat("\x03", Message(response, "a response"), Message(response, "")),
          absl::StrCat("\x13", Message(response, "a response in parts"), Message(call, std::string(300, 'x')))};
}

void FuzzOne(FuzzInput input) {
  const uint8_t way = input.Byte();
  const uint32_t skipped = way % 5;
  const absl::string_view sent = input.Rest();
  int files[2] = {-1, -1};
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, files) == 0, "there are sockets");
  StreamSocket peer(files[0]);
  // The input is smaller than the socket's buffer.
  const iovec piece = {const_cast<char*>(sent.data()), sent.size()};
  if (!sent.empty()) peer.Write({&piece, 1}).IgnoreError();
  shutdown(files[0], SHUT_WR);
  Receiver receiver(sent, skipped, way / 5 % 8);
  MessageStream stream(std::make_unique<StreamSocket>(files[1]), absl::Seconds(10));
  Require(!stream.Run(receiver).ok(), "a stream ends with a reason");
}

}  // namespace ballast
