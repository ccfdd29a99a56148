// SPDX-License-Identifier: Apache-2.0
#include "server/server_metrics.h"

#include <gmock/gmock.h>

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
    progress_.mutable_progress()->set_state(v1::JOB_STATE_RUNNING);
    progress_.mutable_progress()->set_step(812);
    progress_.set_workers(2);
    for (uint32_t rank : {0, 1}) {
      v1::GetProgressResponse::MemberStatus* member = progress_.add_members();
      member->mutable_member()->set_role(v1::ROLE_WORKER);
      member->mutable_member()->set_rank(rank);
      member->set_state(rank == 0 ? "joined" : "lost");
      member->set_step(800 + rank);
    }
  }

  std::string Text(bool coordinates = true) const { return ServerMetrics(status_, coordinates ? &progress_ : nullptr); }

  v1::GetStatusResponse status_;
  v1::GetProgressResponse progress_;
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

TEST_F(ServerMetricsTest, EachFamilyIsDescribedOnceBeforeItsSamples) {
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
  EXPECT_GT(families.size(), 40u);
}

TEST_F(ServerMetricsTest, AThousandWorkersAndNoMoreHaveSamples) {
  for (uint32_t rank = 0; rank < 1500; ++rank) status_.add_worker_pushes()->set_worker(rank);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("ballast_accepted_pushes_total{worker=\"999\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("worker=\"1000\"")));
  EXPECT_LT(text.size(), 1u << 20);
}

TEST_F(ServerMetricsTest, LabelsCannotBreakOutOfTheirQuotes) {
  status_.set_job("a\"} 1\nb\\");
  EXPECT_THAT(Text(), HasSubstr("job=\"a\\\"} 1\\nb\\\\\""));
}

}  // namespace
}  // namespace ballast
