// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "worker/model/model.h"

namespace ballast {

// What the exchange with the servers cost and showed since it was last asked.
struct ExchangeStats {
  // Spent waiting for servers and other workers.
  absl::Duration waited;
  // Over pushes, of the largest staleness in each.
  uint64_t max_staleness = 0;
  double mean_staleness = 0;
  float learning_rate = 0;
};

// Carries a model's gradients to the servers and new weights back, a layer's while other layers still compute: each
// layer's push-pull starts when its gradient is ready, and is waited for when the next forward needs its weights.
// Tensors have their parameter's index as id.
// Thread safety: none; the training loop's thread.
class ParameterExchange : public StepHooks {
 public:
  // Both must outlive this; what is still in flight at the end uses the model's memory, until Client::Shutdown. Once
  // `interrupted` is set, no wait takes longer than a second more.
  ParameterExchange(Model* model, Client* client, const std::atomic<bool>* interrupted);

  // The tensors to declare, with the job's optimizer and seed.
  static std::vector<v1::TensorSpec> Specs(const Model& model, const v1::Job& job);

  // Fetches all weights; at step 0 the newest, without waiting for anyone. Nothing may be in flight.
  absl::Status PullAll(uint64_t step);

  // What comes through the hooks belongs to this step and number of examples.
  void BeginStep(uint64_t step, uint32_t examples);

  absl::Status BeforeForward(size_t group) override;
  absl::Status AfterForward(const BatchResult& result) override;
  absl::Status GradientReady(size_t group) override;

  // Takes part in the step without an example.
  absl::Status PushNothing();

  // Waits for everything in flight.
  absl::Status AwaitAll();

  // Gives up what is in flight, for the end of an interrupted run, and fetches the newest weights.
  absl::Status AbandonAndPull();

  ExchangeStats TakeStats();

 private:
  // A layer's parameters on their way. The buffers serve where the host cannot address the device's memory.
  struct Group {
    ParameterGroup parameters;
    std::vector<TensorGradient> gradients;
    std::vector<TensorValues> values;
    std::vector<std::vector<float>> buffers;
    std::optional<Future<PushResult>> in_flight;
  };

  template <typename T>
  absl::StatusOr<T> Await(const Future<T>& future);
  absl::Status AwaitGroup(Group& group);
  absl::Status Upload(const Group& group);

  Model* const model_;
  Client* const client_;
  const std::atomic<bool>* const interrupted_;
  std::vector<Group> groups_;
  uint64_t step_ = 0;
  uint32_t examples_ = 0;
  uint64_t pushes_ = 0;
  uint64_t staleness_sum_ = 0;
  ExchangeStats stats_;
};

}  // namespace ballast
