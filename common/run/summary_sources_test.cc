// SPDX-License-Identifier: Apache-2.0
#include "common/run/summary_sources.h"

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

template <typename Message>
Message Parse(const char* text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

constexpr auto Shard = Parse<v1::GetStatusResponse>;
constexpr auto Reported = Parse<v1::GetProgressResponse>;

TEST(AddShardsTest, SumsUpWhatAllShardsCounted) {
  Summary summary{.seconds = 60, .max_staleness = 2, .mean_staleness = 0.5};
  AddShards({Shard("max_staleness: 1 uptime_seconds: 61 staleness { buckets: 3 buckets: 1 count: 4 sum: 1 max: 1 }"),
             Shard("max_staleness: 5 uptime_seconds: 12 "
                   "staleness { buckets: 0 buckets: 0 buckets: 0 buckets: 2 count: 2 sum: 9 max: 5 } "
                   "wait_microseconds { buckets: 6 buckets: 0 buckets: 2 count: 8 sum: 6 max: 3 }")},
            summary);
  EXPECT_EQ(summary.max_staleness, 5);
  EXPECT_EQ(summary.mean_staleness, 0.5) << "of pushes, which the workers count";
  EXPECT_THAT(summary.staleness.buckets, ElementsAre(3, 1, 0, 2));
  EXPECT_EQ(summary.staleness.max, 5);
  EXPECT_DOUBLE_EQ(summary.staleness.mean, 10.0 / 6);
  EXPECT_THAT(summary.wait_microseconds.buckets, ElementsAre(6, 0, 2));
  EXPECT_EQ(summary.wait_microseconds.mean, 0.75);
  EXPECT_EQ(summary.server_seconds, 12) << "the second shard has been started again";
}

TEST(AddShardsTest, SumsUpTheRowsAndBytesOfAllTables) {
  Summary summary;
  AddShards({Shard("tables { id: 1 rows: 5 bytes: 500 } tables { id: 2 rows: 7 bytes: 70 }"),
             Shard("tables { id: 1 rows: 30 bytes: 3000 }")},
            summary);
  EXPECT_EQ(summary.rows, 42);
  EXPECT_EQ(summary.table_bytes, 3570);
}

TEST(AddShardsTest, AJobWithoutTablesHasNoNumberOfRows) {
  Summary summary;
  AddShards({Shard("max_staleness: 1")}, summary);
  EXPECT_EQ(summary.rows, std::nullopt);
}

TEST(AddPushesTest, FindsNothingWhereShardsAcceptedAllThatWasAcknowledged) {
  Summary summary;
  AddPushes(Reported("pushes { worker: 0 incarnation: 1 acknowledged: [10, 20] }"
                     "pushes { worker: 0 incarnation: 2 acknowledged: [5, 6] }"),
            {Shard("shard: 0 worker_pushes { worker: 0 incarnation: 2 highest_sequence: 5 accepted_of_incarnation: 5 "
                   "accepted: 17 }"),
             Shard("shard: 1 worker_pushes { worker: 0 incarnation: 2 highest_sequence: 7 accepted_of_incarnation: 7 "
                   "accepted: 27 }")},
            summary);
  EXPECT_EQ(summary.pushes_lost, 0);
  EXPECT_EQ(summary.pushes_duplicated, 0);
}

TEST(AddPushesTest, CountsWhatAShardDoesNotHaveAndWhatItTookTwice) {
  Summary summary;
  AddPushes(Reported("pushes { worker: 0 incarnation: 1 acknowledged: [10, 20] }"
                     "pushes { worker: 0 incarnation: 2 acknowledged: [5, 6] }"),
            {Shard("shard: 0 worker_pushes { worker: 0 incarnation: 2 highest_sequence: 5 accepted_of_incarnation: 3 "
                   "accepted: 12 }"),
             Shard("shard: 1 worker_pushes { worker: 0 incarnation: 2 highest_sequence: 6 accepted_of_incarnation: 10 "
                   "accepted: 30 }")},
            summary);
  EXPECT_EQ(summary.pushes_lost, 2 + 1) << "of this incarnation and of the one before";
  EXPECT_EQ(summary.pushes_lost_by_shard[0] + summary.pushes_lost_by_shard[1], 3);
  EXPECT_NE(DescribeLosses(summary).find(" lost "), std::string::npos) << DescribeLosses(summary);
  EXPECT_EQ(summary.pushes_duplicated, 4);
}

TEST(AddShardsTest, WithoutShardsTheWorkersFiguresStay) {
  Summary summary{.max_staleness = 2, .mean_staleness = 0.5};
  AddShards({}, summary);
  EXPECT_EQ(summary.max_staleness, 2);
  EXPECT_EQ(summary.mean_staleness, 0.5);
}

}  // namespace
}  // namespace ballast
