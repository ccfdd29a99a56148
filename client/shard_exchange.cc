// SPDX-License-Identifier: Apache-2.0
#include "client/shard_exchange.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/codecs/codec.h"
#include "common/shared_memory/shared_heap.h"
#include "common/shared_memory/shared_message.h"
#include "common/status/error_reason.h"
#include "grpcpp/generic/generic_stub.h"

namespace ballast {
namespace {

using Kind = ShardMessage::Kind;

// A call that records when its response begins to arrive: the server sends headers when the response is ready.
class WatchedCall : public grpc::ClientUnaryReactor {
 public:
  // `begun` outlives the call, which deletes itself.
  WatchedCall(absl::Time* begun, std::function<void(grpc::Status)> end) : begun_(begun), end_(std::move(end)) {}

  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) *begun_ = absl::Now();
  }
  void OnDone(const grpc::Status& status) override {
    const std::function<void(grpc::Status)> end = std::move(end_);
    delete this;
    end(status);
  }

 private:
  absl::Time* const begun_;
  std::function<void(grpc::Status)> end_;
};

bool IsInHeap(absl::Span<const float> floats) {
  return SharedHeap::OfProcess()
      .Find({reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)})
      .has_value();
}

}  // namespace

const std::string& MethodOf(ShardMessage::Kind kind) {
  static const auto* const kMethods = new std::array<std::string, 6>(
      {"/ballast.v1.ParameterService/Push", "/ballast.v1.ParameterService/Pull",
       "/ballast.v1.ParameterService/PushPull", "/ballast.v1.ParameterService/SetValues",
       "/ballast.v1.ParameterService/PullRows", "/ballast.v1.ParameterService/PushRows"});
  return (*kMethods)[static_cast<size_t>(kind)];
}

const char* ShardMessage::name() const {
  constexpr const char* kNames[] = {"push", "pull", "push-pull", "set values", "pull rows", "push rows"};
  return kNames[static_cast<size_t>(kind)];
}

ExchangeState Next(ExchangeState state, ExchangeEvent event) {
  using State = ExchangeState;
  switch (event) {
    case ExchangeEvent::kAttempt:
      if (state == State::kTaken) return State::kFirstAttempt;
      return state == State::kFirstAttempt ? State::kRetry : state;
    case ExchangeEvent::kSuccess:
      if (state == State::kFirstAttempt) return State::kDone;
      return state == State::kRetry ? State::kLent : state;
    case ExchangeEvent::kFailure:
      return state == State::kDone ? state : State::kLent;
    case ExchangeEvent::kRelease:
      return state == State::kLent ? State::kDone : state;
  }
  return state;
}

void ShardExchange::Prepare(ErrorFeedback* feedback) {
  if (message_.kind == Kind::kPull || message_.kind == Kind::kPullRows) return;
  if (message_.kind == Kind::kPushRows) {
    for (const RowRun& run : message_.rows) row_payloads_.push_back(EncodeRun(run));
    return;
  }
  // Error feedback applies only to gradients, not to SetValues.
  payloads_ = feedback == nullptr || !message_.pushes()
                  ? LendGradients(message_.slices, hold_)
                  : EncodePayloads(message_.slices, CodecSeed({options_.worker, options_.incarnation, sequence_}),
                                   *feedback, hold_);
}

void ShardExchange::StartAttempt(uint64_t map_epoch, uint32_t wait_ms, const DirectRoutes& routes,
                                 const std::shared_ptr<grpc::Channel>& channel, CallAttempt* attempt,
                                 const TraceContext* span, std::function<void(grpc::Status)> end) {
  state_ = Next(state_, ExchangeEvent::kAttempt);
  if (state_ == ExchangeState::kRetry) ++retries_;
  loan_.reset();
  decoded_.reset();
  response_.Clear();
  answer_begun_ = absl::InfiniteFuture();
  absl::StatusOr<grpc::ByteBuffer> request = MakeRequest(map_epoch, wait_ms, routes.slot_sender);
  const bool made = request.ok();
  if (!made) {
    // A call that begins on a cancelled context ends at once, but not on this thread.
    attempt->TryCancel();
    end = [end = std::move(end), why = std::string(request.status().message())](const grpc::Status&) {
      end(grpc::Status(grpc::StatusCode::INTERNAL, why));
    };
    const grpc::Slice nothing;
    request = grpc::ByteBuffer(&nothing, 1);
  }
  if (loan_.has_value()) {
    const bool in_pieces = loan_->in_pieces();
    // The slot has a copy, so that no memory is lent any more.
    if (!in_pieces) request->Clear();
    if (StartInSlot(*attempt, span, end)) return;
    if (in_pieces) {
      loan_.reset();
    } else {
      request = EncodeReference(loan_->reference());
    }
  }
  if (made && !loan_.has_value() && routes.stream != nullptr &&
      StartOnStream(routes.stream, *request, *attempt, span, end)) {
    return;
  }
  request_.Swap(&*request);
  if (span != nullptr) attempt->AddMetadata(kTraceparent, FormatTraceparent(*span));
  const std::string& method = MethodOf(message_.kind);
  grpc::GenericStub stub(channel);
  if (options_.watch_answers) {
    auto* const call = new WatchedCall(&answer_begun_, std::move(end));
    stub.PrepareUnaryCall(attempt, method, grpc::StubOptions(), &request_, &response_, call);
    return call->StartCall();
  }
  stub.UnaryCall(attempt, method, grpc::StubOptions(), &request_, &response_, std::move(end));
}

bool ShardExchange::StartInSlot(CallAttempt& attempt, const TraceContext* span,
                                const std::function<void(grpc::Status)>& end) {
  SlotRequest call = {.method = static_cast<uint32_t>(message_.kind)};
  if (span != nullptr) call.caller = *span;
  // Copiers read the slot, which may be pinned for them.
  call.takes_pieces = std::none_of(message_.slices.begin(), message_.slices.end(),
                                   [](const SliceTransfer& slice) { return slice.values_copier != nullptr; });
  return loan_->Begin(call, attempt, [this, end](const grpc::Status& status, const SlotResponse& response) {
    if (options_.watch_answers) answer_begun_ = absl::Now();
    if (!status.ok()) return end(status);
    decoded_ = Decode(AnswerIn(response));
    if (response.in_pieces && !loan_->EndResponse()) {
      return end(grpc::Status(grpc::UNAVAILABLE, "the server ended while the response in its memory was read"));
    }
    end(status);
  });
}

bool ShardExchange::StartOnStream(const std::shared_ptr<StreamCaller>& stream, const grpc::ByteBuffer& request,
                                  CallAttempt& attempt, const TraceContext* span,
                                  const std::function<void(grpc::Status)>& end) {
  const auto method = static_cast<uint32_t>(message_.kind);
  const uint32_t number = stream->Begin(
      method, request, span != nullptr ? *span : TraceContext(), absl::FromChrono(attempt.deadline()),
      [this, end](const grpc::Status& status, grpc::ByteBuffer response, absl::Time begun) {
        if (options_.watch_answers) answer_begun_ = begun;
        response_.Swap(&response);
        end(status);
      },
      Places());
  if (number == 0) return false;
  // From here on the response may have destroyed this.
  attempt.OnCancel([stream, number] { stream->Cancel(number); });
  return true;
}

int ShardExchange::ValuesField() const {
  if (message_.kind == Kind::kPull) return v1::PullResponse::kValuesFieldNumber;
  return message_.kind == Kind::kPushPull ? int{v1::PushPullResponse::kValuesFieldNumber} : 0;
}

PayloadPlaces ShardExchange::Places() const {
  if (ValuesField() == 0) return {};
  return {ValuesField(), [this](size_t index, absl::string_view item, uint64_t bytes) {
            return PlaceOfValues(message_.slices, index, item, bytes);
          }};
}

ShardReply ShardExchange::End(absl::Status status, absl::FunctionRef<std::string()> shard) {
  ShardReply reply;
  if (status.ok()) {
    absl::StatusOr<ShardReply> decoded = decoded_.has_value() ? *std::move(decoded_) : Decode(Answer());
    if (decoded.ok()) {
      reply = *std::move(decoded);
    } else {
      status = Annotate(decoded.status(), absl::StrCat(shard(), ": ", message_.name()));
    }
  }
  if (status.ok()) {
    for (const SliceTransfer& slice : message_.slices) {
      if (slice.arrived != nullptr) slice.arrived->Add({slice.offset, slice.elements});
    }
  }
  state_ = Next(state_, status.ok() ? ExchangeEvent::kSuccess : ExchangeEvent::kFailure);
  loan_.reset();
  if (state_ == ExchangeState::kLent) {
    payloads_.clear();
    row_payloads_.clear();
    request_.Clear();
  }
  reply.answered = absl::Now();
  reply.answer_begun = std::min(answer_begun_, reply.answered);
  reply.bytes_sent = bytes_sent_;
  reply.retries = retries_;
  reply.status = std::move(status);
  return reply;
}

void ShardExchange::WhenReleased(absl::AnyInvocable<void()> then) {
  // Moved out, because `then` may own this, which owns the hold.
  MemoryHold hold = std::move(hold_);
  hold.WhenBack([this, then = std::move(then)]() mutable {
    state_ = Next(state_, ExchangeEvent::kRelease);
    then();
  });
}

absl::StatusOr<grpc::ByteBuffer> ShardExchange::MakeRequest(uint64_t map_epoch, uint32_t wait_ms,
                                                            SlotSender* slot_sender) {
  const uint64_t bytes = Bytes();
  const bool shares = slot_sender != nullptr;
  // A single large payload is a piece of the message, aligned in its slot.
  const SliceTransfer* const only = message_.slices.size() == 1 && !fetched_ ? &message_.slices[0] : nullptr;
  const bool fetches = shares && only != nullptr && only->gradient_copier != nullptr &&
                       only->gradient.size() * sizeof(float) > PayloadMessageWriter::kCopiedBytes &&
                       !(slot_sender->takes_pieces() && IsInHeap(only->gradient));
  if (!fetches) {
    if (absl::Status status = FetchGradients(); !status.ok()) return status;
  }
  grpc::ByteBuffer request = Encode(map_epoch, wait_ms);
  attempt_bytes_sent_ = request.Length();
  bytes_sent_ += attempt_bytes_sent_;
  if (shares) {
    loan_ = slot_sender->Lend(request, bytes, /*in_pieces=*/!fetches, [&](absl::string_view piece, char* to) {
      if (fetches && piece.data() == reinterpret_cast<const char*>(only->gradient.data())) {
        const absl::Span<float> floats(reinterpret_cast<float*>(to), only->gradient.size());
        return only->gradient_copier->Fetch(only->offset, floats).ok();
      }
      return CopyBytes(piece, to);
    });
  }
  if (loan_.has_value()) return request;
  // The request lends the memory, which may thus be filled after it.
  if (absl::Status status = FetchGradients(); !status.ok()) return status;
  return request;
}

absl::Status ShardExchange::FetchGradients() {
  if (fetched_) return absl::OkStatus();
  for (const SliceTransfer& slice : message_.slices) {
    if (slice.gradient_copier == nullptr) continue;
    // The cast is safe, because the caller lets the client fill the memory.
    const absl::Span<float> to(const_cast<float*>(slice.gradient.data()), slice.gradient.size());
    if (absl::Status status = slice.gradient_copier->Fetch(slice.offset, to); !status.ok()) return status;
  }
  fetched_ = true;
  return absl::OkStatus();
}

uint64_t ShardExchange::Bytes() const {
  uint64_t request_bytes = 0, answer_bytes = 0;
  for (const GradientPayload& payload : payloads_) request_bytes += payload.bytes.size();
  for (const RowPayload& payload : row_payloads_) request_bytes += payload.item.ids().size() + payload.bytes.size();
  for (const SliceTransfer& slice : message_.slices) {
    answer_bytes += slice.values.size() * sizeof(float) + slice.encoded_values.bytes.size();
  }
  for (const RowRun& run : message_.rows) answer_bytes += run.size() * run.table->RowBytes();
  return std::max(request_bytes, answer_bytes);
}

v1::PushHeader ShardExchange::Header(uint64_t map_epoch) const {
  v1::PushHeader header;
  header.set_job(options_.job);
  header.set_worker(options_.worker);
  header.set_incarnation(options_.incarnation);
  header.set_sequence(sequence_);
  header.set_step(message_.step);
  header.set_examples(message_.examples);
  header.set_map_epoch(map_epoch);
  if (message_.schedule_position.has_value()) header.set_schedule_position(*message_.schedule_position);
  return header;
}

grpc::ByteBuffer ShardExchange::Encode(uint64_t map_epoch, uint32_t wait_ms) const {
  if (message_.kind == Kind::kPullRows || message_.kind == Kind::kPushRows) return EncodeRows(map_epoch, wait_ms);
  if (message_.kind == Kind::kSetValues) {
    v1::SetValuesRequest set;
    set.set_job(options_.job);
    set.set_map_epoch(map_epoch);
    return EncodeSlices<v1::SliceValue>(set, v1::SetValuesRequest::kValuesFieldNumber, message_.slices, payloads_);
  }
  if (message_.kind == Kind::kPull) {
    v1::PullRequest pull;
    pull.set_job(options_.job);
    pull.set_step(message_.step);
    pull.set_wait_ms(wait_ms);
    if (options_.names_worker_in_pulls) pull.set_worker(options_.worker);
    pull.set_encoding(options_.values);
    pull.set_map_epoch(map_epoch);
    AddRefs(message_.slices, &pull);
    return EncodeMessage(pull);
  }
  if (message_.kind == Kind::kPush) {
    v1::PushRequest push;
    *push.mutable_header() = Header(map_epoch);
    return EncodeGradients(push, message_.slices, payloads_);
  }
  v1::PushPullRequest push_pull;
  *push_pull.mutable_header() = Header(map_epoch);
  push_pull.set_wait_ms(wait_ms);
  push_pull.set_encoding(options_.values);
  return EncodeGradients(push_pull, message_.slices, payloads_);
}

grpc::ByteBuffer ShardExchange::EncodeRows(uint64_t map_epoch, uint32_t wait_ms) const {
  if (message_.kind == Kind::kPullRows) {
    v1::PullRowsRequest pull;
    pull.set_job(options_.job);
    pull.set_map_epoch(map_epoch);
    pull.set_step(message_.step);
    pull.set_wait_ms(wait_ms);
    pull.set_encoding(RowEncoding(options_.values));
    AddQueries(message_.rows, &pull);
    return EncodeMessage(pull);
  }
  v1::PushRowsRequest push;
  *push.mutable_header() = Header(map_epoch);
  push.set_messages_of_step(message_.messages_of_step);
  return EncodeRowGradients(push, row_payloads_);
}

uint64_t ShardExchange::attempt_bytes_received() const {
  if (decoded_.has_value()) return decoded_->ok() ? (*decoded_)->bytes_received : 0;
  const std::optional<v1::SharedSlot> reference = FindReference(response_);
  return response_.Length() + (reference.has_value() ? reference->bytes() : 0);
}

absl::StatusOr<ReceivedBytes> ShardExchange::AnswerIn(const SlotResponse& response) const {
  absl::StatusOr<std::vector<absl::string_view>> answer = loan_->Answer(response);
  if (!answer.ok()) return absl::InternalError(answer.status().message());
  return ReceivedBytes{{}, *std::move(answer)};
}

absl::StatusOr<ReceivedBytes> ShardExchange::Answer() const {
  const std::optional<v1::SharedSlot> reference = FindReference(response_);
  if (!reference.has_value()) return BytesOf(response_);
  if (!loan_.has_value()) return absl::InternalError("the response is in shared memory, but the request was not");
  const absl::StatusOr<absl::string_view> answer = loan_->Answer(*reference);
  if (!answer.ok()) return absl::InternalError(answer.status().message());
  ReceivedBytes bytes = BytesOf(response_);
  bytes.pieces.push_back(*answer);
  return bytes;
}

absl::StatusOr<ShardReply> ShardExchange::Decode(const absl::StatusOr<ReceivedBytes>& bytes) const {
  if (!bytes.ok()) return bytes.status();
  ShardReply reply;
  for (absl::string_view piece : bytes->pieces) reply.bytes_received += piece.size();
  if (absl::Status status = DecodeResponse(*bytes, reply); !status.ok()) return status;
  return reply;
}

absl::Status ShardExchange::DecodeResponse(const ReceivedBytes& bytes, ShardReply& reply) const {
  // A response that does not parse is the server's fault.
  const auto fault = [](const absl::Status& status) { return absl::InternalError(status.message()); };
  const auto read = [&](auto answer, auto take) {
    if (!answer.ok()) return fault(answer.status());
    take(*answer);
    return absl::OkStatus();
  };
  switch (message_.kind) {
    case Kind::kPush:
      return read(DecodeMessage<v1::PushResponse>(bytes), [&](auto& answer) { reply.outcome = answer.outcome(); });
    case Kind::kPushRows:
      return read(DecodeMessage<v1::PushRowsResponse>(bytes), [&](auto& answer) { reply.rows = answer.outcome(); });
    case Kind::kSetValues:
      return read(DecodeMessage<v1::SetValuesResponse>(bytes), [&](auto& answer) { reply.set = answer; });
    case Kind::kPullRows: {
      const auto answer = DecodePayloadMessage<v1::PullRowsResponse, v1::RowValues>(
          bytes.pieces, v1::PullRowsResponse::kValuesFieldNumber, kMaxSlicesPerMessage);
      if (!answer.ok()) return fault(answer.status());
      absl::StatusOr<RowClocks> clocks = DecodeRows(answer->items, message_.rows);
      if (clocks.ok()) reply.clocks = *std::move(clocks);
      return clocks.status();
    }
    case Kind::kPull:
    case Kind::kPushPull:
      break;
  }
  // The two responses differ in the outcome and in the number of the field with the values.
  auto answer =
      DecodePayloadMessage<v1::PushPullResponse, v1::SliceValue>(bytes.pieces, ValuesField(), kMaxSlicesPerMessage);
  if (!answer.ok()) return fault(answer.status());
  reply.outcome = answer->envelope.outcome();
  absl::StatusOr<std::vector<uint64_t>> versions = DecodeValues(answer->items, message_.slices, loan_.has_value());
  if (versions.ok()) reply.versions = *std::move(versions);
  return versions.status();
}

}  // namespace ballast
