// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/data_plane.h"

#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "common/rpc/grpc_status.h"
#include "common/shared_memory/shared_message.h"
#include "common/status/error_reason.h"
#include "common/wire/payload_message.h"
#include "server/rpc/cancellable_wait.h"
#include "server/rpc/unary_reply.h"
#include "server/rpc/values_response.h"

namespace ballast {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and used in place");

// Smaller responses are sent over the network even if the request came in shared memory.
constexpr size_t kMinSharedBytes = 1024;

// Twice the slices, to allow for fields that this server does not know.
constexpr size_t kMaxPullElements = 2 * kMaxSlicesPerMessage;

template <typename Message>
std::vector<GradientView> ViewGradients(const Message& message) {
  std::vector<GradientView> views;
  views.reserve(message.items.size());
  for (const auto& [gradient, payload] : message.items) {
    views.push_back({{gradient.tensor_id(), gradient.slice_index()}, gradient.version(), gradient.encoding(), payload});
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

// Owns one call: the client sends one message and gets one. Shared by gRPC, until OnDone, and by each callback that
// another thread still has to run; the last of them deletes the call. Thread safety: gRPC's methods as gRPC calls them;
// the others run in one thread at a time, and change nothing after the call has ended.
class DataPlane::Call : public grpc::ServerGenericBidiReactor, public std::enable_shared_from_this<Call> {
 public:
  using Handler = void (Call::*)();

  static Call* Begin(Handler handler, DataPlane* plane, grpc::GenericCallbackServerContext* context) {
    const auto call = std::make_shared<Call>(handler, plane, context);
    call->for_grpc_ = call;
    if (absl::Status status = call->Admit(); !status.ok()) {
      call->End(status);
    } else {
      call->StartRead(&call->request_);
    }
    return call.get();
  }

  Call(Handler handler, DataPlane* plane, grpc::GenericCallbackServerContext* context)
      : handler_(handler), plane_(plane), context_(context) {}

  void Push();
  void Pull();
  void PushPull();
  void SetValues();

  void OnReadDone(bool ok) override {
    if (!ok) {
      return End(WithReason(v1::ERROR_REASON_MALFORMED_MESSAGE, absl::InvalidArgumentError("got no message")));
    }
    absl::Status taken = plane_->executor_->Submit([call = shared_from_this()] { call->Handle(); });
    if (!taken.ok()) End(OnShard(taken));
  }

  void OnCancel() override { wait_.Cancel(); }
  // gRPC has sent the response. A callback may keep the call for a moment longer, but not what the budget covers.
  void OnDone() override {
    response_.Clear();
    reserved_.Release();
    values_reserved_.reset();
    const std::shared_ptr<Call> last = std::move(for_grpc_);
  }

 private:
  absl::string_view Method() const { return absl::StripPrefix(context_->method(), "/ballast.v1."); }
  // Checks the job that the request names, which is unknown when the call begins.
  absl::Status CheckJob(const std::string& job) const { return plane_->access_->CheckJob(*context_, Method(), job); }

  // Checks what is known before the message is read, and reserves memory for it.
  absl::Status Admit() {
    if (absl::Status access = plane_->access_->Check(*context_, Method(), ""); !access.ok()) return OnShard(access);
    if (absl::Status serving = plane_->serving_->Check(); !serving.ok()) return OnShard(serving);
    // Readers may only pull.
    if (handler_ == &Call::Pull) as_worker_ = plane_->access_->Check(*context_, Method(), "", AccessRole::kWorker);
    absl::StatusOr<ByteBudget::Reservation> reserved = Budget().Reserve(kMaxMessageBytes);
    if (reserved.ok()) reserved_ = *std::move(reserved);
    return reserved.status();
  }

  ByteBudget& Budget() { return as_worker_.ok() ? plane_->budget_ : plane_->reader_budget_; }

  struct ResponseOptions {
    uint32_t wait_ms = 0;
    v1::Encoding encoding = v1::ENCODING_UNSPECIFIED;
  };
  // A push that the shard has accepted.
  template <typename Envelope>
  struct Taken {
    Envelope envelope;
    std::vector<SliceKey> keys;
    PushOutcome outcome;
  };

  void Handle();

  // Decodes the request, checks its envelope with `check`, and passes it to the shard.
  template <typename Envelope, typename Check>
  absl::StatusOr<Taken<Envelope>> TakePush(Check check);

  // Waits as `pull` requires, then ends the call with `envelope` and the slices' values.
  template <typename Response>
  void AnswerWithValues(const std::string& job, const PullQuery& pull, std::vector<SliceKey> keys,
                        const ResponseOptions& options, const Response& envelope);

  // Copies the request from shared memory, into the budget reserved for a message from the network.
  absl::Status Borrow(const v1::SharedSlot& reference) {
    absl::StatusOr<SlotView> slot = plane_->regions_.Borrow(reference.region(), reference.slot());
    if (!slot.ok()) return slot.status();
    slot_ = *std::move(slot);
    const absl::StatusOr<absl::string_view> message = MessageAt(reference, slot_->memory());
    if (!message.ok()) return message.status();
    // The total must fit what is reserved for a message from the network.
    if (request_.Length() + message->size() > kMaxMessageBytes + kMinSharedBytes) {
      return absl::InvalidArgumentError(absl::StrCat("message in shared memory: got ", message->size(),
                                                     " bytes there and ", request_.Length(),
                                                     " in the call, want at most ", kMaxMessageBytes));
    }
    // The client may change it at any time, so read it once: the bytes checked must be the bytes used.
    own_request_ = plane_->buffers_.Copy(*message);
    ++plane_->shared_calls_;
    return absl::OkStatus();
  }
  // The bytes in the call followed by those in shared memory: in that order they are one message.
  ReceivedBytes Request() const {
    ReceivedBytes bytes = BytesOf(request_);
    if (slot_.has_value()) bytes.pieces.push_back(own_request_.bytes());
    return bytes;
  }

  // Frees the request and its reservation, except for `kept_bytes`: those of a response without values, until gRPC has
  // sent it.
  void DropRequest(uint64_t kept_bytes = 0) {
    request_.Clear();
    own_request_ = {};
    reserved_.ShrinkTo(kept_bytes);
  }

  void EndWith(grpc::ByteBuffer response) {
    if (slot_.has_value() && response.Length() >= kMinSharedBytes) {
      const std::optional<MessageSpot> spot = CopyMessage(response, slot_->memory());
      if (spot.has_value()) {
        v1::SharedSlot reference;
        reference.set_region(slot_->region());
        reference.set_slot(slot_->slot());
        reference.set_offset(spot->offset);
        reference.set_bytes(spot->bytes);
        response = EncodeReference(reference);
      }
    }
    slot_.reset();
    response_.Swap(&response);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void End(const absl::Status& status) {
    DropRequest();
    slot_.reset();
    const bool not_owner = ReasonOf(status) == v1::ERROR_REASON_NOT_OWNER;
    const absl::Status told = not_owner ? WithSubjects(status, {{"epoch", absl::StrCat(map_epoch_)}}) : status;
    Finish(ToGrpcStatus(WithRetryDelay(told, *context_)));
  }
  // Returns a callback that ends the call with `response`, or with an error if its durability fails.
  std::function<void(absl::Status)> Ending(grpc::ByteBuffer response) {
    return [call = shared_from_this(), response = std::move(response)](const absl::Status& durable) mutable {
      if (!durable.ok()) return call->End(call->OnShard(durable));
      call->EndWith(std::move(response));
    };
  }
  absl::Status OnShard(const absl::Status& status) const {
    return Annotate(status, absl::StrCat("shard ", plane_->rank_));
  }

  const Handler handler_;
  DataPlane* const plane_;
  grpc::GenericCallbackServerContext* const context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  // The budget of the request, then of the small response to a push.
  ByteBudget::Reservation reserved_;
  // The budget of a response with values until gRPC has sent it, which a peer that does not read delays. Shared with
  // values that gRPC sends from the shard's memory, which may be freed later.
  std::shared_ptr<ByteBudget::Reservation> values_reserved_;
  // OK if the caller may act as a worker; otherwise the reason.
  absl::Status as_worker_;
  // The shared-memory slot of request and response, if used. Nothing in it is read twice.
  std::optional<SlotView> slot_;
  // The request's copy.
  BufferPool::Buffer own_request_;
  CancellableWait wait_{[shard = plane_->shard_](WaitList::Ticket ticket) { shard->CancelPull(ticket); }};
  // Epoch of the shard map that the sender used.
  uint64_t map_epoch_ = 0;
  // gRPC's reference: it only knows an address. Null after OnDone.
  std::shared_ptr<Call> for_grpc_;
};

void DataPlane::Call::Handle() {
  if (const std::optional<v1::SharedSlot> reference = FindReference(request_); reference.has_value()) {
    if (absl::Status status = Borrow(*reference); !status.ok()) return End(OnShard(status));
  }
  (this->*handler_)();
}

template <typename Envelope, typename Check>
absl::StatusOr<DataPlane::Call::Taken<Envelope>> DataPlane::Call::TakePush(Check check) {
  const ReceivedBytes bytes = Request();
  auto message = DecodePayloadMessage<Envelope, v1::SliceGradient>(bytes.pieces, Envelope::kGradientsFieldNumber,
                                                                   kMaxSlicesPerMessage);
  if (!message.ok()) return OnShard(message.status());
  if (absl::Status status = check(message->envelope); !status.ok()) return OnShard(status);
  const std::vector<GradientView> gradients = ViewGradients(*message);
  const v1::PushHeader& header = message->envelope.header();
  if (absl::Status status = CheckJob(header.job()); !status.ok()) return OnShard(status);
  map_epoch_ = header.map_epoch();
  Taken<Envelope> taken;
  taken.keys.reserve(gradients.size());
  for (const GradientView& gradient : gradients) taken.keys.push_back(gradient.key);
  if (handler_ == &Call::PushPull) {
    // Check before the push, because afterwards the pull must not be refused.
    if (absl::Status status = plane_->shard_->CheckPull(taken.keys); !status.ok()) return status;
  }
  const absl::StatusOr<PushOutcome> outcome = plane_->shard_->Push(header.job(), DecodeTicket(header), gradients);
  if (!outcome.ok()) return outcome.status();
  taken.outcome = *outcome;
  for (const GradientView& gradient : gradients) plane_->push_bytes_ += PayloadBytes(gradient.payload);
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
  plane_->shard_->AwaitDurable(taken->outcome, Ending(EncodeMessage(answer)));
}

void DataPlane::Call::Pull() {
  PullQuery pull;
  std::string job;
  std::vector<SliceKey> keys;
  ResponseOptions options;
  {
    auto message = DecodeMessage<v1::PullRequest>(Request(), kMaxPullElements);
    if (!message.ok()) return End(OnShard(message.status()));
    if (absl::Status status = CheckJob(message->job()); !status.ok()) return End(OnShard(status));
    map_epoch_ = message->map_epoch();
    pull.step = message->step();
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
  const auto message = DecodePayloadMessage<v1::SetValuesRequest, v1::SliceValue>(
      bytes.pieces, v1::SetValuesRequest::kValuesFieldNumber, kMaxSlicesPerMessage);
  if (!message.ok()) return End(OnShard(message.status()));
  map_epoch_ = message->envelope.map_epoch();
  if (absl::Status status = CheckJob(message->envelope.job()); !status.ok()) return End(OnShard(status));
  std::vector<ValueView> views;
  views.reserve(message->items.size());
  for (const auto& [value, payload] : message->items) {
    views.push_back({{value.tensor_id(), value.slice_index()}, value.encoding(), payload});
  }
  const absl::StatusOr<SetOutcome> outcome = plane_->shard_->SetValues(message->envelope.job(), views);
  if (!outcome.ok()) return End(outcome.status());
  for (const ValueView& view : views) plane_->push_bytes_ += PayloadBytes(view.payload);
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
  auto answer = [call, keys, worker = pull.worker, codec = *codec, envelope](const absl::Status& status) {
    if (!status.ok()) return call->End(status);
    DataPlane& plane = *call->plane_;
    absl::StatusOr<ValuesResponse> response =
        EncodeValues(*plane.shard_, keys, worker, *codec, call->Budget(), envelope, Response::kValuesFieldNumber);
    if (!response.ok()) return call->End(response.status());
    plane.pull_bytes_ += response->bytes.Length();
    call->values_reserved_ = std::move(response->reservation);
    // The worker may push a gradient of these values, so a recovered shard must not be older than they are.
    plane.shard_->AwaitDurable(call->Ending(std::move(response->bytes)));
  };
  // The callback may end the call before AwaitPull returns, but not delete it.
  wait_.Began(plane_->shard_->AwaitPull(job, pull, keys, *wait, !as_worker_.ok(), std::move(answer)));
}

grpc::ServerGenericBidiReactor* DataPlane::CreateReactor(grpc::GenericCallbackServerContext* context) {
  static constexpr std::pair<absl::string_view, Call::Handler> kHandlers[] = {
      {"/ballast.v1.ParameterService/Push", &Call::Push},
      {"/ballast.v1.ParameterService/Pull", &Call::Pull},
      {"/ballast.v1.ParameterService/PushPull", &Call::PushPull},
      {"/ballast.v1.ParameterService/SetValues", &Call::SetValues}};
  for (const auto& [method, handler] : kHandlers) {
    if (context->method() == method) return Call::Begin(handler, this, context);
  }
  return unknown_methods_.CreateReactor(context);
}

DataPlane::Traffic DataPlane::traffic() const {
  const ShardStatus shard = shard_->status();
  return {budget_.used() + shard.wait_bytes,
          budget_.limit() + shard.wait_bytes_limit,
          budget_.refused() + shard.refused_waits,
          push_bytes_,
          pull_bytes_,
          regions_.size(),
          shared_calls_};
}

}  // namespace ballast
