// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr char kClassifier[] =
    "layers { dense { units: 3 } } layers { relu {} } "
    "layers { name: 'head' dense { units: 2 no_bias: true initializer { zeros {} } } } "
    "loss { softmax_cross_entropy {} }";

using ModelTest = ModelFixture;

std::string Message(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// Records the hooks that the model calls, and can be told to fail one.
class Recorder : public StepHooks {
 public:
  absl::Status BeforeForward(size_t group) override { return Note("forward", group); }
  absl::Status AfterForward(const BatchResult& result) override { return Note("loss of", result.examples); }
  absl::Status GradientReady(size_t group) override { return Note("gradient", group); }

  std::vector<std::string> notes;
  std::string fail_at;

 private:
  absl::Status Note(const char* what, int64_t number) {
    notes.push_back(std::string(what) + " " + std::to_string(number));
    return notes.back() == fail_at ? absl::UnavailableError("shard 1 is away") : absl::OkStatus();
  }
};

TEST_F(ModelTest, NamesShapesAndInitializesParametersInForwardOrder) {
  const std::unique_ptr<Model> model = *Create(kClassifier, 4);
  const std::vector<Parameter>& parameters = model->parameters();
  ASSERT_EQ(parameters.size(), 3);
  EXPECT_EQ(parameters[0].name, "dense1/weight");
  EXPECT_THAT(parameters[0].shape, ElementsAre(3, 4));
  EXPECT_EQ(parameters[0].elements, 12);
  EXPECT_TRUE(parameters[0].initializer.has_he_normal());
  EXPECT_EQ(parameters[1].name, "dense1/bias");
  EXPECT_THAT(parameters[1].shape, ElementsAre(3));
  EXPECT_EQ(parameters[1].elements, 3);
  EXPECT_TRUE(parameters[1].initializer.has_zeros());
  EXPECT_EQ(parameters[2].name, "head/weight");
  EXPECT_THAT(parameters[2].shape, ElementsAre(2, 3));
  EXPECT_TRUE(parameters[2].initializer.has_zeros());
}

TEST_F(ModelTest, GroupsTheParametersOfEachLayer) {
  const std::unique_ptr<Model> model = *Create(kClassifier, 4);
  const std::vector<ParameterGroup>& groups = model->parameter_groups();
  ASSERT_EQ(groups.size(), 2);
  EXPECT_EQ(groups[0].first, 0);
  EXPECT_EQ(groups[0].count, 2);
  EXPECT_EQ(groups[1].first, 2);
  EXPECT_EQ(groups[1].count, 1);
}

// x = [1, 2], W = [[1, 0], [0, 1]], b = [0, -1], so the outputs are [1, 1] and the softmax [1/2, 1/2]. For label 0 the
// loss is ln 2 and d(outputs) = [-1/2, 1/2]; dW = d(outputs)^T x.
TEST_F(ModelTest, DenseAndSoftmaxGiveTheLossAndGradientComputedByHand) {
  const std::unique_ptr<Model> model = *Create("layers { dense { units: 2 } } loss { softmax_cross_entropy {} }", 2);
  ASSERT_TRUE(model->SetParameter(0, {1, 0, 0, 1}).ok());
  ASSERT_TRUE(model->SetParameter(1, {0, -1}).ok());
  const absl::StatusOr<BatchResult> result = TrainOnce(*model, {{1, 2}, {0}, 1});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->loss_sum, 0.69314718, 1e-7);
  EXPECT_EQ(result->examples, 1);
  EXPECT_EQ(result->correct, 1);
  EXPECT_THAT(Gradient(*model, 0), Pointwise(FloatNear(1e-7), {-0.5f, -1.0f, 0.5f, 1.0f}));
  EXPECT_THAT(Gradient(*model, 1), Pointwise(FloatNear(1e-7), {-0.5f, 0.5f}));
}

TEST_F(ModelTest, LossIsSummedAndGradientsAreOfTheMean) {
  const std::unique_ptr<Model> model = *Create("layers { dense { units: 1 } } loss { mean_squared_error {} }", 1);
  ASSERT_TRUE(model->SetParameter(0, {2}).ok());
  // Outputs 2 and 6, errors 1 and 3.
  const absl::StatusOr<BatchResult> result = TrainOnce(*model, {{1, 3}, {1, 3}, 2});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->loss_sum, 10.0);
  EXPECT_EQ(result->correct, 0);
  EXPECT_THAT(Gradient(*model, 0), ElementsAre(10.0f));
  EXPECT_THAT(Gradient(*model, 1), ElementsAre(4.0f));
}

TEST_F(ModelTest, HooksAreCalledInForwardThenBackwardOrder) {
  const std::unique_ptr<Model> model = CreateRandom(kClassifier, 4, 1.0f);
  Recorder hooks;
  ASSERT_TRUE(model->Train({{1, 2, 3, 4}, {1}, 1}, hooks).ok());
  EXPECT_THAT(hooks.notes, ElementsAre("forward 0", "forward 1", "loss of 1", "gradient 1", "gradient 0"));
}

// Computes a few of a gradient's elements, and looks at the others.
class Reader : public StepHooks {
 public:
  explicit Reader(Model* model) : model_(*model) {}

  absl::Status BeforeForward(size_t) override { return absl::OkStatus(); }
  absl::Status AfterForward(const BatchResult&) override { return absl::OkStatus(); }
  absl::Status GradientReady(size_t group) override {
    const size_t index = model_.parameter_groups()[group].first;
    const absl::Span<const float> gradient = model_.HostGradient(index);
    missing_ += gradient.back() == 0 ? 1 : 0;
    model_.ComputeGradient(index, kElement, kElement + 1);
    read_.push_back(gradient[kElement]);
    return error;
  }

  static constexpr size_t kElement = 100;

  // Groups whose last element is missing.
  int missing() const { return missing_; }
  // The element of each group.
  const std::vector<float>& read() const { return read_; }

  // To be returned.
  absl::Status error;

 private:
  Model& model_;
  int missing_ = 0;
  std::vector<float> read_;
};

TEST_F(ModelTest, GradientsMayBeComputedWhileTheyAreRead) {
  constexpr char kLarge[] =
      "layers { dense { units: 300 } } layers { dense { units: 400 } } layers { dense { units: 1 } } "
      "loss { mean_squared_error {} }";
  constexpr int64_t kFeatures = 500, kExamples = 16;
  const std::unique_ptr<Model> model = *Create(kLarge, kFeatures);
  const std::vector<float> features = Random(kFeatures * kExamples, 1), labels = Random(kExamples, 1);
  const BatchView batch{features, labels, kExamples};
  SetParameters(*model);
  ASSERT_TRUE(TrainOnce(*model, batch).ok());
  const std::vector<float> want = Gradients(*model);
  const std::unique_ptr<Model> deferring = *Create(kLarge, kFeatures);
  SetParameters(*deferring);
  const bool has_kernel = device().MultiplyByRows({{model->DeviceGradient(0).elements.buffer, 16, 300}, true},
                                                  {{model->DeviceGradient(2).elements.buffer, 16, 400}},
                                                  {model->DeviceGradient(0).elements.buffer, 300, 400}) != nullptr;
  EXPECT_TRUE(deferring->DeferGradients(true));
  Reader reader(deferring.get());
  ASSERT_TRUE(deferring->Train(batch, reader).ok());
  EXPECT_EQ(reader.missing(), has_kernel ? 2 : 0);
  EXPECT_EQ(Gradients(*deferring), want);
  constexpr size_t kSecond = 300 * 500 + 300, kThird = kSecond + 400 * 300 + 400, kAt = Reader::kElement;
  EXPECT_THAT(reader.read(), ElementsAre(want[kThird + kAt], want[kSecond + kAt], want[kAt]));
  reader.error = absl::UnavailableError("shard 1 is away");
  EXPECT_EQ(deferring->Train(batch, reader).status(), reader.error);
  EXPECT_FALSE(deferring->DeferGradients(false));
  ASSERT_TRUE(TrainOnce(*deferring, batch).ok());
  EXPECT_EQ(Gradients(*deferring), want);
}

TEST_F(ModelTest, HooksMayHaveADeferredGradientAfterTheNextOne) {
  constexpr char kLarge[] =
      "layers { dense { units: 300 } } layers { dense { units: 400 } } layers { dense { units: 1 } } "
      "loss { mean_squared_error {} }";
  constexpr int64_t kFeatures = 500, kExamples = 16;
  class Postponing : public Recorder {
   public:
    bool Postpones(size_t group) override { return group == 1; }
  } hooks;
  const std::unique_ptr<Model> model = *Create(kLarge, kFeatures);
  const std::vector<float> features = Random(kFeatures * kExamples, 1), labels = Random(kExamples, 1);
  const BatchView batch{features, labels, kExamples};
  SetParameters(*model);
  // Without deferred gradients there is nothing to postpone.
  ASSERT_TRUE(model->Train(batch, hooks).ok());
  EXPECT_THAT(absl::MakeSpan(hooks.notes).last(3), ElementsAre("gradient 2", "gradient 1", "gradient 0"));
  const std::vector<float> want = Gradients(*model);
  const Matrix dy{model->DeviceGradient(0).elements.buffer, 16, 300},
      x{model->DeviceGradient(2).elements.buffer, 16, 400};
  const bool has_kernel = device().MultiplyByRows({dy, true}, {x}, {dy.buffer, 300, 400}) != nullptr;
  if (!model->DeferGradients(true) || !has_kernel) GTEST_SKIP() << "the device computes no product by rows";
  ASSERT_TRUE(model->Train(batch, hooks).ok());
  EXPECT_THAT(absl::MakeSpan(hooks.notes).last(3), ElementsAre("gradient 2", "gradient 0", "gradient 1"));
  EXPECT_EQ(Gradients(*model), want);
  hooks.fail_at = "gradient 0";
  EXPECT_FALSE(model->Train(batch, hooks).ok());
  EXPECT_EQ(hooks.notes.back(), "gradient 0");
  hooks.fail_at = "gradient 1";
  EXPECT_FALSE(model->Train(batch, hooks).ok());
}

// Lets the first layer's weights come in parts while it computes, and its bias with the last of them.
class ComingWeights : public StepHooks, public ArrivingRows {
 public:
  // `rows`: which come, in order. All others come at the end.
  ComingWeights(Model* model, std::vector<Range> rows) : model_(*model), rows_(std::move(rows)) {
    for (size_t i = 0; i < 2; ++i) {
      const absl::Span<float> host = model_.HostParameter(i);
      values_.emplace_back(host.begin(), host.end());
      std::fill(host.begin(), host.end(), NAN);
    }
  }

  ArrivingRows* ArrivingBeforeForward(size_t group) override { return group == 0 ? this : nullptr; }
  absl::Status BeforeForward(size_t group) override {
    all_before_hook_ = all_before_hook_ || (group == 0 && over_);
    return group == 0 ? error : absl::OkStatus();
  }
  absl::Status AfterForward(const BatchResult&) override { return absl::OkStatus(); }
  absl::Status GradientReady(size_t) override { return absl::OkStatus(); }

  std::optional<Range> Next() override {
    if (next_ < rows_.size()) {
      const Range rows = rows_[next_++];
      const int64_t columns = model_.parameters()[0].shape[1];
      const absl::Span<float> host = model_.HostParameter(0);
      std::copy(values_[0].begin() + rows.begin * columns, values_[0].begin() + rows.end * columns,
                host.begin() + rows.begin * columns);
      return rows;
    }
    for (size_t i = 0; i < 2; ++i) std::copy(values_[i].begin(), values_[i].end(), model_.HostParameter(i).begin());
    over_ = true;
    return std::nullopt;
  }

  // True if BeforeForward was called once all had come.
  bool all_before_hook() const { return all_before_hook_; }

  // To be returned by BeforeForward.
  absl::Status error;

 private:
  Model& model_;
  const std::vector<Range> rows_;
  std::vector<std::vector<float>> values_;
  size_t next_ = 0;
  bool over_ = false;
  bool all_before_hook_ = false;
};

TEST_F(ModelTest, ALayerComputesWithTheRowsOfItsWeightsThatHaveCome) {
  constexpr char kLarge[] =
      "layers { dense { units: 300 } } layers { relu {} } layers { dense { units: 1 } } loss { mean_squared_error {} }";
  constexpr int64_t kFeatures = 500;
  // For the smaller batch the device has no product that could begin early.
  for (const int64_t examples : {16, 4}) {
    const std::vector<float> features = Random(kFeatures * examples, 1), labels = Random(examples, 1);
    const BatchView batch{features, labels, examples};
    const std::unique_ptr<Model> model = *Create(kLarge, kFeatures);
    SetParameters(*model);
    ASSERT_TRUE(TrainOnce(*model, batch).ok());
    const std::vector<float> want = Gradients(*model);
    for (const std::vector<ArrivingRows::Range>& rows :
         {std::vector<ArrivingRows::Range>(), {{200, 290}, {3, 200}}, {{0, 300}}}) {
      const std::unique_ptr<Model> waiting = *Create(kLarge, kFeatures);
      SetParameters(*waiting);
      ComingWeights coming(waiting.get(), rows);
      const absl::StatusOr<BatchResult> result = waiting->Train(batch, coming);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(coming.all_before_hook());
      EXPECT_EQ(Gradients(*waiting), want);
    }
    SetParameters(*model);
    ComingWeights failing(model.get(), {{0, 7}});
    failing.error = absl::UnavailableError("shard 1 is away");
    EXPECT_EQ(model->Train(batch, failing).status(), failing.error);
  }
}

TEST_F(ModelTest, AHooksErrorEndsTheStepAndIsReturned) {
  const std::unique_ptr<Model> model = CreateRandom(kClassifier, 4, 1.0f);
  for (const char* const place : {"forward 1", "loss of 1", "gradient 1"}) {
    Recorder hooks;
    hooks.fail_at = place;
    const absl::Status status = model->Train({{1, 2, 3, 4}, {1}, 1}, hooks).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(hooks.notes.back(), place);
  }
}

TEST_F(ModelTest, ParametersSetInBeforeForwardAreTheOnesComputedWith) {
  const auto model = *Create("layers { dense { units: 1 no_bias: true } } loss { mean_squared_error {} }", 1);
  struct SetsThree : NoHooks {
    absl::Status BeforeForward(size_t) override { return model->SetParameter(0, {3}); }
    Model* model = nullptr;
  } hooks;
  hooks.model = model.get();
  EXPECT_EQ(model->Train({{1}, {0}, 1}, hooks)->loss_sum, 9.0);
}

TEST_F(ModelTest, HostMemoryIsTheModelsOwn) {
  const auto model = *Create("layers { dense { units: 1 no_bias: true } } loss { mean_squared_error {} }", 1);
  model->HostParameter(0)[0] = 3;
  EXPECT_EQ(TrainOnce(*model, {{1}, {0}, 1})->loss_sum, 9.0);
  EXPECT_THAT(model->HostGradient(0), ElementsAre(6.0f));
}

TEST_F(ModelTest, GivesBackTheParametersThatWereSet) {
  const std::unique_ptr<Model> model = *Create("layers { dense { units: 2 } } loss { softmax_cross_entropy {} }", 2);
  ASSERT_TRUE(model->SetParameter(0, {1, 2, 3, 4}).ok());
  std::vector<float> values(4);
  ASSERT_TRUE(model->GetParameter(0, absl::MakeSpan(values)).ok());
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(model->GetParameter(1, absl::MakeSpan(values)).message(),
            "value of \"dense1/bias\": got 4 elements, want 2");
}

TEST_F(ModelTest, ShorterLastBatchIsComputedByItself) {
  const std::unique_ptr<Model> model = CreateRandom(kClassifier, 4, 1.0f);
  const std::vector<float> features = Random(8 * 4, 1.0f);
  const std::vector<float> one_label = {1};
  const absl::Span<const float> one_example(features.data(), 4);
  ASSERT_TRUE(TrainOnce(*model, {one_example, one_label, 1}).ok());
  const std::vector<float> want = Gradient(*model, 0);
  ASSERT_TRUE(TrainOnce(*model, {features, {1, 0, 1, 0, 1, 0, 1, 0}, 8}).ok());
  ASSERT_NE(Gradient(*model, 0), want);
  ASSERT_TRUE(TrainOnce(*model, {one_example, one_label, 1}).ok());
  EXPECT_EQ(Gradient(*model, 0), want);
}

TEST_F(ModelTest, NoExamplesGiveZeroLossAndZeroGradients) {
  const std::unique_ptr<Model> model = CreateRandom(kClassifier, 4, 1.0f);
  Recorder hooks;
  ASSERT_TRUE(model->Train({{1, 2, 3, 4}, {1}, 1}, hooks).ok());
  hooks.notes.clear();
  const absl::StatusOr<BatchResult> result = model->Train({{}, {}, 0}, hooks);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->loss_sum, 0.0);
  EXPECT_EQ(result->examples, 0);
  EXPECT_EQ(hooks.notes.size(), 5);
  for (size_t i = 0; i < 3; ++i) EXPECT_THAT(Gradient(*model, i), Each(0.0f));
}

TEST_F(ModelTest, EvaluateCountsCorrectExamples) {
  const std::unique_ptr<Model> model = *Create("layers { dense { units: 2 } } loss { softmax_cross_entropy {} }", 2);
  ASSERT_TRUE(model->SetParameter(0, {1, 0, 0, 1}).ok());
  const absl::StatusOr<BatchResult> result = model->Evaluate({{9, 1, 1, 9, 9, 1}, {0, 1, 1}, 3});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->correct, 2);
  EXPECT_EQ(result->examples, 3);
  EXPECT_TRUE(model->classifies());
}

TEST_F(ModelTest, NotFiniteLossReachesTheCallerBeforeAnyGradient) {
  const std::unique_ptr<Model> model = CreateRandom(kClassifier, 4, 1.0f);
  struct Refuses : Recorder {
    absl::Status AfterForward(const BatchResult& result) override {
      return std::isfinite(result.loss_sum) ? absl::OkStatus() : absl::AbortedError("not finite");
    }
  } hooks;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(model->Train({{1, 2, 3, nan}, {1}, 1}, hooks).status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(hooks.notes, ElementsAre("forward 0", "forward 1"));
}

TEST_F(ModelTest, LabelThatIsNoClassIsRefusedWithItsValueAndPlace) {
  const std::unique_ptr<Model> model = *Create(kClassifier, 1);
  Recorder hooks;
  EXPECT_EQ(Message(model->Train({{1, 2}, {0, 2}, 2}, hooks).status()),
            "example 1 of the batch: its label is 2, want a whole number from 0 to 1, for layer "
            "\"head\" has 2 outputs");
  EXPECT_THAT(hooks.notes, ElementsAre());
  EXPECT_THAT(Message(model->Evaluate({{1}, {-1}, 1}).status()), HasSubstr("its label is -1"));
  EXPECT_THAT(Message(model->Evaluate({{1}, {0.5}, 1}).status()), HasSubstr("its label is 0.5"));
  EXPECT_THAT(Message(model->Evaluate({{1}, {NAN}, 1}).status()), HasSubstr("its label is nan"));
}

TEST_F(ModelTest, LabelThatIsNotFiniteIsRefusedForARegression) {
  const std::unique_ptr<Model> model = *Create("layers { dense { units: 1 } } loss { mean_squared_error {} }", 1);
  EXPECT_EQ(Message(model->Evaluate({{1}, {INFINITY}, 1}).status()),
            "example 0 of the batch: its label is inf, want a finite number");
}

TEST_F(ModelTest, BatchOfWrongSizeIsRefused) {
  const std::unique_ptr<Model> model = *Create(kClassifier, 2);
  EXPECT_EQ(Message(model->Evaluate({{1, 2, 3}, {0, 1}, 2}).status()), "batch of 2 examples: got 3 features, want 4");
  EXPECT_EQ(Message(model->Evaluate({{1, 2}, {0, 1}, 1}).status()), "batch of 1 examples: got 2 labels, want 1");
  EXPECT_EQ(Message(model->Evaluate({{}, {}, 65}).status()), "batch: got 65 examples, want 0 to 64");
  EXPECT_EQ(Message(model->Evaluate({{}, {}, -1}).status()), "batch: got -1 examples, want 0 to 64");
}

TEST_F(ModelTest, ValuesOfWrongSizeAreRefused) {
  const std::unique_ptr<Model> model = *Create(kClassifier, 4);
  EXPECT_EQ(Message(model->SetParameter(1, {1, 2})), "value of \"dense1/bias\": got 2 elements, want 3");
  std::vector<float> four(4);
  EXPECT_EQ(Message(model->GetGradient(1, absl::MakeSpan(four))),
            "gradient of \"dense1/bias\": got 4 elements, want 3");
}

TEST_F(ModelTest, BatchSizeOutOfRangeIsRefused) {
  EXPECT_EQ(Message(Model::Create({}, 4, 1, 0, &device()).status()), "model: got a batch of 0, want 1 to 1048576");
}

TEST_F(ModelTest, ModelThatDoesNotFitTheDeviceIsRefusedWithItsDescription) {
  v1::Model config;
  for (int i = 0; i < 3; ++i) config.add_layers()->mutable_dense()->set_units(1048576);
  config.mutable_loss()->mutable_softmax_cross_entropy();
  const absl::Status status = Model::Create(config, int64_t{1} << 20, 1, 1048576, &device()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("-> dense 1048576 -> softmax"));
}

constexpr char kDropout[] =
    "layers { dense { units: 256 no_bias: true } } layers { dropout { rate: 0.25 } } "
    "layers { dense { units: 1 no_bias: true } } loss { mean_squared_error {} }";

// With the input and all weights 1, the last layer's gradient is a multiple of 256 ones after dropout.
TEST_F(ModelTest, DropoutZeroesItsShareInTrainingAndNothingInEvaluation) {
  const std::unique_ptr<Model> model = *Create(kDropout, 1);
  ASSERT_TRUE(model->SetParameter(0, std::vector<float>(256, 1.0f)).ok());
  ASSERT_TRUE(model->SetParameter(1, std::vector<float>(256, 1.0f)).ok());
  ASSERT_TRUE(TrainOnce(*model, {{1}, {0}, 1}).ok());
  const std::vector<float> gradient = Gradient(*model, 1);
  // A binomial with n = 256 and p = 1/4 has mean 64; the limit is five standard deviations.
  EXPECT_NEAR(std::count(gradient.begin(), gradient.end(), 0.0f), 64, 35);
  EXPECT_EQ(model->Evaluate({{1}, {0}, 1})->loss_sum, 65536.0);
}

TEST_F(ModelTest, DropoutRepeatsForItsStepAndSeedAndDiffersForOthers) {
  const std::unique_ptr<Model> model = CreateRandom(kDropout, 1, 1.0f);
  const auto gradient = [&](uint64_t step, uint64_t seed) {
    EXPECT_TRUE(TrainOnce(*model, {{1}, {0}, 1, step, seed}).ok());
    return Gradient(*model, 0);
  };
  const std::vector<float> first = gradient(3, 5);
  EXPECT_NE(gradient(4, 5), first);
  EXPECT_NE(gradient(3, 6), first);
  EXPECT_EQ(gradient(3, 5), first);
}

// x is 1 and 3: mean 2, variance 1 (2 unbiased). The running statistics move halfway: mean 0 to 1, variance 1 to 1.5.
TEST_F(ModelTest, BatchNormTrainsOnTheBatchAndEvaluatesOnRunningStatistics) {
  const auto model =
      *Create("layers { batch_norm { epsilon: 1e-12 momentum: 0.5 } } loss { mean_squared_error {} }", 1);
  ASSERT_EQ(model->parameters().size(), 2);
  EXPECT_EQ(model->parameters()[0].name, "batch_norm1/scale");
  EXPECT_EQ(model->parameters()[0].initializer.constant().value(), 1.0f);
  EXPECT_EQ(model->parameters()[1].name, "batch_norm1/offset");
  ASSERT_TRUE(model->SetParameter(0, {1}).ok());
  // Before any training: mean 0, variance 1.
  EXPECT_NEAR(model->Evaluate({{3}, {0}, 1})->loss_sum, 9.0, 1e-5);
  EXPECT_NEAR(TrainOnce(*model, {{1, 3}, {0, 0}, 2})->loss_sum, 2.0, 1e-5);
  EXPECT_NEAR(model->Evaluate({{4}, {0}, 1})->loss_sum, 9.0 / 1.5, 1e-5);
  // Neither an evaluation nor a batch without examples changes the running statistics.
  ASSERT_TRUE(TrainOnce(*model, {{}, {}, 0}).ok());
  EXPECT_THAT(Gradient(*model, 0), ElementsAre(0.0f));
  EXPECT_NEAR(model->Evaluate({{4}, {0}, 1})->loss_sum, 9.0 / 1.5, 1e-5);
}

TEST_F(ModelTest, FiltersAreNamedShapedAndInitialized) {
  const std::unique_ptr<Model> model = *Create(
      "input { height: 4 width: 5 channels: 3 } layers { conv2d { filters: 2 kernel: [3, 2] } } "
      "layers { dense { units: 2 } } loss { softmax_cross_entropy {} }",
      60);
  EXPECT_EQ(model->parameters()[0].name, "conv2d1/weight");
  EXPECT_THAT(model->parameters()[0].shape, ElementsAre(2, 3, 2, 3));
  EXPECT_EQ(model->parameters()[0].elements, 36);
  EXPECT_TRUE(model->parameters()[0].initializer.has_he_normal());
  EXPECT_EQ(model->parameters()[1].name, "conv2d1/bias");
  EXPECT_TRUE(model->parameters()[1].initializer.has_zeros());
  EXPECT_EQ(model->parameters()[2].elements, 2 * 2 * 4 * 2);
}

// Each layer inside has its own push-pull, so that the push-pull can run while other layers compute.
TEST_F(ModelTest, LayersInsideOfAResidualAreGroupsOfTheirOwn) {
  const std::unique_ptr<Model> model = CreateRandom(
      "layers { residual { layers { dense { units: 3 } } layers { dense { units: 3 } } } } "
      "loss { softmax_cross_entropy {} }",
      4, 1.0f);
  Recorder hooks;
  ASSERT_TRUE(model->Train({{1, 2, 3, 4}, {1}, 1}, hooks).ok());
  EXPECT_THAT(hooks.notes, ElementsAre("forward 0", "forward 1", "forward 2", "loss of 1", "gradient 2", "gradient 1",
                                       "gradient 0"));
}

}  // namespace
}  // namespace ballast
