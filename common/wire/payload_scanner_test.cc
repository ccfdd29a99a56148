// SPDX-License-Identifier: Apache-2.0
#include "common/wire/payload_scanner.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/wire/payload_message.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kValues = v1::PushPullResponse::kValuesFieldNumber;

struct Found {
  size_t index = 0;
  std::string item;
  std::string payload;

  friend bool operator==(const Found&, const Found&) = default;
};

// Scans the message as it would arrive in parts of that many bytes.
std::vector<Found> Scan(absl::string_view message, size_t part_bytes = 1 << 20) {
  PayloadScanner scanner(kValues);
  std::vector<Found> all;
  while (!message.empty()) {
    const absl::string_view part = message.substr(0, std::min<uint64_t>(scanner.next_bytes(), part_bytes));
    if (scanner.in_payload()) {
      if (all.empty() || all.back().index != scanner.index()) all.push_back({scanner.index(), scanner.item(), ""});
      all.back().payload.append(part.data(), part.size());
      scanner.SkipPayload(part.size());
    } else {
      scanner.Take(part);
    }
    message.remove_prefix(part.size());
  }
  return all;
}

v1::PushPullResponse Response(const std::vector<size_t>& payloads) {
  v1::PushPullResponse response;
  response.mutable_outcome()->set_applied(3);
  for (const size_t bytes : payloads) {
    v1::SliceValue* value = response.add_values();
    value->set_tensor_id(1000 + bytes);
    value->set_version(bytes);
    value->set_encoding(v1::ENCODING_BF16);
    value->set_payload(std::string(bytes, static_cast<char>('a' + bytes % 26)));
  }
  return response;
}

TEST(PayloadScannerTest, FindsEachPayloadWithItsItemHoweverItArrives) {
  const v1::PushPullResponse response = Response({1, 0, 100, 200'000, 7});
  std::vector<Found> want;
  for (int i = 0; i < response.values_size(); ++i) {
    v1::SliceValue item = response.values(i);
    const std::string payload = item.payload();
    item.clear_payload();
    if (!payload.empty()) want.push_back({static_cast<size_t>(i), item.SerializeAsString(), payload});
  }
  for (const size_t part : {1u, 3u, 1000u, 1u << 20}) EXPECT_TRUE(Scan(response.SerializeAsString(), part) == want);
}

TEST(PayloadScannerTest, ReadsLengthsWithMoreBytesThanTheyNeed) {
  v1::PushPullResponse envelope;
  PayloadMessageWriter writer(envelope, /*aligns=*/true);
  std::vector<Found> want;
  for (const size_t bytes : {3001u, 3002u, 3003u}) {
    v1::SliceValue item;
    item.set_tensor_id(1);
    const std::string payload(bytes, 'p');
    writer.Add(kValues, item, grpc::Slice(payload));
    want.push_back({want.size(), item.SerializeAsString(), payload});
  }
  std::string message;
  for (const absl::string_view piece : BytesOf(writer.Finish()).pieces) absl::StrAppend(&message, piece);
  EXPECT_TRUE(Scan(message) == want);
}

TEST(PayloadScannerTest, PassesOverUnknownFieldsOfAllTypes) {
  // Fields 100 to 103: a varint, 8 bytes, some bytes, 4 bytes.
  const std::string unknown(
      "\xa0\x06\x85\x01"
      "\xa9\x06"
      "12345678"
      "\xb2\x06\x03"
      "abc"
      "\xbd\x06"
      "1234",
      26);
  // An item with them all before the payload "xy", which is field 15.
  const std::string item = absl::StrCat(unknown, "\x7a\x02xy");
  const std::string message =
      absl::StrCat(unknown, std::string(1, kValues << 3 | 2), std::string(1, static_cast<char>(item.size())), item);
  v1::PushPullResponse read;
  ASSERT_TRUE(read.ParseFromString(message));
  ASSERT_EQ(read.values_size(), 1);
  EXPECT_THAT(Scan(message), ElementsAre(Found{0, unknown, "xy"}));
}

TEST(PayloadScannerTest, FindsNothingAfterBytesThatBreakTheFormat) {
  const std::string item_tag(1, kValues << 3 | 2);
  const std::string good = absl::StrCat(item_tag, "\x04\x7a\x02xy");
  ASSERT_EQ(Scan(good).size(), 1u);
  for (const std::string& bad : {
           // A group, and a tag that is too large.
           std::string("\x0b"),
           std::string("\xff\xff\xff\xff\x7f"),
           // A varint without an end.
           std::string(11, '\xff'),
           // A payload that is larger, or smaller, than what its item has left.
           absl::StrCat(item_tag, "\x04\x7a\x03xyz"),
           absl::StrCat(item_tag, "\x06\x7a\x02xy\x08\x01"),
           // A field that is larger than its item.
           absl::StrCat(item_tag, "\x02\x08\x80\x01"),
       }) {
    EXPECT_THAT(Scan(absl::StrCat(bad, good)), IsEmpty()) << bad.size();
  }
}

}  // namespace
}  // namespace ballast
