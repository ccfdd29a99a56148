// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "bench/gpu/gpu_timing.h"

// Times the gradient of a perceptron of four dense layers, each 4096 wide, at a batch of 4096, on the first GPU, and
// one of its products alone. Prints one JSON object per line. torch_mlp.py does the same with PyTorch. On the CPU,
// with a smaller width, it serves as a test of itself.
//
//   mlp_benchmark [--device=cuda|cpu] [--width=4096] fp32|tf32|bf16|fp16 ...
namespace ballast {
namespace {

constexpr int kLayers = 4;
constexpr int kWarmUp = 5;
constexpr int kSteps = 30;

struct DenseLayer {
  std::unique_ptr<Buffer> weight, weight_gradient, bias, bias_gradient, output;
};

// Runs forward, loss and backward like a model, with ReLU between the layers.
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
  }

  void Product() {
    device_.Multiply({Square(input_)}, {Square(layers_[0].weight), true}, 1.0f, 0.0f, Square(layers_[0].output));
  }

 private:
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

struct Options {
  std::string device = "cuda";
  int64_t width = 4096;
};

absl::Status Run(const Options& options, const char* name, Precision precision) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDeviceFor(options.device, precision);
  if (!device.ok()) return device.status();
  const DeviceMemory before = (*device)->Memory();
  Mlp mlp(device->get(), options.width);
  if (absl::Status status = mlp.Allocate(); !status.ok()) return status;
  const auto wait = [&] { return (*device)->Synchronize(); };
  const auto take_step = [&] { return mlp.Step(), absl::OkStatus(); };
  const auto multiply = [&] { return mlp.Product(), absl::OkStatus(); };
  const absl::StatusOr<double> step = MillisecondsPerCall(kWarmUp, kSteps, take_step, wait);
  if (!step.ok()) return step.status();
  const absl::StatusOr<double> product = MillisecondsPerCall(kWarmUp, kSteps, multiply, wait);
  if (!product.ok()) return product.status();
  // The pool keeps all memory that it ever held, so this is the peak.
  const int64_t memory = before.free - (*device)->Memory().free + before.workspace;
  // Three products per layer, except that the first layer has no input gradient.
  const double product_flops = 2.0 * options.width * options.width * options.width;
  const double step_flops = product_flops * (3 * kLayers - 1);
  std::printf(
      "{\"what\": \"mlp\", \"with\": \"ballast\", \"precision\": \"%s\", \"width\": %lld, \"step_ms\": %.4f, "
      "\"step_tflops\": %.4g, "
      "\"product_tflops\": %.4g, \"memory_bytes\": %lld, \"device\": \"%s\"}\n",
      name, static_cast<long long>(options.width), *step, step_flops / *step * 1e-9, product_flops / *product * 1e-9,
      static_cast<long long>(memory), (*device)->Describe().c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (absl::StartsWith(word, "--device=")) {
      options.device = std::string(word.substr(strlen("--device=")));
      continue;
    }
    if (absl::StartsWith(word, "--width=")) {
      options.width = std::atoi(argv[i] + strlen("--width="));
      if (options.width >= 1 && options.width <= 1 << 15) continue;
      std::fprintf(stderr, "error: got %s, want a width from 1 to 32768\n", argv[i]);
      return 2;
    }
    const std::optional<Precision> precision = PrecisionNamed(argv[i]);
    if (!precision.has_value()) {
      std::fprintf(stderr, "error: precision: got \"%s\", want fp32, tf32, bf16 or fp16\n", argv[i]);
      return 2;
    }
    if (const absl::Status status = Run(options, argv[i], *precision); !status.ok()) {
      std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) { return ballast::Main(argc, argv); }
