// SPDX-License-Identifier: Apache-2.0
// Columns of ids in CSV files.
#include <google/protobuf/text_format.h>

#include "absl/strings/match.h"
#include "worker/data/datasets/job_data.h"
#include "worker/data/datasets/row_ids.h"
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;
using Texts = std::vector<std::string>;

constexpr char kVisits[] =
    "user,clicked,age,tags\n"
    "ann,1,30,b|a\n"
    ",0,40,NA\n"
    "bob,0,50,a|c|a\n";
constexpr char kColumns[] = "header: true label: 'clicked' hashed: 'user' looked_up: 'tags' id_separator: '|'";

v1::DataSource Source(const std::string& name, const std::string& content, const std::string& fields) {
  v1::DataSource source;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(fields, source.mutable_csv())) << fields;
  source.mutable_csv()->set_path(WriteFile(name, content));
  return source;
}

// Returns a file that must open, with the schema of another unless that is null.
std::unique_ptr<Dataset> Open(const std::string& content, const std::string& fields,
                              const TableSchema* schema = nullptr) {
  DatasetOptions options;
  options.schema = schema;
  auto dataset = OpenDataset(Source("a.csv", content, fields), options);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return dataset.ok() ? *std::move(dataset) : nullptr;
}

// Returns the error of a file without its path.
std::string Error(const std::string& content, const std::string& fields, const TableSchema* schema = nullptr) {
  DatasetOptions options;
  options.schema = schema;
  const absl::Status status = OpenDataset(Source("a.csv", content, fields), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  return message.substr(message.find("a.csv:") + 6);
}

// Ids of texts at these positions, from 1, of a column that is looked up.
std::vector<uint64_t> Places(const std::vector<uint64_t>& positions, uint64_t field) {
  std::vector<uint64_t> ids;
  for (const uint64_t position : positions) ids.push_back(CategoryRowId(position, field));
  return ids;
}

Texts FieldsOf(const Dataset& dataset) { return {dataset.id_fields().begin(), dataset.id_fields().end()}; }

TEST(CsvIdsTest, ColumnsOfIdsAreFieldsAndNoFeatures) {
  const auto dataset = Open(kVisits, kColumns);
  EXPECT_EQ(FieldsOf(*dataset), (Texts{"user", "tags"}));
  EXPECT_EQ(dataset->features(), 1);
  const Examples all = ReadAll(*dataset);
  EXPECT_EQ(all.features, (Floats{30, 40, 50}));
  EXPECT_EQ(all.labels, (Floats{1, 0, 0}));
  EXPECT_EQ(
      BagsOf(all.ids),
      (Bags{{CategoryRowId("ann", 0)}, Places({2, 1}, 1), {}, {}, {CategoryRowId("bob", 0)}, Places({1, 3, 1}, 1)}));
}

TEST(CsvIdsTest, WithoutSeparatorAValueIsOneId) {
  const auto dataset = Open("1,a|b,x y\n0, a ,\"x \"\"y\"\"\"\n", "hashed: '1' looked_up: '2'");
  EXPECT_EQ(BagsOf(ReadAll(*dataset).ids),
            (Bags{{CategoryRowId("a|b", 0)}, Places({2}, 1), {CategoryRowId("a", 0)}, Places({1}, 1)}));
}

TEST(CsvIdsTest, MissingPartsOfAValueGiveNoIds) {
  const auto dataset = Open("1,a||b\n0,| NA |?\n1, c | d \n", "hashed: '1' id_separator: '|'");
  EXPECT_EQ(BagsOf(ReadAll(*dataset).ids),
            (Bags{{CategoryRowId("a", 0), CategoryRowId("b", 0)}, {}, {CategoryRowId("c", 0), CategoryRowId("d", 0)}}));
}

TEST(CsvIdsTest, FieldsAreNumberedInTheOrderOfTheJob) {
  const auto dataset = Open("1,a,b,c,d\n", "hashed: '4' hashed: '1' looked_up: '-2' looked_up: '2'");
  EXPECT_EQ(FieldsOf(*dataset), (Texts{"4", "1", "3", "2"}));
  EXPECT_EQ(BagsOf(ReadAll(*dataset).ids),
            (Bags{{CategoryRowId("d", 0)}, {CategoryRowId("a", 1)}, Places({1}, 2), Places({1}, 3)}));
}

TEST(CsvIdsTest, NeedsNoFeatures) {
  const auto dataset = Open("1,a\n0,b\n", "hashed: '1'");
  EXPECT_EQ(dataset->features(), 0);
  EXPECT_EQ(ReadAll(*dataset).labels, (Floats{1, 0}));
}

TEST(CsvIdsTest, HashedTextsMayHaveAnyBytesAndAnyLength) {
  const std::string large(100'000, 'x');
  const auto dataset = Open("1,\xff\xfe\n0," + large + "\n", "hashed: '1'");
  EXPECT_EQ(BagsOf(ReadAll(*dataset).ids), (Bags{{CategoryRowId("\xff\xfe", 0)}, {CategoryRowId(large, 0)}}));
}

TEST(CsvIdsTest, OtherFilesHaveTheRowsOfTheTrainingData) {
  const auto train = Open(kVisits, kColumns);
  const absl::StatusOr<TableSchema> schema = TableSchema::FromJson(train->schema()->ToJson());
  ASSERT_TRUE(schema.ok()) << schema.status();
  // Other columns, in another order, with texts that the training data lacks.
  const auto test =
      Open("tags;more;user;clicked;age\nc|new|b;9;ann;1;60\nNA;9;eve;0;70\n", "header: true delimiter: ';'", &*schema);
  EXPECT_EQ(FieldsOf(*test), (Texts{"user", "tags"}));
  const Examples all = ReadAll(*test);
  EXPECT_EQ(all.features, (Floats{60, 70}));
  EXPECT_EQ(BagsOf(all.ids), (Bags{{CategoryRowId("ann", 0)}, Places({3, 0, 2}, 1), {CategoryRowId("eve", 0)}, {}}));
}

TEST(CsvIdsTest, OtherFilesNeedTheColumnsOfIds) {
  const auto train = Open(kVisits, kColumns);
  EXPECT_EQ(Error("user,clicked,age\nann,1,60\n", "header: true", train->schema()),
            "1: has no column \"tags\", want the columns of the training data");
  EXPECT_EQ(Error("tags,clicked,age\na,1,60\n", "header: true", train->schema()),
            "1: has no column \"user\", want the columns of the training data");
}

TEST(CsvIdsTest, HeldOutExamplesGiveNoRows) {
  std::string content;
  for (int i = 0; i < 10; ++i) absl::StrAppend(&content, "1,text", i, "\n");
  v1::Data data;
  *data.mutable_train() = Source("a.csv", content, "looked_up: '1'");
  data.set_test_share(0.3);
  const absl::StatusOr<JobData> opened = OpenJobData(data, 42, "");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->train->schema()->columns[1].texts.size(), 7);
  for (const auto& bag : BagsOf(ReadAll(*opened->test).ids)) EXPECT_EQ(bag, Places({0}, 0));
  const Bags bags = BagsOf(ReadAll(*opened->train).ids);
  for (size_t i = 0; i < bags.size(); ++i) EXPECT_EQ(bags[i], Places({i + 1}, 0));
}

TEST(CsvIdsTest, TestDataOfAJobHasTheRowsOfItsTrainingData) {
  v1::Data data;
  *data.mutable_train() = Source("a.csv", kVisits, kColumns);
  *data.mutable_test() = Source("b.csv", "clicked,tags,age,user\n1,c,1,bob\n", "header: true");
  const absl::StatusOr<JobData> opened = OpenJobData(data, 42, "");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(BagsOf(ReadAll(*opened->test).ids), (Bags{{CategoryRowId("bob", 0)}, Places({3}, 1)}));
}

TEST(CsvIdsTest, RefusesColumnsThatCannotBeFields) {
  EXPECT_EQ(Error(kVisits, "header: true label: 'clicked' hashed: 'users'"),
            "1: has no column \"users\", which csv.hashed names; did you mean \"user\"?");
  EXPECT_EQ(Error(kVisits, "header: true label: 'clicked' looked_up: 'clicked'"),
            "1: column \"clicked\" is in csv.looked_up, but is the label");
  EXPECT_EQ(Error(kVisits, "header: true label: 'clicked' hashed: 'user' looked_up: '0'"),
            "1: column \"user\" is in csv.looked_up, but is also in hashed");
  EXPECT_EQ(Error("a,b,b\n1,x,y\n", "header: true label: 'a' hashed: 'b'"),
            "1: has two columns \"b\" of ids, want different names");
}

TEST(CsvIdsTest, RefusesTextsThatCannotBeLookedUp) {
  EXPECT_EQ(Error("1,a\n1,\xff\n", "looked_up: '1'"), "2: column 1 (counted from 0) is \"\\377\", want UTF-8 text");
  EXPECT_EQ(Error("1,a\n1," + std::string(257, 'x') + "\n", "looked_up: '1'"),
            "2: column 1 (counted from 0) has a text of 257 bytes, want at most 256");
  EXPECT_TRUE(absl::StrContains(Error("1,NA\n1,\n", "looked_up: '1'"), "has no value in any training example"));
}

}  // namespace
}  // namespace ballast
