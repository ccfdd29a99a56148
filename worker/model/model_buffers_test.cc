// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model_buffers.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "worker/device/cpu/cpu_device.h"
#include "worker/device/testing/queued_device.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// 4 MiB of weights, 4 MiB of gradients, 1 KiB for each example.
constexpr MemoryNeeds kNeeds{.weights = 1 << 20, .gradients = 1 << 20, .kept = 256, .per_example = 256};

TEST(MemoryNeedsTest, GrowWithTheBatch) {
  EXPECT_EQ(kNeeds.At(1000).weights, 4 << 20);
  EXPECT_EQ(kNeeds.At(1000).gradients, 4 << 20);
  EXPECT_EQ(kNeeds.At(1000).activations, 1001 * 1024);
}

TEST(MemoryNeedsTest, LargestBatchFillsTheMemoryAndNoMore) {
  EXPECT_EQ(kNeeds.LargestBatch((8 << 20) + 1024), 0);
  EXPECT_EQ(kNeeds.LargestBatch((8 << 20) + 2 * 1024 - 1), 0);
  EXPECT_EQ(kNeeds.LargestBatch((8 << 20) + 2 * 1024), 1);
  EXPECT_EQ(kNeeds.LargestBatch(9 << 20), 1023);
  EXPECT_EQ(kNeeds.LargestBatch(0), 0);
}

TEST(MemoryNeedsTest, ShortageSaysWhatFits) {
  EXPECT_EQ(DescribeShortage(kNeeds, {}, 4096, 9 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free: 9.0 MiB. Want "
            "training.batch_size of at most 1023 (820 with accumulate_batches times 5 keeps the examples per step)");
}

TEST(MemoryNeedsTest, ShortageWhereNoBatchFitsSaysSo) {
  EXPECT_EQ(DescribeShortage(kNeeds, {}, 4096, 1 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free: 1.0 MiB. Not even a "
            "batch of 1 fits, which needs 8.0 MiB: want a smaller model, or a device with more memory");
}

// kNeeds with half the activations.
constexpr MemoryNeeds kRecomputing = {.weights = 1 << 20, .gradients = 1 << 20, .per_example = 128};

TEST(MemoryNeedsTest, ShortageTellsOfRecomputationThatIsEnough) {
  EXPECT_EQ(DescribeShortage(kNeeds, {{"training.recompute: true", kRecomputing}}, 4096, 11 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free: 11.0 MiB. Want "
            "training.batch_size of at most 3071 (2048 with accumulate_batches times 2 keeps the examples per step); "
            "or training.recompute: true, with which this batch needs 10.0 MiB");
}

TEST(MemoryNeedsTest, ShortageTellsOfTheBatchThatRecomputationAllows) {
  EXPECT_EQ(DescribeShortage(kNeeds, {{"training.recompute: true", kRecomputing}}, 4096, 9 << 20),
            "needs 12.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 4.0 MiB; free: 9.0 MiB. Want "
            "training.batch_size of at most 1023 (820 with accumulate_batches times 5 keeps the examples per step); "
            "or training.recompute: true and training.batch_size of at most 2048 (2048 with accumulate_batches times 2 "
            "keeps the examples per step)");
}

TEST(MemoryNeedsTest, ShortageWhereOnlyRecomputationFitsSaysSo) {
  EXPECT_EQ(DescribeShortage(kNeeds, {{"training.recompute: true", kRecomputing}}, 2, (8 << 20) + 513),
            "needs 8.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 3.0 KiB; free: 8.0 MiB. Want "
            "training.recompute: true and training.batch_size of at most 1 (1 with accumulate_batches times 2 keeps "
            "the examples per step)");
}

// 4 MiB of weights, 4 MiB of gradients, 1 KiB of labels and 4 KiB of activations for each example.
constexpr MemoryNeeds kInFloats = {.weights = 1 << 20, .gradients = 1 << 20, .per_example = 256, .activations = 1024};

MemoryNeeds InBf16(MemoryNeeds needs) {
  needs.activation_type = ElementType::kBf16;
  return needs;
}

TEST(MemoryNeedsTest, ActivationsIn16BitsTakeHalfAndTheWeightsHaveACopyWithThem) {
  EXPECT_EQ(kInFloats.At(100).weights, 4 << 20);
  EXPECT_EQ(kInFloats.At(100).activations, 500 << 10);
  EXPECT_EQ(InBf16(kInFloats).At(100).weights, 6 << 20);
  EXPECT_EQ(InBf16(kInFloats).At(100).gradients, 4 << 20);
  EXPECT_EQ(InBf16(kInFloats).At(100).activations, 300 << 10);
  EXPECT_EQ(InBf16(kInFloats).LargestBatch((10 << 20) + (300 << 10)), 100);
}

TEST(MemoryNeedsTest, ShortageTellsOfThePrecisionThatIsEnough) {
  EXPECT_EQ(DescribeShortage(kInFloats, {{"training.precision: BF16", InBf16(kInFloats)}}, 2048, 17 << 20),
            "needs 18.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 10.0 MiB; free: 17.0 MiB. Want "
            "training.batch_size of at most 1843 (1024 with accumulate_batches times 2 keeps the examples per step); "
            "or training.precision: BF16, with which this batch needs 16.0 MiB");
}

// The 16-bit copies of the weights take more memory than the smaller activations save.
TEST(MemoryNeedsTest, ShortageDoesNotTellOfAPrecisionThatIsNoHelp) {
  EXPECT_EQ(DescribeShortage(kInFloats, {{"training.precision: BF16", InBf16(kInFloats)}}, 2, (8 << 20) + (5 << 10)),
            "needs 8.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 10.0 KiB; free: 8.0 MiB. Want "
            "training.batch_size of at most 1 (1 with accumulate_batches times 2 keeps the examples per step)");
}

TEST(MemoryNeedsTest, ShortageThatCameFromElsewhereSaysSo) {
  EXPECT_EQ(DescribeShortage(kNeeds, {}, 1, 1 << 30),
            "needs 8.0 MiB: weights 4.0 MiB, gradients 4.0 MiB, activations 2.0 KiB; free: 1.0 GiB. Another "
            "process took memory meanwhile; want no other process on the device");
}

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
  absl::StatusOr<std::unique_ptr<ModelBuffers>> TryAllocate(const std::string& text, std::vector<NamedDevice> devices,
                                                            int64_t batch = kBatch) {
    v1::Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
    devices_ = std::move(devices);
    std::vector<std::string> names;
    for (const NamedDevice& device : devices_) names.push_back(device.name);
    absl::StatusOr<LayerChain> chain = BuildLayerChain(config, 12, {.devices = names});
    if (!chain.ok()) return chain.status();
    chain_ = *std::move(chain);
    values_ = PlanValues(chain_, /*sparse=*/false);
    gradients_ = PlanGradients(chain_);
    return ModelBuffers::Allocate({chain_, values_, gradients_, devices_, batch});
  }

  std::unique_ptr<ModelBuffers> Allocate(const std::string& text, std::vector<NamedDevice> devices) {
    absl::StatusOr<std::unique_ptr<ModelBuffers>> buffers = TryAllocate(text, std::move(devices));
    EXPECT_TRUE(buffers.ok()) << buffers.status();
    return *std::move(buffers);
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
  const Matrix features = buffers->ValueOf(0, 5), dense = buffers->ValueOf(1, 5), relu = buffers->ValueOf(2, 5);
  EXPECT_EQ(features.buffer, &buffers->features());
  EXPECT_EQ(features.rows, 5);
  EXPECT_EQ(features.columns, 12);
  EXPECT_EQ(dense.columns, 6);
  EXPECT_NE(dense.buffer, features.buffer);
  EXPECT_EQ(relu.buffer, dense.buffer);
  EXPECT_EQ(buffers->GradientOf(4, gradients_.loss, 5).columns, 4);
}

TEST_F(ModelBuffersTest, ParametersAreInForwardOrder) {
  const auto buffers = Allocate(kChain, {{"0", cpu_.get()}});
  std::vector<int64_t> sizes;
  for (const ParameterMemory& parameter : buffers->parameters()) {
    sizes.push_back(parameter.value->size());
    EXPECT_EQ(parameter.gradient->size(), parameter.value->size());
  }
  // Weight and bias of a layer, scale and shift of the batch norm, weight and bias.
  EXPECT_THAT(sizes, ::testing::ElementsAre(12 * 6, 6, 6, 6, 6 * 4, 4));
}

TEST_F(ModelBuffersTest, MemoryOfALayerHasItsInitialValue) {
  const auto buffers = Allocate(kChain, {{"0", cpu_.get()}});
  EXPECT_EQ(buffers->MemoryOf(0).size(), 0);
  const std::vector<LayerMemory> layout = chain_.nodes[2].layer->Memory();
  ASSERT_EQ(buffers->MemoryOf(2).size(), layout.size());
  for (size_t i = 0; i < layout.size(); ++i) {
    std::vector<float> values(layout[i].elements);
    ASSERT_TRUE(cpu_->Download(*buffers->MemoryOf(2)[i], 0, absl::MakeSpan(values)).ok());
    EXPECT_THAT(values, Each(layout[i].initial)) << layout[i].name;
  }
}

TEST_F(ModelBuffersTest, OnlyADeviceThatComputesInParallelHasBuffersForTheNextBatch) {
  const auto one = Allocate(kChain, {{"0", cpu_.get()}});
  EXPECT_TRUE(one->waits_for_loss());
  const Buffer* const only = &one->features();
  one->NextBatch();
  EXPECT_EQ(&one->features(), only);
  EXPECT_FALSE(one->swapped());

  const auto two = Allocate(kChain, {{"0", queued_.get()}});
  EXPECT_FALSE(two->waits_for_loss());
  const Buffer *const features = &two->features(), *const labels = &two->labels();
  two->NextBatch();
  EXPECT_NE(&two->features(), features);
  EXPECT_NE(&two->labels(), labels);
  EXPECT_TRUE(two->swapped());
  two->NextBatch();
  EXPECT_EQ(&two->features(), features);
  EXPECT_EQ(&two->labels(), labels);
  EXPECT_FALSE(two->swapped());
}

TEST_F(ModelBuffersTest, MemoryIsWhatTheDevicesGave) {
  const auto two = Allocate(kTwoDevices, {{"0", cpu_.get()}, {"1", other_.get()}});
  EXPECT_LT(cpu_->Memory().free, kGiven);
  EXPECT_LT(other_->Memory().free, kGiven);
  EXPECT_EQ(two->Memory().total(), 2 * kGiven - cpu_->Memory().free - other_->Memory().free);
  const auto parallel = Allocate(kChain, {{"0", queued_.get()}});
  EXPECT_EQ(parallel->Memory().total(), kGiven - queued_->Memory().free);
}

TEST_F(ModelBuffersTest, ShortageNamesTheDeviceIfThereAreSeveral) {
  const absl::Status several = TryAllocate(kTwoDevices, {{"0", cpu_.get()}, {"1", other_.get()}}, kGiven / 8).status();
  EXPECT_EQ(several.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(several.message()), HasSubstr("(device 0: "));
  const absl::Status one = TryAllocate(kChain, {{"0", cpu_.get()}}, kGiven / 8).status();
  EXPECT_EQ(one.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(one.message()), ::testing::Not(HasSubstr("device 0: ")));
  EXPECT_EQ(cpu_->Memory().free, kGiven);
}

}  // namespace
}  // namespace ballast
