// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/model/model.h"

namespace ballast {

// Hooks that do nothing.
class NoHooks : public StepHooks {
 public:
  absl::Status BeforeForward(size_t) override { return absl::OkStatus(); }
  absl::Status AfterForward(const BatchResult&) override { return absl::OkStatus(); }
  absl::Status GradientReady(size_t) override { return absl::OkStatus(); }
};

inline absl::StatusOr<BatchResult> TrainOnce(TrainableModel& model, const BatchView& batch) {
  NoHooks hooks;
  return model.Train(batch, hooks);
}

inline v1::Model ParseModel(const std::string& text) {
  v1::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

// Sets all parameters to values that depend only on their shapes.
inline void SetParameters(TrainableModel& model) {
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    std::vector<float> values(model.parameters()[i].elements);
    for (size_t j = 0; j < values.size(); ++j) values[j] = 0.3f * std::sin(1.0f + i + 7 * j);
    EXPECT_TRUE(model.SetParameter(i, values).ok());
  }
}

inline std::vector<float> Gradient(TrainableModel& model, size_t index) {
  std::vector<float> values(model.parameters()[index].elements);
  EXPECT_TRUE(model.GetGradient(index, absl::MakeSpan(values)).ok());
  return values;
}

// Returns the gradients of all parameters, one after the other.
inline std::vector<float> Gradients(TrainableModel& model) {
  std::vector<float> all;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const std::vector<float> gradient = Gradient(model, i);
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  return all;
}

// Creates models on the CPU device from the text of a ballast.v1.Model.
class ModelFixture : public ::testing::Test {
 protected:
  static constexpr int64_t kMaxBatch = 64;

  absl::StatusOr<std::unique_ptr<Model>> Create(const std::string& text, int64_t features) {
    return Model::Create(ParseModel(text), features, 1, kMaxBatch, device_.get());
  }

  // Creates a model with parameters uniform in [-spread, spread].
  std::unique_ptr<Model> CreateRandom(const std::string& text, int64_t features, float spread) {
    absl::StatusOr<std::unique_ptr<Model>> model = Create(text, features);
    if (!model.ok()) {
      ADD_FAILURE() << model.status();
      return nullptr;
    }
    for (size_t i = 0; i < (*model)->parameters().size(); ++i) {
      const std::vector<float> values = Random((*model)->parameters()[i].elements, spread);
      EXPECT_TRUE((*model)->SetParameter(i, values).ok());
    }
    return *std::move(model);
  }

  std::vector<float> Random(int64_t n, float spread) {
    std::uniform_real_distribution<float> uniform(-spread, spread);
    std::vector<float> values(n);
    for (float& value : values) value = uniform(generator_);
    return values;
  }

  Device& device() { return *device_; }

 private:
  const std::unique_ptr<Device> device_ = CreateCpuDevice(1);
  std::mt19937 generator_{20240607};
};

}  // namespace ballast
