// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "common/trace/timeline_recorder.h"
#include "worker/model/model_fixture.h"
#include "worker/training/parameter_exchange.h"

namespace ballast {

// A model of two layers, y = w2 * (w1 * x), on a device of type `DeviceType`, that exchanges with a test server. Both
// weights are initially 1 and the server's are 0; each push subtracts the gradient from the server's.
template <typename DeviceType>
class ExchangeFixture : public ::testing::Test {
 protected:
  // `encoding` applies to gradients and values; if it is not fp32, the devices encode and decode if they can.
  explicit ExchangeFixture(std::unique_ptr<DeviceType> device, v1::Encoding encoding = v1::ENCODING_FP32)
      : device_(std::move(device)), server_(&shard_) {
    const v1::Model config = ParseModel(
        "layers { dense { units: 1 no_bias: true } } layers { dense { units: 1 no_bias: true } } "
        "loss { mean_squared_error {} }");
    model_ = Model::Create(config, 1, 1, 4, device_.get()).value();
    ClientOptions options;
    options.shards = {server_.address()};
    options.job = "test";
    options.policy.mutable_async();
    options.codec.set_gradients(encoding);
    options.codec.set_values(encoding);
    codec_ = DeviceCodec::Create(model_.get(), options.codec, nullptr).value();
    client_ = Client::Connect(std::move(options)).value();
    v1::Optimizer optimizer;
    optimizer.mutable_sgd()->set_learning_rate(1);
    EXPECT_TRUE(client_->Declare(ParameterExchange::Specs(*model_, v1::Job(), optimizer)).ok());
    SetWeights();
  }

  ~ExchangeFixture() override { EndCalls(); }

  // Ends all calls, so that no response is decoded into the buffers of an exchange any more.
  void EndCalls() {
    client_->Shutdown("the test ends");
    client_->WaitUntilIdle();
  }

  ParameterExchange* Exchange(ParameterExchange::Options options) {
    options.interrupted = &interrupted_;
    options.codec = codec_.get();
    exchange_ = std::make_unique<ParameterExchange>(model_.get(), client_.get(), options);
    return exchange_.get();
  }

  void SetWeights() {
    EXPECT_TRUE(model_->SetParameter(0, {1}).ok());
    EXPECT_TRUE(model_->SetParameter(1, {1}).ok());
  }

  // With both weights 1 the gradients of an example (x, y) are both 2 (x - y) x.
  absl::StatusOr<BatchResult> Train(ParameterExchange& exchange, float x, float y, bool last_of_step = true) {
    exchange.BeginBatch(step_, 1, last_of_step);
    if (last_of_step) ++step_;
    return model_->Train({.features = {x}, .labels = {y}, .examples = 1, .loss_scale = exchange.loss_scale()},
                         exchange);
  }

  // Same, with the exchange that was made last.
  absl::StatusOr<BatchResult> Train(float x, float y, bool last_of_step = true) {
    return Train(*exchange_, x, y, last_of_step);
  }

  // Trains on the last batch of a step and waits for the values.
  void Step(float x, float y) {
    ASSERT_TRUE(Train(x, y).ok());
    ASSERT_TRUE(exchange_->AwaitAll().ok());
  }

  // Returns the sum of the gradients pushed so far, for each weight.
  std::vector<float> Pushed() {
    std::vector<float> first(1), second(1);
    EXPECT_TRUE(client_->Pull(0, {{0, absl::MakeSpan(first)}, {1, absl::MakeSpan(second)}}).Get().ok());
    return {-first[0], -second[0]};
  }

  // Before the exchange, whose threads record into it until they are joined.
  TimelineRecorder timeline_{StepRange{1, 2}};
  const std::unique_ptr<DeviceType> device_;
  FakeParameterService shard_;
  FakeServer server_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<DeviceCodec> codec_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<ParameterExchange> exchange_;
  std::atomic<bool> interrupted_{false};
  uint64_t step_ = 0;
};

}  // namespace ballast
