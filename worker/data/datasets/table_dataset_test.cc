// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/text_format.h>

#include <cmath>
#include <limits>

#include "worker/data/datasets/job_data.h"
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;
using Texts = std::vector<std::string>;

constexpr char kPenguins[] =
    "species,island,mass,note\n"
    "gentoo,Biscoe,5,\"big, loud\"\n"
    "adelie,Dream,3,NA\n"
    "adelie,Biscoe,4,x\n";

constexpr char kPenguinColumns[] =
    "header: true label: 'species' text_labels: true categories: 'island' ignore: 'note'";

class TableTest : public testing::Test {
 protected:
  // Writes a file and returns its source, with fields of Csv as text.
  static v1::DataSource Source(const std::string& name, const std::string& content, const std::string& fields) {
    v1::DataSource source;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(fields, source.mutable_csv())) << fields;
    source.mutable_csv()->set_path(WriteFile(name, content));
    return source;
  }

  absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& content, const std::string& fields,
                                                const DatasetOptions& options = {}) {
    return OpenDataset(Source("a.csv", content, fields), options);
  }

  // Opens a file that must open.
  std::unique_ptr<Dataset> Must(const std::string& content, const std::string& fields,
                                const DatasetOptions& options = {}) {
    auto dataset = Open(content, fields, options);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *std::move(dataset) : nullptr;
  }

  // Returns the error without the path.
  std::string Error(const std::string& content, const std::string& fields, const DatasetOptions& options = {}) {
    const absl::Status status = Open(content, fields, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message()), file = "a.csv:";
    const size_t found = message.find(file);
    return found == message.npos ? message : message.substr(found + file.size());
  }

  static DatasetOptions PerColumn() {
    DatasetOptions options;
    options.normalization.set_per_column(true);
    return options;
  }
};

TEST_F(TableTest, TurnsTextIntoLabelsAndCategories) {
  const auto dataset = Must(kPenguins, kPenguinColumns);
  ASSERT_NE(dataset, nullptr);
  const Examples all = ReadAll(*dataset);
  EXPECT_EQ(all.labels, (Floats{1, 0, 0}));
  // Biscoe, Dream, mass.
  EXPECT_EQ(all.features, (Floats{1, 0, 5, 0, 1, 3, 1, 0, 4}));
  ASSERT_NE(dataset->schema(), nullptr);
  EXPECT_EQ(dataset->schema()->classes, (Texts{"adelie", "gentoo"}));
  EXPECT_EQ(dataset->schema()->columns[1].categories, (Texts{"Biscoe", "Dream"}));
}

TEST_F(TableTest, OrdersTextsByBytes) {
  const auto dataset = Must("b,1\nZ,2\n\xc3\xa4,3\na b,4\n", "text_labels: true");
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->schema()->classes, (Texts{"Z", "a b", "b", "\xc3\xa4"}));
}

TEST_F(TableTest, NamesColumnsByNumberToo) {
  const auto dataset = Must("1,x,9,2\n3,y,9,4\n", "label_column: 0 categories: '1' ignore: '-2'");
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(ReadAll(*dataset).features, (Floats{1, 0, 2, 0, 1, 4}));
}

TEST_F(TableTest, TakesQuotesByteOrderMarksAndReturns) {
  const auto dataset =
      Must("\xef\xbb\xbf\"kind\",\"size, cm\",text\r\n\"a\",\"1.5\",\"two\r\nlines\"\r\n\"b \"\"x\"\"\",2,\r\n",
           "header: true label: 'kind' text_labels: true ignore: 'text'");
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->schema()->columns[1].name, "size, cm");
  EXPECT_EQ(dataset->schema()->classes, (Texts{"a", "b \"x\""}));
  EXPECT_EQ(ReadAll(*dataset).features, (Floats{1.5, 2}));
}

TEST_F(TableTest, FillsMissingNumbersWithTheMean) {
  const std::string table = "0,1,10\n1,NA,20\n0,3,null\n1,?,\n";
  const auto mean = Must(table, "missing: MEAN");
  ASSERT_NE(mean, nullptr);
  EXPECT_EQ(ReadAll(*mean).features, (Floats{1, 10, 2, 20, 3, 15, 2, 15}));
  const auto indicator = Must(table, "missing: INDICATOR");
  ASSERT_NE(indicator, nullptr);
  EXPECT_EQ(ReadAll(*indicator).features, (Floats{1, 10, 0, 0, 2, 20, 1, 0, 3, 15, 0, 1, 2, 15, 1, 1}));
}

TEST_F(TableTest, GivesNoIndicatorToACompleteColumn) {
  const auto dataset = Must("0,1,x\n1,2,\n", "missing: INDICATOR categories: '2'");
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(ReadAll(*dataset).features, (Floats{1, 1, 0, 2, 0, 1}));
}

TEST_F(TableTest, NormalizesEachColumnOfNumbers) {
  const auto dataset = Must("0,1,7,x,100\n1,5,7,y,\n0,3,7,x,300\n", "missing: MEAN categories: '3'", PerColumn());
  ASSERT_NE(dataset, nullptr);
  const float high = std::sqrt(1.5f);
  EXPECT_EQ(ReadAll(*dataset).features, (Floats{-high, 0, 1, 0, -1, high, 0, 0, 1, 0, 0, 0, 1, 0, 1}));
  EXPECT_EQ(dataset->schema()->columns[1].mean, 3);
  EXPECT_EQ(dataset->schema()->columns[2].stddev, 0);
  EXPECT_EQ(dataset->schema()->columns[4].fill, 200);
}

TEST_F(TableTest, KeepsTheDigitsOfLargeNumbersThatVaryLittle) {
  const auto dataset = Must("0,16000001\n1,16000003\n", "", PerColumn());
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(dataset->schema()->columns[1].stddev, 1);
  EXPECT_EQ(ReadAll(*dataset).features, (Floats{-1, 1}));
}

TEST_F(TableTest, KeepsDigitsThatFloat32Lacks) {
  const auto dataset = Must("0,1700000001\n1,1700000003\n", "", PerColumn());
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(ReadAll(*dataset).features, (Floats{-1, 1}));
}

TEST_F(TableTest, NormalizesNoCategory) {
  DatasetOptions options;
  options.normalization.set_mean(2);
  options.normalization.set_stddev(4);
  const auto dataset = Must("0,6,x\n1,10,y\n", "categories: '2'", options);
  ASSERT_NE(dataset, nullptr);
  EXPECT_EQ(ReadAll(*dataset).features, (Floats{1, 1, 0, 2, 0, 1}));
}

TEST_F(TableTest, ExplainsWhatItRefuses) {
  const std::string seq = "column 1 (counted from 0)";
  const struct {
    const char* content;
    const char* fields;
    std::string message;
  } cases[] = {
      {"a,b\n1,2\n", "", "1: seems to hold column names: set header: true"},
      {"id,mass,2024\n1,2,3\n", "",
       "1: label column 0 (counted from 0) is \"id\", want a number; for labels that are "
       "text, set text_labels: true"},
      {"NaN,NaN\n1,2\n", "", "1: label column 0 (counted from 0) is \"NaN\", want a number"},
      {"1,NaN\n1,2\n", "", "1: " + seq + " is \"NaN\", want a number; for missing values, set missing: MEAN"},
      {"1,x\n1,y\n", "",
       "1: " + seq +
           " is \"x\", want a number; for a column of text, set categories: \"1\" or "
           "ignore: \"1\""},
      {"adelie,1\n", "",
       "1: label column 0 (counted from 0) is \"adelie\", want a number; for labels that are text, "
       "set text_labels: true"},
      {"y,x\n1,2\n1,Biscoe\n", "header: true",
       "3: column \"x\" is \"Biscoe\", want a number; for a column of text, set "
       "categories: \"x\" or ignore: \"x\""},
      {"y,x\n1,2\n1,\"2\n", "header: true",
       "3: column \"x\" begins with a quote, want another one at its end, and quotes "
       "inside it doubled: got \"\\\"2\\n\""},
      {"y,\"x\n1,2\n", "header: true",
       "1: " + seq +
           " begins with a quote, want another one at its end, and quotes "
           "inside it doubled: got \"\\\"x\\n1,2\\n\""},
      {"y,x\n,2\n", "header: true text_labels: true", "2: label column \"y\" is empty, want a text"},
      {"y,x\na,2\nb,\n", "header: true text_labels: true categories: 'x'",
       "3: column \"x\" is empty, want a text; for missing values, set missing: MEAN"},
      {"y,x\na,\xff\n", "header: true text_labels: true categories: 'x'",
       "2: column \"x\" is \"\\377\", want UTF-8 text"},
      {"y,x\n1,2\n", "header: true label: 'z'", "1: has no column \"z\", which csv.label names; did you mean \"y\"?"},
      {"y,x\n1,2\n", "header: true label: '1'",
       "1: has no column \"1\", which csv.label names; for a number, set label_column"},
      {"y,island\n1,2\n", "header: true categories: 'islnd'",
       "1: has no column \"islnd\", which csv.categories names; did you mean \"island\"?"},
      {"y,x\n1,2\n", "header: true ignore: '2'",
       "1: has 2 columns, csv.ignore is \"2\", want -2 to 1 or a name in the first row"},
      {"1,2\n", "ignore: 'x'", "1: has no column names, csv.ignore is \"x\", want a number, or header: true"},
      {"y,x\n1,2\n", "header: true ignore: 'y'", "1: column \"y\" is in csv.ignore, but is the label"},
      {"y,x\n1,2\n", "header: true categories: 'x' ignore: 'x'",
       "1: column \"x\" is in csv.ignore, but is also in categories"},
      {"y,x\n1,2\n", "header: true ignore: 'x'", "1: has no features: all columns but the label are ignored"},
      {"y,x,x\n1,2,3\n", "header: true", "1: has two columns \"x\", want different names"},
  };
  for (const auto& each : cases) EXPECT_EQ(Error(each.content, each.fields), each.message) << each.content;
}

TEST_F(TableTest, RefusesAColumnWithoutAnyValue) {
  const absl::Status status = Open("1,NA\n0,\n", "missing: MEAN").status();
  EXPECT_NE(
      status.message().find(
          "a.csv: column 1 (counted from 0) has no value in any training example; to leave it out, set ignore: \"1\""),
      std::string::npos)
      << status;
}

TEST_F(TableTest, RefusesLabelsOfOneClass) {
  EXPECT_NE(Error("a,1\na,2\n", "text_labels: true").find("all labels are \"a\", want at least 2 classes"),
            std::string::npos);
}

TEST_F(TableTest, RefusesTooManyOrTooLongTexts) {
  std::string many = "y,x\n";
  for (int i = 0; i <= 65536; ++i) many += "1,t" + std::to_string(i) + "\n";
  EXPECT_EQ(Error(many, "header: true categories: 'x'"),
            "65538: column \"x\" has more than 65536 different texts; to leave the column out, set ignore: \"x\"");
  EXPECT_EQ(Error("y,x\n1," + std::string(257, 'a') + "\n", "header: true categories: 'x'"),
            "2: column \"x\" has a text of 257 bytes, want at most 256");
}

TEST_F(TableTest, RefusesATableThatAModelCannotDescribe) {
  // 23 million quotes in the column's name, each of which takes 4 bytes in the header of a model.
  const std::string name(46'000'000, '"');
  const absl::Status status = Open("y,\"" + name + "\"\n1,2\n", "header: true").status();
  EXPECT_NE(status.message().find("a.csv: its 2 columns take "), std::string::npos) << status.message().substr(0, 200);
}

TEST_F(TableTest, RefusesUtf16) {
  const absl::Status status = Open(std::string("\xff\xfe\x31\0,\0", 6), "").status();
  EXPECT_NE(status.message().find("a.csv: is UTF-16 text, want UTF-8"), std::string::npos) << status;
}

TEST_F(TableTest, NamesAQuoteThatSwallowsTheFile) {
  std::string content = "1,\"2\n";
  while (content.size() <= 70 << 20) content += "1,22222222222222222222222222222222222222222222222222222222222\n";
  EXPECT_EQ(Error(content, ""), "1: row is longer than 67108864 bytes; does a quoted field lack its closing quote?");
}

TEST_F(TableTest, ReadsAHundredThousandRows) {
  std::string content = "id,kind,size\n";
  for (int i = 0; i < 100000; ++i) {
    content +=
        std::to_string(i) + (i % 3 == 0 ? ",\"a, b\"," : ",c,") + (i % 5 == 0 ? "NA" : std::to_string(i % 7)) + "\n";
  }
  const auto dataset = Must(content, "header: true label: 'id' categories: 'kind' missing: INDICATOR");
  ASSERT_NE(dataset, nullptr);
  ASSERT_EQ(dataset->size(), 100000);
  ASSERT_EQ(dataset->features(), 4);
  Floats features(8), labels(2);
  ASSERT_TRUE(dataset->Read({99999, 70000}, absl::MakeSpan(features), absl::MakeSpan(labels)).ok());
  EXPECT_EQ(labels, (Floats{99999, 70000}));
  EXPECT_EQ(Floats(features.begin(), features.begin() + 4), (Floats{1, 0, 4, 0}));
  EXPECT_EQ(features[5], 1);
  EXPECT_NEAR(features[6], 3, 0.001);
  EXPECT_EQ(features[7], 1);
}

TEST_F(TableTest, OtherFilesBecomeExamplesByTheSchema) {
  const auto train = Must(kPenguins, kPenguinColumns, PerColumn());
  ASSERT_NE(train, nullptr);
  const absl::StatusOr<TableSchema> stored = TableSchema::FromJson(train->schema()->ToJson());
  ASSERT_TRUE(stored.ok()) << stored.status();
  const struct {
    const char* content;
    const char* fields;
  } cases[] = {
      {"species,island,mass,note\ngentoo,Torgersen,5,x\n", "header: true"},
      {"more,mass,species,island\n1,5,gentoo,Torgersen\n", "header: true"},
      {"gentoo;Torgersen;5;x\n", "delimiter: ';'"},
  };
  for (const auto& each : cases) {
    const auto test = Must(each.content, each.fields, {.schema = &*stored});
    ASSERT_NE(test, nullptr);
    const Examples all = ReadAll(*test);
    EXPECT_EQ(all.labels, (Floats{1})) << each.content;
    EXPECT_EQ(all.features, (Floats{0, 0, std::sqrt(1.5f)})) << each.content;
  }
}

TEST_F(TableTest, RefusesAFileThatLacksWhatTheSchemaNeeds) {
  const auto train = Must(kPenguins, kPenguinColumns);
  ASSERT_NE(train, nullptr);
  const TableSchema schema = *train->schema();
  const struct {
    const char* content;
    const char* fields;
    const char* message;
  } cases[] = {
      {"species,mass\ngentoo,5\n", "header: true",
       "1: has no column \"island\", want the columns of the training data"},
      {"island,mass\nBiscoe,5\n", "header: true",
       "1: has no column \"species\", want the columns of the training data"},
      {"gentoo,Biscoe,5\n", "", "1: has 3 columns, want 4 as in the training data"},
      {"species,island,mass\nGentoo,Dream,5\n", "header: true",
       "2: label column \"species\" is \"Gentoo\", want one of the 2 classes: adelie, gentoo, as in the training data"},
      {"species,island,mass,note\ngentoo,Dream,5,x\n", "", "1: seems to hold column names: set header: true"},
      {"species;island;mass\ngentoo;Dream;5\n", "header: true",
       "1: has 1 column, want at least 2 with \",\" between them; the row has 2 \";\": set delimiter: \";\""},
      {"species,island,mass\ngentoo,Dream,\n", "header: true",
       "2: column \"mass\" is empty, want a number; for missing values, set missing: MEAN for the training data"},
      {"species,island,mass\ngentoo,Dream,x\n", "header: true",
       "2: column \"mass\" is \"x\", want a number; for a column of text, set categories: \"mass\" or ignore: \"mass\" "
       "for the training data"},
  };
  for (const auto& each : cases) EXPECT_EQ(Error(each.content, each.fields, {.schema = &schema}), each.message);
}

TEST_F(TableTest, ReadsExamplesWithoutLabels) {
  const auto train = Must(kPenguins, kPenguinColumns);
  ASSERT_NE(train, nullptr);
  const TableSchema schema = *train->schema();
  const DatasetOptions options = {.schema = &schema, .labels_optional = true};
  const auto named = Must("mass,island\n5,Dream\n", "header: true", options);
  ASSERT_NE(named, nullptr);
  EXPECT_FALSE(named->has_labels());
  EXPECT_EQ(ReadAll(*named).features, (Floats{0, 1, 5}));
  EXPECT_TRUE(std::isnan(ReadAll(*named).labels[0]));
  const auto counted = Must("Dream,5,x\n", "", options);
  ASSERT_NE(counted, nullptr);
  EXPECT_EQ(ReadAll(*counted).features, (Floats{0, 1, 5}));
  const auto unknown = Must("gentoo,Dream,5,x\nrockhopper,Dream,5,x\n,Dream,5,x\n", "", options);
  ASSERT_NE(unknown, nullptr);
  EXPECT_TRUE(unknown->has_labels());
  const Floats labels = ReadAll(*unknown).labels;
  EXPECT_EQ(labels[0], 1);
  EXPECT_TRUE(std::isnan(labels[1]) && std::isnan(labels[2]));
}

TEST_F(TableTest, HeldOutExamplesDoNotContributeToTheSchema) {
  std::string content;
  for (int i = 0; i < 10; ++i) content += absl::StrCat(i % 2, ",", i, ",t", i, "\n");
  v1::Data data;
  *data.mutable_train() = Source("a.csv", content, "categories: '2'");
  data.mutable_normalization()->set_per_column(true);
  data.set_test_share(0.3);
  const absl::StatusOr<JobData> opened = OpenJobData(data, 1, "");
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->train->size(), 7);
  ASSERT_EQ(opened->test->size(), 3);
  EXPECT_EQ(opened->train->features(), 8);
  const Floats train = ReadAll(*opened->train).features, test = ReadAll(*opened->test).features;
  double sum = 0, squares = 0;
  for (size_t i = 0; i < train.size(); i += 8) {
    sum += train[i];
    squares += train[i] * train[i];
  }
  EXPECT_NEAR(sum, 0, 1e-5);
  EXPECT_NEAR(squares, 7, 1e-5);
  for (size_t i = 0; i < test.size(); ++i) {
    EXPECT_TRUE(i % 8 == 0 || test[i] == 0) << i;
  }
}

}  // namespace
}  // namespace ballast
