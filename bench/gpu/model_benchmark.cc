// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "bench/gpu/gpu_timing.h"
#include "common/job/job_file.h"
#include "common/program/env_flags.h"
#include "common/program/this_process.h"
#include "worker/model/model.h"

ABSL_FLAG(std::string, job, "", "The job file whose model is timed; the model must declare its input. Required.");
ABSL_FLAG(std::string, device, "cuda", "Device: cuda or cpu.");
ABSL_FLAG(std::string, precision, "bf16", "Precision: fp32, tf32, bf16 or fp16; the CPU supports only fp32.");
ABSL_FLAG(int, batch, 1024, "Examples in a batch.");
ABSL_FLAG(int, warm_up, 20, "Batches before the measurement.");
ABSL_FLAG(int, batches, 200, "Measured batches.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "model_benchmark: times the gradients of a job's model as a worker computes them (batch upload, forward, loss,\n"
    "backward), without servers. Prints one JSON object. torch_cnn.py does the same with PyTorch.\n\n"
    "  model_benchmark --job examples/fashion_mnist_cnn.textproto";

// Without servers, weights do not change and gradients are not used.
class NoExchange : public StepHooks {
 public:
  absl::Status BeforeForward(size_t) override { return absl::OkStatus(); }
  absl::Status AfterForward(const BatchResult&) override { return absl::OkStatus(); }
  absl::Status GradientReady(size_t) override { return absl::OkStatus(); }
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
  for (const auto* flag : {&FLAGS_batch, &FLAGS_warm_up, &FLAGS_batches}) {
    if (const int got = absl::GetFlag(*flag); got < 1 || got > 1 << 20) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag->Name(), ": got ", got, ", want 1 to 1048576"));
    }
  }
  const std::string name = absl::GetFlag(FLAGS_precision);
  const std::optional<Precision> precision = PrecisionNamed(name.c_str());
  if (!precision.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--precision: got \"", name, "\", want fp32, tf32, bf16 or fp16"));
  }
  const absl::StatusOr<v1::Job> job = LoadJob(absl::GetFlag(FLAGS_job));
  if (!job.ok()) return job.status();
  const v1::Image& input = job->model().input();
  const int64_t features = int64_t{input.height()} * input.width() * std::max<int64_t>(input.channels(), 1);
  if (features == 0) return absl::InvalidArgumentError("--job: the model declares no input, want one with an input");

  absl::StatusOr<std::unique_ptr<Device>> device = OpenDeviceFor(absl::GetFlag(FLAGS_device), *precision);
  if (!device.ok()) return device.status();
  const int64_t examples = absl::GetFlag(FLAGS_batch);
  const int64_t free = (*device)->Memory().free;
  absl::StatusOr<std::unique_ptr<Model>> model =
      Model::Create(job->model(), features, job->seed(), examples, device->get());
  if (!model.ok()) return model.status();
  if (absl::Status status = SetRandomWeights(**model); !status.ok()) return status;

  std::mt19937 random(2);
  std::vector<float> x(examples * features), labels(examples);
  for (float& value : x) value = std::uniform_real_distribution<float>(-1, 1)(random);
  for (int64_t i = 0; i < examples; ++i) labels[i] = static_cast<float>(i % 10);
  NoExchange hooks;
  uint64_t step = 0;
  const auto train = [&] {
    return (*model)->Train({.features = x, .labels = labels, .examples = examples, .step = ++step}, hooks).status();
  };
  const auto wait = [&] { return (*device)->Synchronize(); };
  const absl::StatusOr<double> step_ms =
      MillisecondsPerCall(absl::GetFlag(FLAGS_warm_up), absl::GetFlag(FLAGS_batches), train, wait);
  if (!step_ms.ok()) return step_ms.status();
  std::printf(
      "{\"what\": \"model\", \"with\": \"ballast\", \"job\": \"%s\", \"precision\": \"%s\", \"batch\": %lld, "
      "\"gradient_ms\": %.4f, \"samples_per_second\": %.0f, \"memory_bytes\": %lld, \"device\": \"%s\"}\n",
      job->name().c_str(), name.c_str(), static_cast<long long>(examples), *step_ms, examples / *step_ms * 1000,
      static_cast<long long>(free - (*device)->Memory().free + (*device)->Memory().workspace),
      (*device)->Describe().c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  // The same setup as in a worker.
  KeepFreedMemory();
  SkipLockOrderChecks();
  absl::Status status = ParseFlags(argc, argv, kUsage, {"job", "device", "precision", "batch", "warm_up", "batches"});
  if (status.ok()) status = Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) { return ballast::Main(argc, argv); }
