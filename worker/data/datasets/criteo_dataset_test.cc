// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

// A line of 40 columns: label 1, numbers "7" and categories "1f".
std::vector<std::string> Columns() {
  std::vector<std::string> columns(40, "1f");
  columns[0] = "1";
  std::fill(columns.begin() + 1, columns.begin() + 14, "7");
  return columns;
}

std::string Line(const std::vector<std::string>& columns) { return absl::StrJoin(columns, "\t") + "\n"; }

// The line with another text in the column of that number, which counts from 1.
std::string LineWith(int column, const std::string& text) {
  std::vector<std::string> columns = Columns();
  columns[column - 1] = text;
  return Line(columns);
}

class CriteoDatasetTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& content, bool labels_optional = false) {
    path_ = WriteFile("a.tsv", content);
    v1::DataSource source;
    source.mutable_criteo()->set_path(path_);
    DatasetOptions options;
    options.labels_optional = labels_optional;
    return OpenDataset(source, options);
  }

  void ExpectError(const std::string& content, const std::string& message, bool labels_optional = false) {
    const absl::Status status = Open(content, labels_optional).status();
    EXPECT_EQ(status, absl::InvalidArgumentError(path_ + message));
  }

  std::string path_;
};

TEST_F(CriteoDatasetTest, SkipsEmptyLinesAndTakesAnyEndOfLine) {
  std::string text = "\n" + Line(Columns()) + "\n\r\n" + LineWith(1, "0");
  text.insert(text.size() - 1, "\r");
  const auto dataset = Open(text);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ReadAll(**dataset).labels, (Floats{1, 0}));
  EXPECT_EQ(ExtremeLabels(**dataset), (std::vector<std::string>{"0 at " + path_ + ":5", "1 at " + path_ + ":2"}));
}

TEST_F(CriteoDatasetTest, RefusesALineOfAnotherWidth) {
  std::vector<std::string> columns = Columns();
  columns.resize(38);
  const std::string want = ", want 40: label, 13 numbers, 26 categories";
  ExpectError(Line(Columns()) + Line(columns), ":2: got 38 columns" + want);
  ExpectError("1\n", ":1: got 1 column" + want);
  ExpectError(" \n", ":1: got 1 column" + want);
  ExpectError(LineWith(40, "1f\t"), ":1: got 41 columns" + want);
  ExpectError(LineWith(40, "1f\t1f"), ":1: got 41 columns" + want);
  columns.resize(39);
  ExpectError(Line(columns), ":1: got 39 columns" + want);
}

TEST_F(CriteoDatasetTest, RefusesLabelsOtherThanZeroAndOne) {
  for (const std::string label : {"2", "-1", "1.0", "", "x", "01"}) {
    ExpectError(Line(Columns()) + LineWith(1, label),
                ":2: column 1 (counted from 1): got \"" + label + "\", want 0 or 1, the label");
  }
}

TEST_F(CriteoDatasetTest, RefusesNumbersThatAreNotWhole) {
  for (const std::string number : {"1.5", "1e3", "x", "-", "+1", " 1", "9223372036854775808"}) {
    ExpectError(LineWith(2, number),
                ":1: column 2 (counted from 1): got \"" + number + "\", want a whole number of 64 bits");
  }
  ExpectError(LineWith(14, "7a"), ":1: column 14 (counted from 1): got \"7a\", want a whole number of 64 bits");
}

TEST_F(CriteoDatasetTest, TakesNumbersOfSixtyFourBits) {
  const auto dataset = Open(LineWith(2, "-9223372036854775808"));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ReadAll(**dataset).features[0], static_cast<float>(-63 * std::log(2)));
}

TEST_F(CriteoDatasetTest, RefusesCategoriesThatAreNotHexadecimalOrTooLong) {
  for (const std::string category : {"g", "1f ", "-1", "0x1f", "00000000000000001", "fffffffffffffffff"}) {
    ExpectError(LineWith(15, category),
                ":1: column 15 (counted from 1): got \"" + category + "\", want at most 16 hexadecimal digits");
  }
  ExpectError(LineWith(40, "x\x01"),
              ":1: column 40 (counted from 1): got \"x\\001\", want at most 16 hexadecimal digits");
}

TEST_F(CriteoDatasetTest, RefusesAFileWithoutRows) { ExpectError("\n\n", ": empty data set: no line has a row"); }

TEST_F(CriteoDatasetTest, LinesNeedNoLabelIfItIsOptional) {
  std::vector<std::string> columns = Columns();
  columns.erase(columns.begin());
  const auto dataset = Open(Line(columns) + LineWith(1, "") + LineWith(1, "0"), true);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_FALSE((*dataset)->has_labels());
  const Examples all = ReadAll(**dataset);
  EXPECT_TRUE(std::isnan(all.labels[0]) && std::isnan(all.labels[1]));
  EXPECT_EQ(all.labels[2], 0);
  EXPECT_EQ(all.features, Floats(39, std::log(8)));
  const Bags bags = BagsOf(all.ids);
  ASSERT_EQ(bags.size(), 78);
  EXPECT_EQ(Bags(bags.begin(), bags.begin() + 26), Bags(bags.begin() + 52, bags.end()));
  columns[3] = "x";
  ExpectError(Line(columns), ":1: column 4 (counted from 1): got \"x\", want a whole number of 64 bits", true);
  columns.pop_back();
  ExpectError(Line(columns), ":1: got 38 columns, want 40: label, 13 numbers, 26 categories", true);
  ExpectError(LineWith(1, "2"), ":1: column 1 (counted from 1): got \"2\", want 0 or 1, the label", true);
}

}  // namespace
}  // namespace ballast
