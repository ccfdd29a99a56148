// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/call_group.h"
#include "client/coordinator_link.h"
#include "client/error_feedback.h"
#include "client/shard_channel.h"
#include "client/shard_map_follower.h"

namespace ballast {
namespace {

using Kind = ShardMessage::Kind;

// Returns the slice's part of a tensor's elements; empty if `whole` is empty.
template <typename T>
absl::Span<T> PartOf(absl::Span<T> whole, const PlacedSlice& slice) {
  return whole.empty() ? whole : whole.subspan(slice.offset, slice.elements);
}

}  // namespace

// The arguments of Push, Pull, PushPull or SetValues.
struct Client::Request {
  Kind kind;
  uint64_t step = 0;
  uint32_t examples = 0;
  // Holds the values of SetValues.
  absl::Span<const TensorGradient> gradients;
  absl::Span<const TensorValues> values;
  std::optional<double> schedule_position;

  size_t size() const { return std::max(gradients.size(), values.size()); }
};

// A request in flight: collects the replies to its messages.
struct Client::Operation {
  uint64_t id = 0;
  Finish finish;

  absl::Mutex mutex;
  size_t remaining ABSL_GUARDED_BY(mutex) = 0;
  // The first failure.
  absl::Status status ABSL_GUARDED_BY(mutex);
  Totals totals ABSL_GUARDED_BY(mutex);

  void AddLocked(const ShardReply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AddRowsLocked(const ShardReply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

void Client::Operation::AddLocked(const ShardReply& reply) {
  totals.set.set += reply.set.set();
  totals.set.unchanged += reply.set.unchanged();
  PushResult& result = totals.slices;
  result.applied += reply.outcome.applied();
  result.buffered += reply.outcome.buffered();
  result.dropped += reply.outcome.dropped();
  result.duplicate = result.duplicate || reply.outcome.duplicate();
  result.max_staleness = std::max(result.max_staleness, reply.outcome.max_staleness());
  if (reply.outcome.learning_rate() != 0) result.learning_rate = reply.outcome.learning_rate();
  result.bytes_sent += reply.bytes_sent;
  result.bytes_received += reply.bytes_received;
  result.retries += reply.retries;
  result.answers.first = std::min(result.answers.first, reply.answer_begun);
  result.answers.last = std::max(result.answers.last, reply.answer_begun);
  result.answers.end = std::max(result.answers.end, reply.answered);
  AddRowsLocked(reply);
}

void Client::Operation::AddRowsLocked(const ShardReply& reply) {
  RowsResult& result = totals.rows;
  result.applied += reply.rows.applied();
  result.created += reply.rows.created();
  result.kept += reply.rows.kept();
  result.dropped += reply.rows.dropped();
  result.orphaned += reply.rows.orphaned();
  result.not_admitted += reply.rows.not_admitted();
  result.evicted += reply.rows.evicted();
  result.max_staleness = std::max(result.max_staleness, reply.rows.max_staleness());
  result.duplicate = result.duplicate || reply.rows.duplicate();
  result.clocks.Add(reply.clocks);
  result.bytes_sent += reply.bytes_sent;
  result.bytes_received += reply.bytes_received;
  result.retries += reply.retries;
}

Client::Client(ClientOptions options)
    : options_(std::move(options)),
      follows_(options_.durability.mode() == v1::Durability::STANDBY && !options_.coordinator.empty()) {}

Client::~Client() {
  Shutdown("client destroyed");
  if (map_follower_ != nullptr) map_follower_->Join();
  // A shard's last callbacks may use other shards' channels, so destroy none before all are idle.
  WaitUntilIdle();
}

Future<PushResult> Client::Push(uint64_t step, uint32_t examples, absl::Span<const TensorGradient> gradients,
                                std::optional<double> schedule_position) {
  return PushPullOrPush({Kind::kPush, step, examples, gradients, {}, schedule_position});
}

Future<PullResult> Client::Pull(uint64_t step, absl::Span<const TensorValues> values) {
  Promise<PullResult> promise;
  Future<PullResult> future = promise.GetFuture();
  Begin({Kind::kPull, step, 0, {}, values, std::nullopt},
        [promise = std::move(promise)](absl::StatusOr<Totals> totals) mutable {
          if (!totals.ok()) return promise.Set(totals.status());
          const PushResult& slices = totals->slices;
          promise.Set(PullResult{slices.bytes_received, slices.retries, slices.answers});
        });
  return future;
}

Future<PushResult> Client::PushPull(uint64_t step, uint32_t examples, absl::Span<const TensorGradient> gradients,
                                    absl::Span<const TensorValues> values, std::optional<double> schedule_position) {
  return PushPullOrPush({Kind::kPushPull, step, examples, gradients, values, schedule_position});
}

Future<PushResult> Client::PushPullOrPush(const Request& request) {
  Promise<PushResult> promise;
  Future<PushResult> future = promise.GetFuture();
  Begin(request, [promise = std::move(promise)](absl::StatusOr<Totals> totals) mutable {
    if (!totals.ok()) return promise.Set(totals.status());
    promise.Set(std::move(totals->slices));
  });
  return future;
}

Future<SetResult> Client::SetValues(absl::Span<const FirstValues> tensors) {
  std::vector<TensorGradient> values;
  values.reserve(tensors.size());
  for (const FirstValues& tensor : tensors) values.push_back({tensor.tensor_id, tensor.values, {}});
  Promise<SetResult> promise;
  Future<SetResult> future = promise.GetFuture();
  Begin({Kind::kSetValues, 0, 0, values, {}, std::nullopt},
        [promise = std::move(promise)](absl::StatusOr<Totals> totals) mutable {
          if (!totals.ok()) return promise.Set(totals.status());
          promise.Set(totals->set);
        });
  return future;
}

void Client::Begin(const Request& request, Finish finish) {
  absl::StatusOr<std::vector<Slices>> by_shard = Route(request);
  if (!by_shard.ok()) return finish(by_shard.status());
  const std::vector<ShardChannel*> shards = channels();
  std::vector<std::vector<ShardMessage>> messages(by_shard->size());
  for (size_t shard = 0; shard < by_shard->size(); ++shard) {
    const Slices& all = (*by_shard)[shard];
    for (Slices& slices : PackSlices(all, MessageBytes(all))) {
      ShardMessage& message = messages[shard].emplace_back();
      message.kind = request.kind;
      message.step = request.step;
      message.examples = request.examples;
      message.schedule_position = request.schedule_position;
      message.slices = std::move(slices);
    }
  }
  SendAll(std::move(messages), std::move(finish));
}

void Client::SendAll(std::vector<std::vector<ShardMessage>> by_shard, Finish finish) {
  // The messages share the operation; the last one to end finishes it.
  const auto operation = std::make_shared<Operation>();
  operation->finish = std::move(finish);
  {
    absl::MutexLock lock(&mutex_);
    operation->id = next_operation_++;
  }
  size_t count = 0;
  for (uint32_t shard = 0; shard < by_shard.size(); ++shard) {
    for (ShardMessage& message : by_shard[shard]) {
      message.operation = operation->id;
      message.done = [this, operation, shard](const ShardMessage& done, ShardReply reply) {
        OnMessageDone(operation.get(), shard, done, std::move(reply));
      };
    }
    count += by_shard[shard].size();
  }
  if (count == 0) return operation->finish(Totals());
  {
    absl::MutexLock lock(&operation->mutex);
    operation->remaining = count;
  }
  const std::vector<ShardChannel*> shards = channels();
  for (size_t shard = 0; shard < by_shard.size(); ++shard) {
    if (!by_shard[shard].empty()) shards[shard]->Send(std::move(by_shard[shard]));
  }
}

absl::StatusOr<std::vector<Client::Slices>> Client::Route(const Request& request) const {
  const bool sets = request.kind == Kind::kSetValues;
  const bool pushes = request.kind != Kind::kPull,
             pulls = request.kind == Kind::kPull || request.kind == Kind::kPushPull;
  if (pushes && pulls && request.gradients.size() != request.values.size()) {
    return absl::InvalidArgumentError(absl::StrCat("push-pull: got ", request.gradients.size(), " gradients and ",
                                                   request.values.size(), " tensors of values, want the same tensors"));
  }
  absl::flat_hash_set<uint32_t> seen;
  absl::MutexLock lock(&mutex_);
  std::vector<Slices> by_shard(map_.shards().size());
  for (size_t i = 0; i < request.size(); ++i) {
    const uint32_t id = pushes ? request.gradients[i].tensor_id : request.values[i].tensor_id;
    const auto found = tensors_.find(id);
    if (found == tensors_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", id, " was not declared"));
    }
    const auto& [placed, versions, finished_steps] = found->second;
    if (!seen.insert(id).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", placed.spec.name(), "\" is given twice"));
    }
    if (pushes && pulls && request.values[i].tensor_id != id) {
      return absl::InvalidArgumentError(absl::StrCat("push-pull: got values of tensor ", request.values[i].tensor_id,
                                                     " with the gradient of tensor ", id, ", want the same"));
    }
    const bool adds = sets || (pushes && request.examples > 0);
    const TensorGradient gradient = pushes ? request.gradients[i] : TensorGradient();
    const TensorValues values = pulls ? request.values[i] : TensorValues();
    if (adds || !gradient.values.empty() || !gradient.encoded.empty()) {
      absl::Status status = CheckMemory(sets ? "the values" : "gradient", placed, gradient, options_.codec.gradients());
      if (!status.ok()) return status;
    }
    if (pulls) {
      absl::Status status = CheckMemory("memory for the values", placed, values, options_.codec.values());
      if (!status.ok()) return status;
    }
    for (const PlacedSlice& slice : placed.slices) {
      SliceTransfer transfer{id, slice.index, slice.elements, versions[slice.index], {}, {}};
      if (adds) {
        transfer.gradient = PartOf(gradient.values, slice);
        transfer.encoded_gradient = gradient.encoded.Part(slice.offset, slice.elements);
        transfer.gradient_copier = gradient.copier;
      }
      transfer.offset = slice.offset;
      transfer.values_copier = values.copier;
      transfer.arrived = values.arrived;
      transfer.values = PartOf(values.values, slice);
      transfer.encoded_values = values.encoded.Part(slice.offset, slice.elements);
      by_shard[slice.shard].push_back(transfer);
    }
  }
  return by_shard;
}

void Client::OnRetry(uint32_t shard) {
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) return;
    retried_rows_.insert(shard);
    if (reports_in_flight_.contains(shard)) {
      reports_due_.insert(shard);
      return;
    }
  }
  Report(shard);
}

std::vector<v1::ReportVersionsRequest> Client::DescribeSeen(uint32_t shard) const {
  v1::ReportVersionsRequest empty;
  empty.set_job(options_.job);
  empty.set_worker(options_.worker);
  empty.set_incarnation(options_.incarnation);
  std::vector<v1::ReportVersionsRequest> requests;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, tensor] : tensors_) {
    for (const PlacedSlice& slice : tensor.placed.slices) {
      const uint64_t version = tensor.versions[slice.index], finished = tensor.finished_steps[slice.index];
      if (slice.shard != shard || (version == 0 && finished == 0)) continue;
      if (requests.empty() || requests.back().slices_size() == static_cast<int>(kMaxSlicesPerMessage)) {
        requests.push_back(empty);
      }
      v1::ReportVersionsRequest::Slice* to = requests.back().add_slices();
      to->set_tensor_id(id);
      to->set_slice_index(slice.index);
      to->set_version(version);
      to->set_finished_steps(finished);
    }
  }
  if (const uint64_t ended = ended_steps_.count(shard); ended > 0) {
    if (requests.empty()) requests.push_back(empty);
    requests.front().set_ended_steps(ended);
  }
  return requests;
}

void Client::Report(uint32_t shard) {
  std::vector<v1::ReportVersionsRequest> requests = DescribeSeen(shard);
  if (requests.empty()) return;
  {
    absl::MutexLock lock(&mutex_);
    if (!reports_in_flight_.emplace(shard, requests.size()).second) {
      // Another thread reports already, but may have seen less.
      reports_due_.insert(shard);
      return;
    }
    reports_due_.erase(shard);
  }
  ShardChannel* const channel = channels()[shard];
  for (v1::ReportVersionsRequest& request : requests) {
    // Ignore errors: a shard that refuses the report also refuses pushes, whose errors reach the worker.
    channel->ReportVersions(std::move(request), [this, shard](const absl::Status&) {
      bool again = false;
      {
        absl::MutexLock lock(&mutex_);
        const auto left = reports_in_flight_.find(shard);
        if (--left->second > 0) return;
        reports_in_flight_.erase(left);
        again = reports_due_.contains(shard) && !shutdown_;
      }
      if (again) Report(shard);
    });
  }
}

std::optional<absl::Duration> Client::Help(absl::FunctionRef<bool()> ready, absl::Duration timeout) {
  const std::vector<ShardChannel*> shards = channels();
  // A thread can sleep at one shard's doorbell or connection only.
  return shards.size() == 1 ? shards[0]->Help(ready, timeout) : std::nullopt;
}

void Client::OnMessageDone(Operation* operation, uint32_t shard, const ShardMessage& message, ShardReply reply) {
  if (reply.status.ok()) {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < message.slices.size(); ++i) {
      Tensor& tensor = tensors_.at(message.slices[i].tensor_id);
      const uint32_t index = message.slices[i].slice_index;
      if (i < reply.versions.size()) tensor.versions[index] = reply.versions[i];
      if (message.kind != Kind::kPush && message.kind != Kind::kPushPull) continue;
      tensor.finished_steps[index] = std::max(tensor.finished_steps[index], message.step + 1);
    }
  }
  if (message.kind == Kind::kPushRows && CountEnded(shard, message, reply.status.ok())) Report(shard);
  bool first_failure = false, last = false;
  absl::StatusOr<Totals> result;
  {
    absl::MutexLock lock(&operation->mutex);
    first_failure = operation->status.ok() && !reply.status.ok();
    operation->status.Update(reply.status);
    operation->AddLocked(reply);
    last = --operation->remaining == 0;
    if (last && operation->status.ok()) result = operation->totals;
    if (last && !operation->status.ok()) result = operation->status;
  }
  if (last) return operation->finish(std::move(result));
  // The other messages are now useless, but the caller gets its memory back only when all of them have ended.
  if (!first_failure) return;
  for (ShardChannel* channel : channels()) channel->Cancel(operation->id, "another part of the call failed");
}

absl::Status Client::Pause() {
  std::vector<Future<v1::PauseResponse>> answers;
  for (ShardChannel* channel : channels()) answers.push_back(channel->Pause());
  absl::Status status;
  for (const auto& answer : answers) status.Update(answer.Get().status());
  // The shards forget the messages of steps that have not ended.
  absl::MutexLock lock(&mutex_);
  row_messages_ = StepCounts();
  return status;
}

absl::StatusOr<std::vector<v1::GetStatusResponse>> Client::GetStatus() {
  std::vector<Future<v1::GetStatusResponse>> answers;
  for (ShardChannel* channel : channels()) answers.push_back(channel->GetStatus(options_.rpc_timeout));
  std::vector<v1::GetStatusResponse> statuses;
  for (const auto& answer : answers) {
    absl::StatusOr<v1::GetStatusResponse> status = answer.Get();
    if (!status.ok()) return status.status();
    statuses.push_back(*std::move(status));
  }
  return statuses;
}

ShardMap Client::shard_map() const {
  absl::MutexLock lock(&mutex_);
  return map_;
}

std::pair<uint64_t, uint64_t> Client::pulled_versions() const {
  absl::MutexLock lock(&mutex_);
  uint64_t oldest = std::numeric_limits<uint64_t>::max(), newest = 0;
  for (const auto& [id, tensor] : tensors_) {
    for (uint64_t version : tensor.versions) {
      oldest = std::min(oldest, version);
      newest = std::max(newest, version);
    }
  }
  return {std::min(oldest, newest), newest};
}

bool Client::SharesMemory(uint32_t tensor_id) const {
  const std::vector<ShardChannel*> shards = channels();
  absl::MutexLock lock(&mutex_);
  const auto shares = [&](const PlacedSlice& slice) { return shards[slice.shard]->shares_memory(); };
  const auto tensor = tensors_.find(tensor_id);
  return tensor != tensors_.end() && absl::c_all_of(tensor->second.placed.slices, shares);
}

std::vector<uint64_t> Client::acknowledged_pushes() const {
  std::vector<uint64_t> acknowledged;
  for (const ShardChannel* channel : channels()) acknowledged.push_back(channel->acknowledged_pushes());
  return acknowledged;
}

std::vector<ShardChannel*> Client::channels() const {
  absl::MutexLock lock(&mutex_);
  std::vector<ShardChannel*> channels;
  for (const auto& channel : channels_) channels.push_back(channel.get());
  return channels;
}

void Client::Shutdown(const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    shutdown_ = true;
  }
  if (map_follower_ != nullptr) map_follower_->Stop();
  if (coordinator_ != nullptr) coordinator_->CancelCalls(reason);
  for (ShardChannel* channel : channels()) channel->Shutdown(reason);
}

void Client::WaitUntilIdle() {
  for (ShardChannel* channel : channels()) channel->WaitUntilIdle();
}

}  // namespace ballast
