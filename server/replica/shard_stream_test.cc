// SPDX-License-Identifier: Apache-2.0
#include "server/replica/shard_stream.h"

#include "common/storage/framed_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

std::string Header(uint32_t shard) {
  internal::v1::SnapshotRecord record;
  record.mutable_header()->set_shard(shard);
  return FrameMessage(record);
}

std::string Slice(uint64_t elements, uint32_t arrays, size_t bytes) {
  internal::v1::SnapshotRecord record;
  record.mutable_slice()->set_elements(elements);
  record.mutable_slice()->set_arrays(arrays);
  return FrameMessage(record) + std::string(bytes, '\0');
}

TEST(SnapshotAssemblerTest, RefusesASliceWhoseLengthOverflows) {
  SnapshotAssembler assembler(1);
  ASSERT_TRUE(assembler.Add(Header(1)).ok());
  // Times the four bytes of an element it is four.
  const absl::Status refused = assembler.Add(Slice((uint64_t{1} << 62) + 1, 1, 4)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(refused.message(), HasSubstr("snapshot: record 2: got 4 bytes behind it"));
}

TEST(SnapshotAssemblerTest, RefusesAnotherShardsAndWhatDoesNotBeginWithAHeader) {
  const absl::Status other = SnapshotAssembler(1).Add(Header(2)).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(other.message(), "snapshot: got shard 2, want shard 1");
  EXPECT_EQ(SnapshotAssembler(1).Add(Slice(1, 1, 4)).status(), absl::DataLossError("snapshot: no snapshot of a shard"));
}

TEST(SnapshotAssemblerTest, RefusesAnEndBeforeAllSlicesCame) {
  SnapshotAssembler assembler(0);
  ASSERT_TRUE(assembler.Add(Header(0)).ok());
  internal::v1::SnapshotRecord end;
  end.mutable_end()->set_records(2);
  EXPECT_EQ(assembler.Add(FrameMessage(end)).status(), absl::DataLossError("snapshot: got 1 records, want 2"));
}

}  // namespace
}  // namespace ballast
