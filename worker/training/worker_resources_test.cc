// SPDX-License-Identifier: Apache-2.0
#include "worker/training/worker_resources.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kDense[] = "layers { dense { units: 2 } } loss { softmax_cross_entropy {} }";

// A job on files of two features: two training examples, and test data if `test` is not empty.
class WorkerResourcesTest : public ::testing::Test {
 protected:
  WorkerResourcesTest() {
    std::filesystem::create_directories(folder_);
    Write("train.csv", "1,2,0\n2,1,1\n");
  }

  void Write(const std::string& name, const std::string& rows) { std::ofstream(folder_ + "/" + name) << rows; }

  absl::StatusOr<WorkerResources> Open(const std::string& model, const std::string& test = "", uint32_t batch = 1) {
    v1::Job job;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(model, job.mutable_model())) << model;
    job.mutable_training()->set_batch_size(batch);
    SetFile("train.csv", *job.mutable_data()->mutable_train());
    if (!test.empty()) {
      Write("test.csv", test);
      SetFile("test.csv", *job.mutable_data()->mutable_test());
    }
    return OpenWorkerResources(job, folder_, {.kind = "cpu"}, nullptr);
  }

 private:
  static void SetFile(const std::string& name, v1::DataSource& source) {
    source.mutable_csv()->set_path(name);
    source.mutable_csv()->set_label_column(-1);
  }

  const std::string folder_ = ::testing::TempDir() + "/worker_resources";
};

TEST_F(WorkerResourcesTest, OpensDataModelAndCodec) {
  const absl::StatusOr<WorkerResources> resources = Open(kDense, "3,4,1\n");
  ASSERT_TRUE(resources.ok()) << resources.status();
  EXPECT_EQ(resources->devices.devices().size(), 1);
  EXPECT_EQ(resources->train->size(), 2);
  ASSERT_NE(resources->test, nullptr);
  EXPECT_EQ(resources->test->size(), 1);
  ASSERT_EQ(resources->model->parameters().size(), 2);
  EXPECT_EQ(resources->model->parameters()[0].elements, 4);
  EXPECT_NE(resources->codec, nullptr);
}

TEST_F(WorkerResourcesTest, AJobWithoutTestDataHasNone) {
  const absl::StatusOr<WorkerResources> resources = Open(kDense);
  ASSERT_TRUE(resources.ok()) << resources.status();
  EXPECT_EQ(resources->test, nullptr);
}

TEST_F(WorkerResourcesTest, TheLargestBatchIsThatOfTrainingOrEvaluation) {
  for (const auto& [batch, want] : {std::pair(1, 256), std::pair(256, 256), std::pair(300, 300)}) {
    const absl::StatusOr<WorkerResources> resources = Open(kDense, "", batch);
    ASSERT_TRUE(resources.ok()) << resources.status();
    EXPECT_EQ(resources->max_batch, want) << batch;
  }
}

TEST_F(WorkerResourcesTest, AdvisesToDivideLargeQuantities) {
  constexpr char kQuantity[] = "layers { dense { units: 1 } } loss { mean_squared_error {} }";
  const auto advice = [&](const char* model) {
    const absl::StatusOr<WorkerResources> resources = Open(model);
    return resources.ok() ? LabelAdvice(*resources->train, *resources->model) : resources.status().ToString();
  };
  EXPECT_EQ(advice(kQuantity), "");
  EXPECT_EQ(advice(kDense), "");
  Write("train.csv", "1,2,-99\n2,1,250000\n");
  EXPECT_THAT(advice(kQuantity), HasSubstr("train.csv:2 has the label 250000: mean_squared_error learns such large"));
  Write("train.csv", "1,2,-250.5\n2,1,1\n");
  EXPECT_THAT(advice(kQuantity), HasSubstr("train.csv:1 has the label -250.5: "));
}

TEST_F(WorkerResourcesTest, RefusesTestDataOfAnotherWidth) {
  const absl::Status status = Open(kDense, "3,4,5,1\n").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("test.csv:1: has 4 columns, want 3 as in the training data"));
}

TEST_F(WorkerResourcesTest, ALabelThatTheModelRefusesIsNamedByItsFile) {
  const absl::Status test = Open(kDense, "3,4,2\n").status();
  EXPECT_EQ(test.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(test.message()), HasSubstr("test.csv"));
  EXPECT_THAT(std::string(test.message()), HasSubstr("label is 2"));
  Write("train.csv", "1,2,0\n2,1,7\n");
  const absl::Status train = Open(kDense).status();
  EXPECT_EQ(train.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(train.message()), HasSubstr("train.csv"));
  EXPECT_THAT(std::string(train.message()), HasSubstr("label is 7"));
}

// Opens a job on the table of the guide, with a last layer of that many units.
absl::StatusOr<WorkerResources> OpenFruit(int units, const std::string& loss) {
  v1::Job job;
  const std::string text = absl::StrCat(
      "data { train { csv { path: 'fruit.csv' header: true label: 'fruit' text_labels: true categories: 'color' "
      "ignore: 'stall' missing: MEAN } } test_share: 0.2 normalization { per_column: true } } "
      "model { layers { dense { units: ",
      units, " } } loss { ", loss, " {} } } training { batch_size: 8 }");
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return OpenWorkerResources(job, "examples", {.kind = "cpu"}, nullptr);
}

TEST_F(WorkerResourcesTest, TheLastLayerHasAnOutputForEachClassOfATable) {
  const absl::StatusOr<WorkerResources> fits = OpenFruit(3, "softmax_cross_entropy");
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->train->size(), 24);
  EXPECT_EQ(fits->test->size(), 6);
  EXPECT_EQ(fits->model->outputs(), 3);
  for (const int units : {2, 4}) {
    EXPECT_EQ(OpenFruit(units, "softmax_cross_entropy").status(),
              absl::InvalidArgumentError(absl::StrCat("the last layer has ", units,
                                                      " outputs, want 3: the data has 3 "
                                                      "classes: apple, lemon, melon")));
  }
  EXPECT_EQ(OpenFruit(1, "mean_squared_error").status(),
            absl::InvalidArgumentError("the labels are text, want a loss for classes: the data has 3 classes: apple, "
                                       "lemon, melon"));
}

TEST_F(WorkerResourcesTest, ADeviceThatIsNotThereIsRefusedWithItsLayer) {
  const struct {
    const char* layers;
    const char* layer;
  } cases[] = {
      {"layers { name: \"head\" dense { units: 2 } device: \"63\" }", "layer \"head\": device is \"63\""},
      {"layers { tanh {} } layers { dense { units: 2 } device: \"63\" }", "model.layers[1]: device is \"63\""},
      {"layers { residual { layers { tanh {} device: \"63\" } } } layers { dense { units: 2 } }",
       "model.layers[0].residual.layers[0]: device is \"63\""},
      {"layers { residual { layers { tanh {} } shortcut { dense { units: 2 } device: \"63\" } } }",
       "model.layers[0].residual.shortcut[0]: device is \"63\""},
  };
  for (const auto& each : cases) {
    const absl::Status status = Open(std::string(each.layers) + " loss { softmax_cross_entropy {} }").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith(each.layer));
  }
}

}  // namespace
}  // namespace ballast
