// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/dataset.h"

#include <cmath>
#include <functional>
#include <iterator>
#include <random>
#include <thread>

#include "absl/strings/str_join.h"
#include "common/clicks/click_model.h"
#include "worker/data/datasets/row_ids.h"
#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

// A format, and a writer of three examples in it.
struct Format {
  std::string name;
  // Writes the files into the test directory, to which the returned paths are relative.
  std::function<v1::DataSource(bool gzip)> write;
  // The examples, before normalization.
  std::vector<double> features = {0, 10, 20, 30, 40, 255};
  Floats labels = {2, 0, 1};
  std::vector<std::string> id_fields = {};
  // Example by example, field by field.
  Bags bags = {};

  size_t width() const { return features.size() / 3; }
};

std::string Name(const std::string& name, bool gzip) { return gzip ? name + ".gz" : name; }

// Writes a file and returns its path relative to the test directory.
std::string Write(const std::string& name, bool gzip, const std::string& content) {
  const std::string path = WriteFile(Name(name, gzip), gzip ? Gzip(content) : content);
  return path.substr(path.rfind('/') + 1);
}

// Lines in the format of Criteo's data: (column, text) of what is not empty.
std::string CriteoLine(const std::vector<std::pair<int, std::string>>& texts) {
  std::vector<std::string> columns(40);
  for (const auto& [column, text] : texts) columns[column] = text;
  return absl::StrJoin(columns, "\t") + "\n";
}

Format Criteo() {
  Format format;
  format.name = "Criteo";
  format.write = [](bool gzip) {
    v1::DataSource source;
    source.mutable_criteo()->set_path(
        Write("a.tsv", gzip,
              CriteoLine({{0, "1"}, {1, "0"}, {2, "10"}, {3, "-3"}, {14, "0000000a"}, {39, "FFffffffffffffff"}}) +
                  CriteoLine({{0, "0"}, {13, "9007199254740991"}}) +
                  CriteoLine({{0, "1"}, {1, "1"}, {14, "a"}, {15, "a"}, {38, "0"}})));
    return source;
  };
  format.features.assign(39, 0);
  format.features[1] = std::log(11);
  format.features[2] = -std::log(4);
  format.features[25] = std::log(9007199254740992);
  format.features[26] = std::log(2);
  format.labels = {1, 0, 1};
  format.bags.resize(78);
  for (int i = 1; i <= 26; ++i) format.id_fields.push_back(absl::StrCat("C", i));
  format.bags[0] = {CategoryRowId(uint64_t{10}, 0)};
  format.bags[25] = {CategoryRowId(~uint64_t{0}, 25)};
  format.bags[52] = {CategoryRowId(uint64_t{10}, 0)};
  format.bags[53] = {CategoryRowId(uint64_t{10}, 1)};
  format.bags[76] = {CategoryRowId(uint64_t{0}, 24)};
  return format;
}

Format PlantedClicks() {
  Format format;
  format.name = "PlantedClicks";
  format.write = [](bool) {
    v1::DataSource source;
    source.mutable_planted_clicks()->set_rows(5);
    source.mutable_planted_clicks()->set_begin(1);
    source.mutable_planted_clicks()->set_end(4);
    source.mutable_planted_clicks()->set_seed(3);
    return source;
  };
  format.features.clear();
  format.labels.clear();
  for (int i = 1; i <= 26; ++i) format.id_fields.push_back(absl::StrCat("C", i));
  const ClickModel model({.seed = 3, .rows = 5});
  for (int number = 1; number < 4; ++number) {
    const ClickRow row = model.Row(number);
    format.labels.push_back(row.clicked ? 1 : 0);
    for (const auto& x : row.numbers) format.features.push_back(x.has_value() ? std::log1p(*x) : 0);
    for (size_t field = 0; field < 26; ++field) {
      const auto& id = row.categories[field];
      format.bags.push_back(id.has_value() ? std::vector<uint64_t>{CategoryRowId(uint64_t{*id}, field)}
                                           : std::vector<uint64_t>());
    }
  }
  return format;
}

std::vector<Format> Formats() {
  using std::string_literals::operator""s;
  return {
      {"Idx",
       [](bool gzip) {
         v1::DataSource source;
         source.mutable_idx()->set_images(
             Write("images", gzip, "\0\0\x08\x02\0\0\0\x03\0\0\0\x02\x00\x0a\x14\x1e\x28\xff"s));
         source.mutable_idx()->set_labels(Write("labels", gzip, "\0\0\x08\x01\0\0\0\x03\x02\x00\x01"s));
         return source;
       }},
      {"Csv",
       [](bool gzip) {
         v1::DataSource source;
         source.mutable_csv()->set_path(Write("a.csv", gzip, "2,0,10\n0,20,30\n1,40,255\n"));
         return source;
       }},
      {"Libsvm",
       [](bool gzip) {
         v1::DataSource source;
         source.mutable_libsvm()->set_path(Write("a.libsvm", gzip, "2 2:10\n0 1:20 2:30\n1 1:40 2:255\n"));
         source.mutable_libsvm()->set_features(2);
         return source;
       }},
      {"CsvWithIds",
       [](bool gzip) {
         v1::DataSource source;
         v1::Csv& csv = *source.mutable_csv();
         csv.set_path(Write("b.csv", gzip, "2,0,b| a,10,x\n0,20,NA,30,\n1,40,\"b|b\",255,w|x\n"));
         csv.add_hashed("4");
         csv.add_looked_up("2");
         csv.set_id_separator("|");
         return source;
       },
       {0, 10, 20, 30, 40, 255},
       {2, 0, 1},
       {"4", "2"},
       {{CategoryRowId("x", 0)},
        {CategoryRowId(uint64_t{2}, 1), CategoryRowId(uint64_t{1}, 1)},
        {},
        {},
        {CategoryRowId("w", 0), CategoryRowId("x", 0)},
        {CategoryRowId(uint64_t{2}, 1), CategoryRowId(uint64_t{2}, 1)}}},
      {"Libffm",
       [](bool gzip) {
         v1::DataSource source;
         source.mutable_libffm()->set_path(
             Write("a.ffm", gzip, "2 2:7:1 0:5:1 2:3:1.0\n0\n1 0:5:1\t1:18446744073709551615:1 \n"));
         source.mutable_libffm()->set_fields(3);
         return source;
       },
       {},
       {2, 0, 1},
       {"0", "1", "2"},
       {{CategoryRowId(uint64_t{5}, 0)},
        {},
        {CategoryRowId(uint64_t{7}, 2), CategoryRowId(uint64_t{3}, 2)},
        {},
        {},
        {},
        {CategoryRowId(uint64_t{5}, 0)},
        {CategoryRowId(~uint64_t{0}, 1)},
        {}}},
      Criteo(),
      PlantedClicks(),
  };
}

// Returns the path of the file that a test may damage; empty without files.
std::string PathOf(const v1::DataSource& source) {
  switch (source.format_case()) {
    case v1::DataSource::kIdx:
      return source.idx().images();
    case v1::DataSource::kCsv:
      return source.csv().path();
    case v1::DataSource::kLibsvm:
      return source.libsvm().path();
    case v1::DataSource::kLibffm:
      return source.libffm().path();
    case v1::DataSource::kCriteo:
      return source.criteo().path();
    default:
      return "";
  }
}

// Conformance suite that every format must pass.
class FormatTest : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override { Open(v1::Normalization()); }

  void Open(const v1::Normalization& normalization) {
    auto dataset = OpenDataset(format_.write(std::get<1>(GetParam())),
                               {.normalization = normalization, .base_folder = testing::TempDir()});
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    dataset_ = *std::move(dataset);
  }

  // Returns the features of the examples with these indices, normalized.
  Floats Features(const std::vector<size_t>& indices, double mean = 0, double stddev = 1) const {
    Floats features;
    for (const size_t i : indices) {
      for (size_t j = 0; j < format_.width(); ++j) {
        features.push_back(static_cast<float>((format_.features[i * format_.width() + j] - mean) / stddev));
      }
    }
    return features;
  }

  Bags WantedBags(const std::vector<size_t>& indices) const {
    Bags bags;
    const size_t fields = format_.id_fields.size();
    for (const size_t i : indices) {
      bags.insert(bags.end(), format_.bags.begin() + i * fields, format_.bags.begin() + (i + 1) * fields);
    }
    return bags;
  }

  const Format format_ = Formats()[std::get<0>(GetParam())];
  std::unique_ptr<Dataset> dataset_;
};

TEST_P(FormatTest, HoldsTheExamples) {
  EXPECT_EQ(dataset_->size(), 3);
  EXPECT_EQ(dataset_->features(), format_.width());
  const Examples all = ReadAll(*dataset_);
  EXPECT_EQ(all.features, Features({0, 1, 2}));
  EXPECT_EQ(all.labels, format_.labels);
}

TEST_P(FormatTest, HoldsTheIdsOfItsFields) {
  EXPECT_EQ(std::vector<std::string>(dataset_->id_fields().begin(), dataset_->id_fields().end()), format_.id_fields);
  EXPECT_EQ(BagsOf(ReadAll(*dataset_).ids), format_.bags);
}

TEST_P(FormatTest, ReadsInAnyOrder) {
  Floats features(4 * format_.width());
  Floats labels(4);
  // Contents from before are replaced.
  IdBags ids = {{1, 2, 3}, {3}};
  ASSERT_TRUE(dataset_->Read({2, 0, 2, 1}, absl::MakeSpan(features), absl::MakeSpan(labels), &ids).ok());
  EXPECT_EQ(features, Features({2, 0, 2, 1}));
  EXPECT_EQ(labels, (Floats{format_.labels[2], format_.labels[0], format_.labels[2], format_.labels[1]}));
  EXPECT_EQ(BagsOf(ids), WantedBags({2, 0, 2, 1}));
}

TEST_P(FormatTest, ReadsWithoutIds) {
  Floats features(2 * format_.width());
  Floats labels(2);
  ASSERT_TRUE(dataset_->Read({1, 0}, absl::MakeSpan(features), absl::MakeSpan(labels)).ok());
  EXPECT_EQ(features, Features({1, 0}));
  EXPECT_EQ(labels, (Floats{format_.labels[1], format_.labels[0]}));
}

TEST_P(FormatTest, NormalisesFeaturesAndNoLabels) {
  v1::Normalization normalization;
  normalization.set_mean(10);
  normalization.set_stddev(4);
  Open(normalization);
  const Examples all = ReadAll(*dataset_);
  EXPECT_EQ(all.features, Features({0, 1, 2}, 10, 4));
  EXPECT_EQ(all.labels, format_.labels);
  EXPECT_EQ(BagsOf(all.ids), format_.bags);
}

TEST_P(FormatTest, ReadsNothing) {
  IdBags ids = {{1}, {1}};
  EXPECT_TRUE(dataset_->Read({}, {}, {}, &ids).ok());
  EXPECT_TRUE(ids.ids.empty() && ids.ends.empty());
}

TEST_P(FormatTest, RefusesAnIndexBeyondTheEnd) {
  Floats features(format_.width());
  Floats labels(1);
  EXPECT_EQ(dataset_->Read({3}, absl::MakeSpan(features), absl::MakeSpan(labels)),
            absl::OutOfRangeError("example has index 3, want less than 3"));
}

TEST_P(FormatTest, RefusesRoomOfTheWrongSize) {
  Floats features(2 * format_.width() + 1);
  Floats labels(2);
  EXPECT_EQ(
      dataset_->Read({0, 1}, absl::MakeSpan(features), absl::MakeSpan(labels)),
      absl::InvalidArgumentError(absl::StrCat("span has ", features.size(), " features, want 2 x ", format_.width())));
  EXPECT_EQ(dataset_->Read({0}, absl::MakeSpan(features), absl::MakeSpan(labels)),
            absl::InvalidArgumentError("span has 2 labels, want 1"));
}

TEST_P(FormatTest, IsReadByManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int j = 0; j < 100; ++j) {
        const Examples all = ReadAll(*dataset_);
        EXPECT_EQ(all.features, Features({0, 1, 2}));
        EXPECT_EQ(BagsOf(all.ids), format_.bags);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Changes and truncates bytes at random: each file is rejected, or opens and can be read.
TEST_P(FormatTest, SurvivesAnyDamage) {
  const v1::DataSource source = format_.write(std::get<1>(GetParam()));
  const std::string name = PathOf(source);
  if (name.empty()) GTEST_SKIP() << "no file";
  const std::string path = testing::TempDir() + "/" + name;
  std::ifstream file(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_FALSE(whole.empty());
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string damaged = whole.substr(0, random() % 4 == 0 ? random() % whole.size() : whole.size());
    for (int changes = random() % 3; changes > 0 && !damaged.empty(); --changes) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    std::ofstream(path, std::ios::binary) << damaged;
    const auto dataset = OpenDataset(source, {.base_folder = testing::TempDir()});
    if (dataset.ok()) {
      BagsOf(ReadAll(**dataset).ids);
    } else {
      EXPECT_NE(dataset.status().message().find(name), std::string::npos) << dataset.status();
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

INSTANTIATE_TEST_SUITE_P(Formats, FormatTest,
                         testing::Combine(testing::Range<int>(0, Formats().size()), testing::Bool()),
                         [](const auto& info) {
                           return Formats()[std::get<0>(info.param)].name +
                                  (std::get<1>(info.param) ? "Gzip" : "Plain");
                         });

TEST(OpenDatasetTest, RefusesASourceWithoutFormat) {
  EXPECT_EQ(
      OpenDataset(v1::DataSource(), {}).status(),
      absl::InvalidArgumentError("data source is not set, want idx, csv, libsvm, criteo, libffm or planted_clicks"));
}

// Reads the files of Debian's package dataset-fashion-mnist.
class FashionMnistTest : public testing::Test {
 protected:
  static constexpr char kFolder[] = "/usr/share/datasets/fashion-mnist";

  std::unique_ptr<Dataset> Open(const std::string& part, const v1::Normalization& normalization) {
    v1::DataSource source;
    source.mutable_idx()->set_images(part + "-images-idx3-ubyte.gz");
    source.mutable_idx()->set_labels(part + "-labels-idx1-ubyte.gz");
    auto dataset = OpenDataset(source, {.normalization = normalization, .base_folder = kFolder});
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? *std::move(dataset) : nullptr;
  }

  void SetUp() override {
    if (!std::ifstream(std::string(kFolder) + "/train-images-idx3-ubyte.gz")) {
      GTEST_SKIP() << "Fashion-MNIST is not installed in " << kFolder;
    }
  }
};

TEST_F(FashionMnistTest, HasItsTrainingExamples) {
  const std::unique_ptr<Dataset> dataset = Open("train", v1::Normalization());
  ASSERT_NE(dataset, nullptr);
  ASSERT_EQ(dataset->size(), 60000);
  ASSERT_EQ(dataset->features(), 784);
  const Examples all = ReadAll(*dataset);
  EXPECT_EQ(Floats(all.labels.begin(), all.labels.begin() + 10), (Floats{9, 0, 0, 3, 0, 2, 7, 2, 5, 5}));
  std::vector<int> kinds(10);
  for (const float label : all.labels) ++kinds.at(label);
  EXPECT_EQ(kinds, std::vector<int>(10, 6000));
  EXPECT_NEAR(std::accumulate(all.features.begin(), all.features.end(), 0.0) / all.features.size(), 72.94, 0.005);
}

TEST_F(FashionMnistTest, IsCentredByTheExamplesNormalization) {
  v1::Normalization normalization;
  normalization.set_mean(72.94);
  normalization.set_stddev(90.02);
  const std::unique_ptr<Dataset> dataset = Open("t10k", normalization);
  ASSERT_NE(dataset, nullptr);
  ASSERT_EQ(dataset->size(), 10000);
  const Examples all = ReadAll(*dataset);
  EXPECT_EQ(Floats(all.labels.begin(), all.labels.begin() + 5), (Floats{9, 2, 1, 1, 6}));
  double sum = 0;
  double squares = 0;
  for (const float x : all.features) {
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / all.features.size(), 0, 0.01);
  EXPECT_NEAR(squares / all.features.size(), 1, 0.01);
}

}  // namespace
}  // namespace ballast
