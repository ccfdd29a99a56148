// SPDX-License-Identifier: Apache-2.0
// Tests models on the emulated GPU with passes recorded as CUDA graphs.
#include <gmock/gmock.h>

#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kFeatures = 32;
constexpr int64_t kBatch = 4;

constexpr char kDense[] =
    "layers { dropout { rate: 0.2 } } layers { dense { units: 6 } } layers { relu {} } layers { dropout { rate: 0.4 } "
    "} "
    "layers { dense { units: 5 } } layers { gelu {} } layers { layer_norm {} } layers { dense { units: 4 } }";
constexpr char kConvolutions[] =
    "input { height: 4 width: 4 channels: 2 } "
    "layers { conv2d { filters: 3 kernel: 3 padding: 1 } } layers { batch_norm {} } layers { relu {} } "
    "layers { residual { layers { conv2d { filters: 3 kernel: 3 padding: 1 } } layers { batch_norm {} } "
    "layers { dropout { rate: 0.3 } } layers { tanh {} } } } layers { max_pool { kernel: 2 } } layers { dense { units: "
    "4 } }";

struct Case {
  const char* layers;
  Precision precision;
  bool recompute;
  emulator::Schedule schedule;
};

// Makes an SGD step as soon as each gradient is ready, like a worker that waits for its push, and uploads the values
// between the passes.
class DescendingHooks : public NoHooks {
 public:
  explicit DescendingHooks(Model* model) : model_(*model) {}

  absl::Status GradientReady(size_t group) override {
    const ParameterGroup& own = model_.parameter_groups()[group];
    for (size_t i = own.first; i < own.first + own.count; ++i) {
      std::vector<float> gradient(model_.parameters()[i].elements), value(gradient.size());
      absl::Status status = model_.GetGradient(i, absl::MakeSpan(gradient));
      status.Update(model_.GetParameter(i, absl::MakeSpan(value)));
      for (size_t j = 0; j < value.size(); ++j) value[j] -= 0.1f * gradient[j] / scale;
      status.Update(model_.SetParameter(i, value));
      if (!status.ok()) return status;
      seen.insert(seen.end(), gradient.begin(), gradient.end());
    }
    return absl::OkStatus();
  }

  float scale = 1;
  // All gradients, in the order of GradientReady.
  std::vector<float> seen;

 private:
  Model& model_;
};

// Results of a run, to be compared bit by bit, and its launches.
struct Outcome {
  std::vector<float> values;
  int launches = 0;
  int graph_launches = 0;
};

class ModelGraphsTest : public ::testing::TestWithParam<Case> {
 protected:
  void TearDown() override {
    EXPECT_EQ(emulator::Count().device_bytes, 0);
    EXPECT_EQ(emulator::Count().events, 0);
    EXPECT_EQ(emulator::Count().graphs, 0);
  }

  static std::unique_ptr<Model> Make(const Case& how, Device* device) {
    absl::StatusOr<std::unique_ptr<Model>> model = Model::Create(
        ParseModel(std::string(how.layers) + " loss { softmax_cross_entropy {} }"), {.features = kFeatures,
                                                                                     .seed = 7,
                                                                                     .max_batch = kBatch,
                                                                                     .recompute = how.recompute,
                                                                                     .devices = {{"0", device}}});
    EXPECT_TRUE(model.ok()) << model.status();
    SetParameters(**model);
    return *std::move(model);
  }

  static std::vector<float> Features(uint64_t step, int64_t examples) {
    std::vector<float> features(examples * kFeatures);
    for (size_t i = 0; i < features.size(); ++i) features[i] = std::sin(0.37f * i + step);
    return features;
  }

  // Makes eight steps with a change of the loss scale. Every fourth step has a smaller batch and is followed by
  // evaluations.
  static void Train(Model& model, Outcome& outcome) {
    const std::vector<float> labels = {0, 3, 1, 2};
    DescendingHooks hooks(&model);
    for (uint64_t step = 0; step < 8; ++step) {
      const int64_t examples = step % 4 == 3 ? 3 : kBatch;
      hooks.scale = step < 5 ? 8.0f : 4.0f;
      const absl::StatusOr<BatchResult> result = model.Train({.features = Features(step, examples),
                                                              .labels = absl::MakeConstSpan(labels).first(examples),
                                                              .examples = examples,
                                                              .step = step,
                                                              .seed = 3,
                                                              .loss_scale = hooks.scale},
                                                             hooks);
      ASSERT_TRUE(result.ok()) << result.status();
      outcome.values.push_back(result->loss_sum);
      for (int i = 0; i < 3 && step % 4 == 3; ++i) {
        const auto evaluation =
            model.Evaluate({.features = Features(100 + i, kBatch), .labels = labels, .examples = kBatch});
        ASSERT_TRUE(evaluation.ok()) << evaluation.status();
        outcome.values.push_back(evaluation->loss_sum);
      }
    }
    outcome.values.insert(outcome.values.end(), hooks.seen.begin(), hooks.seen.end());
  }

  static Outcome Run(const Case& how, bool graphs) {
    emulator::Settings settings;
    settings.schedule = how.schedule;
    emulator::Reset(settings);
    CudaOptions options;
    options.graphs = graphs;
    const std::unique_ptr<Device> device = *OpenCudaDevice(options);
    EXPECT_TRUE(device->SetPrecision(how.precision).ok());
    Outcome outcome;
    Train(*Make(how, device.get()), outcome);
    EXPECT_TRUE(device->Synchronize().ok());
    outcome.launches = emulator::Count().launches;
    outcome.graph_launches = emulator::Count().graph_launches;
    return outcome;
  }
};

TEST_P(ModelGraphsTest, GraphsGiveTheSameBitsWithFewerLaunches) {
  const Outcome plain = Run(GetParam(), false), graphs = Run(GetParam(), true);
  EXPECT_EQ(graphs.values, plain.values);
  EXPECT_EQ(plain.graph_launches, 0);
  EXPECT_GT(graphs.graph_launches, 20);
  EXPECT_LT(graphs.launches, plain.launches * 0.7);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelGraphsTest,
                         ::testing::Values(Case{kDense, Precision::kFp32, false, emulator::Schedule::kLate},
                                           Case{kDense, Precision::kBf16, false, emulator::Schedule::kRandom},
                                           Case{kDense, Precision::kFp16, true, emulator::Schedule::kLate},
                                           Case{kConvolutions, Precision::kFp32, true, emulator::Schedule::kRandom},
                                           Case{kConvolutions, Precision::kBf16, false, emulator::Schedule::kLate}));

// Tests errors of CUDA graphs.
class GraphFaultTest : public ModelGraphsTest {
 protected:
  static std::unique_ptr<Device> OpenAfresh(Precision precision) {
    emulator::Reset({});
    std::unique_ptr<Device> device = *OpenCudaDevice({});
    EXPECT_TRUE(device->SetPrecision(precision).ok());
    return device;
  }
};

constexpr Case kPlain = {kDense, Precision::kBf16, false, emulator::Schedule::kLate};

TEST_P(GraphFaultTest, AfterAnErrorOfGraphsAllIsIssuedPlainly) {
  const Outcome want = Run(GetParam(), false);
  for (const char* call :
       {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiateWithFlags", "cudaGraphLaunch"}) {
    SCOPED_TRACE(call);
    const std::unique_ptr<Device> device = OpenAfresh(GetParam().precision);
    emulator::FailCall(call, cudaErrorStreamCaptureUnsupported, 3);
    Outcome got;
    ::testing::internal::CaptureStderr();
    Train(*Make(GetParam(), device.get()), got);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr(std::string("CUDA graphs are disabled after an error: ") + call +
                          ": cudaErrorStreamCaptureUnsupported\n"));
    EXPECT_EQ(got.values, want.values);
  }
}

TEST_P(GraphFaultTest, AKernelThatCannotBeCapturedIsIssuedPlainly) {
  const Outcome want = Run(GetParam(), false);
  const std::unique_ptr<Device> device = OpenAfresh(GetParam().precision);
  Outcome got;
  const std::unique_ptr<Model> model = Make(GetParam(), device.get());
  // Fails the first kernel of the third graph.
  bool failed = false;
  emulator::OnCapture([&](int begun) {
    if (begun == 3) emulator::FailCall("cudaLaunchKernelEx", cudaErrorUnknown, 0), failed = true;
  });
  Train(*model, got);
  emulator::OnCapture(nullptr);
  EXPECT_TRUE(failed);
  EXPECT_EQ(got.values, want.values);
  EXPECT_GT(emulator::Count().graph_launches, 20);
}

TEST_P(GraphFaultTest, AnotherModelInTheSamePlaceGetsItsOwnGraphs) {
  const Outcome want = Run(GetParam(), false);
  const std::unique_ptr<Device> device = OpenAfresh(GetParam().precision);
  for (int i = 0; i < 2; ++i) {
    Outcome got;
    Train(*Make(GetParam(), device.get()), got);
    EXPECT_EQ(got.values, want.values);
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, GraphFaultTest, ::testing::Values(kPlain));

// Issued plainly, captured and launched as a graph.
TEST(ModelTimesTest, TheGpusRowOfATimelineHasEachSegmentOfEachStep) {
  emulator::Reset({});
  TimelineRecorder timeline(StepRange{1, 3});
  {
    const std::unique_ptr<Device> device = *OpenCudaDevice({});
    const auto model = *Model::Create(ParseModel("layers { dense { units: 6 } } layers { relu {} } "
                                                 "layers { dense { units: 4 } } loss { softmax_cross_entropy {} }"),
                                      kFeatures, 1, kBatch, device.get());
    model->Record(&timeline);
    const std::vector<float> features(kBatch * kFeatures, 0.5f), labels = {0, 3, 1, 2};
    for (uint64_t step = 1; step <= 3; ++step) {
      timeline.BeginStep(step);
      ASSERT_TRUE(TrainOnce(*model, {.features = features, .labels = labels, .examples = kBatch, .step = step}).ok());
    }
    EXPECT_GT(emulator::Count().graph_launches, 0);
    model->Record(nullptr);
  }
  const TimelineRecorder::Recording recording = timeline.Copy();
  for (uint64_t step = 1; step <= 3; ++step) {
    std::vector<std::string> names;
    for (const TimelineSpan& span : recording.spans) {
      if (span.row == TimelineRow::kGpu && span.step == step) names.push_back(recording.names[span.name]);
    }
    EXPECT_THAT(names, ElementsAre("forward dense1", "forward dense2", "backward dense2", "backward dense1"));
  }
}

}  // namespace
}  // namespace ballast
