// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/text_format.h>

#include "common/clicks/click_line.h"
#include "common/clicks/click_model.h"
#include "worker/data/datasets/job_data.h"
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

v1::DataSource Clicks(const std::string& fields) {
  v1::DataSource source;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(fields, source.mutable_planted_clicks())) << fields;
  return source;
}

std::unique_ptr<Dataset> Open(const std::string& fields, uint64_t seed = 0) {
  DatasetOptions options;
  options.seed = seed;
  auto dataset = OpenDataset(Clicks(fields), options);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return dataset.ok() ? *std::move(dataset) : nullptr;
}

TEST(PlantedClicksDatasetTest, HasTheExamplesOfTheSameRowsInCriteosFormat) {
  constexpr uint64_t kRows = 300, kBegin = 100, kEnd = 250;
  const ClickModel model(
      {.seed = 7, .rows = kRows, .days = 3, .drift = 0.1, .most_ids = 5000, .click_rate = 0.4, .deviation = 2});
  std::string text;
  for (uint64_t number = kBegin; number < kEnd; ++number) AppendClickLine(model.Row(number), text);
  v1::DataSource criteo;
  criteo.mutable_criteo()->set_path(WriteFile("a.tsv", text));
  DatasetOptions options;
  options.normalization.set_mean(1.5);
  options.normalization.set_stddev(0.7);
  const auto file = OpenDataset(criteo, options);
  const auto planted = OpenDataset(
      Clicks("rows: 300 begin: 100 end: 250 seed: 7 days: 3 drift: 0.1 ids: 5000 click_rate: 0.4 deviation: 2"),
      options);
  ASSERT_TRUE(file.ok() && planted.ok()) << file.status() << planted.status();
  ASSERT_EQ((*planted)->size(), kEnd - kBegin);
  EXPECT_EQ((*planted)->id_fields(), (*file)->id_fields());
  const Examples want = ReadAll(**file), got = ReadAll(**planted);
  EXPECT_EQ(got.features, want.features);
  EXPECT_EQ(got.labels, want.labels);
  EXPECT_EQ(got.ids.ids, want.ids.ids);
  EXPECT_EQ(got.ids.ends, want.ids.ends);
}

TEST(PlantedClicksDatasetTest, HasAllRowsUnlessTold) { EXPECT_EQ(Open("rows: 40")->size(), 40); }

TEST(PlantedClicksDatasetTest, TakesTheJobsSeedUnlessItHasItsOwn) {
  const auto ids = [](const Dataset& dataset) { return ReadAll(dataset).ids.ids; };
  const auto five = ids(*Open("rows: 10 seed: 5"));
  EXPECT_EQ(ids(*Open("rows: 10", 5)), five);
  EXPECT_EQ(ids(*Open("rows: 10 seed: 5", 6)), five);
  EXPECT_NE(ids(*Open("rows: 10", 6)), five);
}

TEST(PlantedClicksDatasetTest, KnowsTheBestAreaUnderTheCurve) {
  const auto dataset = Open("rows: 30000 begin: 10000 deviation: 1.4 ids: 1000");
  EXPECT_NEAR(dataset->BayesAuc().value_or(0), 0.805, 0.015);
  EXPECT_EQ(*Open("rows: 50 deviation: 0")->BayesAuc(), 0.5);
}

TEST(PlantedClicksDatasetTest, HasLabelsZeroAndOne) {
  EXPECT_EQ(ExtremeLabels(*Open("rows: 1")), (std::vector<std::string>{"0 at planted clicks", "1 at planted clicks"}));
}

TEST(PlantedClicksDatasetTest, RefusesRowsThatThereAreNot) {
  const struct {
    const char* fields;
    const char* rows;
  } cases[] = {{"", "0 to 0, want at least one of the rows before 0"},
               {"rows: 10 end: 11", "0 to 11, want at least one of the rows before 10"},
               {"rows: 10 begin: 5 end: 5", "5 to 5, want at least one of the rows before 10"},
               {"rows: 10 begin: 10", "10 to 10, want at least one of the rows before 10"}};
  for (const auto& each : cases) {
    EXPECT_EQ(OpenDataset(Clicks(each.fields), {}).status(),
              absl::InvalidArgumentError(absl::StrCat("planted_clicks: got rows ", each.rows)));
  }
}

TEST(PlantedClicksDatasetTest, TestDataHasOtherRowsOfTheSameTruth) {
  v1::Data data;
  *data.mutable_train() = Clicks("rows: 60 end: 40");
  *data.mutable_test() = Clicks("rows: 60 begin: 40");
  const absl::StatusOr<JobData> opened = OpenJobData(data, 3, "");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->train->size(), 40);
  EXPECT_EQ(opened->test->size(), 20);
  const Examples whole = ReadAll(*Open("rows: 60 seed: 3")), test = ReadAll(*opened->test);
  EXPECT_EQ(test.labels, std::vector<float>(whole.labels.begin() + 40, whole.labels.end()));
}

}  // namespace
}  // namespace ballast
