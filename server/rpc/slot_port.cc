// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/slot_port.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "common/concurrency/eager_wait.h"
#include "common/rpc/grpc_status.h"
#include "common/shared_memory/message_pieces.h"
#include "common/wire/direct_call.h"
#include "common/wire/limits.h"
#include "server/rpc/unary_reply.h"

namespace ballast {
namespace {

// Limits how long a client that damages the bell delays its own calls, and Stop.
constexpr absl::Duration kLongestWait = absl::Seconds(1);
// A client that rings for nothing that often in a row must not keep a processor busy.
constexpr int kMaxFruitlessRings = 64;
constexpr absl::Duration kPause = absl::Milliseconds(1);
// If several calls are new, a call with more bytes is worth another thread, if a processor is free.
constexpr uint32_t kMinSubmittedBytes = 64 << 10;

}  // namespace

// A call in a slot.
class DataPlane::SlotCall : public Call {
 public:
  SlotCall(const Method& method, DataPlane* plane, std::shared_ptr<SlotPort> port, uint32_t slot,
           const SlotRequest& request)
      : Call(method, plane), port_(std::move(port)), slot_(slot), request_(request) {}
  ~SlotCall() override { port_->CallGone(); }

  // Returns whether it is admitted; otherwise it has ended.
  bool Begin(const TraceContext& caller) {
    BeginDirectSpan(caller);
    // The size of a message in pieces is known once they are read.
    const absl::Status status = request_.in_pieces ? Admit() : Admit(request_.bytes);
    if (!status.ok()) {
      End(status);
      return false;
    }
    timer().Enter(CallPhase::kQueue);
    return true;
  }

  // Returns whether its work is worth another thread, if several calls are new.
  bool is_large() const { return request_.in_pieces || request_.bytes > kMinSubmittedBytes; }

  void Process() {
    ++plane().shared_calls_;
    timer().Enter(CallPhase::kApply);
    absl::StatusOr<std::vector<BufferPool::Buffer>> message = port_->Read(slot_, request_);
    if (!message.ok()) return End(OnShard(message.status()));
    grpc::ByteBuffer nothing;
    Handle(nothing, *std::move(message));
  }

 protected:
  absl::string_view Token() const override { return port_->token(); }
  std::string Peer() const override { return port_->peer(); }

  void Send(grpc::ByteBuffer response) override {
    if (request_.takes_pieces) {
      const std::optional<MessageSpot> list = WritePieces(response, SharedHeap::OfProcess(), port_->Slot(slot_));
      if (list.has_value()) {
        SentInPieces();
        return port_->RespondInPieces(slot_, *list, std::move(response));
      }
    }
    const std::optional<MessageSpot> spot = CopyMessage(response, port_->Slot(slot_));
    if (!spot.has_value()) {
      return Fail(OnShard(absl::InternalError(absl::StrCat("response of ", response.Length(), " bytes fits no slot"))));
    }
    Sent();
    port_->Respond(slot_, {.code = grpc::OK, .offset = spot->offset, .bytes = spot->bytes});
  }

  void Pushed(const PushOutcome& outcome) override { port_->Pushed(outcome); }

  bool TakesPieces() const override { return request_.takes_pieces; }

  void RunLater(absl::AnyInvocable<void() &&> then) override { port_->RunLater(std::move(then)); }

  void Fail(const absl::Status& status) override {
    Sent();
    port_->RespondError(slot_, WithRetryDelay(status));
  }

 private:
  const std::shared_ptr<SlotPort> port_;
  const uint32_t slot_;
  // As the client has written it, unchecked.
  const SlotRequest request_;
};

void DataPlane::SlotPort::Run() {
  DoorbellListener bell(region_->server_bell());
  int fruitless = 0;
  while (!stopped_ || under_way_ > 0) {
    const uint32_t seen = region_->server_bell().rings();
    if (stopped_) CancelAll();
    FreeLent(/*all=*/false);
    const bool tasks = RunTasks();
    if ((!stopped_ && TakeCalls()) || tasks) {
      fruitless = 0;
      continue;
    }
    if (++fruitless > kMaxFruitlessRings) absl::SleepFor(kPause);
    bell.Wait(seen, kLongestWait);
  }
  FreeLent(/*all=*/true);
}

absl::StatusOr<std::vector<BufferPool::Buffer>> DataPlane::SlotPort::Read(uint32_t slot, const SlotRequest& request) {
  const MessageSpot spot = {request.offset, request.bytes};
  if (request.in_pieces) {
    if (heap_ == nullptr) {
      return absl::InvalidArgumentError(
          "message in shared memory: got pieces of a heap that this server does not read");
    }
    absl::StatusOr<std::vector<BufferPool::Buffer>> message =
        ReadPieces(spot, Slot(slot), *heap_, plane_.buffers_, stay_.next());
    if (!message.ok() || region_->EndRequestLoan(slot)) return message;
    return absl::CancelledError("message in shared memory: the client has taken it back");
  }
  const absl::StatusOr<absl::string_view> message = MessageAt(spot, Slot(slot));
  if (!message.ok()) return message.status();
  if (message->size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message in shared memory: got ", message->size(), " bytes, want at most ", kMaxMessageBytes));
  }
  // The client may change it at any time, so read it once: the bytes checked must be the bytes used.
  std::vector<BufferPool::Buffer> parts;
  parts.push_back(plane_.buffers_.Copy(*message));
  return parts;
}

void DataPlane::SlotPort::FreeLent(bool all) {
  std::vector<grpc::ByteBuffer> freed;
  absl::MutexLock lock(&mutex_);
  for (uint32_t slot = 0; slot < lent_.size(); ++slot) {
    if (!lent_[slot].has_value()) continue;
    if (all) region_->WithdrawResponse(slot);
    if (region_->LendsResponse(slot)) continue;
    freed.push_back(*std::move(lent_[slot]));
    lent_[slot].reset();
  }
}

bool DataPlane::SlotPort::RunTasks() {
  std::vector<absl::AnyInvocable<void() &&>> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) std::move(task)();
  return !tasks.empty();
}

void DataPlane::SlotPort::RunLater(absl::AnyInvocable<void() &&> task) {
  {
    absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
  }
  region_->server_bell().Ring();
}

void DataPlane::SlotPort::Stop() {
  stopped_ = true;
  region_->server_bell().Ring();
}

void DataPlane::SlotPort::Respond(uint32_t slot, const SlotResponse& response) {
  busy_[slot] = false;
  region_->Respond(slot, response);
}

void DataPlane::SlotPort::RespondInPieces(uint32_t slot, MessageSpot list, grpc::ByteBuffer message) {
  absl::MutexLock lock(&mutex_);
  lent_[slot] = std::move(message);
  Respond(slot, {.code = grpc::OK, .offset = list.offset, .bytes = list.bytes, .in_pieces = true});
}

void DataPlane::SlotPort::RespondError(uint32_t slot, const absl::Status& status) {
  const grpc::Status error = ToGrpcStatus(status);
  const std::string bytes = EncodeDirectError(error);
  std::memcpy(Slot(slot).data(), bytes.data(), bytes.size());
  Respond(
      slot,
      {.code = static_cast<uint32_t>(error.error_code()), .offset = 0, .bytes = static_cast<uint32_t>(bytes.size())});
}

void DataPlane::SlotPort::CallGone() {
  --under_way_;
  if (stopped_) region_->server_bell().Ring();
}

bool DataPlane::SlotPort::TakeCalls() {
  bool found = false;
  for (uint32_t slot = 0; slot < calls_.size(); ++slot) {
    const std::optional<SlotRequest> request = busy_[slot] ? std::nullopt : region_->TakeCall(slot);
    if (request.has_value()) {
      found = true;
      busy_[slot] = true;
      if (std::shared_ptr<SlotCall> call = Begin(slot, *request); call != nullptr) {
        absl::MutexLock lock(&mutex_);
        begun_.push_back(std::move(call));
      }
    } else if (region_->TakeCancel(slot)) {
      if (const std::shared_ptr<Call> call = calls_[slot].lock(); call != nullptr) call->Cancel();
    }
  }
  for (Begun next = NextBegun(); next.call != nullptr; next = NextBegun()) {
    // Without a processor for it, another thread would only take turns with this one.
    if (next.more && next.call->is_large() && EagerWait::ProcessorIsFree()) {
      plane_.executor_->Submit([port = shared_from_this()] { port->ProcessBegun(); }).IgnoreError();
    }
    next.call->Process();
  }
  return found;
}

DataPlane::SlotPort::Begun DataPlane::SlotPort::NextBegun() {
  absl::MutexLock lock(&mutex_);
  if (begun_.empty()) return {};
  Begun next = {std::move(begun_.back())};
  begun_.pop_back();
  next.more = !begun_.empty();
  return next;
}

void DataPlane::SlotPort::ProcessBegun() {
  for (Begun next = NextBegun(); next.call != nullptr; next = NextBegun()) next.call->Process();
}

std::shared_ptr<DataPlane::SlotCall> DataPlane::SlotPort::Begin(uint32_t slot, const SlotRequest& request) {
  if (request.method >= kDirectMethods.size()) {
    RespondError(slot, absl::UnimplementedError(absl::StrCat("call in shared memory: got method ", request.method,
                                                             ", want one below ", kDirectMethods.size())));
    return nullptr;
  }
  ++under_way_;
  auto call = std::make_shared<SlotCall>(Call::DirectMethod(plane_, request.method), &plane_, shared_from_this(), slot,
                                         request);
  calls_[slot] = call;
  return call->Begin(request.caller) ? call : nullptr;
}

void DataPlane::SlotPort::CancelAll() {
  for (const std::weak_ptr<Call>& entry : calls_) {
    if (const std::shared_ptr<Call> call = entry.lock(); call != nullptr) call->Cancel();
  }
}

std::function<void()> DataPlane::ServeSlots(std::shared_ptr<SharedRegion> region,
                                            std::unique_ptr<SharedHeapReader> heap, std::string token,
                                            std::string peer) {
  region->OfferCalls(/*takes_pieces=*/heap != nullptr);
  const auto port =
      std::make_shared<SlotPort>(this, std::move(region), std::move(heap), std::move(token), std::move(peer));
  slot_threads_.Start("slot calls", [port] { port->Run(); });
  return [port] { port->Stop(); };
}

}  // namespace ballast
