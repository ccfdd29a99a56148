// SPDX-License-Identifier: Apache-2.0
#include "worker/model/testing/gradient_check.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/model/model.h"

namespace ballast {
namespace {

constexpr int64_t kExamples = 8;
// Balances the error of the difference's formula with the rounding of the loss, which is divided by it.
constexpr float kStep = 1e-2f;
constexpr double kTolerance = 1e-2;
constexpr double kSmall = 1e-3;

class NoHooks : public StepHooks {
 public:
  absl::Status BeforeForward(size_t) override { return absl::OkStatus(); }
  absl::Status AfterForward(const BatchResult&) override { return absl::OkStatus(); }
  absl::Status GradientReady(size_t) override { return absl::OkStatus(); }
};

class GradientCheck {
 public:
  GradientCheck(Model* model, int64_t features) : model_(*model), features_(Random(kExamples * features)) {
    // Both losses accept these labels: classes, or numbers.
    for (int64_t i = 0; i < kExamples; ++i) labels_.push_back(static_cast<float>(i % 2));
  }

  absl::Status Run() {
    for (size_t p = 0; p < model_.parameters().size(); ++p) {
      values_.push_back(Random(model_.parameters()[p].elements));
      if (absl::Status status = model_.SetParameter(p, values_[p]); !status.ok()) return status;
    }
    if (absl::Status status = MeanLoss().status(); !status.ok()) return status;
    std::vector<std::vector<float>> gradients;
    for (const Parameter& parameter : model_.parameters()) {
      std::vector<float>& gradient = gradients.emplace_back(parameter.elements);
      absl::Status status = model_.GetGradient(gradients.size() - 1, absl::MakeSpan(gradient));
      if (!status.ok()) return status;
    }
    for (size_t p = 0; p < gradients.size(); ++p) {
      if (absl::Status status = Compare(p, gradients[p]); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  std::vector<float> Random(int64_t n) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(n);
    for (float& value : values) value = uniform(generator_);
    return values;
  }

  // Computes the gradients too: only the training pass gives every layer the state that it has in training.
  absl::StatusOr<double> MeanLoss() {
    NoHooks hooks;
    const absl::StatusOr<BatchResult> result = model_.Train({features_, labels_, kExamples}, hooks);
    if (!result.ok()) return result.status();
    return result->loss_sum / kExamples;
  }

  absl::StatusOr<double> MeanLossAt(size_t p, size_t i, float value) {
    std::vector<float> moved = values_[p];
    moved[i] = value;
    if (absl::Status status = model_.SetParameter(p, moved); !status.ok()) return status;
    absl::StatusOr<double> loss = MeanLoss();
    if (absl::Status status = model_.SetParameter(p, values_[p]); !status.ok()) return status;
    return loss;
  }

  absl::Status Compare(size_t p, const std::vector<float>& gradient) {
    const std::string& name = model_.parameters()[p].name;
    double largest = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const absl::StatusOr<double> above = MeanLossAt(p, i, values_[p][i] + kStep);
      const absl::StatusOr<double> below = MeanLossAt(p, i, values_[p][i] - kStep);
      if (!above.ok() || !below.ok()) return above.ok() ? below.status() : above.status();
      const double want = (*above - *below) / (2 * kStep);
      largest = std::max(largest, std::abs(want));
      // This form also catches NaN.
      if (std::abs(gradient[i] - want) <= kTolerance * std::max(1.0, std::abs(want))) continue;
      return absl::FailedPreconditionError(absl::StrCat("gradient of \"", name, "\", element ", i, ": got ",
                                                        gradient[i], ", want ", want, ", the loss's difference"));
    }
    if (largest > kSmall) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("gradient of \"", name, "\": got at most ", largest, ", want more than ", kSmall, " somewhere"));
  }

  Model& model_;
  std::mt19937 generator_{20240607};
  const std::vector<float> features_;
  std::vector<float> labels_;
  std::vector<std::vector<float>> values_;
};

}  // namespace

absl::Status CheckGradients(const std::string& model, int64_t features) {
  v1::Model config;
  if (!google::protobuf::TextFormat::ParseFromString(model, &config)) {
    return absl::InvalidArgumentError(absl::StrCat("got \"", model, "\", want the text of a ballast.v1.Model"));
  }
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  absl::StatusOr<std::unique_ptr<Model>> made = Model::Create(config, features, 1, kExamples, device.get());
  if (!made.ok()) return made.status();
  return GradientCheck(made->get(), features).Run();
}

}  // namespace ballast
