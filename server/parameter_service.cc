// SPDX-License-Identifier: Apache-2.0
#include "server/parameter_service.h"

#include <bit>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codecs/codec_seed.h"
#include "common/grpc_status.h"
#include "common/policy_config.h"
#include "common/tensor_spec.h"
#include "common/version.h"
#include "common/wire/payload_message.h"
#include "server/call.h"

namespace ballast {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and used in place");

// Of the slices in one message, as fp32.
constexpr uint64_t kMaxPayload = 4 << 20;

// When a caller that was refused shall try again.
constexpr char kRetryDelayKey[] = "retry-delay-ms";
constexpr char kRetryDelay[] = "20";

using PushMessage = PayloadMessage<v1::PushRequest, v1::SliceGradient>;
using PushPullMessage = PayloadMessage<v1::PushPullRequest, v1::SliceGradient>;

PushTicket DecodeHeader(const v1::PushHeader& header) {
  return {header.worker(), header.incarnation(), header.sequence(), header.step(), header.examples()};
}

template <typename Message>
std::vector<GradientView> ViewGradients(const Message& message) {
  std::vector<GradientView> views;
  views.reserve(message.items.size());
  for (const auto& [gradient, payload] : message.items) {
    views.push_back({{gradient.tensor_id(), gradient.slice_index()}, gradient.version(), gradient.encoding(), payload});
  }
  return views;
}

uint64_t PayloadBytes(absl::Span<const GradientView> gradients) {
  uint64_t bytes = 0;
  for (const GradientView& gradient : gradients) {
    for (absl::string_view piece : gradient.payload) bytes += piece.size();
  }
  return bytes;
}

void Encode(const PushOutcome& outcome, v1::PushOutcome* to) {
  to->set_applied(outcome.applied);
  to->set_kept(outcome.kept);
  to->set_dropped(outcome.dropped);
  to->set_max_staleness(outcome.max_staleness);
  to->set_learning_rate(outcome.learning_rate);
  to->set_duplicate(outcome.duplicate);
}

// How a pull wants its values.
absl::StatusOr<const Codec*> ValueCodec(v1::Encoding encoding) {
  absl::StatusOr<const Codec*> codec = FindCodec(encoding == v1::ENCODING_UNSPECIFIED ? v1::ENCODING_FP32 : encoding);
  if (!codec.ok() || (*codec)->carries_values()) return codec;
  return absl::InvalidArgumentError(
      absl::StrCat("encoding of values: got ", (*codec)->name(), ", which is for gradients only"));
}

// What keeps a value's memory, and its part of the budget, while gRPC sends it.
struct ValueInFlight {
  ValueBuffer values;
  // Shared by the values of one answer.
  std::shared_ptr<ByteBudget::Reservation> reservation;
};

grpc::Slice SliceOver(ValueBuffer values, std::shared_ptr<ByteBudget::Reservation> reservation) {
  const absl::Span<const float> elements = values.values();
  const size_t bytes = elements.size() * sizeof(float);
  if (bytes <= PayloadMessageWriter::kCopiedBytes) return grpc::Slice(elements.data(), bytes);
  // gRPC only reads it.
  return grpc::Slice(
      const_cast<float*>(elements.data()), bytes, [](void* held) { delete static_cast<ValueInFlight*>(held); },
      new ValueInFlight{std::move(values), std::move(reservation)});
}

// The values in another encoding. What is rounded at random depends on slice and version alone: all who pull them get
// the same bytes.
grpc::Slice EncodeValue(const Codec& codec, SliceKey key, const Slice::Snapshot& snapshot,
                        std::shared_ptr<ByteBudget::Reservation> reservation) {
  struct Encoded {
    std::unique_ptr<char[]> bytes;
    std::shared_ptr<ByteBudget::Reservation> reservation;
  };
  const absl::Span<const float> elements = snapshot.values.values();
  auto encoded = std::make_unique<Encoded>();
  encoded->bytes = std::make_unique_for_overwrite<char[]>(codec.EncodedBytes(elements.size()));
  encoded->reservation = std::move(reservation);
  char* data = encoded->bytes.get();
  const size_t size = codec.Encode(elements, CodecSeed({key.tensor_id, key.slice_index, snapshot.version}), data);
  return grpc::Slice(
      data, size, [](void* held) { delete static_cast<Encoded*>(held); }, encoded.release());
}

// Answers with the slices' values as they are now, behind what `envelope` says.
absl::StatusOr<grpc::ByteBuffer> EncodeValues(ParameterShard& shard, absl::Span<const SliceKey> keys,
                                              std::optional<uint32_t> worker, const Codec& codec, ByteBudget& budget,
                                              const google::protobuf::MessageLite& envelope, int field) {
  std::vector<Slice::Snapshot> snapshots;
  snapshots.reserve(keys.size());
  uint64_t bytes = 0;
  for (SliceKey key : keys) {
    absl::StatusOr<Slice::Snapshot> snapshot = shard.Pull(key, worker);
    if (!snapshot.ok()) return snapshot.status();
    bytes += snapshot->values.size() * sizeof(float);
    if (bytes > kMaxPayload) {
      return absl::InvalidArgumentError(
          absl::StrCat("the slices asked for have more than ", kMaxPayload, " bytes; ask for fewer in one message"));
    }
    snapshots.push_back(*std::move(snapshot));
  }
  absl::StatusOr<ByteBudget::Reservation> reserved = budget.Reserve(bytes);
  if (!reserved.ok()) return reserved.status();
  auto reservation = std::make_shared<ByteBudget::Reservation>(*std::move(reserved));
  PayloadMessageWriter writer(envelope);
  for (size_t i = 0; i < keys.size(); ++i) {
    v1::SliceValue value;
    value.set_tensor_id(keys[i].tensor_id);
    value.set_slice_index(keys[i].slice_index);
    value.set_version(snapshots[i].version);
    value.set_encoding(codec.encoding());
    writer.Add(field, value,
               codec.encoding() == v1::ENCODING_FP32 ? SliceOver(std::move(snapshots[i].values), reservation)
                                                     : EncodeValue(codec, keys[i], snapshots[i], reservation));
  }
  return writer.Finish();
}

// One call of the data plane. gRPC binds it when its handler has returned, and neither cancels nor ends it before.
class DataCall : public grpc::ServerUnaryReactor {
 public:
  explicit DataCall(grpc::CallbackServerContext* context) : context_(context) {}

  void End(const absl::Status& status) {
    if (absl::IsResourceExhausted(status)) context_->AddTrailingMetadata(kRetryDelayKey, kRetryDelay);
    Finish(ToGrpcStatus(status));
  }

  // What to end when the caller goes. To be called by the handler.
  void WaitsOn(ParameterShard* shard, WaitRoom::Ticket ticket) {
    shard_ = shard;
    ticket_ = ticket;
  }

  void OnCancel() override {
    if (shard_ != nullptr) shard_->CancelPull(ticket_);
  }
  void OnDone() override { delete this; }

 private:
  grpc::CallbackServerContext* const context_;
  ParameterShard* shard_ = nullptr;
  WaitRoom::Ticket ticket_ = WaitRoom::kNoTicket;
};

}  // namespace

grpc::ServerUnaryReactor* ParameterServiceAdapter::DeclareTensors(grpc::CallbackServerContext* context,
                                                                  const v1::DeclareTensorsRequest* request,
                                                                  v1::DeclareTensorsResponse* response) {
  if (request->protocol_version() != 0 && request->protocol_version() != kProtocolVersion) {
    return Answer(context, absl::FailedPreconditionError(absl::StrCat("shard ", rank_, ": got protocol version ",
                                                                      request->protocol_version(), ", want ",
                                                                      kProtocolVersion, " (ballast ", kVersion, ")")));
  }
  std::vector<OwnedTensor> tensors;
  tensors.reserve(request->tensors_size());
  for (const v1::TensorDeclaration& declaration : request->tensors()) {
    tensors.push_back({declaration.spec(), {declaration.slices().begin(), declaration.slices().end()}});
  }
  auto owned = shard_->Declare({request->job(), request->policy(), request->workers()}, std::move(tensors));
  if (!owned.ok()) return Answer(context, owned.status());
  for (const OwnedTensor& tensor : *owned) {
    v1::DeclareTensorsResponse::Owned* to = response->add_tensors();
    to->set_tensor_id(tensor.spec.id());
    to->mutable_slices()->Add(tensor.slices.begin(), tensor.slices.end());
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::Push(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new DataCall(context);
  call->End([&] {
    const absl::StatusOr<ByteBudget::Reservation> reservation = budget_.Reserve(request->Length());
    if (!reservation.ok()) return OnShard(reservation.status());
    const ReceivedBytes bytes = BytesOf(*request);
    const auto message = DecodePayloadMessage<v1::PushRequest, v1::SliceGradient>(
        bytes.pieces, v1::PushRequest::kGradientsFieldNumber, kMaxSlicesPerMessage);
    if (!message.ok()) return OnShard(message.status());
    const std::vector<GradientView> gradients = ViewGradients(*message);
    const v1::PushHeader& header = message->envelope.header();
    const absl::StatusOr<PushOutcome> outcome = shard_->Push(header.job(), DecodeHeader(header), gradients);
    if (!outcome.ok()) return outcome.status();
    push_bytes_ += PayloadBytes(gradients);
    v1::PushResponse answer;
    Encode(*outcome, answer.mutable_outcome());
    *response = EncodeMessage(answer);
    return absl::OkStatus();
  }());
  return call;
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::Pull(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* call = new DataCall(context);
  const auto message = DecodeMessage<v1::PullRequest>(*request);
  if (!message.ok()) {
    call->End(OnShard(message.status()));
    return call;
  }
  PullTerms pull{message->step(), std::nullopt};
  if (message->has_worker()) pull.worker = message->worker();
  std::vector<SliceKey> keys;
  keys.reserve(message->slices_size());
  for (const v1::SliceRef& slice : message->slices()) keys.push_back({slice.tensor_id(), slice.slice_index()});
  AnswerWithValues(call, message->job(), pull, std::move(keys), {message->wait_ms(), message->encoding()},
                   v1::PullResponse(), response);
  return call;
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::PushPull(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  auto* call = new DataCall(context);
  std::vector<SliceKey> keys;
  v1::PushPullRequest envelope;
  v1::PushPullResponse answer;
  const absl::Status pushed = [&] {
    const absl::StatusOr<ByteBudget::Reservation> reservation = budget_.Reserve(request->Length());
    if (!reservation.ok()) return OnShard(reservation.status());
    const ReceivedBytes bytes = BytesOf(*request);
    auto message = DecodePayloadMessage<v1::PushPullRequest, v1::SliceGradient>(
        bytes.pieces, v1::PushPullRequest::kGradientsFieldNumber, kMaxSlicesPerMessage);
    if (!message.ok()) return OnShard(message.status());
    if (absl::Status status = DecodeWait(message->envelope.wait_ms()).status(); !status.ok()) return status;
    if (absl::Status status = ValueCodec(message->envelope.encoding()).status(); !status.ok()) return OnShard(status);
    const std::vector<GradientView> gradients = ViewGradients(*message);
    const v1::PushHeader& header = message->envelope.header();
    const absl::StatusOr<PushOutcome> outcome = shard_->Push(header.job(), DecodeHeader(header), gradients);
    if (!outcome.ok()) return outcome.status();
    push_bytes_ += PayloadBytes(gradients);
    Encode(*outcome, answer.mutable_outcome());
    keys.reserve(gradients.size());
    for (const GradientView& gradient : gradients) keys.push_back(gradient.key);
    envelope = std::move(message->envelope);
    return absl::OkStatus();
  }();
  if (!pushed.ok()) {
    call->End(pushed);
    return call;
  }
  // What waits for other workers must not hold memory. The request is gRPC's for this call's use alone.
  const_cast<grpc::ByteBuffer*>(request)->Clear();
  const v1::PushHeader& header = envelope.header();
  AnswerWithValues(call, header.job(), {header.step() + 1, header.worker()}, std::move(keys),
                   {envelope.wait_ms(), envelope.encoding()}, answer, response);
  return call;
}

template <typename Call, typename Response>
void ParameterServiceAdapter::AnswerWithValues(Call* call, const std::string& job, const PullTerms& pull,
                                               std::vector<SliceKey> keys, const AnswerTerms& terms,
                                               const Response& envelope, grpc::ByteBuffer* response) {
  const absl::StatusOr<absl::Duration> wait = DecodeWait(terms.wait_ms);
  if (!wait.ok()) return call->End(wait.status());
  const absl::StatusOr<const Codec*> codec = ValueCodec(terms.encoding);
  if (!codec.ok()) return call->End(OnShard(codec.status()));
  if (keys.size() > kMaxSlicesPerMessage) {
    return call->End(OnShard(absl::InvalidArgumentError(
        absl::StrCat("got a message of ", keys.size(), " slices, want at most ", kMaxSlicesPerMessage))));
  }
  const WaitRoom::Ticket ticket = shard_->AwaitPull(
      job, pull, keys, *wait,
      [this, call, keys, worker = pull.worker, codec = *codec, envelope, response](absl::Status status) {
        if (status.ok()) {
          absl::StatusOr<grpc::ByteBuffer> answer =
              EncodeValues(*shard_, keys, worker, *codec, budget_, envelope, Response::kValuesFieldNumber);
          status = answer.status();
          if (answer.ok()) pull_bytes_ += answer->Length();
          if (answer.ok()) response->Swap(&*answer);
        }
        call->End(status);
      });
  if (ticket != WaitRoom::kNoTicket) call->WaitsOn(shard_, ticket);
}

absl::Status ParameterServiceAdapter::OnShard(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat("shard ", rank_, ": ", status.message()));
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::Pause(grpc::CallbackServerContext* context,
                                                         const v1::PauseRequest* request, v1::PauseResponse*) {
  return Answer(context, shard_->Pause(request->job(), request->worker(), request->incarnation()));
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::GetStatus(grpc::CallbackServerContext* context,
                                                             const v1::GetStatusRequest*,
                                                             v1::GetStatusResponse* response) {
  const ShardStatus status = shard_->status();
  response->set_shard(rank_);
  response->set_job(status.job.name);
  response->set_policy(std::string(PolicyMode(status.job.policy)));
  response->set_workers(status.job.workers);
  response->set_tensors(status.tensors);
  response->set_slices(status.slices);
  response->set_state_bytes(status.state_bytes);
  response->set_pushes(status.pushes);
  response->set_pulls(status.pulls);
  response->set_updates(status.updates);
  response->set_duplicates(status.duplicates);
  response->set_dropped(status.dropped);
  response->set_waiting(status.waiting);
  response->set_max_staleness(status.max_staleness);
  response->set_uptime_seconds(status.uptime_seconds);
  response->set_version(kVersion);
  response->set_draining(status.draining);
  *response->mutable_staleness() = status.staleness;
  *response->mutable_wait_microseconds() = status.wait_microseconds;
  response->set_push_bytes(push_bytes_);
  response->set_pull_bytes(pull_bytes_);
  response->set_bytes_in_flight(budget_.used());
  response->set_bytes_in_flight_limit(budget_.limit());
  response->set_refused(budget_.refused());
  return Answer(context, absl::OkStatus());
}

}  // namespace ballast
