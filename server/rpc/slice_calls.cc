// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "common/wire/limits.h"
#include "server/rpc/data_call.h"

// The calls of tensors: Push, Pull, PushPull and SetValues.
namespace ballast {
namespace {

// Twice the slices, to allow for fields that this server does not know.
constexpr size_t kMaxPullElements = 2 * kMaxSlicesPerMessage;

// `parts` have the payloads, or some of them, in that order.
template <typename Message>
std::vector<GradientView> ViewGradients(const Message& message, std::vector<BufferPool::Buffer>& parts) {
  std::vector<GradientView> views;
  views.reserve(message.items.size());
  auto part = parts.begin();
  for (const auto& [gradient, payload] : message.items) {
    GradientView& view = views.emplace_back();
    view.key = {gradient.tensor_id(), gradient.slice_index()};
    view.version = gradient.version();
    view.encoding = gradient.encoding();
    view.payload = payload;
    if (payload.size() != 1) continue;
    const absl::string_view floats = payload[0];
    const auto holder = std::find_if(part, parts.end(), [&](const auto& one) { return one.Has(floats); });
    if (holder == parts.end()) continue;
    part = holder;
    view.has_finite_floats = part->HasFiniteFloats(floats);
    // What is ahead of it in the part has been read by then.
    const bool is_last = floats.end() == part->bytes().end();
    const bool is_most = part->capacity() - floats.size() <= part->capacity() / BufferPool::kWaste;
    if (view.has_finite_floats && is_last && is_most) view.message = &*part;
  }
  return views;
}

void Encode(const PushOutcome& outcome, v1::PushOutcome* to) {
  to->set_applied(outcome.applied);
  to->set_buffered(outcome.buffered);
  to->set_dropped(outcome.dropped);
  to->set_max_staleness(outcome.max_staleness);
  to->set_learning_rate(outcome.learning_rate);
  to->set_duplicate(outcome.duplicate);
}

}  // namespace

template <typename Envelope, typename Check>
absl::StatusOr<DataPlane::Call::Taken<Envelope>> DataPlane::Call::TakePush(Check check) {
  const ReceivedBytes bytes = Request();
  auto message = DecodeCovered(kMaxSlicesPerMessage, [&](size_t most) {
    return DecodePayloadMessage<Envelope, v1::SliceGradient>(bytes.pieces, Envelope::kGradientsFieldNumber, most);
  });
  if (!message.ok()) return OnShard(message.status());
  if (absl::Status status = check(message->envelope); !status.ok()) return OnShard(status);
  const std::vector<GradientView> gradients = ViewGradients(*message, memory_parts_);
  const v1::PushHeader& header = message->envelope.header();
  Identify(header.worker(), header.step() + 1);
  if (absl::Status status = CheckJob(header.job()); !status.ok()) return OnShard(status);
  map_epoch_ = header.map_epoch();
  Taken<Envelope> taken;
  taken.keys.reserve(gradients.size());
  for (const GradientView& gradient : gradients) taken.keys.push_back(gradient.key);
  if (handler_ == &Call::PushPull) {
    // Check before the push, because afterwards the pull must not be refused.
    if (absl::Status status = plane_->shard_->CheckPull(taken.keys); !status.ok()) return status;
  }
  const absl::StatusOr<PushOutcome> outcome =
      plane_->shard_->Push(header.job(), DecodeTicket(header), gradients, &plane_->pushed_);
  if (!outcome.ok()) return outcome.status();
  Pushed(*outcome);
  taken.outcome = *outcome;
  taken.envelope = std::move(message->envelope);
  // The envelope may wait long, and no budget covers unknown fields.
  taken.envelope.DiscardUnknownFields();
  return taken;
}

void DataPlane::Call::Push() {
  const auto taken = TakePush<v1::PushRequest>([](const v1::PushRequest&) { return absl::OkStatus(); });
  if (!taken.ok()) return End(taken.status());
  DropRequest(ByteBudget::kCallBytes);
  v1::PushResponse answer;
  Encode(taken->outcome, answer.mutable_outcome());
  timer_.Enter(CallPhase::kWait);
  plane_->shard_->AwaitDurable(taken->outcome, Ending(EncodeMessage(answer)));
}

void DataPlane::Call::Pull() {
  PullQuery pull;
  std::string job;
  std::vector<SliceKey> keys;
  ResponseOptions options;
  {
    auto message =
        DecodeCovered(kMaxPullElements, [&](size_t most) { return DecodeMessage<v1::PullRequest>(Request(), most); });
    if (!message.ok()) return End(OnShard(message.status()));
    if (absl::Status status = CheckJob(message->job()); !status.ok()) return End(OnShard(status));
    map_epoch_ = message->map_epoch();
    pull.step = message->step();
    Identify(message->has_worker() ? message->worker() : CallSpan::kNone, pull.step);
    if (message->has_worker()) {
      // The values that a worker pulls matter for its next gradient.
      if (!as_worker_.ok()) return End(OnShard(Annotate(as_worker_, "a pull that names a worker")));
      pull.worker = message->worker();
    }
    keys.reserve(message->slices_size());
    for (const v1::SliceRef& slice : message->slices()) keys.push_back({slice.tensor_id(), slice.slice_index()});
    options = {message->wait_ms(), message->encoding()};
    job = std::move(*message->mutable_job());
  }
  // Only now, because the parsed message is covered by the request's reservation.
  DropRequest();
  AnswerWithValues(job, pull, std::move(keys), options, v1::PullResponse());
}

void DataPlane::Call::PushPull() {
  auto taken = TakePush<v1::PushPullRequest>([](const v1::PushPullRequest& envelope) {
    absl::Status status = DecodeWait(envelope.wait_ms()).status();
    status.Update(ValueCodec(envelope.encoding()).status());
    return status;
  });
  if (!taken.ok()) return End(taken.status());
  // A call that waits for other workers must hold no budget.
  DropRequest();
  const PushOutcome outcome = taken->outcome;
  timer_.Enter(CallPhase::kWait);
  plane_->shard_->AwaitDurable(
      outcome, [call = shared_from_this(), taken = *std::move(taken)](const absl::Status& status) mutable {
        if (!status.ok()) return call->End(call->OnShard(status));
        v1::PushPullResponse answer;
        Encode(taken.outcome, answer.mutable_outcome());
        const v1::PushPullRequest& envelope = taken.envelope;
        const v1::PushHeader& header = envelope.header();
        call->AnswerWithValues(header.job(), {header.step() + 1, header.worker()}, std::move(taken.keys),
                               {envelope.wait_ms(), envelope.encoding()}, answer);
      });
}

void DataPlane::Call::SetValues() {
  const ReceivedBytes bytes = Request();
  const auto message = DecodeCovered(kMaxSlicesPerMessage, [&](size_t most) {
    return DecodePayloadMessage<v1::SetValuesRequest, v1::SliceValue>(bytes.pieces,
                                                                      v1::SetValuesRequest::kValuesFieldNumber, most);
  });
  if (!message.ok()) return End(OnShard(message.status()));
  map_epoch_ = message->envelope.map_epoch();
  if (absl::Status status = CheckJob(message->envelope.job()); !status.ok()) return End(OnShard(status));
  std::vector<ValueView> views;
  views.reserve(message->items.size());
  for (const auto& [value, payload] : message->items) {
    views.push_back({{value.tensor_id(), value.slice_index()}, value.encoding(), payload});
  }
  const absl::StatusOr<SetOutcome> outcome =
      plane_->shard_->SetValues(message->envelope.job(), views, &plane_->pushed_);
  if (!outcome.ok()) return End(outcome.status());
  DropRequest(ByteBudget::kCallBytes);
  v1::SetValuesResponse answer;
  answer.set_set(outcome->set);
  answer.set_unchanged(outcome->unchanged);
  // The client sends the values once and does not repeat them to a shard that has lost them. Values set earlier may
  // not be durable yet either.
  plane_->shard_->AwaitSynced(Ending(EncodeMessage(answer)));
}

template <typename Response>
void DataPlane::Call::AnswerWithValues(const std::string& job, const PullQuery& pull, std::vector<SliceKey> keys,
                                       const ResponseOptions& options, const Response& envelope) {
  const absl::StatusOr<absl::Duration> wait = DecodeWait(options.wait_ms);
  if (!wait.ok()) return End(wait.status());
  const absl::StatusOr<const Codec*> codec = ValueCodec(options.encoding);
  if (!codec.ok()) return End(OnShard(codec.status()));
  if (keys.size() > kMaxSlicesPerMessage) {
    return End(OnShard(absl::InvalidArgumentError(
        absl::StrCat("got a message of ", keys.size(), " slices, want at most ", kMaxSlicesPerMessage))));
  }
  const auto call = shared_from_this();
  auto write = [call, keys, worker = pull.worker, codec = *codec, envelope]() {
    call->timer_.Enter(CallPhase::kSend);
    DataPlane& plane = *call->plane_;
    absl::StatusOr<ValuesResponse> response =
        EncodeValues(*plane.shard_, keys, worker, *codec, call->Budget(), envelope, Response::kValuesFieldNumber);
    if (!response.ok()) return call->End(response.status());
    plane.pull_bytes_ += response->bytes.Length();
    plane.pulled_.Add(response->payload);
    call->values_reserved_ = std::move(response->reservation);
    call->timer_.Enter(CallPhase::kWait);
    // The worker may push a gradient of these values, so a recovered shard must not be older than they are.
    plane.shard_->AwaitDurable(call->Ending(std::move(response->bytes)));
  };
  const bool lends = (*codec)->encoding() == v1::ENCODING_FP32;
  auto answer = [call, lends, write = std::move(write)](const absl::Status& status) mutable {
    if (!status.ok()) return call->End(status);
    call->RunForClient(std::move(write), lends);
  };
  timer_.Enter(CallPhase::kWait);
  // The callback may end the call before AwaitPull returns, but not delete it.
  wait_.Began(plane_->shard_->AwaitPull(job, pull, keys, *wait, !as_worker_.ok(), std::move(answer)));
}

}  // namespace ballast
