// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model_buffers.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/device/cpu/cpu_device.h"
#include "worker/device/testing/queued_device.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kGiven = 1 << 20;
constexpr int64_t kBatch = 8;
constexpr char kChain[] =
    "input { height: 2 width: 2 channels: 3 } loss { softmax_cross_entropy {} } "
    "layers { dense { units: 6 } } layers { relu {} } layers { batch_norm {} } layers { dense { units: 4 } }";
constexpr char kTwoDevices[] =
    "loss { softmax_cross_entropy {} } layers { dense { units: 6 } } layers { tanh {} device: \"1\" } "
    "layers { dense { units: 4 } }";

// The buffers of a model on CPU devices "0" and "1", or on one device that computes in parallel with the host.
class ModelBuffersTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ModelBuffers>> Allocate(const std::string& text, std::vector<NamedDevice> devices,
                                                         int64_t batch = kBatch) {
    v1::Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
    devices_ = std::move(devices);
    std::vector<std::string> names;
    for (const NamedDevice& device : devices_) names.push_back(device.name);
    absl::StatusOr<LayerChain> chain = BuildLayerChain(config, 12, names);
    if (!chain.ok()) return chain.status();
    chain_ = *std::move(chain);
    values_ = PlanValues(chain_, /*sparse=*/false);
    gradients_ = PlanGradients(chain_);
    return ModelBuffers::Allocate({chain_, values_, gradients_, devices_, batch});
  }

  const std::unique_ptr<Device> cpu_ = CreateCpuDevice(1, kGiven);
  const std::unique_ptr<Device> other_ = CreateCpuDevice(1, kGiven);
  const std::unique_ptr<QueuedDevice> queued_ = CreateQueuedDevice(kGiven);
  std::vector<NamedDevice> devices_;
  LayerChain chain_;
  ValuePlan values_;
  GradientPlan gradients_;
};

TEST_F(ModelBuffersTest, ValuesOfOnePlaceShareABuffer) {
  const auto buffers = Allocate(kChain, {{"0", cpu_.get()}});
  ASSERT_TRUE(buffers.ok()) << buffers.status();
  const Matrix features = (*buffers)->ValueOf(0, 5), dense = (*buffers)->ValueOf(1, 5),
               relu = (*buffers)->ValueOf(2, 5);
  EXPECT_EQ(features.buffer, &(*buffers)->features());
  EXPECT_EQ(features.rows, 5);
  EXPECT_EQ(features.columns, 12);
  EXPECT_EQ(dense.columns, 6);
  EXPECT_NE(dense.buffer, features.buffer);
  EXPECT_EQ(relu.buffer, dense.buffer);
  EXPECT_EQ((*buffers)->GradientOf(4, gradients_.loss, 5).columns, 4);
}

TEST_F(ModelBuffersTest, ParametersAreInForwardOrder) {
  const auto buffers = Allocate(kChain, {{"0", cpu_.get()}});
  ASSERT_TRUE(buffers.ok()) << buffers.status();
  std::vector<int64_t> sizes;
  for (const ParameterMemory& parameter : (*buffers)->parameters()) {
    sizes.push_back(parameter.value->size());
    EXPECT_EQ(parameter.gradient->size(), parameter.value->size());
  }
  // Weight and bias of a layer, scale and shift of the batch norm, weight and bias.
  EXPECT_THAT(sizes, ::testing::ElementsAre(12 * 6, 6, 6, 6, 6 * 4, 4));
}

TEST_F(ModelBuffersTest, MemoryOfALayerHasItsInitialValue) {
  const auto buffers = Allocate(kChain, {{"0", cpu_.get()}});
  ASSERT_TRUE(buffers.ok()) << buffers.status();
  EXPECT_EQ((*buffers)->MemoryOf(0).size(), 0);
  const std::vector<LayerMemory> layout = chain_.nodes[2].layer->Memory();
  ASSERT_EQ((*buffers)->MemoryOf(2).size(), layout.size());
  for (size_t i = 0; i < layout.size(); ++i) {
    std::vector<float> values(layout[i].elements);
    ASSERT_TRUE(cpu_->Download(*(*buffers)->MemoryOf(2)[i], 0, absl::MakeSpan(values)).ok());
    EXPECT_THAT(values, Each(layout[i].initial)) << layout[i].name;
  }
}

TEST_F(ModelBuffersTest, OnlyADeviceThatComputesInParallelHasBuffersForTheNextBatch) {
  const auto one = Allocate(kChain, {{"0", cpu_.get()}});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE((*one)->waits_for_loss());
  const Buffer* const only = &(*one)->features();
  (*one)->NextBatch();
  EXPECT_EQ(&(*one)->features(), only);
  EXPECT_FALSE((*one)->swapped());

  const auto two = Allocate(kChain, {{"0", queued_.get()}});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_FALSE((*two)->waits_for_loss());
  const Buffer *const features = &(*two)->features(), *const labels = &(*two)->labels();
  (*two)->NextBatch();
  EXPECT_NE(&(*two)->features(), features);
  EXPECT_NE(&(*two)->labels(), labels);
  EXPECT_TRUE((*two)->swapped());
  (*two)->NextBatch();
  EXPECT_EQ(&(*two)->features(), features);
  EXPECT_EQ(&(*two)->labels(), labels);
  EXPECT_FALSE((*two)->swapped());
}

TEST_F(ModelBuffersTest, MemoryIsWhatTheDevicesGave) {
  const auto two = Allocate(kTwoDevices, {{"0", cpu_.get()}, {"1", other_.get()}});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_LT(cpu_->Memory().free, kGiven);
  EXPECT_LT(other_->Memory().free, kGiven);
  EXPECT_EQ((*two)->Memory().total(), 2 * kGiven - cpu_->Memory().free - other_->Memory().free);
  const auto parallel = Allocate(kChain, {{"0", queued_.get()}});
  ASSERT_TRUE(parallel.ok()) << parallel.status();
  EXPECT_EQ((*parallel)->Memory().total(), kGiven - queued_->Memory().free);
}

TEST_F(ModelBuffersTest, ShortageNamesTheDeviceIfThereAreSeveral) {
  const absl::Status several = Allocate(kTwoDevices, {{"0", cpu_.get()}, {"1", other_.get()}}, kGiven / 8).status();
  EXPECT_EQ(several.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(several.message()), HasSubstr("(device 0: "));
  const absl::Status one = Allocate(kChain, {{"0", cpu_.get()}}, kGiven / 8).status();
  EXPECT_EQ(one.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(one.message()), ::testing::Not(HasSubstr("device 0: ")));
  EXPECT_EQ(cpu_->Memory().free, kGiven);
}

}  // namespace
}  // namespace ballast
