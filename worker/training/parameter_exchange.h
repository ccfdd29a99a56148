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
#include "absl/types/span.h"
#include "client/client.h"
#include "client/server_wait.h"
#include "common/trace/timeline_recorder.h"
#include "worker/model/trainable_model.h"
#include "worker/training/device_codec.h"
#include "worker/training/device_elements.h"
#include "worker/training/gradient_arithmetic.h"
#include "worker/training/step_meter.h"
#include "worker/training/transfer_pipeline.h"

namespace ballast {

// Counts and measurements of the exchange with the servers since the last TakeStats.
struct ExchangeStats {
  // Steps begun.
  uint64_t steps = 0;
  // Time spent waiting for servers and other workers.
  absl::Duration waited;
  // Pushes, and the maximum and the sum of the largest staleness in each.
  uint64_t pushes = 0;
  uint64_t max_staleness = 0;
  uint64_t staleness_sum = 0;
  float learning_rate = 0;
  // Slice gradients that arrived after their step had closed and were dropped.
  uint64_t dropped = 0;
  // Bytes of messages, without the network's own overhead.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  // Batches that were skipped because their gradients were not finite.
  uint64_t skipped = 0;
  // Loss scale of the next batch; nullopt if the loss is not scaled.
  std::optional<float> loss_scale;
  // The newest step that was measured, also one before the last TakeStats.
  StepFigures figures;
};

// Pushes a model's gradients to the servers and pulls new values, layer by layer while other layers still compute: each
// layer's push-pull starts when its gradient is ready, and the next forward waits for it when it needs the values.
// A step is the work behind one push: one batch; several batches, whose mean gradient is pushed; or several steps of
// local SGD. In all cases the layers are pushed one by one while the step's last batch is computed.
// If the loss is scaled, only the complete gradients of a batch show whether they are finite: they are copied to the
// host layer by layer during backward, and pushed together at its end. A batch that overflows adds nothing to the
// step's push. If the host cannot address the device's memory, the training thread only issues operations: the threads
// of a ThreadedPipeline download and push gradients while earlier layers still compute, and upload the values that
// arrive. Nothing of a batch is pushed before its loss is known to be finite. A tensor's id is its parameter's index.
// Size: the ways of a push (one batch, several, local steps, scaled) share the groups and differ in a few lines each.
// Thread safety: none; the training loop's thread calls it.
class ParameterExchange : public StepHooks {
 public:
  struct Options {
    // Batches whose mean gradient makes one push, or one step of local SGD.
    uint32_t accumulate_batches = 1;
    // Learning rate of local SGD; 0: no local steps.
    float local_learning_rate = 0;
    // Scale the loss so that the gradients fit into fp16, and unscale the gradients.
    bool scale_loss = false;
    // Encodes and decodes on the devices; null: the client does. If it encodes gradients, steps must be of one batch;
    // must be null or handle no tensor under local SGD. Must outlive the exchange.
    DeviceCodec* codec = nullptr;
    // Layers are exchanged together with the one before them while the gradients of those that join it have at most
    // this many bytes: each push and each copy has a fixed cost, and neither the first layer's gradient nor its values
    // wait for the others. 0: each layer by itself.
    int64_t merge_bytes = 0;
    // Tensors of at least this many bytes are copied straight between the device and memory shared with the servers, if
    // all servers share memory with this process, and the floats need no computation on the host. Smaller ones cost
    // less if they are copied with others.
    int64_t min_direct_bytes = 1 << 20;
    // Lets the model compute a large gradient part by part while earlier parts are on their way already. Only for
    // gradients that the client sends as fp32.
    bool defer_gradients = false;
    // Once it is true, a wait for servers ends within one second.
    const std::atomic<bool>* interrupted = nullptr;
    // Records pushes, pulls and waits; may be null. Must outlive the exchange.
    TimelineRecorder* timeline = nullptr;
    // Least time between two steps whose gradients and updates are measured. Local SGD has no such figures.
    absl::Duration measure_interval = absl::InfiniteDuration();
  };

  // Both must outlive this. Calls still in flight at the end use the memory of the model and of this exchange until
  // Client::Shutdown.
  ParameterExchange(TrainableModel* model, Client* client, const Options& options);

  // Returns the tensors to declare, with the job's seed: the parameters that belong to a group. `optimizer` is the
  // job's, with the schedule length filled in; a client sets the values of the parameters `provided`.
  static std::vector<v1::TensorSpec> Specs(const TrainableModel& model, const v1::Job& job,
                                           const v1::Optimizer& optimizer, absl::Span<const size_t> provided = {});

  // Pulls all values and waits for them; at step 0 the newest, without waiting for workers. Nothing may be in flight.
  absl::Status PullAll(uint64_t step);

  // Begins a batch of `step`, which the hooks or PassEmptyBatch then end. The step is pushed with its last batch, and
  // has the schedule_position (see PushHeader) of its first batch.
  void BeginBatch(uint64_t step, uint32_t examples, bool last_of_step,
                  std::optional<double> schedule_position = std::nullopt);
  // BatchView::loss_scale for the next batch.
  float loss_scale() const { return scaler_.has_value() ? scaler_->scale() : 1; }

  absl::Status BeforeForward(size_t layer) override;
  ArrivingRows* ArrivingBeforeForward(size_t layer) override;
  absl::Status AfterForward(const BatchResult& result) override;
  absl::Status GradientReady(size_t layer) override;
  bool Postpones(size_t layer) override;

  // Replaces the hooks for a batch without examples. A step without any examples is pushed, too, because others may
  // wait for the push.
  absl::Status PassEmptyBatch();

  // Waits for all pushes in flight and uploads their values.
  absl::Status AwaitAll();

  // Waits for all pushes in flight, then tells the servers not to wait for this worker until it pushes again.
  absl::Status Pause();

  // Drops all pushes in flight and pulls the newest values, to end an interrupted run.
  absl::Status AbandonAndPull();

  // See Client.
  std::pair<uint64_t, uint64_t> pulled_versions() const { return client_->pulled_versions(); }
  std::vector<uint64_t> acknowledged_pushes() const { return client_->acknowledged_pushes(); }

  ExchangeStats TakeStats();

  // Host memory that the exchange and its codec hold in addition to the model's, in bytes.
  int64_t StagingBytes() const;
  // The part of it that is pinned.
  int64_t PinnedBytes() const;

 private:
  // The current batch, as every group needs to know it.
  struct CurrentBatch {
    uint64_t step = 0;
    // Examples of the batch, and of the step so far.
    uint32_t examples = 0;
    uint64_t step_examples = 0;
    // Batches of the step so far.
    uint64_t batches = 0;
    bool ends_step = false;
    bool ends_local_step = false;
    std::optional<double> schedule_position;
    // True until the batch's first group is sent, which checks the loss, unless AfterForward has checked it.
    bool loss_unchecked = false;
    // Learning rate for the error about the loss.
    float learning_rate = 0;
    // True if the step is measured.
    bool measured = false;
  };

  // Copies between device and messages, past the buffers; null if the gradient or the values must use these.
  struct DirectCopies {
    DeviceElements* gradient = nullptr;
    DeviceElements* values = nullptr;
    // True if the client makes them for the push in transit.
    bool fetches = false;
    bool stores = false;
  };

  // The exchange's group that one of the model's is in, and whether it is the first there.
  struct Place {
    size_t group = 0;
    bool first = true;
  };

  // The parameters of a layer, or of several small ones, and the state of their transfer. The buffers are used if the
  // host cannot address the device's memory and the device does not encode. The pipeline owns a group that is not at
  // rest in it.
  struct Group {
    // Its name, or those of the first and the last layer.
    std::string layer;
    std::vector<TensorGradient> gradients;
    std::vector<TensorValues> values;
    std::vector<std::unique_ptr<HostMemory>> value_buffers;
    std::vector<std::unique_ptr<HostMemory>> gradient_buffers;
    // One per parameter.
    std::vector<DirectCopies> direct;
    // One per parameter; null for one that is complete when the model says that it is ready.
    std::vector<std::unique_ptr<ElementCopier>> deferred;
    // One per parameter; used if a push is made from several batches.
    std::vector<GradientAccumulator> accumulators;
    // The elements that have come of the first tensor of the push in transit; null if that is not watched.
    std::shared_ptr<ArrivedElements> arrived;
    // True if it is to be watched.
    bool watches = false;
    int64_t bytes = 0;
    // The batch as of its task in the pipeline.
    CurrentBatch sent;
    // Set while the push is to be recorded in the timeline.
    std::optional<TimelineSpan> begun;
    // Set while the push is part of a step that is measured.
    std::optional<GroupMeasure> measure;
  };

  // The rows of a group's first tensor, as they come.
  class ArrivingGroup : public ArrivingRows {
   public:
    // `elements` of the tensor, of which `columns` are a row.
    ArrivingGroup(ParameterExchange* exchange, size_t group, size_t elements, size_t columns)
        : exchange_(*exchange), group_(group), columns_(columns), left_(elements) {}
    std::optional<Range> Next() override;
    const absl::Status& status() const { return status_; }

   private:
    ParameterExchange& exchange_;
    const size_t group_;
    const size_t columns_;
    // Elements that have not come. Without any, the push may still wait for the group's other tensors.
    size_t left_;
    bool over_ = false;
    absl::Status status_;
  };

  // See ServerWait; `what` is a layer, or "weights".
  absl::Status Await(absl::FunctionRef<bool(absl::Duration)> ready, absl::string_view what);
  // Adds a layer's tensors to the group.
  void AddTensors(const ParameterGroup& parameters, Group& group);
  // Returns the direct copies of the group's last tensor.
  DirectCopies MakeDirectCopies(const Group& group);
  // Returns a span that begins now, or nullopt if the timeline is off.
  std::optional<TimelineSpan> BeginSpan() const;
  // Records a push-pull as two spans: the push ends when the last response begins, the pull starts when the first does.
  void RecordSpans(Group& group, const PushResult& result);
  // Measures what is pushed for the group, and the weights before.
  GroupMeasure Measure(const Group& group, absl::Span<const TensorGradient> gradients, const CurrentBatch& batch) const;
  // Adds the group, whose new values have come, to the step's figures.
  void AddMeasure(Group& group);
  absl::Status AwaitGroup(size_t index);
  // Copies received values to the device; any thread may call it. The training thread then calls Decode.
  absl::Status Upload(const Group& group);
  void Decode(const Group& group);
  // Issues unscaling and encoding of the group's gradients on the device.
  absl::Status Prepare(const Group& group);
  // A pipeline task that fetches the group's gradients and, unless the loss is scaled, ends the batch for it. Waits for
  // an unchecked loss; OUT_OF_RANGE if it is not finite.
  absl::StatusOr<TransferPipeline::Pushed> Collect(Group& group);
  // Leaves gradients to the client if it can fetch them, and then only waits until they are computed.
  absl::Status FetchGradients(Group& group);
  // Ends the current batch after Prepare has run for all groups. Blocks until the gradients are on the host.
  absl::Status EndScaledBatch();
  // Pushes in backward order like every worker, because shards respond in that order.
  absl::Status EndBatchOfAll();
  // Adds the batch's gradients to the group's push, and pushes after the step's last batch.
  absl::StatusOr<TransferPipeline::Pushed> EndBatch(Group& group, const CurrentBatch& batch);
  Future<PushResult> Push(Group& group, const CurrentBatch& batch);

  TrainableModel* const model_;
  Client* const client_;
  const Options options_;
  ServerWait wait_;
  const bool defers_;
  // Before the groups, which refer to them.
  std::vector<std::unique_ptr<DeviceElements>> elements_;
  std::vector<Group> groups_;
  // True if the groups are on different devices.
  bool several_devices_ = false;
  // Indexed by the model's parameter groups.
  std::vector<Place> places_;
  // The rows of the last ArrivingBeforeForward.
  std::optional<ArrivingGroup> arriving_;
  std::optional<LossScaler> scaler_;
  GradientUnscaler unscaler_;
  CurrentBatch batch_;
  // Batches since the last local step.
  uint32_t accumulated_ = 0;
  ExchangeStats stats_;
  StepMeter meter_;
  // Inline if the host can address the devices' memory. Last field, because its threads use all the others.
  std::unique_ptr<TransferPipeline> pipeline_;
};

}  // namespace ballast
