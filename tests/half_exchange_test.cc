// SPDX-License-Identifier: Apache-2.0
// Weights and gradients cross in 16 bits between a server and a device whose memory the host cannot address: the
// device rounds them to the same bits as the host would, and half the bytes cross.
#include <google/protobuf/text_format.h>

#include <atomic>
#include <functional>

#include "tests/testing/cluster.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/testing/queued_device.h"
#include "worker/model/model.h"
#include "worker/training/parameter_exchange.h"

namespace ballast {
namespace {

constexpr int kSteps = 3, kBatch = 4, kFeatures = 8;
constexpr uint64_t kWeights = 8 * 32 + 32 + 32;
// Bytes copied for a batch with its labels; for the loss, read by the model and the exchange; for a step's fp16
// overflow flag.
constexpr uint64_t kBatchBytes = kBatch * (kFeatures + 1) * 4, kLossBytes = 2 * 8, kFlagBytes = 4;

struct Way {
  v1::Encoding gradients = v1::ENCODING_FP32;
  v1::Encoding values = v1::ENCODING_FP32;
  bool scale_loss = false;
  // If false, the client encodes floats that it copies from the device.
  bool by_device = true;
};

// Returns the server's weights after a few steps.
std::vector<float> Train(Device& device, const Way& way) {
  constexpr char kModel[] = R"pb(
    layers { dense { units: 32 } }
    layers { relu {} }
    layers { dense { units: 1 no_bias: true } }
    loss { mean_squared_error {} }
  )pb";
  Cluster cluster(/*servers=*/2, /*workers=*/1);
  v1::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kModel, &config));
  const std::unique_ptr<Model> model = Model::Create(config, kFeatures, 1, kBatch, &device).value();
  v1::Job job;
  job.set_seed(7);
  v1::Optimizer optimizer;
  optimizer.mutable_sgd()->set_learning_rate(0.125f);
  ClientOptions options = cluster.Options(0);
  // Random rounding depends on the incarnation.
  options.incarnation = 1;
  options.codec.set_gradients(way.gradients);
  options.codec.set_values(way.values);
  const std::unique_ptr<Client> client = Join(options, ParameterExchange::Specs(*model, job, optimizer)).value();
  std::unique_ptr<DeviceCodec> codec;
  if (way.by_device) codec = DeviceCodec::Create(model.get(), options.codec, nullptr).value();
  const std::atomic<bool> interrupted{false};
  {
    ParameterExchange exchange(model.get(), client.get(),
                               {.scale_loss = way.scale_loss, .codec = codec.get(), .interrupted = &interrupted});
    EXPECT_TRUE(exchange.PullAll(0).ok());
    std::vector<float> features(kBatch * kFeatures), labels(kBatch);
    for (int step = 0; step < kSteps; ++step) {
      for (size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>((i * 7 + step * 3) % 11) / 10;
      for (int i = 0; i < kBatch; ++i) labels[i] = static_cast<float>(i + step) / 4;
      exchange.BeginBatch(step, kBatch, /*last_of_step=*/true);
      const absl::StatusOr<BatchResult> result = model->Train(
          {.features = features, .labels = labels, .examples = kBatch, .loss_scale = exchange.loss_scale()}, exchange);
      EXPECT_TRUE(result.ok()) << result.status();
    }
    EXPECT_TRUE(exchange.AwaitAll().ok());
    EXPECT_EQ(exchange.TakeStats().skipped, 0u);
  }
  // The server's weights may be finer than the pulled 16-bit values, so the server's are compared.
  const std::unique_ptr<Client> reader = Client::Connect(cluster.Options(0)).value();
  std::vector<float> weights;
  for (uint32_t i = 0; i < model->parameters().size(); ++i) {
    std::vector<float> tensor(model->parameters()[i].elements);
    EXPECT_TRUE(reader->Pull(0, {{i, absl::MakeSpan(tensor)}}).Get().ok());
    weights.insert(weights.end(), tensor.begin(), tensor.end());
  }
  client->Shutdown("the test ends");
  return weights;
}

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Device>()> open;
};

class HalfExchangeTest : public testing::TestWithParam<Kind> {};

TEST_P(HalfExchangeTest, DeviceThatRoundsGivesTheWeightsThatAHostThatRoundsGives) {
  for (Way way : {Way{v1::ENCODING_BF16, v1::ENCODING_BF16}, Way{v1::ENCODING_BF16, v1::ENCODING_FP32},
                  Way{v1::ENCODING_FP32, v1::ENCODING_FP16}, Way{v1::ENCODING_INT8, v1::ENCODING_BF16},
                  Way{v1::ENCODING_FP16, v1::ENCODING_FP16, /*scale_loss=*/true}}) {
    std::vector<float> weights[2];
    for (const bool by_device : {false, true}) {
      const std::unique_ptr<Device> device = GetParam().open();
      way.by_device = by_device;
      weights[by_device] = Train(*device, way);
    }
    ASSERT_EQ(weights[true].size(), kWeights);
    EXPECT_TRUE(weights[true] == weights[false])
        << v1::Encoding_Name(way.gradients) << " " << v1::Encoding_Name(way.values);
    EXPECT_NE(weights[true], std::vector<float>(kWeights, weights[true][0]));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, HalfExchangeTest,
                         testing::Values(Kind{"queued", [] { return CreateQueuedDevice(); }},
                                         Kind{"cuda", [] { return OpenCudaDevice({}).value(); }}),
                         [](const auto& info) { return info.param.name; });

TEST(HalfExchangeBytesTest, HalfTheBytesCrossInEachDirectionThatIsEncoded) {
  const uint64_t floats = kWeights * 4, halves = kWeights * 2;
  for (const auto& [gradients, values] :
       {std::pair(v1::ENCODING_FP32, v1::ENCODING_FP32), std::pair(v1::ENCODING_BF16, v1::ENCODING_FP32),
        std::pair(v1::ENCODING_FP32, v1::ENCODING_FP16), std::pair(v1::ENCODING_FP16, v1::ENCODING_BF16)}) {
    for (const bool scale_loss : {false, true}) {
      const std::unique_ptr<QueuedDevice> device = CreateQueuedDevice();
      Train(*device, {gradients, values, scale_loss});
      const uint64_t down = gradients == v1::ENCODING_FP32 ? floats : halves;
      const uint64_t up = values == v1::ENCODING_FP32 ? floats : halves;
      EXPECT_EQ(device->downloaded(), kSteps * (down + kLossBytes + (scale_loss ? kFlagBytes : 0)));
      EXPECT_EQ(device->uploaded(), kSteps * kBatchBytes + (1 + kSteps) * up);
    }
  }
}

}  // namespace
}  // namespace ballast
