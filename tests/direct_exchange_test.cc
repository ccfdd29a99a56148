// SPDX-License-Identifier: Apache-2.0
// Floats cross between a device and memory shared with servers without other copies, and with the same results.
#include <google/protobuf/text_format.h>

#include <atomic>

#include "absl/time/clock.h"
#include "common/shared_memory/shared_region.h"
#include "tests/testing/cluster.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/testing/queued_device.h"
#include "worker/model/model.h"
#include "worker/training/parameter_exchange.h"

namespace ballast {
namespace {

constexpr int kSteps = 3, kBatch = 4, kFeatures = 64;

// Returns the servers' weights after a few steps. The first layer has 128 KiB of weights, the second 2 KiB.
std::vector<float> Train(Device& device, bool shared) {
  constexpr char kModel[] = R"pb(
    layers { dense { units: 512 no_bias: true } }
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
  optimizer.mutable_sgd()->set_learning_rate(0.01f);
  ClientOptions options = cluster.Options(0);
  options.shared_memory = shared;
  options.pin_memory = [&](absl::Span<char> memory) { return std::shared_ptr<void>(device.RegisterHost(memory)); };
  const std::unique_ptr<Client> client = Join(options, ParameterExchange::Specs(*model, job, optimizer)).value();
  const std::atomic<bool> interrupted{false};
  ParameterExchange exchange(model.get(), client.get(), {.min_direct_bytes = 128 << 10, .interrupted = &interrupted});
  EXPECT_TRUE(exchange.PullAll(0).ok());
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (shared && !client->SharesMemory(0) && absl::Now() < give_up) EXPECT_TRUE(exchange.PullAll(0).ok());
  EXPECT_EQ(client->SharesMemory(0), shared);
  std::vector<float> features(kBatch * kFeatures), labels(kBatch);
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>((i * 7 + step * 3) % 11) / 10;
    for (int i = 0; i < kBatch; ++i) labels[i] = static_cast<float>(i + step) / 4;
    exchange.BeginBatch(step, kBatch, /*last_of_step=*/true);
    const absl::StatusOr<BatchResult> result =
        model->Train({.features = features, .labels = labels, .examples = kBatch}, exchange);
    EXPECT_TRUE(result.ok()) << result.status();
  }
  EXPECT_TRUE(exchange.AwaitAll().ok());
  std::vector<float> weights, on_device;
  for (uint32_t i = 0; i < model->parameters().size(); ++i) {
    std::vector<float> tensor(model->parameters()[i].elements);
    EXPECT_TRUE(model->GetParameter(i, absl::MakeSpan(tensor)).ok());
    on_device.insert(on_device.end(), tensor.begin(), tensor.end());
    EXPECT_TRUE(client->Pull(0, {{i, absl::MakeSpan(tensor)}}).Get().ok());
    weights.insert(weights.end(), tensor.begin(), tensor.end());
  }
  EXPECT_TRUE(on_device == weights);
  client->Shutdown("the test ends");
  client->WaitUntilIdle();
  return weights;
}

class DirectExchangeTest : public testing::TestWithParam<emulator::Schedule> {};

// The emulator ends the process if the GPU copies to or from memory that is not registered.
TEST_P(DirectExchangeTest, GivesTheWeightsThatTheConnectionGives) {
  std::vector<float> weights[2];
  for (const bool shared : {false, true}) {
    emulator::Reset({.schedule = GetParam()});
    const std::unique_ptr<Device> device = OpenCudaDevice({}).value();
    weights[shared] = Train(*device, shared);
  }
  EXPECT_EQ(weights[true].size(), 64u * 512 + 512);
  EXPECT_TRUE(weights[true] == weights[false]);
  EXPECT_EQ(emulator::Count().host_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Schedules, DirectExchangeTest,
                         testing::Values(emulator::Schedule::kLate, emulator::Schedule::kAtOnce,
                                         emulator::Schedule::kRandom));

// One more element of the large gradient is read to wait for the others.
TEST(DirectExchangeBytesTest, OnlyTheLargeTensorIsCopiedDirectly) {
  uint64_t downloaded[2], uploaded[2];
  for (const bool shared : {false, true}) {
    const std::unique_ptr<QueuedDevice> device = CreateQueuedDevice();
    Train(*device, shared);
    downloaded[shared] = device->downloaded();
    uploaded[shared] = device->uploaded();
  }
  EXPECT_EQ(downloaded[true], downloaded[false] + kSteps * sizeof(float));
  EXPECT_GE(uploaded[true], uploaded[false]);
}

}  // namespace
}  // namespace ballast
