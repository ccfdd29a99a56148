// SPDX-License-Identifier: Apache-2.0
#include "common/data_stream/stream_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/data_stream/stream_socket_fixture.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(StreamSocketTest, AnotherKeyIsRefused) {
  Sockets sockets = Connect();
  EXPECT_EQ(Encrypt(sockets, Key('a'), Key('b')).code(), absl::StatusCode::kUnavailable);
}

TEST(StreamSocketTest, SilenceDuringTheHandshakeEndsIt) {
  Sockets sockets = Connect();
  const absl::Status status = sockets.first->Encrypt(StreamSocket::Side::kClient, Key('a'), absl::Milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

// Writes all of the text, in pieces that differ with each write, and reads it at the other end.
std::string WriteAndRead(StreamSocket& from, StreamSocket& to, const std::string& text) {
  std::mt19937 random(1);
  std::string got;
  std::vector<char> part(50'000);
  size_t written = 0;
  int cut = 0;
  while (got.size() < text.size()) {
    std::vector<iovec> pieces;
    for (size_t at = written; at < text.size();) {
      const size_t bytes = std::min<size_t>(random() % 40'000, text.size() - at);
      pieces.push_back({const_cast<char*>(text.data()) + at, bytes});
      at += bytes;
    }
    if (!pieces.empty()) {
      const absl::StatusOr<size_t> sent = from.Write(pieces);
      if (!sent.ok()) return std::string(sent.status().message());
      written += *sent;
      if (written < text.size()) ++cut;
    }
    const absl::StatusOr<size_t> read = to.Read(absl::MakeSpan(part));
    if (!read.ok()) return std::string(read.status().message());
    got.append(part.data(), *read);
  }
  EXPECT_GT(cut, 1);
  return got;
}

TEST(StreamSocketTest, AWriteThatWasCutGoesOnWithOtherPieces) {
  for (const bool encrypted : {false, true}) {
    Sockets sockets = Connect();
    const int bytes = 20'000;
    for (const auto& socket : {&sockets.first, &sockets.second}) {
      ASSERT_EQ(setsockopt((*socket)->descriptor(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
    }
    if (encrypted) ASSERT_TRUE(Encrypt(sockets, Key('k'), Key('k')).ok());
    const std::string text = Text(3'000'000, 7);
    EXPECT_TRUE(WriteAndRead(*sockets.first, *sockets.second, text) == text) << encrypted;
    EXPECT_TRUE(WriteAndRead(*sockets.second, *sockets.first, text) == text) << encrypted;
  }
}

}  // namespace
}  // namespace ballast
