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

// A call over a connection. Its messages may be in shared memory, in which case it carries references to them. gRPC
// uses it until OnDone.
class DataPlane::GrpcCall : public Call, public grpc::ServerGenericBidiReactor {
 public:
  static GrpcCall* Begin(const Method& method, DataPlane* plane, grpc::GenericCallbackServerContext* context) {
    const auto call = std::make_shared<GrpcCall>(method, plane, context);
    call->for_grpc_ = call;
    if (plane->tracing_ != nullptr) call->BeginTracedSpan();
    if (absl::Status status = call->Admit(); !status.ok()) {
      call->End(status);
    } else {
      call->StartRead(&call->received_);
    }
    return call.get();
  }

  GrpcCall(const Method& method, DataPlane* plane, grpc::GenericCallbackServerContext* context)
      : Call(method, plane), context_(context) {}

  void OnReadDone(bool ok) override {
    if (!ok) {
      return End(WithReason(v1::ERROR_REASON_MALFORMED_MESSAGE, absl::InvalidArgumentError("got no message")));
    }
    timer().Enter(CallPhase::kQueue);
    std::optional<v1::SharedSlot> reference = FindReference(received_);
    if (PushesSlices() && !reference.has_value() && received_.Length() <= kMaxInlineBytes) return Process(reference);
    absl::Status taken = plane().executor_->Submit([call = std::static_pointer_cast<GrpcCall>(shared_from_this()),
                                                    reference = std::move(reference)] { call->Process(reference); });
    if (!taken.ok()) End(OnShard(taken));
  }

  void OnCancel() override { Cancel(); }
  void OnDone() override {
    Sent();
    response_.Clear();
    const std::shared_ptr<Call> last = std::move(for_grpc_);
  }

 protected:
  absl::string_view Token() const override { return plane().access_->TokenFor(*context_); }
  std::string Peer() const override { return context_->peer(); }

  void Send(grpc::ByteBuffer response) override {
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

  void RunLater(absl::AnyInvocable<void() &&> then) override {
    // Shared with the task, which the executor may refuse.
    const auto task = std::make_shared<absl::AnyInvocable<void() &&>>(std::move(then));
    const absl::Status taken = plane().executor_->Submit([task] { std::move (*task)(); });
    if (!taken.ok()) std::move (*task)();
  }

  void Fail(const absl::Status& status) override {
    slot_.reset();
    Finish(ToGrpcStatus(WithRetryDelay(status, *context_)));
  }

 private:
  // Begins a span if the client traces the call.
  void BeginTracedSpan() {
    const auto& metadata = context_->client_metadata();
    const auto found = metadata.find(kTraceparent);
    if (found == metadata.end()) return;
    const absl::StatusOr<TraceContext> caller = ParseTraceparent({found->second.data(), found->second.size()});
    // The specification wants that one which is damaged counts as none.
    if (caller.ok()) BeginSpan(*caller);
  }

  // Handles the request, part of whose bytes are in shared memory if there is a reference.
  void Process(const std::optional<v1::SharedSlot>& reference) {
    timer().Enter(CallPhase::kApply);
    BufferPool::Buffer memory_part;
    if (reference.has_value()) {
      ++plane().shared_calls_;
      absl::StatusOr<BufferPool::Buffer> copied = CopySlot(*reference);
      if (!copied.ok()) {
        received_.Clear();
        return End(OnShard(copied.status()));
      }
      memory_part = *std::move(copied);
    }
    Handle(received_, std::move(memory_part));
  }

  // Borrows the slot, and copies the message in it into the budget reserved for a message from the network.
  absl::StatusOr<BufferPool::Buffer> CopySlot(const v1::SharedSlot& reference) {
    absl::StatusOr<SlotView> slot = plane().regions_.Borrow(reference.region(), reference.slot());
    if (!slot.ok()) return slot.status();
    slot_ = *std::move(slot);
    const absl::StatusOr<absl::string_view> message =
        MessageAt({reference.offset(), reference.bytes()}, slot_->memory());
    if (!message.ok()) return message.status();
    // The total must fit what is reserved.
    if (received_.Length() + message->size() > kMaxMessageBytes + kMinSharedBytes) {
      return absl::InvalidArgumentError(absl::StrCat("message in shared memory: got ", message->size(),
                                                     " bytes there and ", received_.Length(),
                                                     " in the call, want at most ", kMaxMessageBytes));
    }
    // The client may change it at any time, so read it once: the bytes checked must be the bytes used.
    return plane().buffers_.Copy(*message);
  }

  grpc::GenericCallbackServerContext* const context_;
  grpc::ByteBuffer received_;
  grpc::ByteBuffer response_;
  // The shared-memory slot of request and response, if used. Nothing in it is read twice.
  std::optional<SlotView> slot_;
  // gRPC's reference: it only knows an address. Null after OnDone.
  std::shared_ptr<Call> for_grpc_;
};

DataPlane::~DataPlane() {
  streams_.Close(WithReason(v1::ERROR_REASON_DRAINING, absl::UnavailableError(absl::StrCat("shard ", rank_, " ends"))));
}

grpc::ServerGenericBidiReactor* DataPlane::CreateReactor(grpc::GenericCallbackServerContext* context) {
  for (const Call::Method& method : Call::Methods(*this)) {
    if (context->method() == method.path) return GrpcCall::Begin(method, this, context);
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
          shared_calls_,
          streams_.size(),
          stream_calls_};
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
