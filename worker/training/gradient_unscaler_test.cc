// SPDX-License-Identifier: Apache-2.0
#include "worker/training/gradient_unscaler.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/device/cpu/cpu_device.h"
#include "worker/device/testing/queued_device.h"
#include "worker/model/model.h"

namespace ballast {
namespace {

// A model with one weight on each of two devices.
class GradientUnscalerTest : public ::testing::Test {
 protected:
  GradientUnscalerTest() {
    v1::Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"pb(
          layers {
            dense { units: 1 no_bias: true }
            device: "cpu"
          }
          layers {
            dense { units: 1 no_bias: true }
            device: "0"
          }
          loss { mean_squared_error {} }
        )pb",
        &config));
    model_ =
        Model::Create(config, {.features = 1, .max_batch = 1, .devices = {{"cpu", cpu_.get()}, {"0", queued_.get()}}})
            .value();
  }

  void SetGradient(size_t index, float value) {
    const DeviceTensor gradient = model_->DeviceGradient(index);
    gradient.on.device->Fill(value, gradient.elements);
  }
  float GetGradient(size_t index) {
    float value = 0;
    EXPECT_TRUE(model_->GetGradient(index, absl::MakeSpan(&value, 1)).ok());
    return value;
  }

  const std::unique_ptr<Device> cpu_ = CreateCpuDevice(1);
  const std::unique_ptr<QueuedDevice> queued_ = CreateQueuedDevice();
  std::unique_ptr<Model> model_;
};

TEST_F(GradientUnscalerTest, MultipliesWhereTheDevicesHaveThem) {
  GradientUnscaler unscaler(model_.get());
  for (const size_t index : {0, 1}) {
    SetGradient(index, 8);
    ASSERT_TRUE(unscaler.Unscale(index, 0.25f).ok());
    EXPECT_EQ(GetGradient(index), 2);
  }
  EXPECT_TRUE(unscaler.TakeFinite().value());
}

TEST_F(GradientUnscalerTest, OneThatIsNotFiniteOnAnyDeviceIsToldOnce) {
  GradientUnscaler unscaler(model_.get());
  for (const size_t bad : {0, 1}) {
    for (const size_t index : {0, 1}) {
      SetGradient(index, index == bad ? INFINITY : 1);
      ASSERT_TRUE(unscaler.Unscale(index, 0.25f).ok());
    }
    EXPECT_FALSE(unscaler.TakeFinite().value());
    for (const size_t index : {0, 1}) {
      SetGradient(index, 1);
      ASSERT_TRUE(unscaler.Unscale(index, 0.25f).ok());
    }
    EXPECT_TRUE(unscaler.TakeFinite().value());
  }
}

TEST_F(GradientUnscalerTest, DeviceThatFailsIsNoVerdict) {
  GradientUnscaler unscaler(model_.get());
  ASSERT_TRUE(unscaler.Unscale(1, 0.25f).ok());
  queued_->Fail(absl::UnavailableError("the GPU is lost"));
  EXPECT_EQ(unscaler.TakeFinite().status(), absl::UnavailableError("the GPU is lost"));
}

}  // namespace
}  // namespace ballast
