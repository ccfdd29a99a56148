// SPDX-License-Identifier: Apache-2.0
#include "server/server_metrics.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ServerMetricsTest : public testing::Test {
 protected:
  ServerMetricsTest() {
    status_.set_shard(1);
    status_.set_job("mnist");
    status_.set_policy("sync");
    status_.set_version("0.1.0");
    status_.set_pushes(12'345'678'901);
    for (uint64_t count : {5, 0, 2, 1}) status_.mutable_staleness()->add_buckets(count);
    status_.mutable_staleness()->set_sum(11);
    status_.mutable_wait_microseconds()->add_buckets(3);
    view_.checkpoint_interval = absl::Minutes(1);
    progress_.mutable_progress()->set_state(v1::JOB_STATE_RUNNING);
    progress_.mutable_progress()->set_step(812);
    progress_.set_servers(2);
    progress_.set_workers(2);
    for (uint32_t rank : {0, 1}) {
      v1::GetProgressResponse::MemberStatus* member = progress_.add_members();
      member->mutable_member()->set_role(v1::ROLE_WORKER);
      member->mutable_member()->set_rank(rank);
      member->set_state(rank == 0 ? "joined" : "lost");
      member->set_step(800 + rank);
    }
  }

  std::string Text(bool coordinates = true) const { return ServerMetrics(status_, coordinates ? &view_ : nullptr); }

  v1::CausedWait CausedWait(uint32_t worker, double seconds) const {
    v1::CausedWait wait;
    wait.set_worker(worker);
    wait.set_seconds(seconds);
    return wait;
  }

  v1::GetStatusResponse status_;
  JobView view_;
  v1::GetProgressResponse& progress_ = view_.described;
};

TEST_F(ServerMetricsTest, HaveTheFiguresOfTheShardAndOfTheJob) {
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ballast_build_info{version=\"0.1.0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ballast_shard_info{shard=\"1\",job=\"mnist\",policy=\"sync\",durability=\"none\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_pushes_total 12345678901\n"));
  EXPECT_THAT(text,
              HasSubstr("ballast_staleness_updates_bucket{le=\"0\"} 5\nballast_staleness_updates_bucket{le=\"1\"} "
                        "5\nballast_staleness_updates_bucket{le=\"3\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("ballast_staleness_updates_bucket{le=\"+Inf\"} 8\nballast_staleness_updates_sum 11\n"
                              "ballast_staleness_updates_count 8\n"));
  EXPECT_THAT(text, HasSubstr("ballast_pull_wait_seconds_bucket{le=\"6.3e-05\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("ballast_job_state{state=\"running\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ballast_job_step 812\n"));
  EXPECT_THAT(text, HasSubstr("ballast_members{role=\"worker\",state=\"lost\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("ballast_member_step{worker=\"1\"} 801\n"));
  EXPECT_THAT(text, HasSubstr("\nprocess_resident_memory_bytes "));
  EXPECT_THAT(Text(/*coordinates=*/false), Not(HasSubstr("ballast_job_step")));
}

TEST_F(ServerMetricsTest, HaveTheWaitsThatWorkersCaused) {
  *status_.add_caused_waits() = CausedWait(3, 1.5);
  *status_.add_caused_waits() = CausedWait(1000, 2);
  *progress_.mutable_progress()->add_caused_waits() = CausedWait(3, 4.25);
  status_.mutable_longest_wait()->set_seconds(0.5);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nballast_caused_wait_seconds_total{worker=\"3\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_job_caused_wait_seconds_total{worker=\"3\"} 4.25\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_longest_wait_seconds 0.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("worker=\"1000\"")));
  status_.clear_longest_wait();
  EXPECT_THAT(Text(), HasSubstr("\nballast_longest_wait_seconds 0\n"));
}

TEST_F(ServerMetricsTest, HaveThePhasesOfCalls) {
  v1::GetStatusResponse::CallPhases* push = status_.add_call_phases();
  push->set_method("push");
  for (uint64_t count : {0, 2, 0, 0, 5}) push->mutable_apply()->add_buckets(count);
  push->mutable_apply()->set_sum(77);
  status_.set_apply_seconds(1.5);
  status_.set_lock_wait_seconds(0.25);
  status_.set_applied_bytes(4096);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ballast_call_seconds_bucket{method=\"push\",phase=\"queue\",le=\"+Inf\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ballast_call_seconds_bucket{method=\"push\",phase=\"apply\",le=\"7e-06\"} 2\n"
                              "ballast_call_seconds_bucket{method=\"push\",phase=\"apply\",le=\"1.5e-05\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("ballast_call_seconds_sum{method=\"push\",phase=\"apply\"} 7.7e-05\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_apply_seconds_total 1.5\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_lock_wait_seconds_total 0.25\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_applied_bytes_total 4096\n"));
}

TEST_F(ServerMetricsTest, HistogramsHaveAtMost24Buckets) {
  status_.add_call_phases()->set_method("push");
  status_.mutable_log();
  std::map<std::string, int> buckets;
  for (absl::string_view line : absl::StrSplit(Text(), '\n')) {
    const size_t le = line.find("le=\"");
    if (absl::StrContains(line, "_bucket{")) ++buckets[std::string(line.substr(0, le))];
  }
  EXPECT_EQ(buckets.size(), 7u) << "two of waits, four phases and the log";
  for (const auto& [series, count] : buckets) EXPECT_LE(count, 24) << series;
}

TEST_F(ServerMetricsTest, HavePayloadsByDirectionAndCodec) {
  for (const char* direction : {"push", "pull"}) {
    v1::GetStatusResponse::Payload* payload = status_.add_payloads();
    payload->set_direction(direction);
    payload->set_codec("fp16");
    payload->set_encoded_bytes(20);
    payload->set_plain_bytes(40);
  }
  status_.set_old_incarnation(2);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ballast_payload_bytes_total{direction=\"push\",codec=\"fp16\"} 20\n"
                              "ballast_payload_bytes_total{direction=\"pull\",codec=\"fp16\"} 20\n"));
  EXPECT_THAT(text, HasSubstr("ballast_plain_bytes_total{direction=\"push\",codec=\"fp16\"} 40\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_old_incarnation_pushes_total 2\n"));
}

TEST_F(ServerMetricsTest, RequestsDoNotCountWaitingPullsAgain) {
  v1::GetStatusResponse::Memory& memory = *status_.mutable_memory();
  memory.set_weights(400);
  memory.set_waits(10);
  memory.set_state_limit(1000);
  memory.set_waits_limit(50);
  status_.set_bytes_in_flight(35);
  status_.set_bytes_in_flight_limit(250);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nballast_memory_bytes{use=\"weights\"} 400\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_memory_bytes{use=\"waits\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_memory_bytes{use=\"requests\"} 25\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_memory_limit_bytes{use=\"state\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_memory_limit_bytes{use=\"requests\"} 200\n"));
}

TEST_F(ServerMetricsTest, HaveALogOnlyIfTheServerHasOne) {
  EXPECT_THAT(Text(), Not(HasSubstr("ballast_log_bytes")));
  v1::GetStatusResponse::Log& log = *status_.mutable_log();
  log.set_bytes(5000);
  log.set_unsynced_bytes(120);
  for (int i = 0; i < 5; ++i) log.mutable_sync_microseconds()->add_buckets(i == 4 ? 3 : 0);
  EXPECT_THAT(Text(), HasSubstr("\nballast_log_bytes 5000\n"));
  EXPECT_THAT(Text(), HasSubstr("\nballast_log_unsynced_bytes 120\n"));
  EXPECT_THAT(Text(), HasSubstr("\nballast_log_sync_seconds_bucket{le=\"1.5e-05\"} 3\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("ballast_snapshot_timestamp_seconds")));
  log.set_snapshot_unix_seconds(1.75e9);
  log.set_snapshot_seconds(2.5);
  EXPECT_THAT(Text(), HasSubstr("\nballast_snapshot_timestamp_seconds 1750000000\n"));
  EXPECT_THAT(Text(), HasSubstr("\nballast_snapshot_seconds 2.5\n"));
}

TEST_F(ServerMetricsTest, StandbysHaveSamplesOnlyInThatDurability) {
  EXPECT_THAT(Text(), Not(HasSubstr("ballast_standby_in_step")));
  status_.set_durability(v1::Durability::STANDBY);
  v1::GetProgressResponse::MemberStatus* standby = progress_.add_members();
  standby->mutable_member()->set_role(v1::ROLE_STANDBY);
  standby->mutable_member()->set_rank(1);
  standby->set_state("joined");
  standby->set_in_step(true);
  standby->mutable_standby()->set_lag_bytes(77);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nballast_standby_in_step{shard=\"0\"} 0\n")) << "shard 0 has none";
  EXPECT_THAT(text, HasSubstr("\nballast_standby_in_step{shard=\"1\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("ballast_standby_lag_bytes{shard=\"0\"}")));
  EXPECT_THAT(text, HasSubstr("\nballast_standby_lag_bytes{shard=\"1\"} 77\n"));
}

TEST_F(ServerMetricsTest, HaveTheNewestCheckpointAndTheBounds) {
  EXPECT_THAT(Text(), HasSubstr("\nballast_checkpoint_interval_seconds 60\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("ballast_checkpoint_timestamp_seconds")));
  EXPECT_THAT(Text(), Not(HasSubstr("ballast_max_staleness_bound_updates")));
  v1::JobProgress::Checkpoint& last = *progress_.mutable_progress()->mutable_last_checkpoint();
  last.set_unix_seconds(1.75e9);
  last.set_seconds(2.75);
  last.set_stall_seconds(0.25);
  view_.staleness_bound = 18;
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nballast_checkpoint_timestamp_seconds 1750000000\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_checkpoint_seconds 2.75\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_checkpoint_stall_seconds 0.25\n"));
  EXPECT_THAT(text, HasSubstr("\nballast_max_staleness_bound_updates 18\n"));
}

TEST_F(ServerMetricsTest, EachFamilyIsDescribedOnceBeforeItsSamples) {
  status_.add_call_phases()->set_method("push");
  status_.mutable_log()->set_snapshot_unix_seconds(1);
  status_.set_durability(v1::Durability::STANDBY);
  *status_.add_caused_waits() = CausedWait(0, 1);
  progress_.mutable_progress()->mutable_last_checkpoint();
  std::set<std::string> families;
  std::string family;
  for (absl::string_view line : absl::StrSplit(Text(), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#") {
      if (words[1] == "HELP") {
        EXPECT_TRUE(families.insert(words[2]).second) << words[2] << " twice";
        family = words[2];
      }
      EXPECT_EQ(words[2], family);
      continue;
    }
    EXPECT_TRUE(absl::StartsWith(words[0], family)) << line;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(words.back(), &value)) << line;
  }
  EXPECT_GT(families.size(), 70u);
}

TEST_F(ServerMetricsTest, AThousandWorkersAndNoMoreHaveSamples) {
  status_.set_durability(v1::Durability::STANDBY);
  progress_.set_servers(1500);
  for (uint32_t rank = 0; rank < 1500; ++rank) {
    status_.add_worker_pushes()->set_worker(rank);
    *status_.add_caused_waits() = CausedWait(rank, rank + 0.123456789012345);
    *progress_.mutable_progress()->add_caused_waits() = CausedWait(rank, rank + 0.123456789012345);
    for (v1::Role role : {v1::ROLE_WORKER, v1::ROLE_STANDBY}) {
      v1::GetProgressResponse::MemberStatus* member = progress_.add_members();
      member->mutable_member()->set_role(role);
      member->mutable_member()->set_rank(rank);
      member->set_state("joined");
      member->set_step(1'000'000'000);
    }
  }
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ballast_accepted_pushes_total{worker=\"999\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("ballast_standby_in_step{shard=\"999\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("shard=\"1000\"")));
  EXPECT_THAT(text, Not(HasSubstr("worker=\"1000\"")));
  EXPECT_LT(text.size(), 1u << 20);
}

TEST_F(ServerMetricsTest, LabelsCannotBreakOutOfTheirQuotes) {
  status_.set_job("a\"} 1\nb\\");
  EXPECT_THAT(Text(), HasSubstr("job=\"a\\\"} 1\\nb\\\\\""));
}

}  // namespace
}  // namespace ballast
