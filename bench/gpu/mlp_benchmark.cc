// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/gpu/gpu_timing.h"
#include "common/program/env_flags.h"

ABSL_FLAG(std::string, device, "cuda", "Device: cuda or cpu.");
ABSL_FLAG(std::string, precision, "bf16", "Precision: fp32, tf32, bf16 or fp16; the CPU computes in fp32.");
ABSL_FLAG(int64_t, width, 4096, "Width of each layer, and examples in a batch.");
ABSL_FLAG(double, seconds, 0.5, "Time of a round before the measurement, and about that of the measurement.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "mlp_benchmark: times the training steps of a perceptron of four dense layers and one of its products alone. "
    "Prints a\n"
    "JSON object, and another one for each line of standard input, when it measures. torch_mlp.py does the same with\n"
    "PyTorch.\n\n"
    "  echo | mlp_benchmark --precision bf16";

constexpr int kLayers = 4;
// So small that the weights stay what they are, as far as the time of a step is concerned.
constexpr float kLearningRate = 1e-6f;

double ProductFlops(double width) { return 2 * width * width * width; }
// Three products per layer, except that the first layer has no input gradient.
double StepFlops(double width) { return (3 * kLayers - 1) * ProductFlops(width); }

struct DenseLayer {
  std::unique_ptr<Buffer> weight, weight_gradient, bias, bias_gradient, output;
};

// Runs forward, loss and backward like a model, with ReLU between the layers, and writes the weights after each step,
// so that each step makes its 16-bit copies of them.
class Mlp {
 public:
  Mlp(Device* device, int64_t width) : device_(*device), width_(width) {}

  absl::Status Allocate() {
    for (std::unique_ptr<Buffer>* buffer : {&input_, &gradient_[0], &gradient_[1]}) {
      if (absl::Status status = MakeActivations(1.0f, buffer); !status.ok()) return status;
    }
    for (std::unique_ptr<Buffer>* buffer : {&labels_, &totals_}) {
      if (absl::Status status = Make(width_, 0.0f, buffer); !status.ok()) return status;
    }
    for (DenseLayer& layer : layers_) {
      if (absl::Status status = MakeActivations(0.02f, &layer.output); !status.ok()) return status;
      for (std::unique_ptr<Buffer>* buffer : {&layer.weight, &layer.weight_gradient}) {
        if (absl::Status status = Make(width_ * width_, 0.02f, buffer); !status.ok()) return status;
      }
      for (std::unique_ptr<Buffer>* buffer : {&layer.bias, &layer.bias_gradient}) {
        if (absl::Status status = Make(width_, 0.02f, buffer); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  void Step() {
    device_.Repeat({.key = {1}}, [this] { Issue(); });
  }

  void Product() {
    device_.Multiply({Square(input_)}, {Square(layers_[0].weight), true}, 1.0f, 0.0f, Square(layers_[0].output));
  }

 private:
  void Issue() {
    Matrix x = Square(input_);
    for (int i = 0; i < kLayers; ++i) {
      const Matrix y = Square(layers_[i].output);
      const auto f = i + 1 < kLayers ? std::make_optional(Activation::kRelu) : std::nullopt;
      device_.MultiplyBiasActivate({x}, {Square(layers_[i].weight), true}, *layers_[i].bias, f, y);
      x = y;
    }
    Matrix dy = Square(gradient_[0]), dx = Square(gradient_[1]);
    const LossGradient gradient{dy};
    device_.Loss(LossFunction::kSoftmaxCrossEntropy, x, *labels_, *totals_, &gradient);
    for (int i = kLayers; i-- > 0;) {
      if (i + 1 < kLayers) device_.ActivateBackward(Activation::kRelu, Square(layers_[i].output), dy, dy);
      const Matrix input = i == 0 ? Square(input_) : Square(layers_[i - 1].output);
      device_.Multiply({dy, true}, {input}, 1.0f, 0.0f, Square(layers_[i].weight_gradient));
      device_.SumRows(dy, *layers_[i].bias_gradient);
      if (i == 0) continue;
      device_.Multiply({dy}, {Square(layers_[i].weight)}, 1.0f, 0.0f, dx);
      std::swap(dy, dx);
    }
    for (const DenseLayer& layer : layers_) {
      device_.Axpy(-kLearningRate, Square(layer.weight_gradient), Square(layer.weight));
      device_.Axpy(-kLearningRate, {layer.bias_gradient.get(), 1, width_}, {layer.bias.get(), 1, width_});
    }
  }

  Matrix Square(const std::unique_ptr<Buffer>& buffer) const { return {buffer.get(), width_, width_}; }

  absl::Status Make(int64_t floats, float spread, std::unique_ptr<Buffer>* buffer) {
    return Fill(device_.Allocate(floats), floats, spread, buffer);
  }

  absl::Status MakeActivations(float spread, std::unique_ptr<Buffer>* buffer) {
    return Fill(device_.AllocateActivations(width_ * width_), width_ * width_, spread, buffer);
  }

  // Uses random values, because a GPU draws less power on equal values and is therefore faster.
  absl::Status Fill(absl::StatusOr<std::unique_ptr<Buffer>> made, int64_t elements, float spread,
                    std::unique_ptr<Buffer>* buffer) {
    if (!made.ok()) return made.status();
    *buffer = *std::move(made);
    if (spread == 0.0f) return absl::OkStatus();
    std::vector<float> values(elements);
    std::uniform_real_distribution<float> uniform(-spread, spread);
    for (float& value : values) value = uniform(random_);
    return device_.Upload(values, **buffer, 0);
  }

  Device& device_;
  const int64_t width_;
  std::mt19937 random_{1};
  std::unique_ptr<Buffer> input_, labels_, totals_, gradient_[2];
  DenseLayer layers_[kLayers];
};

absl::Status Run() {
  const int64_t width = absl::GetFlag(FLAGS_width);
  if (width < 1 || width > 1 << 15) {
    return absl::InvalidArgumentError(absl::StrCat("--width: got ", width, ", want 1 to 32768"));
  }
  const std::string name = absl::GetFlag(FLAGS_precision);
  const absl::StatusOr<Precision> precision = PrecisionNamed(name);
  if (!precision.ok()) return precision.status();
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDeviceFor(absl::GetFlag(FLAGS_device), *precision);
  if (!device.ok()) return device.status();
  Mlp mlp(device->get(), width);
  if (absl::Status status = mlp.Allocate(); !status.ok()) return status;
  const auto wait = [&] { return (*device)->Synchronize(); };
  const auto take_step = [&] { return mlp.Step(), absl::OkStatus(); };
  const auto multiply = [&] { return mlp.Product(), absl::OkStatus(); };
  // The first steps choose algorithms and make graphs.
  for (int i = 0; i < 3; ++i) mlp.Step();
  if (absl::Status status = wait(); !status.ok()) return status;
  std::cout << absl::StrFormat(
                   "{\"what\": \"mlp\", \"with\": \"ballast\", \"precision\": \"%s\", \"width\": %d, "
                   "\"step_flops\": %.6g, \"product_flops\": %.6g, \"memory_bytes\": %d, \"device\": \"%s\"}",
                   name, width, StepFlops(width), ProductFlops(width), (*device)->PeakBytes(), (*device)->Describe())
            << std::endl;
  const double seconds = absl::GetFlag(FLAGS_seconds);
  return MeasureRounds([&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<double> step = MillisecondsPerCall(seconds, take_step, wait);
    if (!step.ok()) return step.status();
    const absl::StatusOr<double> product = MillisecondsPerCall(seconds / 4, multiply, wait);
    if (!product.ok()) return product.status();
    return absl::StrFormat("{\"step_ms\": %.4f, \"product_ms\": %.5f}", *step, *product);
  });
}

int Main(int argc, char** argv) {
  absl::Status status = ParseFlags(argc, argv, kUsage, {"device", "precision", "width", "seconds"});
  if (status.ok()) status = Run();
  if (status.ok()) return 0;
  std::cerr << "error: " << status.message() << std::endl;
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) { return ballast::Main(argc, argv); }
