// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/libsvm_dataset.h"

#include <gtest/gtest.h>

#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

class LibsvmDatasetTest : public testing::Test {
 protected:
  LibsvmDatasetTest() { libsvm_.set_features(4); }

  absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& content) {
    path_ = WriteFile("a.libsvm", content);
    libsvm_.set_path(path_);
    v1::DataSource source;
    *source.mutable_libsvm() = libsvm_;
    return OpenLibsvm(source, v1::Normalization(), "");
  }

  void ExpectError(const std::string& content, const std::string& message) {
    const absl::Status status = Open(content).status();
    EXPECT_EQ(status, absl::InvalidArgumentError(path_ + message));
  }

  v1::Libsvm libsvm_;
  std::string path_;
};

TEST_F(LibsvmDatasetTest, ReadsRowsAndFillsInZeros) {
  const auto dataset = Open("# made by hand\n+1 1:0.5 4:-2 # first\n\n-1\t 2:1e1 \r\n3\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 3);
  EXPECT_EQ((*dataset)->features(), 4);
  const Examples all = ReadAll(**dataset);
  EXPECT_EQ(all.labels, (Floats{1, -1, 3}));
  EXPECT_EQ(all.features, (Floats{0.5, 0, 0, -2, 0, 10, 0, 0, 0, 0, 0, 0}));
}

TEST_F(LibsvmDatasetTest, CountsFromZeroWhereAsked) {
  libsvm_.set_zero_based(true);
  const auto dataset = Open("1 0:5 3:6\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ReadAll(**dataset).features, (Floats{5, 0, 0, 6}));
  ExpectError("1 4:1\n", ":1: index 4 is out of range, want 0 to 3");
}

TEST_F(LibsvmDatasetTest, RefusesAnIndexOutOfRange) {
  ExpectError("1 1:1\n1 0:1\n", ":2: index 0 is out of range, want 1 to 4");
  ExpectError("1 5:1\n", ":1: index 5 is out of range, want 1 to 4");
  ExpectError("1 18446744073709551615:1\n", ":1: index 18446744073709551615 is out of range, want 1 to 4");
}

TEST_F(LibsvmDatasetTest, RefusesIndicesThatDoNotAscend) {
  ExpectError("1 3:1 2:1\n", ":1: index 2 comes after 3, want ascending indices");
  ExpectError("1 3:1 3:1\n", ":1: index 3 comes after 3, want ascending indices");
}

TEST_F(LibsvmDatasetTest, RefusesWhatIsNoPair) {
  for (const char* word : {"abc", "1", "-1:1", ":1", "qid:3", "99999999999999999999:1"}) {
    ExpectError(std::string("1 ") + word + "\n", std::string(":1: got \"") + word + "\", want index:value");
  }
}

TEST_F(LibsvmDatasetTest, RefusesWhatIsNoNumber) {
  ExpectError("1 2:x\n", ":1: the value of index 2 is \"x\", want a finite number");
  ExpectError("1 2:\n", ":1: the value of index 2 is empty, want a number");
  ExpectError("1 2: 3\n", ":1: the value of index 2 is empty, want a number");
  ExpectError("1 2:3:4\n", ":1: the value of index 2 is \"3:4\", want a finite number");
  ExpectError("1 2:nan\n", ":1: the value of index 2 is \"nan\", want a finite number");
  ExpectError("1 2:1e39\n", ":1: the value of index 2 is \"1e39\", want a finite number");
  ExpectError("x 2:3\n", ":1: the label is \"x\", want a finite number");
  ExpectError("1:2\n", ":1: the label is \"1:2\", want a finite number");
  ExpectError("inf 1:2\n", ":1: the label is \"inf\", want a finite number");
}

TEST_F(LibsvmDatasetTest, RefusesAFileWithoutRows) {
  ExpectError("# nothing\n\n", ": empty data set: no line has a row");
}

TEST_F(LibsvmDatasetTest, TakesTheWidestDataSetWithoutMemoryForIt) {
  libsvm_.set_features(INT64_MAX);
  const auto dataset = Open("1 9223372036854775807:5\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->features(), INT64_MAX);
}

TEST_F(LibsvmDatasetTest, KnowsWhereItsExtremeLabelsAre) {
  libsvm_.set_features(3);
  const auto dataset = Open("4 1:1\n# nothing\n-1 1:1\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<PlacedLabel> labels = (*dataset)->ExtremeLabels();
  ASSERT_EQ(labels.size(), 2);
  EXPECT_EQ(labels[0].label, -1);
  EXPECT_EQ(labels[0].where, path_ + ":3");
  EXPECT_EQ(labels[1].label, 4);
  EXPECT_EQ(labels[1].where, path_ + ":1");
}

}  // namespace
}  // namespace ballast
