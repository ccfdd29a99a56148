// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/csv_dataset.h"

#include <gtest/gtest.h>

#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

class CsvDatasetTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& content) {
    path_ = WriteFile("a.csv", content);
    csv_.set_path(path_);
    v1::DataSource source;
    *source.mutable_csv() = csv_;
    return OpenCsv(source, v1::Normalization(), "");
  }

  void ExpectError(const std::string& content, const std::string& message) {
    const absl::Status status = Open(content).status();
    EXPECT_EQ(status, absl::InvalidArgumentError(path_ + message));
  }

  v1::Csv csv_;
  std::string path_;
};

TEST_F(CsvDatasetTest, ReadsRows) {
  const auto dataset = Open("7,1.5,-2\n\n8, +3e2 ,.5\r\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  EXPECT_EQ((*dataset)->features(), 2);
  const Examples all = ReadAll(**dataset);
  EXPECT_EQ(all.labels, (Floats{7, 8}));
  EXPECT_EQ(all.features, (Floats{1.5, -2, 300, 0.5}));
}

TEST_F(CsvDatasetTest, TakesTheLabelFromAnyColumn) {
  csv_.set_label_column(1);
  auto dataset = Open("1,2,3\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ReadAll(**dataset).labels, (Floats{2}));
  EXPECT_EQ(ReadAll(**dataset).features, (Floats{1, 3}));
  csv_.set_label_column(-1);
  dataset = Open("1,2,3\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ReadAll(**dataset).labels, (Floats{3}));
  EXPECT_EQ(ReadAll(**dataset).features, (Floats{1, 2}));
}

TEST_F(CsvDatasetTest, TakesAnyDelimiter) {
  for (const char* delimiter : {";", "\t", " ", "|"}) {
    csv_.set_delimiter(delimiter);
    const auto dataset = Open(std::string("1") + delimiter + "2" + delimiter + "3\n");
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ(ReadAll(**dataset).features, (Floats{2, 3}));
  }
}

TEST_F(CsvDatasetTest, LeavesOutTheHeader) {
  csv_.set_header(true);
  const auto dataset = Open("kind,length\n1,2\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ReadAll(**dataset).labels, (Floats{1}));
}

TEST_F(CsvDatasetTest, SuggestsTheHeaderField) {
  ExpectError("kind,length\n1,2\n",
              ":1: column 1 is \"kind\", want a finite number; if the first line holds column names, "
              "set header: true");
}

TEST_F(CsvDatasetTest, RefusesARowOfAnotherWidth) {
  ExpectError("1,2,3\n4,5\n", ":2: has 2 columns, want 3");
  ExpectError("1,2,3\n4,5,6\n4,5,6,7\n", ":3: has 4 columns, want 3");
  ExpectError("1,2,3\n4,5,6,\n", ":2: has 4 columns, want 3");
  ExpectError("1;2;3\n", ":1: has 1 column, want at least 2 with \",\" between them");
}

TEST_F(CsvDatasetTest, RefusesWhatIsNoNumber) {
  ExpectError("1,2\n3,abc\n", ":2: column 2 is \"abc\", want a finite number");
  ExpectError("1,2\n3,4x\n", ":2: column 2 is \"4x\", want a finite number");
  ExpectError("1,2\n\"3\",4\n", ":2: column 1 is \"\\\"3\\\"\", want a finite number");
  ExpectError("1,2\n3 4,5\n", ":2: column 1 is \"3 4\", want a finite number");
  ExpectError("1,2\n+-3,5\n", ":2: column 1 is \"+-3\", want a finite number");
  ExpectError("1,2\n,5\n", ":2: column 1 is empty, want a number");
  ExpectError("1,2\n5,\n", ":2: column 2 is empty, want a number");
}

TEST_F(CsvDatasetTest, RefusesWhatIsNotFinite) {
  ExpectError("1,2\n3,nan\n", ":2: column 2 is \"nan\", want a finite number");
  ExpectError("1,2\n3,-inf\n", ":2: column 2 is \"-inf\", want a finite number");
  ExpectError("1,2\n3,1e39\n", ":2: column 2 is \"1e39\", want a finite number");
  ExpectError("1,2\n3,1e999\n", ":2: column 2 is \"1e999\", want a finite number");
}

TEST_F(CsvDatasetTest, RefusesALabelColumnThatIsNotThere) {
  csv_.set_label_column(2);
  ExpectError("1,2\n", ":1: has 2 columns, label_column is 2, want -2 to 1");
  csv_.set_label_column(-3);
  ExpectError("1,2\n", ":1: has 2 columns, label_column is -3, want -2 to 1");
}

TEST_F(CsvDatasetTest, RefusesAFileWithoutRows) {
  csv_.set_header(true);
  ExpectError("kind,length\n\n \n", ": empty data set: no line has a row");
}

TEST_F(CsvDatasetTest, KnowsWhereItsExtremeLabelsAre) {
  const auto dataset = Open("3,0\n\n1,0\n2.5,0\n9,0\n8.5,0\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<PlacedLabel> labels = (*dataset)->ExtremeLabels();
  ASSERT_EQ(labels.size(), 3);
  EXPECT_EQ(labels[0].label, 2.5f);
  EXPECT_EQ(labels[0].where, path_ + ":4");
  EXPECT_EQ(labels[1].label, 1);
  EXPECT_EQ(labels[1].where, path_ + ":3");
  EXPECT_EQ(labels[2].label, 9);
  EXPECT_EQ(labels[2].where, path_ + ":5");
}

}  // namespace
}  // namespace ballast
