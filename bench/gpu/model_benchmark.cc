// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/gpu/gpu_timing.h"
#include "common/job/job_file.h"
#include "common/program/env_flags.h"
#include "common/program/this_process.h"
#include "worker/model/model.h"

ABSL_FLAG(std::string, job, "", "The job file whose model is timed; the model must declare its input. Required.");
ABSL_FLAG(std::string, device, "cuda", "Device: cuda or cpu.");
ABSL_FLAG(std::string, precision, "bf16", "Precision: fp32, tf32, bf16 or fp16; the CPU supports only fp32.");
ABSL_FLAG(int, batch, 1024, "Examples in a batch.");
ABSL_FLAG(double, seconds, 0.5, "Time of a round before the measurement, and about that of the measurement.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "model_benchmark: times the training steps of a job's model as a worker computes them (batch upload, forward, "
    "loss,\n"
    "backward), without servers: the weights change on the device, by SGD. Prints a JSON object, and another one for\n"
    "each line of standard input, when it measures. torch_cnn.py does the same with PyTorch.\n\n"
    "  echo | model_benchmark --job examples/fashion_mnist_cnn.textproto";

// So small that the weights stay what they are, as far as the time of a step is concerned.
constexpr float kLearningRate = 1e-6f;

// Writes a group's weights once its gradients are computed.
class Descent : public StepHooks {
 public:
  explicit Descent(Model* model) : model_(*model) {}

  absl::Status BeforeForward(size_t) override { return absl::OkStatus(); }
  absl::Status AfterForward(const BatchResult&) override { return absl::OkStatus(); }
  absl::Status GradientReady(size_t group) override {
    const ParameterGroup& own = model_.parameter_groups()[group];
    for (size_t i = own.first; i < own.first + own.count; ++i) {
      const DeviceTensor gradient = model_.DeviceGradient(i);
      gradient.on.device->Axpy(-kLearningRate, gradient.elements, model_.DeviceParameter(i)->elements);
    }
    return absl::OkStatus();
  }

 private:
  Model& model_;
};

absl::Status SetRandomWeights(Model& model) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-0.05f, 0.05f);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    std::vector<float> values(model.parameters()[i].elements);
    for (float& value : values) value = uniform(random);
    if (absl::Status status = model.SetParameter(i, values); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Run() {
  if (absl::GetFlag(FLAGS_job).empty()) return absl::InvalidArgumentError("--job is required; see --help");
  const int64_t examples = absl::GetFlag(FLAGS_batch);
  if (examples < 1 || examples > 1 << 20) {
    return absl::InvalidArgumentError(absl::StrCat("--batch: got ", examples, ", want 1 to 1048576"));
  }
  const std::string name = absl::GetFlag(FLAGS_precision);
  const absl::StatusOr<Precision> precision = PrecisionNamed(name);
  if (!precision.ok()) return precision.status();
  const absl::StatusOr<v1::Job> job = LoadJob(absl::GetFlag(FLAGS_job));
  if (!job.ok()) return job.status();
  const v1::Image& input = job->model().input();
  const int64_t features = int64_t{input.height()} * input.width() * std::max<int64_t>(input.channels(), 1);
  if (features == 0) return absl::InvalidArgumentError("--job: the model declares no input, want one with an input");

  absl::StatusOr<std::unique_ptr<Device>> device = OpenDeviceFor(absl::GetFlag(FLAGS_device), *precision);
  if (!device.ok()) return device.status();
  absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create(job->model(), features, job->seed(), examples, device->get());
  if (!model.ok()) return model.status();
  if (absl::Status status = SetRandomWeights(**model); !status.ok()) return status;

  std::mt19937 random(2);
  std::vector<float> x(examples * features), labels(examples);
  for (float& value : x) value = std::uniform_real_distribution<float>(-1, 1)(random);
  for (int64_t i = 0; i < examples; ++i) labels[i] = static_cast<float>(i % 10);
  Descent hooks(model->get());
  uint64_t step = 0;
  const auto train = [&] {
    return (*model)->Train({.features = x, .labels = labels, .examples = examples, .step = ++step}, hooks).status();
  };
  const auto wait = [&] { return (*device)->Synchronize(); };
  // The first steps choose algorithms and make graphs.
  for (int i = 0; i < 5; ++i) {
    if (absl::Status status = train(); !status.ok()) return status;
  }
  if (absl::Status status = wait(); !status.ok()) return status;
  std::cout << absl::StrFormat(
                   "{\"what\": \"model\", \"with\": \"ballast\", \"job\": \"%s\", \"precision\": \"%s\", "
                   "\"batch\": %d, \"memory_bytes\": %d, \"device\": \"%s\"}",
                   job->name(), name, examples, (*device)->PeakBytes(), (*device)->Describe())
            << std::endl;
  return MeasureRounds([&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<double> step_ms = MillisecondsPerCall(absl::GetFlag(FLAGS_seconds), train, wait);
    if (!step_ms.ok()) return step_ms.status();
    return absl::StrFormat("{\"step_ms\": %.4f}", *step_ms);
  });
}

int Main(int argc, char** argv) {
  // The same setup as in a worker.
  KeepFreedMemory();
  SkipLockOrderChecks();
  absl::Status status = ParseFlags(argc, argv, kUsage, {"job", "device", "precision", "batch", "seconds"});
  if (status.ok()) status = Run();
  if (status.ok()) return 0;
  std::cerr << "error: " << status.message() << std::endl;
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) { return ballast::Main(argc, argv); }
