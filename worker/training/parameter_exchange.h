// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/trace/timeline_recorder.h"
#include "worker/model/trainable_model.h"
#include "worker/training/device_codec.h"
#include "worker/training/gradient_accumulator.h"
#include "worker/training/gradient_unscaler.h"
#include "worker/training/loss_scaler.h"
#include "worker/training/transfer_pipeline.h"

namespace ballast {

// What the exchange with the servers cost and showed since it was last asked.
struct ExchangeStats {
  // That were begun.
  uint64_t steps = 0;
  // Spent waiting for servers and other workers.
  absl::Duration waited;
  // Over pushes, of the largest staleness in each.
  uint64_t max_staleness = 0;
  double mean_staleness = 0;
  float learning_rate = 0;
  // Gradients of slices that came after their step was over and were not used.
  uint64_t dropped = 0;
  // Of messages, without what the network adds.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  // Batches whose gradients were not finite and so were not used.
  uint64_t skipped = 0;
  // Of the next batch; absent where the loss is not scaled.
  std::optional<float> loss_scale;
};

// Carries a model's gradients to the servers and new weights back, a layer's while other layers still compute: each
// layer's push-pull starts when its gradient is ready, and is waited for when the next forward needs its weights.
// A step is what one push is made from: a batch; several, whose gradients' mean is pushed; or several steps of local
// SGD. In any case the layers leave one by one while the step's last batch is computed.
// Where the loss is scaled, what a batch gave is known to be finite only when all of it is there: gradients come down
// while backward goes on, and are pushed together at its end. A batch with an overflow adds nothing: the worker takes
// part in the step without its examples.
// Where the host cannot address the device's memory, the thread that trains only issues operations: a pipeline's
// threads take gradients down and push them while layers before them still compute, and put up the values that come.
// Nothing of a batch is pushed before its loss is known to be finite. Tensors have their parameter's index as id.
// Thread safety: none; the training loop's thread.
class ParameterExchange : public StepHooks {
 public:
  struct Options {
    // Whose gradients' mean makes one push, or one step of local SGD.
    uint32_t accumulate_batches = 1;
    // Of local SGD; 0: the worker makes no steps of its own.
    float local_learning_rate = 0;
    // Multiply the loss by a factor that fits the gradients into fp16, and divide them by it.
    bool scale_loss = false;
    // Encodes and decodes on the devices; null: the client does that. One that takes gradients is for steps of one
    // batch, and none for local SGD. Outlives the exchange.
    DeviceCodec* codec = nullptr;
    // Once it is set, no wait for servers takes longer than a second more.
    const std::atomic<bool>* interrupted = nullptr;
    // Where pushes, pulls and waits are noted; null: nowhere. Outlives the exchange.
    TimelineRecorder* timeline = nullptr;
  };

  // Both must outlive this; what is still in flight at the end uses the model's memory and this one's, until
  // Client::Shutdown.
  ParameterExchange(TrainableModel* model, Client* client, const Options& options);

  // The tensors to declare, with the job's seed; `optimizer` is the job's with its schedule's length filled in.
  static std::vector<v1::TensorSpec> Specs(const TrainableModel& model, const v1::Job& job,
                                           const v1::Optimizer& optimizer);

  // Fetches all weights; at step 0 the newest, without waiting for anyone. Nothing may be in flight.
  absl::Status PullAll(uint64_t step);

  // What comes next, through the hooks or PassEmptyBatch, is a batch of so many examples for this step; the step is
  // pushed with its last one. It has the schedule_position, as in PushHeader, of its first one.
  void BeginBatch(uint64_t step, uint32_t examples, bool last_of_step,
                  std::optional<double> schedule_position = std::nullopt);
  // For the batch that comes next: BatchView::loss_scale.
  float loss_scale() const { return scaler_.has_value() ? scaler_->scale() : 1; }

  absl::Status BeforeForward(size_t group) override;
  absl::Status AfterForward(const BatchResult& result) override;
  absl::Status GradientReady(size_t group) override;

  // Instead of the hooks, for a batch without examples. A step that has none at all is pushed, too: the worker takes
  // part in it and adds nothing.
  absl::Status PassEmptyBatch();

  // Waits for everything in flight.
  absl::Status AwaitAll();

  // Says that nobody need wait for this worker until it pushes again, once all that it pushed is acknowledged.
  absl::Status Pause();

  // Gives up what is in flight, for the end of an interrupted run, and fetches the newest weights.
  absl::Status AbandonAndPull();

  // As of Client.
  std::pair<uint64_t, uint64_t> pulled_versions() const { return client_->pulled_versions(); }
  std::vector<uint64_t> acknowledged_pushes() const { return client_->acknowledged_pushes(); }

  ExchangeStats TakeStats();

  // Of the host's memory that it holds besides the model's.
  int64_t StagingBytes() const;

 private:
  // The batch that is under way, as each group needs to know it: a pipeline has its own copy.
  struct BatchUnderWay {
    uint64_t step = 0;
    // Of the batch, and of the step's so far.
    uint32_t examples = 0;
    uint64_t step_examples = 0;
    // Of the step so far.
    uint64_t batches = 0;
    bool ends_step = false;
    bool ends_local_step = false;
    // Of the step.
    std::optional<double> schedule_position;
  };

  // A layer's parameters on their way. The buffers serve where the host cannot address the device's memory, and nothing
  // is encoded there. A pipeline's while it is not at rest there.
  struct Group {
    ParameterGroup parameters;
    std::string layer;
    std::vector<TensorGradient> gradients;
    std::vector<TensorValues> values;
    std::vector<std::vector<float>> value_buffers;
    std::vector<std::vector<float>> gradient_buffers;
    // Of each parameter, where a push is made from more than one batch.
    std::vector<GradientAccumulator> gathered;
    // Where there is no pipeline.
    std::optional<Future<PushResult>> in_flight;
    // Of the push, where it is to be noted.
    std::optional<TimelineSpan> begun;
  };

  // Until `ready`, which waits at most so long each time. `what` is what it waits for: a layer's name, or "weights".
  absl::Status Await(absl::FunctionRef<bool(absl::Duration)> ready, absl::string_view what);
  // A span that begins now, where they are noted.
  std::optional<TimelineSpan> BeginSpan() const;
  // One call's part up to the last answer's begin is the push, its part from the first one's on the pull.
  void Note(Group& group, const PushResult& result);
  absl::Status AwaitGroup(size_t index);
  // What the group's push gave since the last time, if there was one; waits for it.
  absl::StatusOr<std::optional<PushResult>> AwaitPush(size_t index);
  // By any thread, and what is then to be done by the one that trains.
  absl::Status Upload(const Group& group);
  void Decode(const Group& group);
  // Refuses a loss that is not finite, waiting for it; the learning rate is for the message.
  absl::Status CheckLoss(uint64_t step, float learning_rate) const;
  // Issues what is to be done with the group's gradients before they leave the device.
  absl::Status Prepare(const Group& group);
  // Has the pipeline fetch the group's gradients and, where the loss is not scaled, end the batch for it.
  absl::Status Send(size_t index);
  // To where the host can read them.
  absl::Status FetchGradients(Group& group);
  // Of the batch under way, all of whose gradients have been prepared.
  absl::Status EndScaledBatch();
  // In backward's order, as all workers push: a shard answers them in it.
  absl::Status EndBatchOfAll();
  // Adds what the batch gave to what the group pushes, and pushes it with the step's last one.
  absl::StatusOr<TransferPipeline::Pushed> EndBatch(Group& group, const BatchUnderWay& batch);
  Future<PushResult> Push(Group& group, const BatchUnderWay& batch);

  TrainableModel* const model_;
  Client* const client_;
  const Options options_;
  std::vector<Group> groups_;
  std::optional<LossScaler> scaler_;
  GradientUnscaler unscaler_;
  BatchUnderWay batch_;
  // Whether its loss is still to be checked, before its first gradients are taken.
  bool loss_unchecked_ = false;
  // Since the last local step.
  uint32_t accumulated_ = 0;
  uint64_t pushes_ = 0;
  uint64_t staleness_sum_ = 0;
  ExchangeStats stats_;
  // Null where the host can address the device's memory. Last, for its threads use all of this.
  std::unique_ptr<TransferPipeline> pipeline_;
};

}  // namespace ballast
