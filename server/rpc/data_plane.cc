// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/data_plane.h"

#include <bit>
#include <iterator>
#include <memory>
#include <utility>

#include "common/rpc/grpc_status.h"
#include "common/shared_memory/shared_message.h"
#include "common/wire/limits.h"
#include "server/rpc/data_call.h"

namespace ballast {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and used in place");

// Smaller responses are sent over the network even if the request came in shared memory.
constexpr size_t kMinSharedBytes = 1024;
// Handling a push of at most this size takes less time than another thread needs to wake, so the thread that read it
// does it. Pulls have small requests and large answers. A push-pull without gradients has, too, but few are sent: a
// worker that has no more examples sends them.
constexpr size_t kMaxInlineBytes = 16 << 10;

}  // namespace

DataPlane::Call* DataPlane::Call::Begin(Handler handler, CallPhases* phases, DataPlane* plane,
                                        grpc::GenericCallbackServerContext* context) {
  const auto call = std::make_shared<Call>(handler, phases, plane, context);
  call->for_grpc_ = call;
  if (plane->tracing_ != nullptr) call->BeginSpan();
  if (absl::Status status = call->Admit(); !status.ok()) {
    call->End(status);
  } else {
    call->StartRead(&call->request_);
  }
  return call.get();
}

void DataPlane::Call::OnReadDone(bool ok) {
  if (!ok) {
    return End(WithReason(v1::ERROR_REASON_MALFORMED_MESSAGE, absl::InvalidArgumentError("got no message")));
  }
  timer_.Enter(CallPhase::kQueue);
  std::optional<v1::SharedSlot> reference = FindReference(request_);
  const bool pushes_slices = handler_ == &Call::Push || handler_ == &Call::PushPull;
  if (pushes_slices && !reference.has_value() && request_.Length() <= kMaxInlineBytes) return Handle(reference);
  absl::Status taken = plane_->executor_->Submit(
      [call = shared_from_this(), reference = std::move(reference)] { call->Handle(reference); });
  if (!taken.ok()) End(OnShard(taken));
}

void DataPlane::Call::BeginSpan() {
  const auto& metadata = context_->client_metadata();
  const auto found = metadata.find(kTraceparent);
  if (found == metadata.end()) return;
  const absl::StatusOr<TraceContext> caller = ParseTraceparent({found->second.data(), found->second.size()});
  // The specification wants that one which is damaged counts as none.
  if (!caller.ok()) return;
  span_ = std::make_unique<CallSpan>();
  span_->method = context_->method();
  span_->context = *caller;
  span_->parent = caller->span;
  span_->context.span = NewSpanId();
  if (!plane_->tracing_->Records(*caller)) return;
  span_->begin = absl::Now();
  timer_.KeepStays();
}

void DataPlane::Call::EndSpan() {
  if (!plane_->tracing_->Records(span_->context)) return;
  span_->end = absl::Now();
  span_->parts = timer_.TakeStays();
  plane_->tracing_->Add(std::move(*span_));
}

absl::Status DataPlane::Call::Admit() {
  if (absl::Status access = plane_->access_->Check(*context_, Method(), ""); !access.ok()) return OnShard(access);
  if (absl::Status serving = plane_->serving_->Check(); !serving.ok()) return OnShard(serving);
  // Readers may only pull.
  const bool pulls = handler_ == &Call::Pull || handler_ == &Call::PullRows;
  if (pulls) as_worker_ = plane_->access_->Check(*context_, Method(), "", AccessRole::kWorker);
  absl::StatusOr<ByteBudget::Reservation> reserved = Budget().Reserve(kMaxMessageBytes);
  if (reserved.ok()) reserved_ = *std::move(reserved);
  return reserved.status();
}

absl::Status DataPlane::Call::Borrow(const v1::SharedSlot& reference) {
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
  if (span_ != nullptr) span_->request_bytes += message->size();
  ++plane_->shared_calls_;
  return absl::OkStatus();
}

void DataPlane::Call::EndWith(grpc::ByteBuffer response) {
  timer_.Enter(CallPhase::kSend);
  if (span_ != nullptr) span_->response_bytes = response.Length();
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

void DataPlane::Call::End(const absl::Status& status) {
  DropRequest();
  slot_.reset();
  const bool not_owner = ReasonOf(status) == v1::ERROR_REASON_NOT_OWNER;
  const absl::Status told = not_owner ? WithSubjects(status, {{"epoch", absl::StrCat(map_epoch_)}}) : status;
  if (span_ != nullptr) {
    span_->code = status.code();
    plane_->tracing_->LogFailure(*span_, context_->peer(), status);
  }
  Finish(ToGrpcStatus(WithRetryDelay(told, *context_)));
}

std::function<void(absl::Status)> DataPlane::Call::Ending(grpc::ByteBuffer response) {
  return [call = shared_from_this(), response = std::move(response)](const absl::Status& durable) mutable {
    if (!durable.ok()) return call->End(call->OnShard(durable));
    call->EndWith(std::move(response));
  };
}

void DataPlane::Call::Handle(const std::optional<v1::SharedSlot>& reference) {
  timer_.Enter(CallPhase::kApply);
  if (span_ != nullptr) span_->request_bytes = request_.Length();
  if (reference.has_value()) {
    if (absl::Status status = Borrow(*reference); !status.ok()) return End(OnShard(status));
  }
  (this->*handler_)();
}

grpc::ServerGenericBidiReactor* DataPlane::CreateReactor(grpc::GenericCallbackServerContext* context) {
  // Values are set once, so the time of that is not measured: it is behind the methods that have phases.
  static constexpr std::pair<absl::string_view, Call::Handler> kHandlers[] = {
      {"/ballast.v1.ParameterService/Push", &Call::Push},
      {"/ballast.v1.ParameterService/Pull", &Call::Pull},
      {"/ballast.v1.ParameterService/PushPull", &Call::PushPull},
      {"/ballast.v1.ParameterService/PushRows", &Call::PushRows},
      {"/ballast.v1.ParameterService/PullRows", &Call::PullRows},
      {"/ballast.v1.ParameterService/SetValues", &Call::SetValues}};
  for (size_t i = 0; i < std::size(kHandlers); ++i) {
    if (context->method() != kHandlers[i].first) continue;
    return Call::Begin(kHandlers[i].second, i < phases_.size() ? &phases_[i] : nullptr, this, context);
  }
  return unknown_methods_.CreateReactor(context);
}

DataPlane::Traffic DataPlane::traffic() const {
  const ShardStatus shard = shard_->status();
  return {budget_.used() + shard.wait_bytes,
          budget_.limit() + shard.wait_bytes_limit,
          budget_.refused() + shard.refused_waits,
          pushed_.encoded(),
          pull_bytes_,
          buffers_.free_bytes(),
          regions_.size(),
          shared_calls_};
}

void DataPlane::Describe(v1::GetStatusResponse& status) const {
  for (const CallPhases& method : phases_) {
    v1::GetStatusResponse::CallPhases phases = method.ToProto();
    if (phases.queue().count() > 0) *status.add_call_phases() = std::move(phases);
  }
  pushed_.Describe("push", status);
  pulled_.Describe("pull", status);
}

}  // namespace ballast
