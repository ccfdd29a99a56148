// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/row_ids.h"
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

// A file of text, whose data source is configured by the test.
class TextDatasetTest : public testing::Test {
 protected:
  explicit TextDatasetTest(const std::string& name) : name_(name) {}

  // Completes `source_` by the path of a file.
  virtual void SetPath(const std::string& path) = 0;

  absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& content) {
    path_ = WriteFile(name_, content);
    SetPath(path_);
    return OpenDataset(source_, {});
  }

  // Returns all examples of a file that opens.
  Examples Read(const std::string& content) {
    const auto dataset = Open(content);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? ReadAll(**dataset) : Examples();
  }

  void ExpectError(const std::string& content, const std::string& message) {
    const absl::Status status = Open(content).status();
    EXPECT_EQ(status, absl::InvalidArgumentError(path_ + message));
  }

  const std::string name_;
  v1::DataSource source_;
  std::string path_;
};

class CsvDatasetTest : public TextDatasetTest {
 protected:
  CsvDatasetTest() : TextDatasetTest("a.csv") {}
  void SetPath(const std::string& path) override { csv_.set_path(path); }

  v1::Csv& csv_ = *source_.mutable_csv();
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
  EXPECT_EQ(Read("1,2,3\n").labels, (Floats{2}));
  EXPECT_EQ(Read("1,2,3\n").features, (Floats{1, 3}));
  csv_.set_label_column(-1);
  EXPECT_EQ(Read("1,2,3\n").labels, (Floats{3}));
  EXPECT_EQ(Read("1,2,3\n").features, (Floats{1, 2}));
}

TEST_F(CsvDatasetTest, TakesAnyDelimiter) {
  for (const char* delimiter : {";", "\t", " ", "|"}) {
    csv_.set_delimiter(delimiter);
    EXPECT_EQ(Read(std::string("1") + delimiter + "2" + delimiter + "3\n").features, (Floats{2, 3}));
  }
}

TEST_F(CsvDatasetTest, LeavesOutTheHeader) {
  csv_.set_header(true);
  EXPECT_EQ(Read("kind,length\n1,2\n").labels, (Floats{1}));
}

TEST_F(CsvDatasetTest, RefusesARowOfAnotherWidth) {
  ExpectError("1,2,3\n4,5\n", ":2: has 2 columns, want 3");
  ExpectError("1,2,3\n4,5,6\n4,5,6,7\n", ":3: has 4 columns, want 3");
  ExpectError("1,2,3\n4,5,6,\n", ":2: has 4 columns, want 3");
  ExpectError("1,2,3\n4\n", ":2: has 1 column, want 3");
}

TEST_F(CsvDatasetTest, SuggestsTheDelimiterOfARowOfOneColumn) {
  ExpectError("1\n", ":1: has 1 column, want at least 2 with \",\" between them");
  ExpectError("1;2;3\n",
              ":1: has 1 column, want at least 2 with \",\" between them; the row has 2 \";\": set delimiter: \";\"");
  ExpectError(
      "1\t2\n",
      ":1: has 1 column, want at least 2 with \",\" between them; the row has 1 \"\\t\": set delimiter: \"\\t\"");
}

TEST_F(CsvDatasetTest, RefusesLinesThatEndWithAReturnAlone) {
  ExpectError("1,2\r3,4\r", ":1: is the only line, want lines that end with \"\\n\" or \"\\r\\n\", not \"\\r\"");
}

TEST_F(CsvDatasetTest, RefusesWhatIsNoNumber) {
  const std::string feature = ":2: column 1 (counted from 0) is ", label = ":2: label column 0 (counted from 0) is ";
  const std::string advice = ", want a number; for a column of text, set categories: \"1\" or ignore: \"1\"";
  const std::string text_labels = ", want a number; for labels that are text, set text_labels: true";
  const std::string missing = ", want a number; for missing values, set missing: MEAN";
  ExpectError("1,2\n3,abc\n", feature + "\"abc\"" + advice);
  ExpectError("1,2\n3,4x\n", feature + "\"4x\"" + advice);
  ExpectError("1,2\n3,2024-01-31\n", feature + "\"2024-01-31\"" + advice);
  ExpectError("1,2\n3 4,5\n", label + "\"3 4\"" + text_labels);
  ExpectError("1,2\n+-3,5\n", label + "\"+-3\"" + text_labels);
  ExpectError("1,2\n,5\n", label + "empty, want a number");
  ExpectError("1,2\n5,\n", feature + "empty" + missing);
  ExpectError("1,2\n3,nan\n", feature + "\"nan\"" + missing);
  ExpectError("1,2\n3,-inf\n", feature + "\"-inf\", want a finite number");
  ExpectError("1,2\n3,1e39\n", feature + "\"1e39\", want a finite number");
  ExpectError("1,2\n3,1e999\n", feature + "\"1e999\", want a finite number");
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
  EXPECT_EQ(ExtremeLabels(**dataset),
            (std::vector<std::string>{"2.5 at " + path_ + ":4", "1 at " + path_ + ":3", "9 at " + path_ + ":5"}));
}

using Floats = std::vector<float>;

class LibsvmDatasetTest : public TextDatasetTest {
 protected:
  LibsvmDatasetTest() : TextDatasetTest("a.libsvm") { libsvm_.set_features(4); }
  void SetPath(const std::string& path) override { libsvm_.set_path(path); }

  v1::Libsvm& libsvm_ = *source_.mutable_libsvm();
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
  EXPECT_EQ(Read("1 0:5 3:6\n").features, (Floats{5, 0, 0, 6}));
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
  EXPECT_EQ(ExtremeLabels(**dataset), (std::vector<std::string>{"-1 at " + path_ + ":3", "4 at " + path_ + ":1"}));
}

class LibffmDatasetTest : public TextDatasetTest {
 protected:
  LibffmDatasetTest() : TextDatasetTest("a.ffm") { libffm_.set_fields(3); }
  void SetPath(const std::string& path) override { libffm_.set_path(path); }

  v1::Libffm& libffm_ = *source_.mutable_libffm();
};

TEST_F(LibffmDatasetTest, GivesIdsOfAFieldInTheOrderOfTheLine) {
  const Examples all = Read("\n1 2:9:1 0:4:1 2:8:1e0\n \n-0.5\r\n");
  EXPECT_EQ(all.labels, (Floats{1, -0.5}));
  EXPECT_EQ(BagsOf(all.ids), (Bags{{CategoryRowId(uint64_t{4}, 0)},
                                   {},
                                   {CategoryRowId(uint64_t{9}, 2), CategoryRowId(uint64_t{8}, 2)},
                                   {},
                                   {},
                                   {}}));
}

TEST_F(LibffmDatasetTest, CountsFieldsFromOneWhereAsked) {
  libffm_.set_one_based(true);
  EXPECT_EQ(BagsOf(Read("1 1:4:1 3:5:1\n").ids),
            (Bags{{CategoryRowId(uint64_t{4}, 0)}, {}, {CategoryRowId(uint64_t{5}, 2)}}));
  ExpectError("1 0:4:1\n", ":1: \"0:4:1\": field is out of range, want 1 to 3");
  ExpectError("1 4:4:1\n", ":1: \"4:4:1\": field is out of range, want 1 to 3");
}

TEST_F(LibffmDatasetTest, RefusesAFieldOutOfRange) {
  ExpectError("1 0:1:1\n1 2:1:1 3:1:1\n", ":2: \"3:1:1\": field is out of range, want 0 to 2");
  ExpectError("1 18446744073709551616:1:1\n", ":1: \"18446744073709551616:1:1\": field is out of range, want 0 to 2");
}

TEST_F(LibffmDatasetTest, RefusesAnIndexOfMoreThanSixtyFourBits) {
  ExpectError("1 0:18446744073709551616:1\n", ":1: \"0:18446744073709551616:1\": index has more than 64 bits");
}

TEST_F(LibffmDatasetTest, RefusesOtherValuesThanOne) {
  ExpectError("1 0:1:0.5\n", ":1: \"0:1:0.5\": value is \"0.5\", want 1");
  ExpectError("1 0:1:\n", ":1: \"0:1:\": value is \"\", want 1");
  ExpectError("1 0:1:1x\n", ":1: \"0:1:1x\": value is \"1x\", want 1");
  ExpectError("1 0:1:nan\n", ":1: \"0:1:nan\": value is \"nan\", want 1");
}

TEST_F(LibffmDatasetTest, RefusesWhatIsNoTriple) {
  for (const char* word : {"abc", "1", "1:1", "-1:1:1", ":1:1", "0::1", "0:x:1", "#"}) {
    ExpectError(std::string("1 ") + word + "\n", std::string(":1: \"") + word + "\": want field:index:value");
  }
  ExpectError("x 0:1:1\n", ":1: the label is \"x\", want a finite number");
  ExpectError("0:1:1\n", ":1: the label is \"0:1:1\", want a finite number");
}

TEST_F(LibffmDatasetTest, KnowsWhereItsExtremeLabelsAre) {
  const auto dataset = Open("1 1:1:1\n\n0 1:1:1\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ExtremeLabels(**dataset), (std::vector<std::string>{"0 at " + path_ + ":3", "1 at " + path_ + ":1"}));
}

TEST_F(LibffmDatasetTest, RefusesNoFields) {
  libffm_.set_fields(0);
  EXPECT_EQ(Open("1\n").status(), absl::InvalidArgumentError("libffm.fields is 0, want 1 to 65536"));
}

}  // namespace
}  // namespace ballast
