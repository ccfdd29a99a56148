// SPDX-License-Identifier: Apache-2.0
// Floats cross between a device and memory shared with servers without other copies, and gradients are pushed while
// they are computed, with the same results.
#include <google/protobuf/text_format.h>

#include <atomic>

#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "common/shared_memory/shared_region.h"
#include "tests/testing/cluster.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/emulator/emulated_gpu.h"
#include "worker/device/testing/queued_device.h"
#include "worker/model/model.h"
#include "worker/training/parameter_exchange.h"

namespace ballast {
namespace {

constexpr int kSteps = 3;

// The first layer has 128 KiB of weights, the second 2 KiB.
struct Training {
  bool shared = false;
  bool data_streams = true;
  bool defers = false;
  int batch = 4;
  int features = 64;
  int units = 512;
};

// Returns the servers' weights after a few steps.
std::vector<float> Train(Device& device, const Training& training) {
  constexpr char kModel[] = R"pb(
    layers { dense { units: $0 no_bias: true } }
    layers { dense { units: 1 no_bias: true } }
    loss { mean_squared_error {} }
  )pb";
  const bool shared = training.shared;
  const int batch = training.batch;
  Cluster cluster(/*servers=*/2, /*workers=*/1);
  v1::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(absl::Substitute(kModel, training.units), &config));
  const std::unique_ptr<Model> model = Model::Create(config, training.features, 1, batch, &device).value();
  v1::Job job;
  job.set_seed(7);
  v1::Optimizer optimizer;
  optimizer.mutable_sgd()->set_learning_rate(0.01f);
  ClientOptions options = cluster.Options(0);
  options.shared_memory = shared;
  options.data_streams = training.data_streams;
  options.pin_memory = [&](absl::Span<char> memory) { return std::shared_ptr<void>(device.RegisterHost(memory)); };
  const std::unique_ptr<Client> client = Join(options, ParameterExchange::Specs(*model, job, optimizer)).value();
  const std::atomic<bool> interrupted{false};
  ParameterExchange exchange(
      model.get(), client.get(),
      {.min_direct_bytes = 128 << 10, .defer_gradients = training.defers, .interrupted = &interrupted});
  EXPECT_TRUE(exchange.PullAll(0).ok());
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  while (shared && !client->SharesMemory(0) && absl::Now() < give_up) EXPECT_TRUE(exchange.PullAll(0).ok());
  EXPECT_EQ(client->SharesMemory(0), shared);
  std::vector<float> features(batch * training.features), labels(batch);
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>((i * 7 + step * 3) % 11) / 10;
    for (int i = 0; i < batch; ++i) labels[i] = static_cast<float>(i + step) / 4;
    exchange.BeginBatch(step, batch, /*last_of_step=*/true);
    const absl::StatusOr<BatchResult> result =
        model->Train({.features = features, .labels = labels, .examples = batch}, exchange);
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
    weights[shared] = Train(*device, {.shared = shared});
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
    Train(*device, {.shared = shared});
    downloaded[shared] = device->downloaded();
    uploaded[shared] = device->uploaded();
  }
  EXPECT_EQ(downloaded[true], downloaded[false] + kSteps * sizeof(float));
  EXPECT_GE(uploaded[true], uploaded[false]);
}

// The first layer's 640 KiB of weights are two slices.
TEST(DeferredGradientTest, GivesTheSameWeightsOnEachWay) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  const Training whole = {.batch = 16, .features = 160, .units = 1024};
  const std::vector<float> want = Train(*device, whole);
  Training deferred = whole;
  deferred.defers = true;
  EXPECT_TRUE(Train(*device, deferred) == want) << "on data streams";
  deferred.data_streams = false;
  EXPECT_TRUE(Train(*device, deferred) == want) << "over gRPC";
  deferred.shared = true;
  EXPECT_TRUE(Train(*device, deferred) == want) << "in shared memory";
  EXPECT_TRUE(Train(*CreateQueuedDevice(), whole) == want) << "without beginning before all weights have come";
}

}  // namespace
}  // namespace ballast
