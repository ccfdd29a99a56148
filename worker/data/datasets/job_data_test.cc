// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/job_data.h"

#include <algorithm>

#include "worker/data/datasets/row_ids.h"
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

// Data of n examples, whose labels and only feature are 1 to n.
v1::Data Numbered(int n, double test_share) {
  std::string content;
  for (int i = 1; i <= n; ++i) absl::StrAppend(&content, i, " 1:", i, "\n");
  v1::Data data;
  data.mutable_train()->mutable_libsvm()->set_path(WriteFile("a.libsvm", content));
  data.mutable_train()->mutable_libsvm()->set_features(1);
  data.set_test_share(test_share);
  return data;
}

Floats Labels(const Dataset& dataset) {
  const Examples all = ReadAll(dataset);
  EXPECT_EQ(all.features, all.labels);
  return all.labels;
}

TEST(JobDataTest, TheTestShareAndTheRestAreAllExamplesInFileOrder) {
  const absl::StatusOr<JobData> data = OpenJobData(Numbered(10, 0.3), 42, "");
  ASSERT_TRUE(data.ok()) << data.status();
  const Floats train = Labels(*data->train), test = Labels(*data->test);
  EXPECT_EQ(train.size(), 7);
  EXPECT_EQ(test.size(), 3);
  EXPECT_TRUE(std::is_sorted(train.begin(), train.end()));
  EXPECT_TRUE(std::is_sorted(test.begin(), test.end()));
  Floats all(10);
  std::merge(train.begin(), train.end(), test.begin(), test.end(), all.begin());
  EXPECT_EQ(all, (Floats{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST(JobDataTest, ReadsTheTrainingPartInAnyOrder) {
  const absl::StatusOr<JobData> data = OpenJobData(Numbered(10, 0.3), 42, "");
  ASSERT_TRUE(data.ok()) << data.status();
  const Floats in_order = Labels(*data->train);
  Floats features(2), labels(2);
  ASSERT_TRUE(data->train->Read({6, 0}, absl::MakeSpan(features), absl::MakeSpan(labels)).ok());
  EXPECT_EQ(labels, (Floats{in_order[6], in_order[0]}));
  EXPECT_EQ(data->train->Read({7}, absl::MakeSpan(features).subspan(1), absl::MakeSpan(labels).subspan(1)),
            absl::OutOfRangeError("example has index 7, want less than 7"));
}

TEST(JobDataTest, HasNoTestDataUnlessAsked) {
  const absl::StatusOr<JobData> data = OpenJobData(Numbered(3, 0), 42, "");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->size(), 3);
  EXPECT_EQ(data->test, nullptr);
}

TEST(JobDataTest, RefusesToHoldOutTheOnlyExample) {
  EXPECT_EQ(OpenJobData(Numbered(1, 0.5), 42, "").status(),
            absl::InvalidArgumentError("data.test_share: the training data has 1 example, want at least 2"));
}

v1::DataSource WithFields(const std::string& name, uint32_t fields) {
  v1::DataSource source;
  source.mutable_libffm()->set_path(WriteFile(name, "1\n"));
  source.mutable_libffm()->set_fields(fields);
  return source;
}

TEST(JobDataTest, RefusesTestDataWithOtherFieldsOfIds) {
  v1::Data data;
  *data.mutable_train() = WithFields("train", 3);
  *data.mutable_test() = WithFields("test", 3);
  EXPECT_EQ(OpenJobData(data, 42, "").status(), absl::OkStatus());
  *data.mutable_test() = WithFields("test", 2);
  EXPECT_EQ(OpenJobData(data, 42, "").status(),
            absl::InvalidArgumentError("test data lacks field of ids \"2\" of the training data"));
  *data.mutable_test() = WithFields("test", 4);
  EXPECT_EQ(OpenJobData(data, 42, "").status(),
            absl::InvalidArgumentError("test data has 4 fields of ids, want 3 as in the training data"));
}

TEST(JobDataTest, BothPartsOfTheDataHaveItsFieldsOfIds) {
  v1::Data data;
  data.mutable_train()->mutable_libffm()->set_path(WriteFile("a.ffm", "1 0:1:1\n2 0:2:1\n3 0:3:1\n"));
  data.mutable_train()->mutable_libffm()->set_fields(1);
  data.set_test_share(0.4);
  const absl::StatusOr<JobData> opened = OpenJobData(data, 42, "");
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const Dataset* part : {opened->train.get(), opened->test.get()}) {
    ASSERT_EQ(part->id_fields().size(), 1);
    const Examples all = ReadAll(*part);
    Bags bags;
    for (const float label : all.labels) bags.push_back({CategoryRowId(static_cast<uint64_t>(label), 0)});
    EXPECT_EQ(BagsOf(all.ids), bags);
  }
}

}  // namespace
}  // namespace ballast
