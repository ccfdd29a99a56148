// SPDX-License-Identifier: Apache-2.0
#include "worker/training/device_elements.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/testing/queued_device.h"
#include "worker/model/model_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;

// A layer with 3 weights.
class DeviceElementsTest : public ::testing::Test {
 protected:
  std::vector<float> Weights() {
    std::vector<float> values(3);
    EXPECT_TRUE(model_->GetParameter(0, absl::MakeSpan(values)).ok());
    return values;
  }

  const std::unique_ptr<QueuedDevice> device_ = CreateQueuedDevice();
  const std::unique_ptr<Model> model_ =
      Model::Create(ParseModel("layers { dense { units: 1 no_bias: true } } loss { mean_squared_error {} }"), 3, 1, 4,
                    device_.get())
          .value();
  DeviceElements elements_{model_.get(), 0, "dense1", nullptr};
};

TEST_F(DeviceElementsTest, FetchesAPartOfTheGradientOnceItIsComputed) {
  ASSERT_TRUE(device_->Upload({1, 2, 3}, *model_->DeviceGradient(0).elements.buffer, 0).ok());
  ASSERT_TRUE(elements_.AwaitGradient().ok());
  std::vector<float> part(2);
  ASSERT_TRUE(elements_.Fetch(1, absl::MakeSpan(part)).ok());
  EXPECT_THAT(part, ElementsAre(2, 3));
}

TEST_F(DeviceElementsTest, StoresAPartOfTheValues) {
  ASSERT_TRUE(model_->SetParameter(0, {1, 2, 3}).ok());
  ASSERT_TRUE(elements_.Store(1, {7, 8}).ok());
  EXPECT_THAT(Weights(), ElementsAre(1, 7, 8));
}

// An interrupted run pulls newer values, which a late response must not replace.
TEST_F(DeviceElementsTest, StoresNothingOnceItIsClosed) {
  ASSERT_TRUE(model_->SetParameter(0, {1, 2, 3}).ok());
  elements_.Close();
  EXPECT_TRUE(elements_.Store(0, {7, 8, 9}).ok());
  EXPECT_THAT(Weights(), ElementsAre(1, 2, 3));
}

TEST_F(DeviceElementsTest, AnErrorNamesTheDevice) {
  EXPECT_THAT(std::string(elements_.Store(2, {7, 8}).message()), ::testing::StartsWith("device "));
}

}  // namespace
}  // namespace ballast
