// SPDX-License-Identifier: Apache-2.0
#include "server/tables/row_gradients.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "common/tables/row_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr uint32_t kTable = 3;

template <typename Element>
std::string Bytes(const std::vector<Element>& elements) {
  return std::string(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element));
}

// A message of rows of two elements.
struct Message {
  std::vector<uint64_t> ids;
  std::vector<float> gradients;
  std::vector<uint32_t> versions = {};
  bool unordered = false;
  v1::Encoding encoding = v1::ENCODING_FP32;
  std::vector<uint16_t> uses = {};
};

absl::StatusOr<RowGradients> Decode(const Message& message, bool accept_non_finite = false) {
  const std::string ids = Bytes(message.ids), versions = Bytes(message.versions), payload = Bytes(message.gradients);
  const size_t cut = std::min<size_t>(payload.size(), 3);
  const absl::string_view pieces[] = {absl::string_view(payload).substr(0, cut),
                                      absl::string_view(payload).substr(cut)};
  const size_t count = payload.empty() ? 0 : 2;
  const std::string uses = Bytes(message.uses);
  return DecodeRowGradients({kTable, ids, message.unordered, versions, message.encoding, {pieces, count}, uses}, 2,
                            accept_non_finite);
}

std::string Error(const Message& message) { return std::string(Decode(message).status().message()); }

// Two ids in the order of their hashes.
std::vector<uint64_t> Pair() {
  std::vector<uint64_t> ids = {10, 11};
  if (RowHash(10, kTable) > RowHash(11, kTable)) std::swap(ids[0], ids[1]);
  return ids;
}

TEST(RowGradientsTest, AreInTheOrderOfTheHashes) {
  const std::vector<uint64_t> ids = Pair();
  const RowGradients ordered = Decode({ids, {1, 2, 3, 4}, {5, 6}}).value();
  EXPECT_THAT(ordered.values.values(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ordered.versions, ElementsAre(5, 6));
  const RowGradients turned = Decode({{ids[1], ids[0]}, {1, 2, 3, 4}, {5, 6}, /*unordered=*/true}).value();
  EXPECT_THAT(turned.values.values(), ElementsAre(3, 4, 1, 2));
  EXPECT_THAT(turned.versions, ElementsAre(6, 5));
}

TEST(RowGradientsTest, OfARepeatedIdAreAddedInTheMessagesOrder) {
  const float large = 16777216;  // 2^24, to which 1 cannot be added.
  const RowGradients sum = Decode({{4, 4, 4}, {large, 0, 1, 0, -large, 1}, {9, 7, 8}, /*unordered=*/true}).value();
  EXPECT_THAT(sum.values.values(), ElementsAre(0, 1));
  EXPECT_THAT(sum.versions, ElementsAre(7));
}

TEST(RowGradientsTest, CountTheUsesOfARepeatedIdTogether) {
  const std::vector<uint64_t> ids = Pair();
  EXPECT_TRUE(Decode({ids, {1, 2, 3, 4}}).value().uses.empty());
  EXPECT_THAT(Decode({ids, {1, 2, 3, 4}, {}, false, v1::ENCODING_FP32, {3, 4}}).value().uses, ElementsAre(3, 4));
  const std::vector<uint64_t> repeated = {ids[1], ids[0], ids[1]};
  const std::vector<float> gradients(6, 1);
  EXPECT_THAT(Decode({repeated, gradients, {}, true}).value().uses, ElementsAre(1, 2));
  EXPECT_THAT(Decode({repeated, gradients, {}, true, v1::ENCODING_FP32, {5, 6, 65535}}).value().uses,
              ElementsAre(6, 65535));
  EXPECT_THAT(Error({ids, {1, 2, 3, 4}, {}, false, v1::ENCODING_FP32, {3}}),
              HasSubstr("uses: got 2 bytes, want 2 for each of the 2 ids"));
  EXPECT_THAT(Error({ids, {1, 2, 3, 4}, {}, false, v1::ENCODING_FP32, {3, 0}}),
              HasSubstr("uses[1]: got 0, want at least 1"));
}

TEST(RowGradientsTest, MayBeNone) {
  EXPECT_EQ(Decode({{}, {}}).value().order.ids(), 0);
  EXPECT_THAT(Error({{}, {1, 2}}), HasSubstr("payload: got 8 bytes for no ids"));
}

TEST(RowGradientsTest, RefuseWhatDoesNotFit) {
  const std::vector<uint64_t> ids = Pair();
  EXPECT_THAT(Error({ids, {1, 2, 3}}), HasSubstr("payload of 2 ids of 2 elements: fp32 payload has 12 bytes, want 16"));
  EXPECT_THAT(Error({ids, {1, 2, 3, 4}, {1}}), HasSubstr("versions: got 4 bytes, want 4 for each of the 2 ids"));
  EXPECT_THAT(Error({ids, {1, 2, 3, 4}, {}, false, v1::ENCODING_INT8}),
              HasSubstr("encoding: got int8, want fp32, fp16 or bf16 for rows"));
}

TEST(RowGradientsTest, RefuseNaNUnlessItIsAccepted) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float most = std::numeric_limits<float>::max();
  EXPECT_THAT(Error({{1}, {nan, 0}}), HasSubstr("payload: has NaN or infinity"));
  EXPECT_THAT(Error({{1, 1}, {most, 0, most, 0}, {}, true}), HasSubstr("payload: has NaN or infinity"));
  EXPECT_TRUE(Decode({{1}, {nan, 0}}, /*accept_non_finite=*/true).ok());
}

}  // namespace
}  // namespace ballast
