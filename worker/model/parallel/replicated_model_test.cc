// SPDX-License-Identifier: Apache-2.0
#include "worker/model/parallel/replicated_model.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "worker/device/testing/queued_device.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr char kDense[] =
    "layers { dense { units: 16 } } layers { relu {} } layers { dense { units: 8 } } layers { gelu {} } "
    "layers { dense { units: 4 } } loss { softmax_cross_entropy {} }";
constexpr char kLinear[] = "layers { dense { units: 1 } } loss { mean_squared_error {} }";

// Counts the calls of the hooks.
class CountingHooks : public NoHooks {
 public:
  absl::Status AfterForward(const BatchResult& result) override {
    losses.push_back(result.loss_sum);
    return absl::OkStatus();
  }
  absl::Status GradientReady(size_t group) override {
    groups.push_back(group);
    return absl::OkStatus();
  }

  std::vector<double> losses;
  std::vector<size_t> groups;
};

class ReplicatedModelTest : public ModelFixture {
 protected:
  static constexpr int64_t kFeatures = 12;

  absl::StatusOr<std::unique_ptr<ReplicatedModel>> TryReplicate(const std::string& text, size_t replicas,
                                                                int64_t max_batch = 16) {
    ModelOptions options{.features = kFeatures, .seed = 1, .max_batch = max_batch};
    for (size_t i = 0; i < replicas; ++i) {
      if (devices_.size() <= i) devices_.push_back(CreateCpuDevice(1, int64_t{1} << 20));
      options.devices.push_back({absl::StrCat(i), devices_[i].get()});
    }
    absl::StatusOr<std::unique_ptr<ReplicatedModel>> model = ReplicatedModel::Create(ParseModel(text), options);
    if (model.ok()) SetParameters(**model);
    return model;
  }

  std::unique_ptr<ReplicatedModel> Replicate(const std::string& text, size_t replicas, int64_t max_batch = 16) {
    absl::StatusOr<std::unique_ptr<ReplicatedModel>> model = TryReplicate(text, replicas, max_batch);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  std::unique_ptr<Model> Single(const std::string& text) {
    absl::StatusOr<std::unique_ptr<Model>> model = Create(text, kFeatures);
    EXPECT_TRUE(model.ok()) << model.status();
    SetParameters(**model);
    return *std::move(model);
  }

  BatchView Batch(int64_t examples) const {
    return {.features = absl::MakeConstSpan(features_).first(examples * kFeatures),
            .labels = absl::MakeConstSpan(labels_).first(examples),
            .examples = examples,
            .step = 5,
            .seed = 3};
  }

  // Adds a device that runs concurrently with the host, like a GPU.
  QueuedDevice* AddQueued() {
    std::unique_ptr<QueuedDevice> device = CreateQueuedDevice();
    QueuedDevice* const queued = device.get();
    devices_.push_back(std::move(device));
    return queued;
  }

  std::vector<std::unique_ptr<Device>> devices_;
  const std::vector<float> features_ = Random(16 * kFeatures, 1);
  const std::vector<float> labels_ = {0, 1, 2, 3, 3, 2, 1, 0, 1, 1, 2, 2, 3, 3, 0, 0};
};

// Parameters: replicas and examples. The split is even, uneven, leaves replicas without examples, or has no examples.
class ReplicatedGradientTest : public ReplicatedModelTest,
                               public ::testing::WithParamInterface<std::pair<size_t, int64_t>> {};

TEST_P(ReplicatedGradientTest, GradientsAreThoseOfOneDevice) {
  const auto [replicas, examples] = GetParam();
  const std::unique_ptr<Model> one = Single(kDense);
  const std::unique_ptr<ReplicatedModel> several = Replicate(kDense, replicas);
  CountingHooks hooks;
  const absl::StatusOr<BatchResult> expected = one->Train(Batch(examples), hooks);
  const absl::StatusOr<BatchResult> got = several->Train(Batch(examples), hooks);
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_NEAR(got->loss_sum, expected->loss_sum, 1e-5);
  EXPECT_EQ(got->examples, examples);
  EXPECT_EQ(got->correct, expected->correct);
  EXPECT_THAT(Gradients(*several), Pointwise(FloatNear(1e-6f), Gradients(*one)));
  EXPECT_NEAR(hooks.losses[0], hooks.losses[1], 1e-5);
  EXPECT_THAT(hooks.groups, ElementsAre(2, 1, 0, 2, 1, 0));
}

INSTANTIATE_TEST_SUITE_P(Splits, ReplicatedGradientTest,
                         ::testing::Values(std::pair(1, 16), std::pair(2, 16), std::pair(2, 7), std::pair(3, 16),
                                           std::pair(4, 2), std::pair(3, 1), std::pair(2, 0)));

TEST_F(ReplicatedModelTest, TablesAreRefused) {
  EXPECT_EQ(
      TryReplicate("tables { name: 't' dim: 4 } layers { embedding { table: 't' } } layers { dense { units: 1 } } "
                   "loss { sigmoid_cross_entropy {} }",
                   2)
          .status()
          .message(),
      "model: got tables and batches split over 2 devices, want one device for each worker of a model with "
      "tables");
}

TEST_F(ReplicatedModelTest, EvaluationGivesTheOutputsOfAllExamples) {
  const auto model = Replicate(kDense, 3), whole = Replicate(kDense, 1);
  std::vector<float> outputs(16 * 4), wanted(16 * 4);
  ASSERT_TRUE(model->Evaluate(Batch(16), absl::MakeSpan(outputs)).ok());
  ASSERT_TRUE(whole->Evaluate(Batch(16), absl::MakeSpan(wanted)).ok());
  EXPECT_THAT(outputs, Pointwise(FloatNear(1e-5f), wanted));
}

TEST_F(ReplicatedModelTest, GradientsOfWholeNumbersAreExact) {
  const std::unique_ptr<Model> one = Single(kLinear);
  const std::unique_ptr<ReplicatedModel> several = Replicate(kLinear, 4);
  std::vector<float> features(16 * kFeatures), weights(kFeatures);
  for (size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 5) - 2;
  for (TrainableModel* model : {static_cast<TrainableModel*>(one.get()), static_cast<TrainableModel*>(several.get())}) {
    ASSERT_TRUE(model->SetParameter(0, weights).ok() && model->SetParameter(1, {1.0f}).ok());
    BatchView batch = Batch(16);
    batch.features = features;
    ASSERT_TRUE(TrainOnce(*model, batch).ok());
  }
  EXPECT_EQ(Gradients(*several), Gradients(*one));
}

TEST_F(ReplicatedModelTest, TheSameBatchGivesTheSameBits) {
  const std::unique_ptr<ReplicatedModel> model = Replicate(kDense, 3);
  ASSERT_TRUE(TrainOnce(*model, Batch(16)).ok());
  const std::vector<float> first = Gradients(*model);
  ASSERT_TRUE(TrainOnce(*model, Batch(5)).ok());
  ASSERT_TRUE(TrainOnce(*model, Batch(16)).ok());
  EXPECT_EQ(Gradients(*model), first);
}

TEST_F(ReplicatedModelTest, TheLossScaleMultipliesGradientsAndNotTheLoss) {
  const std::unique_ptr<ReplicatedModel> model = Replicate(kDense, 2);
  const absl::StatusOr<BatchResult> plain = TrainOnce(*model, Batch(16));
  std::vector<float> gradients = Gradients(*model);
  BatchView batch = Batch(16);
  batch.loss_scale = 1024;
  const absl::StatusOr<BatchResult> scaled = TrainOnce(*model, batch);
  ASSERT_TRUE(plain.ok() && scaled.ok()) << plain.status() << scaled.status();
  for (float& gradient : gradients) gradient *= 1024;
  EXPECT_EQ(Gradients(*model), gradients);
  EXPECT_EQ(scaled->loss_sum, plain->loss_sum);
}

// With weights and features of 1, each gradient element is proportional to the number of masks that keep the element.
TEST_F(ReplicatedModelTest, ReplicasDropDifferentElements) {
  constexpr char kDropout[] =
      "layers { dense { units: 64 } } layers { dropout { rate: 0.5 } } layers { dense { units: 1 no_bias: true } } "
      "loss { mean_squared_error {} }";
  const std::unique_ptr<ReplicatedModel> model = Replicate(kDropout, 2, 2);
  const std::vector<float> ones(kFeatures * 64, 1.0f), bias(64, 0.0f), last(64, 1.0f), features(2 * kFeatures, 1.0f);
  ASSERT_TRUE(model->SetParameter(0, ones).ok() && model->SetParameter(1, bias).ok() &&
              model->SetParameter(2, last).ok());
  ASSERT_TRUE(
      TrainOnce(*model, {.features = features, .labels = {100000.0f, 100000.0f}, .examples = 2, .step = 1, .seed = 3})
          .ok());
  std::vector<float> gradient(64);
  ASSERT_TRUE(model->GetGradient(2, absl::MakeSpan(gradient)).ok());
  // Counts elements that none, one or both of the replicas keep. If the masks were the same, `some` would be 0.
  int none = 0, some = 0, both = 0;
  const float most = *std::min_element(gradient.begin(), gradient.end());
  for (const float value : gradient) {
    if (value == 0) {
      ++none;
    } else if (value > 0.75f * most) {
      ++some;
    } else {
      ++both;
    }
  }
  EXPECT_GT(none, 4);
  EXPECT_GT(some, 16);
  EXPECT_GT(both, 4);
}

TEST_F(ReplicatedModelTest, ValuesReachAllReplicas) {
  const std::unique_ptr<ReplicatedModel> model = Replicate(kLinear, 2);
  EXPECT_TRUE(model->HostParameter(0).empty());
  const std::vector<float> weights(kFeatures, 2.0f);
  ASSERT_TRUE(model->SetParameter(0, weights).ok() && model->SetParameter(1, {0.5f}).ok());
  std::vector<float> values(kFeatures);
  ASSERT_TRUE(model->GetParameter(0, absl::MakeSpan(values)).ok());
  EXPECT_THAT(values, Each(2.0f));
  // 12 features of 1 give outputs of 24.5, which are the labels.
  const std::vector<float> features(2 * kFeatures, 1.0f);
  const auto result = TrainOnce(*model, {.features = features, .labels = {24.5f, 24.5f}, .examples = 2});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->loss_sum, 0);
}

TEST_F(ReplicatedModelTest, EvaluatesBatchesLargerThanAPart) {
  const std::unique_ptr<Model> one = Single(kDense);
  const std::unique_ptr<ReplicatedModel> several = Replicate(kDense, 3);
  const absl::StatusOr<BatchResult> expected = one->Evaluate(Batch(16)), got = several->Evaluate(Batch(16));
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_NEAR(got->loss_sum, expected->loss_sum, 1e-5);
  EXPECT_EQ(got->correct, expected->correct);
  EXPECT_EQ(got->examples, 16);
}

TEST_F(ReplicatedModelTest, EvaluationIsShared) {
  QueuedDevice* const devices[] = {AddQueued(), AddQueued()};
  const std::unique_ptr<ReplicatedModel> model = Replicate(kDense, 2);
  const uint64_t first = devices[0]->uploaded(), second = devices[1]->uploaded();
  for (const int64_t examples : {16, 1, 0}) ASSERT_TRUE(model->Evaluate(Batch(examples)).ok());
  const uint64_t example_bytes = (kFeatures + 1) * sizeof(float);
  EXPECT_EQ(devices[0]->uploaded() - first, 9 * example_bytes);
  EXPECT_EQ(devices[1]->uploaded() - second, 8 * example_bytes);
}

TEST_F(ReplicatedModelTest, BatchNormIsEvaluatedWithTheFirstOnesStatistics) {
  devices_.push_back(CreateCpuDevice(1));
  QueuedDevice& second = *AddQueued();
  const std::unique_ptr<ReplicatedModel> model = Replicate(
      "layers { residual { layers { batch_norm {} } } } layers { dense { units: 4 } } "
      "loss { softmax_cross_entropy {} }",
      2);
  const uint64_t before = second.uploaded();
  ASSERT_TRUE(model->Evaluate(Batch(16)).ok());
  EXPECT_EQ(second.uploaded(), before);
}

TEST_F(ReplicatedModelTest, RefusesABatchThatDoesNotFitBeforeAnyHook) {
  const std::unique_ptr<ReplicatedModel> model = Replicate(kDense, 2);
  CountingHooks hooks;
  BatchView batch = Batch(16);
  batch.examples = 17;
  EXPECT_EQ(model->Train(batch, hooks).status().message(), "batch: got 17 examples, want 0 to 16");
  batch.examples = 15;
  EXPECT_EQ(model->Train(batch, hooks).status().message(),
            "batch of 15 examples: got 192 features and 16 labels, want 180 and 15");
  std::vector<float> labels = labels_;
  labels[9] = 4;
  batch = Batch(16);
  batch.labels = labels;
  EXPECT_THAT(std::string(model->Train(batch, hooks).status().message()),
              HasSubstr("example 9 of the batch: its label is 4"));
  EXPECT_THAT(hooks.groups, ElementsAre());
}

TEST_F(ReplicatedModelTest, MemoryIsWhatTheDevicesGave) {
  const std::unique_ptr<ReplicatedModel> model = Replicate(kDense, 3);
  int64_t given = 0;
  for (const std::unique_ptr<Device>& device : devices_) given += (1 << 20) - device->Memory().free;
  EXPECT_EQ(model->Memory().total(), given);
}

TEST_F(ReplicatedModelTest, ADeviceWithTooLittleMemoryIsNamed) {
  devices_.push_back(CreateCpuDevice(1, int64_t{1} << 20));
  devices_.push_back(CreateCpuDevice(1, int64_t{1} << 10));
  const absl::Status status = TryReplicate(kDense, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("device 1: model 12 -> dense 16"));
}

// Tests replicas on devices that run concurrently with the host, like GPUs.
class ReplicatedGpuTest : public ReplicatedModelTest {
 protected:
  QueuedDevice* const queued_[2] = {AddQueued(), AddQueued()};
};

TEST_F(ReplicatedGpuTest, GradientsAreThoseOfOneDevice) {
  const std::unique_ptr<Model> one = Single(kDense);
  const std::unique_ptr<ReplicatedModel> several = Replicate(kDense, 2);
  NoHooks hooks;
  for (const int64_t examples : {16, 7, 1}) {
    const absl::StatusOr<BatchResult> expected = one->Train(Batch(examples), hooks);
    const absl::StatusOr<BatchResult> got = several->Train(Batch(examples), hooks);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    EXPECT_NEAR(got->loss_sum, expected->loss_sum, 1e-5);
    const absl::StatusOr<double> loss_sum = several->LossSum();
    ASSERT_TRUE(loss_sum.ok()) << loss_sum.status();
    EXPECT_NEAR(*loss_sum, expected->loss_sum, 1e-5);
    EXPECT_THAT(Gradients(*several), Pointwise(FloatNear(1e-6f), Gradients(*one)));
  }
}

class ReplicatedGpuFailureTest : public ReplicatedGpuTest, public ::testing::WithParamInterface<size_t> {};

TEST_P(ReplicatedGpuFailureTest, ADeviceThatFailsEndsTheStepWithItsName) {
  const std::unique_ptr<ReplicatedModel> model = Replicate(kDense, 2);
  queued_[GetParam()]->Fail(absl::UnavailableError("GPU lost"));
  NoHooks hooks;
  const absl::Status status = model->Train(Batch(16), hooks).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), absl::StrCat("device ", GetParam(), ": GPU lost"));
}

INSTANTIATE_TEST_SUITE_P(Devices, ReplicatedGpuFailureTest, ::testing::Values(0, 1));

// The device fails while its replica computes and the other one waits for its gradients.
TEST_F(ReplicatedGpuTest, ADeviceThatFailsWhileOthersWaitForItEndsTheStep) {
  const std::unique_ptr<ReplicatedModel> model = Replicate(kDense, 2);
  queued_[1]->Allow(2);
  absl::Status status;
  {
    DeviceThread trainer;
    NoHooks hooks;
    trainer.Start([&] { status = model->Train(Batch(16), hooks).status(); });
    const uint64_t before = queued_[1]->done();
    ASSERT_TRUE(queued_[1]->AwaitIssued(before + 5));
    queued_[1]->Fail(absl::UnavailableError("GPU lost"));
    trainer.Wait();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1: GPU lost"));
  queued_[1]->AllowAll();
}

TEST_F(ReplicatedModelTest, RefusesLayersThatAskForADevice) {
  EXPECT_EQ(TryReplicate("layers { residual { layers { dense { units: 12 } device: \"0\" } } } "
                         "loss { softmax_cross_entropy {} }",
                         2)
                .status()
                .message(),
            "model: a layer's device is \"0\", want none if batches are split over 2 devices");
}

}  // namespace
}  // namespace ballast
