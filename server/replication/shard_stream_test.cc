// SPDX-License-Identifier: Apache-2.0
#include "server/replication/shard_stream.h"

#include <string>
#include <vector>

#include "common/storage/framed_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store_fixture.h"
#include "server/replication/standby_receiver.h"

namespace ballast {
namespace {

constexpr auto kSnapshot = internal::v1::ReplicateRequest::KIND_SNAPSHOT;
constexpr auto kChange = internal::v1::ReplicateRequest::KIND_CHANGE;

TEST(JoinPushOfTest, KeepsTheBytesOfSomeGradientsWhereverPiecesEnd) {
  internal::v1::ShardRecord record;
  for (const int bytes : {2, 0, 3, 1}) record.mutable_push()->add_gradients()->set_bytes(bytes);
  record.mutable_push()->set_worker(5);
  const std::string joined = JoinPushOf({true, true, false, true}, record, {"a", "bc", "", "d", "ef"});
  internal::v1::ShardRecord kept;
  const auto behind = ParseFramed(joined, kept);
  ASSERT_TRUE(behind.ok()) << behind.status();
  EXPECT_EQ(kept.push().worker(), 5);
  EXPECT_EQ(kept.push().gradients_size(), 3);
  EXPECT_EQ(*behind, "abf");
}

TEST(SendRecordTest, CutsARecordIntoMessagesAndSaysWithTheLastWhatItIs) {
  std::vector<size_t> sizes;
  std::vector<internal::v1::ReplicateRequest::Kind> kinds;
  const std::string record((512 << 10) + 1, 'x');
  EXPECT_TRUE(SendRecord(kChange, 9, record, [&](const internal::v1::ReplicateRequest& part) {
    sizes.push_back(part.data().size());
    kinds.push_back(part.kind());
    return true;
  }));
  EXPECT_THAT(sizes, testing::ElementsAre(256 << 10, 256 << 10, 1));
  EXPECT_THAT(kinds, testing::ElementsAre(0, 0, kChange));
}

JobConfig StandbyJob() { return Job(v1::Durability::STANDBY, /*workers=*/1); }

ParameterShard::Options Options() {
  return {.max_state_bytes = 1 << 20,
          .open_journal = [](const JobConfig&) -> absl::StatusOr<ShardJournal*> { return nullptr; }};
}

internal::v1::ReplicateRequest Hello(uint64_t standby, uint32_t shard = 0) {
  internal::v1::ReplicateRequest hello;
  hello.mutable_hello()->set_standby(standby);
  hello.mutable_hello()->set_shard(shard);
  return hello;
}

// A shard with two tensors, a receiver of another shard, and the messages from the first to the second.
class StandbyStreamTest : public testing::Test {
 protected:
  StandbyStreamTest() {
    EXPECT_TRUE(shard_.Declare(StandbyJob(), {Tensor(1, "w1", 3), Tensor(2, "w2", 2)}).ok());
    receiver_.Begin(7);
    EXPECT_TRUE(receiver_.Open(Hello(7)).ok());
  }

  auto Giver() {
    return [this](const internal::v1::ReplicateRequest& part) {
      const auto taken = receiver_.Take(part);
      status_ = taken.status();
      if (taken.ok()) response_ = *taken;
      return taken.ok();
    };
  }
  bool GiveOutline(uint64_t position = 4) {
    return SendOutline(0, position, shard_.CaptureOutline([] {}), Giver());
  }
  bool GiveSlice(uint32_t tensor) {
    return SendSlice(0, shard_.CaptureSlices({{tensor, 0}}, [] {})[0], Giver());
  }
  bool GiveEnd(uint64_t position, uint64_t slices) {
    internal::v1::TransferEnd end;
    const ShardState outline = shard_.CaptureOutline([] {});
    end.mutable_windows()->Add(outline.windows.begin(), outline.windows.end());
    end.set_slices(slices);
    return SendEnd(position, end, Giver());
  }
  bool GivePause(uint64_t position) {
    internal::v1::ShardRecord record;
    record.mutable_pause()->set_incarnation(1);
    return SendRecord(kChange, position, JoinChange(record, {}), Giver());
  }
  absl::Status TakeOver() {
    absl::Status status = absl::UnknownError("not called");
    receiver_.TakeOver([&](const absl::Status& taken_over) { status = taken_over; });
    return status;
  }

  ParameterShard shard_{Options(), Clock::Real()}, copy_{Options(), Clock::Real()};
  StandbyReceiver receiver_{0, &copy_, [] {}};
  absl::Status status_;
  internal::v1::ReplicateResponse response_;
};

TEST_F(StandbyStreamTest, AnswersEachMessageAndIsWholeAtTheEnd) {
  ASSERT_TRUE(GiveOutline());
  const uint64_t taken = response_.taken();
  EXPECT_GT(taken, 1);
  ASSERT_TRUE(GiveSlice(1));
  EXPECT_GT(response_.taken(), taken + 12);
  ASSERT_TRUE(GivePause(5)) << status_;
  EXPECT_EQ(response_.position(), 5);
  ASSERT_TRUE(GiveSlice(2));
  EXPECT_FALSE(response_.whole());
  EXPECT_EQ(copy_.job_name(), "") << "an incomplete shard is not visible";
  EXPECT_EQ(TakeOver().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(GiveEnd(5, 2)) << status_;
  EXPECT_TRUE(response_.whole());
  EXPECT_EQ(copy_.job_name(), "job");
  ASSERT_TRUE(GivePause(6)) << status_;
  EXPECT_TRUE(TakeOver().ok());
  EXPECT_FALSE(GivePause(7));
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status_.message(), "replicate: standby 0 has taken over");
}

TEST_F(StandbyStreamTest, AShardWithoutSlicesIsWholeAtOnce) {
  ShardState outline;
  outline.job = StandbyJob();
  ASSERT_TRUE(SendOutline(0, 0, outline, Giver())) << status_;
  ASSERT_TRUE(GiveEnd(0, 0)) << status_;
  EXPECT_TRUE(response_.whole());
  EXPECT_EQ(copy_.job_name(), "job");
}

TEST_F(StandbyStreamTest, RefusesWhatIsOutOfOrder) {
  EXPECT_FALSE(GivePause(5));
  EXPECT_EQ(status_, absl::DataLossError("replicate: got a change before the snapshot's header"));
}

TEST_F(StandbyStreamTest, RefusesAGapInTheChanges) {
  EXPECT_FALSE(GiveOutline() && GivePause(6));
  EXPECT_EQ(status_, absl::DataLossError("replicate: got change 6, want 5"));
}

TEST_F(StandbyStreamTest, RefusesAnEndBeforeAllSlicesCame) {
  EXPECT_FALSE(GiveOutline() && GiveSlice(1) && GiveEnd(4, 1));
  EXPECT_EQ(status_, absl::DataLossError("replicate: slices: got 1, want 2"));
}

TEST_F(StandbyStreamTest, RefusesAPushToASliceThatHasNotCome) {
  ASSERT_TRUE(GiveOutline());
  internal::v1::ShardRecord record;
  internal::v1::LoggedPush& push = *record.mutable_push();
  push.set_examples(1);
  push.add_gradients()->set_tensor_id(1);
  push.mutable_gradients(0)->set_bytes(12);
  EXPECT_FALSE(SendRecord(kChange, 5, JoinChange(record, {std::string(12, '\0')}), Giver()));
  EXPECT_THAT(status_, Fails(absl::StatusCode::kDataLoss, "change 5"));
}

TEST_F(StandbyStreamTest, RefusesAnotherShard) {
  EXPECT_FALSE(SendOutline(2, 0, shard_.CaptureOutline([] {}), Giver()));
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status_.message(), "replicate: snapshot: got shard 2, want shard 0");
}

TEST_F(StandbyStreamTest, RefusesASliceWhoseLengthOverflows) {
  ASSERT_TRUE(GiveOutline());
  internal::v1::SnapshotRecord record;
  // This number times the four bytes of an element overflows to 4.
  record.mutable_slice()->set_elements((uint64_t{1} << 62) + 1);
  record.mutable_slice()->set_arrays(1);
  EXPECT_FALSE(SendRecord(kSnapshot, 0, FrameMessage(record) + "1234", Giver()));
  EXPECT_THAT(status_, Fails(absl::StatusCode::kDataLoss, "got 4 bytes after it"));
}

TEST_F(StandbyStreamTest, RefusesAStreamForAnotherStandbyAndASecondOne) {
  EXPECT_EQ(receiver_.Open(Hello(8)).message(), "replicate: standby 0: got incarnation 8, want 7");
  EXPECT_EQ(receiver_.Open(Hello(7)).message(), "replicate: standby 0 has already followed a server; restart it");
  EXPECT_EQ(receiver_.Open(Hello(7, 3)).message(), "replicate: got shard 3, want shard 0");
}

}  // namespace

}  // namespace ballast
