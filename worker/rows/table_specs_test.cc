// SPDX-License-Identifier: Apache-2.0
#include "worker/rows/table_specs.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

namespace ballast {
namespace {

v1::Job Parse(const std::string& text) {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

TEST(TableSpecsTest, ATableHasTheJobsSettingsUnlessItHasItsOwn) {
  const v1::Job job = Parse(R"(
    seed: 9 optimizer { sgd { learning_rate: 0.5 } } policy { sync {} }
    model {
      tables { name: "plain" dim: 4 }
      tables {
        name: "own" dim: 8 initializer { zeros {} } optimizer { row_wise_adagrad { learning_rate: 0.1 } }
        policy { async {} } admission { min_uses: 3 } eviction { max_rows: 10 } range_bits: 8
      }
    })");
  const std::vector<v1::TableSpec> specs = TableSpecs(job, 6, 100);
  ASSERT_EQ(specs.size(), 2);
  EXPECT_EQ(specs[0].id(), 6);
  EXPECT_EQ(specs[0].name(), "plain");
  EXPECT_EQ(specs[0].dim(), 4);
  EXPECT_EQ(specs[0].seed(), 9);
  EXPECT_EQ(specs[0].initializer().normal().stddev(), 0.01f);
  EXPECT_EQ(specs[0].optimizer().sgd().learning_rate(), 0.5f);
  EXPECT_FALSE(specs[0].has_policy());
  EXPECT_EQ(specs[1].id(), 7);
  EXPECT_TRUE(specs[1].initializer().has_zeros());
  EXPECT_TRUE(specs[1].optimizer().has_row_wise_adagrad());
  EXPECT_TRUE(specs[1].policy().has_async());
  EXPECT_EQ(specs[1].admission().min_uses(), 3);
  EXPECT_EQ(specs[1].eviction().max_rows(), 10);
  EXPECT_EQ(specs[1].range_bits(), 8);
}

TEST(TableSpecsTest, AScheduleWithoutATotalFollowsTheJob) {
  const v1::Job job =
      Parse("optimizer { sgd { learning_rate: 0.5 } schedule { cosine {} } } model { tables { name: 't' dim: 4 } }");
  const v1::Schedule schedule = TableSpecs(job, 0, 100)[0].optimizer().schedule();
  EXPECT_TRUE(schedule.total_from_job());
}

TEST(TableSpecsTest, RowsArePulledEarlyUnlessAPolicyWaitsForThePush) {
  const auto early = [](const std::string& policy, const std::string& table) {
    return PullsEarly(Parse("policy { " + policy + " } model { tables { name: 't' dim: 4 " + table + " } }"));
  };
  EXPECT_FALSE(early("sync {}", ""));
  EXPECT_TRUE(early("async {}", ""));
  EXPECT_TRUE(early("sync {}", "policy { async {} }"));
  EXPECT_FALSE(early("async {}", "policy { sync {} }"));
  EXPECT_TRUE(early("bounded { steps_ahead: 1 }", ""));
  EXPECT_FALSE(early("bounded {}", ""));
  EXPECT_FALSE(PullsEarly(Parse("model { tables { name: 't' dim: 4 } }")));
}

}  // namespace
}  // namespace ballast
