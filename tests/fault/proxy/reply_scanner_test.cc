// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/proxy/reply_scanner.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Frame(char type, char flags, size_t payload) {
  const char header[] = {static_cast<char>(payload >> 16),
                         static_cast<char>(payload >> 8),
                         static_cast<char>(payload),
                         type,
                         flags,
                         0,
                         0,
                         0,
                         1};
  return std::string(header, sizeof(header)) + std::string(payload, '\x01');
}

// Returns the header ends of the replies' frames, when the stream is fed in pieces of `piece_bytes` bytes.
std::vector<size_t> Ends(const std::string& stream, size_t piece_bytes) {
  ReplyScanner scanner;
  std::vector<size_t> ends;
  for (size_t begin = 0; begin < stream.size(); begin += piece_bytes) {
    absl::string_view piece = absl::string_view(stream).substr(begin, piece_bytes);
    size_t at = begin;
    while (const auto end = scanner.Next(piece)) {
      ends.push_back(at += *end);
      piece.remove_prefix(*end);
    }
  }
  return ends;
}

TEST(ReplyScannerTest, FindsTrailersWhereverTheStreamIsCut) {
  // Settings, headers, data of more than 64 KiB, trailers; then an error's headers, which are its trailers too.
  const std::string stream =
      Frame(4, 0, 6) + Frame(1, 4, 30) + Frame(0, 0, 70000) + Frame(1, 5, 12) + Frame(8, 0, 4) + Frame(1, 5, 0);
  const size_t first = 15 + 39 + 70009 + 9, second = first + 12 + 13 + 9;
  for (size_t piece : {1, 2, 9, 10, 4096, 1000000}) EXPECT_THAT(Ends(stream, piece), ElementsAre(first, second));
}

TEST(ReplyScannerTest, TakesNothingElseForAReply) {
  // Data that ends a stream, headers that do not, a ping's acknowledgement, a reset.
  EXPECT_THAT(Ends(Frame(0, 1, 10) + Frame(1, 4, 10) + Frame(6, 1, 8) + Frame(3, 1, 4), 7), IsEmpty());
}

}  // namespace
}  // namespace ballast
