// SPDX-License-Identifier: Apache-2.0
#include "worker/serve/example_reader.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::unique_ptr<ExampleReader> Reader(const std::string& data, int64_t features, const std::string& table = "",
                                      const std::vector<std::string>& id_fields = {}) {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(data, job.mutable_data())) << data;
  auto reader = ExampleReader::Create(DescribeModel(job, features, table, id_fields));
  EXPECT_TRUE(reader.ok()) << reader.status();
  return reader.ok() ? *std::move(reader) : nullptr;
}

absl::StatusOr<Examples> Json(const ExampleReader& reader, const std::string& list) {
  return reader.ReadJson(nlohmann::json::parse(list));
}

std::string Error(const absl::StatusOr<Examples>& examples) { return std::string(examples.status().message()); }

// A reader for a model that was trained from this CSV file.
class CsvReaderTest : public ::testing::Test {
 protected:
  std::unique_ptr<ExampleReader> Trained(const std::string& text, const std::string& csv) {
    const std::string path = ::testing::TempDir() + "/trained.csv";
    std::ofstream(path) << text;
    v1::DataSource source;
    EXPECT_TRUE(
        google::protobuf::TextFormat::ParseFromString(absl::StrCat("csv { path: \"", path, "\" ", csv, " }"), &source));
    const auto data = OpenDataset(source, {});
    EXPECT_TRUE(data.ok()) << data.status();
    if (!data.ok()) return nullptr;
    const auto fields = (*data)->id_fields();
    return Reader(absl::StrCat("train { csv { ", csv, " } }"), static_cast<int64_t>((*data)->features()),
                  (*data)->schema()->ToJson(), {fields.begin(), fields.end()});
  }
};

TEST_F(CsvReaderTest, ReadsObjectsListsAndLinesAlike) {
  const auto reader = Trained("x,user,y\n1,ana,0\n3,ben,1\n", "header: true label: 'y' hashed: 'user'");
  ASSERT_NE(reader, nullptr);
  const auto objects = Json(*reader, R"([{"x": 3, "user": "ben"}, {"user": "a,\"b", "x": 1, "other": 7}])");
  ASSERT_TRUE(objects.ok()) << objects.status();
  EXPECT_EQ(objects->count, 2);
  EXPECT_THAT(objects->features, ElementsAre(3, 1));
  EXPECT_THAT(objects->ids.ids, SizeIs(2));
  const auto lists = Json(*reader, R"([[3, "ben"], [1, "a,\"b"]])");
  ASSERT_TRUE(lists.ok()) << lists.status();
  const auto lines = Json(*reader, R"(["3,ben,1", "1,\"a,\"\"b\",?"])");
  ASSERT_TRUE(lines.ok()) << lines.status();
  for (const auto& same : {*lists, *lines}) {
    EXPECT_EQ(same.features, objects->features);
    EXPECT_EQ(same.ids.ids, objects->ids.ids);
    EXPECT_EQ(same.ids.ends, objects->ids.ends);
  }
}

TEST_F(CsvReaderTest, NamesTheExampleThatDoesNotFit) {
  const auto reader = Trained("x,user,y\n1,ana,0\n3,ben,1\n", "header: true label: 'y' hashed: 'user'");
  ASSERT_NE(reader, nullptr);
  EXPECT_THAT(Error(Json(*reader, R"([{"x": 1, "user": "a"}, {"x": "z", "user": "b"}])")),
              HasSubstr("example 1: column \"x\" is \"z\", want a number"));
  EXPECT_THAT(Error(Json(*reader, R"([{"x": [1], "user": "a"}])")),
              HasSubstr("example 0: column \"x\": got array, want a number, a text or null"));
  EXPECT_EQ(Error(Json(*reader, R"([{"z": 1}])")),
            "example 0: got no known column, want columns of the training data, such as \"x\"");
  EXPECT_EQ(Error(Json(*reader, R"([{"x": 1}, "1,2,3"])")), "example 1: got string, want an object");
  EXPECT_THAT(Error(Json(*reader, R"(["1,2,3,4"])")), HasSubstr("has 4 columns, want 3"));
  EXPECT_EQ(Error(Json(*reader, R"(["1,ana", ""])")), "example 1: got an empty text, want one line");
  EXPECT_EQ(Error(Json(*reader, R"(["1,ana\n2,ben"])")), "example 0: got a line break, want one line");
  EXPECT_EQ(Error(Json(*reader, R"(["1,ana", "  "])")),
            "got 2 examples that are 1 lines of data, want one line for each, none of them blank");
  EXPECT_EQ(Error(Json(*reader, R"(["1,\"ana", "3\",1"])")),
            "got 2 examples that are 1 lines of data, want one line for each, none of them blank");
  EXPECT_THAT(Error(Json(*reader, R"([{"x": 1, "user": "of\ntwo\nlines"}, {"x": 2}, {"x": "z"}])")),
              HasSubstr("example 2: column \"x\" is \"z\", want a number"));
  EXPECT_THAT(Error(Json(*reader, R"([[1, "of\ntwo lines"], ["z", "b"]])")), HasSubstr("example 1: column 0"));
  EXPECT_EQ(Error(Json(*reader, "[]")), "got no list of examples, want a list of at least one");
  EXPECT_EQ(Error(Json(*reader, "7")), "got no list of examples, want a list of at least one");
  EXPECT_EQ(Error(Json(*reader, "[7]")), "example 0: got number, want a text, an object or a list");
}

TEST(ExampleReaderTest, TakesListsOfFeaturesForImages) {
  const auto reader = Reader("train { idx {} } normalization { mean: 5 stddev: 2 }", 2);
  const auto examples = Json(*reader, "[[7, 9], [5, 5.5]]");
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_THAT(examples->features, ElementsAre(1, 2, 0, 0.25));
  EXPECT_EQ(Error(Json(*reader, "[[7]]")), "example 0: got 1 features, want 2");
  EXPECT_EQ(Error(Json(*reader, "[[7, \"x\"]]")), "example 0: got \"x\" as feature 1, want a finite number");
  EXPECT_EQ(Error(Json(*reader, "[[7, 1e300]]")), "example 0: got 1e+300 as feature 1, want a finite number");
  EXPECT_EQ(Error(Json(*reader, "[\"7 8\"]")),
            "got lines, want lists of numbers, because the model was trained from IDX data");
  EXPECT_EQ(Error(Json(*reader, "[{\"a\": 1}]")),
            "got objects, want texts or lists: the model was not trained from CSV with column names");
}

TEST(ExampleReaderTest, ReadsLinesOfClicksWithAndWithoutLabel) {
  std::vector<std::string> fields;
  for (int i = 1; i <= 26; ++i) fields.push_back(absl::StrCat("C", i));
  for (const char* source : {"train { criteo {} }", "train { planted_clicks { rows: 10 ids: 5 } }"}) {
    const auto reader = Reader(source, 13, "", fields);
    ASSERT_NE(reader, nullptr);
    const std::string line = absl::StrCat(absl::StrJoin(std::vector<std::string>(13, "1"), "\t"), "\t",
                                          absl::StrJoin(std::vector<std::string>(26, "68fd1e64"), "\t"));
    google::protobuf::RepeatedPtrField<std::string> lines;
    *lines.Add() = line;
    *lines.Add() = absl::StrCat("1\t", line);
    const auto examples = reader->ReadLines(lines);
    ASSERT_TRUE(examples.ok()) << examples.status();
    EXPECT_EQ(examples->count, 2);
    EXPECT_THAT(examples->features, SizeIs(26));
    EXPECT_FLOAT_EQ(examples->features[0], std::log(2.0f));
    EXPECT_THAT(examples->ids.ends, SizeIs(52));
    EXPECT_EQ(examples->ids.ids[0], examples->ids.ids[26]) << "the same category of the same field";
    EXPECT_NE(examples->ids.ids[0], examples->ids.ids[1]) << "the same category of another field";
    *lines.Add() = line.substr(0, line.rfind('\t'));
    EXPECT_THAT(Error(reader->ReadLines(lines)), HasSubstr("example 2: got "));
    EXPECT_EQ(Error(Json(*reader, "[[1, 2]]")), "got lists, want texts: lines of the training data's format");
  }
}

TEST(ExampleReaderTest, RefusesAModelThatDoesNotSayItsFormat) {
  EXPECT_EQ(ExampleReader::Create({}).status().message(),
            "metadata \"source\": got nothing, want the format of the training data");
}

}  // namespace
}  // namespace ballast
