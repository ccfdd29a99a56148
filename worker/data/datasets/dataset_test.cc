// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/dataset.h"

#include <functional>
#include <iterator>
#include <random>
#include <thread>

#include "worker/data/datasets/test_files.h"

namespace ballast {
namespace {

using Floats = std::vector<float>;

// A format, and a writer of the same three examples in it: features 0 10, 20 30, 40 255, labels 2, 0, 1.
struct Format {
  std::string name;
  // Writes the files into the test directory, to which the returned paths are relative.
  std::function<v1::DataSource(bool gzip)> write;
};

std::string Name(const std::string& name, bool gzip) { return gzip ? name + ".gz" : name; }

// Writes a file and returns its path relative to the test directory.
std::string Write(const std::string& name, bool gzip, const std::string& content) {
  const std::string path = WriteFile(Name(name, gzip), gzip ? Gzip(content) : content);
  return path.substr(path.rfind('/') + 1);
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
  };
}

// Conformance suite that every format must pass.
class FormatTest : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override { Open(v1::Normalization()); }

  void Open(const v1::Normalization& normalization) {
    const Format format = Formats()[std::get<0>(GetParam())];
    auto dataset = OpenDataset(format.write(std::get<1>(GetParam())),
                               {.normalization = normalization, .base_folder = testing::TempDir()});
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    dataset_ = *std::move(dataset);
  }

  std::unique_ptr<Dataset> dataset_;
};

TEST_P(FormatTest, HoldsTheExamples) {
  EXPECT_EQ(dataset_->size(), 3);
  EXPECT_EQ(dataset_->features(), 2);
  const Examples all = ReadAll(*dataset_);
  EXPECT_EQ(all.features, (Floats{0, 10, 20, 30, 40, 255}));
  EXPECT_EQ(all.labels, (Floats{2, 0, 1}));
}

TEST_P(FormatTest, ReadsInAnyOrder) {
  Floats features(8);
  Floats labels(4);
  ASSERT_TRUE(dataset_->Read({2, 0, 2, 1}, absl::MakeSpan(features), absl::MakeSpan(labels)).ok());
  EXPECT_EQ(features, (Floats{40, 255, 0, 10, 40, 255, 20, 30}));
  EXPECT_EQ(labels, (Floats{1, 2, 1, 0}));
}

TEST_P(FormatTest, NormalisesFeaturesAndNoLabels) {
  v1::Normalization normalization;
  normalization.set_mean(10);
  normalization.set_stddev(4);
  Open(normalization);
  const Examples all = ReadAll(*dataset_);
  EXPECT_EQ(all.features, (Floats{-2.5, 0, 2.5, 5, 7.5, 61.25}));
  EXPECT_EQ(all.labels, (Floats{2, 0, 1}));
}

TEST_P(FormatTest, ReadsNothing) { EXPECT_TRUE(dataset_->Read({}, {}, {}).ok()); }

TEST_P(FormatTest, RefusesAnIndexBeyondTheEnd) {
  Floats features(2);
  Floats labels(1);
  EXPECT_EQ(dataset_->Read({3}, absl::MakeSpan(features), absl::MakeSpan(labels)),
            absl::OutOfRangeError("example has index 3, want less than 3"));
}

TEST_P(FormatTest, RefusesRoomOfTheWrongSize) {
  Floats features(3);
  Floats labels(2);
  EXPECT_EQ(dataset_->Read({0, 1}, absl::MakeSpan(features), absl::MakeSpan(labels)),
            absl::InvalidArgumentError("span has 3 features, want 2 x 2"));
  EXPECT_EQ(dataset_->Read({0}, absl::MakeSpan(features), absl::MakeSpan(labels)),
            absl::InvalidArgumentError("span has 2 labels, want 1"));
}

TEST_P(FormatTest, IsReadByManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (int j = 0; j < 100; ++j) {
        EXPECT_EQ(ReadAll(*dataset_).features, (Floats{0, 10, 20, 30, 40, 255}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Changes and truncates bytes at random: each file is rejected, or opens and can be read.
TEST_P(FormatTest, SurvivesAnyDamage) {
  v1::DataSource source = Formats()[std::get<0>(GetParam())].write(std::get<1>(GetParam()));
  const std::string name = source.has_idx()   ? source.idx().images()
                           : source.has_csv() ? source.csv().path()
                                              : source.libsvm().path();
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
      ReadAll(**dataset);
    } else {
      EXPECT_NE(dataset.status().message().find(name), std::string::npos) << dataset.status();
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

INSTANTIATE_TEST_SUITE_P(Formats, FormatTest, testing::Combine(testing::Range(0, 3), testing::Bool()),
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
