// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/stream_port.h"

#include <sys/socket.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/concurrency/eager_wait.h"
#include "common/concurrency/executor.h"
#include "common/program/core_count.h"
#include "common/rpc/grpc_status.h"
#include "common/wire/direct_call.h"
#include "common/wire/limits.h"
#include "server/rpc/unary_reply.h"

namespace ballast {
namespace {

// Same limit on silence as for gRPC's connections.
constexpr absl::Duration kSilence = absl::Seconds(20);
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);
// Time for the last responses after Stop.
constexpr absl::Duration kStopTimeout = absl::Seconds(5);
constexpr absl::Duration kLongestWait = absl::Minutes(1);
// If more has arrived behind it, a call with more bytes is worth another thread: on two cores, one of which the client
// may use to send, only if it takes long.
constexpr uint32_t kMinSubmittedBytes = 64 << 10;
constexpr uint32_t kMinSubmittedBytesOnTwoCores = 1 << 20;
// More calls, or responses that the client does not read, end the stream.
constexpr size_t kMostCalls = 2 * StreamRegistry::kCalls;
// Memory of a stream without calls: its buffer and its thread.
constexpr uint64_t kStreamBytes = 64 << 10;

}  // namespace

// A call on a data stream. It answers, unless the stream has ended.
class DataPlane::StreamCall : public Call {
 public:
  StreamCall(const Method& method, DataPlane* plane, std::shared_ptr<StreamPort> port, uint32_t number)
      : Call(method, plane), port_(std::move(port)), number_(number) {}

  // Returns whether it is admitted; otherwise it has ended.
  bool Begin(const StreamFrame& frame) {
    BeginDirectSpan(frame.caller);
    absl::Status status = Admit(frame.bytes);
    if (status.ok() && frame.bytes > kMaxMessageBytes) {
      status = OnShard(absl::InvalidArgumentError(
          absl::StrCat("message on a data stream: got ", frame.bytes, " bytes, want at most ", kMaxMessageBytes)));
    }
    if (status.ok()) return true;
    End(status);
    return false;
  }

  void Queue() { timer().Enter(CallPhase::kQueue); }
  void Process(BufferPool::Buffer request) {
    timer().Enter(CallPhase::kApply);
    grpc::ByteBuffer nothing;
    Handle(nothing, std::move(request));
  }

 protected:
  absl::string_view Token() const override { return port_->token(); }
  std::string Peer() const override { return port_->peer(); }

  void Send(grpc::ByteBuffer response) override {
    const auto self = std::static_pointer_cast<StreamCall>(shared_from_this());
    port_->Respond(number_, response, [self] { self->Sent(); });
  }

  void Pushed(const PushOutcome& outcome) override { port_->Pushed(outcome); }

  void RunLater(absl::AnyInvocable<void() &&> then) override { port_->RunLater(std::move(then)); }

  void Fail(const absl::Status& status) override {
    Sent();
    port_->RespondError(number_, WithRetryDelay(status));
  }

 private:
  const std::shared_ptr<StreamPort> port_;
  const uint32_t number_;
};

DataPlane::StreamPort::StreamPort(DataPlane* plane, std::unique_ptr<StreamSocket> socket, StreamRegistry::Holder holder)
    : plane_(*plane), holder_(std::move(holder)), socket_(socket.get()), stream_(std::move(socket), kSilence) {}

void DataPlane::StreamPort::Run() {
  const iovec answer = {const_cast<char*>(kStreamOpening.data()), kStreamOpening.size()};
  const absl::StatusOr<size_t> sent = socket_->Write({&answer, 1});
  if (!sent.ok() || *sent != kStreamOpening.size()) return;
  if (!holder_.key.empty() && !socket_->Encrypt(StreamSocket::Side::kServer, holder_.key, kHandshakeTimeout).ok()) {
    return;
  }
  // If the client or the network ended the stream, there is no one left to tell.
  stream_.Run(*this).IgnoreError();
  arriving_.reset();
  request_ = {};
  CancelAll();
}

void DataPlane::StreamPort::Stop(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = reason;
    stopped_at_ = absl::Now();
  }
  stream_.RunLater([this] { CancelAll(); });
}

absl::StatusOr<absl::Time> DataPlane::StreamPort::Tick(absl::Time now) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_.ok()) return now + kLongestWait;
    if (now >= stopped_at_ + kStopTimeout) return stopped_;
    if (!calls_.empty()) return stopped_at_ + kStopTimeout;
  }
  if (stream_.unsent() == 0) return absl::CancelledError("stopped");
  return now + absl::Milliseconds(10);
}

absl::StatusOr<char*> DataPlane::StreamPort::Room(const StreamFrame& frame) {
  arriving_.reset();
  if (frame.kind == StreamFrame::Kind::kCancel && frame.bytes == 0) return nullptr;
  if (frame.kind != StreamFrame::Kind::kCall) return absl::InvalidArgumentError("not a frame of a client");
  absl::StatusOr<std::shared_ptr<StreamCall>> call = Begin(frame);
  if (!call.ok()) return call.status();
  arriving_ = *std::move(call);
  if (arriving_ == nullptr) return nullptr;
  request_ = plane_.buffers_.Get(frame.bytes, frame.lead, stay_.next());
  return request_.data();
}

absl::StatusOr<std::shared_ptr<DataPlane::StreamCall>> DataPlane::StreamPort::Begin(const StreamFrame& frame) {
  if (stream_.unsent() >= kMostCalls) return absl::InvalidArgumentError("the client reads no responses");
  absl::Status stopped;
  {
    absl::MutexLock lock(&mutex_);
    if (calls_.size() >= kMostCalls) return absl::InvalidArgumentError("too many calls");
    if (calls_.contains(frame.number)) return absl::InvalidArgumentError("two calls have one number");
    stopped = stopped_;
  }
  if (!stopped.ok()) {
    RespondError(frame.number, stopped);
    return nullptr;
  }
  if (frame.subject >= kDirectMethods.size()) {
    RespondError(frame.number,
                 absl::UnimplementedError(absl::StrCat("call on a data stream: got method ", frame.subject,
                                                       ", want one below ", kDirectMethods.size())));
    return nullptr;
  }
  auto call = std::make_shared<StreamCall>(Call::DirectMethod(plane_, frame.subject), &plane_, shared_from_this(),
                                           frame.number);
  {
    absl::MutexLock lock(&mutex_);
    calls_[frame.number] = call;
  }
  if (!call->Begin(frame)) return nullptr;
  return call;
}

absl::Status DataPlane::StreamPort::Received(const StreamFrame& frame) {
  if (frame.kind == StreamFrame::Kind::kCancel) {
    Cancel(frame.number);
    return absl::OkStatus();
  }
  if (arriving_ == nullptr) return absl::OkStatus();
  std::shared_ptr<StreamCall> call = std::move(arriving_);
  ++plane_.stream_calls_;
  call->Queue();
  static const uint32_t kLeast = CoreCount() > 2 ? kMinSubmittedBytes : kMinSubmittedBytesOnTwoCores;
  // Without a processor for it, another thread would only take turns with this one, which meanwhile fills more memory.
  if (frame.bytes <= kLeast || !stream_.HasMore() || !EagerWait::ProcessorIsFree()) {
    call->Process(std::move(request_));
    return absl::OkStatus();
  }
  // Shared with the task, which the executor may refuse.
  const auto request = std::make_shared<BufferPool::Buffer>(std::move(request_));
  const absl::Status taken = plane_.executor_->Submit([call, request] { call->Process(std::move(*request)); });
  if (!taken.ok()) call->Process(std::move(*request));
  return absl::OkStatus();
}

void DataPlane::StreamPort::Respond(uint32_t number, const grpc::ByteBuffer& message,
                                    absl::AnyInvocable<void() &&> sent) {
  Forget(number);
  StreamFrame frame;
  frame.kind = StreamFrame::Kind::kResponse;
  frame.number = number;
  stream_.Send(frame, message, std::move(sent));
}

void DataPlane::StreamPort::RespondError(uint32_t number, const absl::Status& status) {
  Forget(number);
  const grpc::Status error = ToGrpcStatus(status);
  const grpc::Slice bytes(EncodeDirectError(error));
  StreamFrame frame;
  frame.kind = StreamFrame::Kind::kResponse;
  frame.number = number;
  frame.subject = static_cast<uint32_t>(error.error_code());
  stream_.Send(frame, grpc::ByteBuffer(&bytes, 1));
}

void DataPlane::StreamPort::Forget(uint32_t number) {
  bool last = false;
  {
    absl::MutexLock lock(&mutex_);
    calls_.erase(number);
    last = !stopped_.ok() && calls_.empty();
  }
  if (last) stream_.Wake();
}

void DataPlane::StreamPort::Cancel(uint32_t number) {
  std::shared_ptr<Call> call;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = calls_.find(number); found != calls_.end()) call = found->second.lock();
  }
  if (call != nullptr) call->Cancel();
}

void DataPlane::StreamPort::CancelAll() {
  std::vector<std::shared_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, entry] : calls_) {
      if (std::shared_ptr<Call> call = entry.lock(); call != nullptr) calls.push_back(std::move(call));
    }
  }
  for (const std::shared_ptr<Call>& call : calls) call->Cancel();
}

absl::StatusOr<v1::OpenDataStreamResponse> DataPlane::OfferStream(std::string token, std::string peer) {
  return streams_.Offer(std::move(token), std::move(peer));
}

void DataPlane::ServeStream(int socket) {
  auto connection = std::make_unique<StreamSocket>(socket);
  std::array<char, kStreamOpening.size() + kStreamTicketBytes> opening;
  const absl::StatusOr<size_t> got = connection->Read(absl::MakeSpan(opening));
  if (!got.ok() || *got != opening.size()) return;
  std::optional<StreamRegistry::Holder> holder =
      streams_.Redeem(absl::string_view(opening.data(), opening.size()).substr(kStreamOpening.size()));
  if (!holder.has_value()) return;
  absl::StatusOr<ByteBudget::Reservation> reserved = stream_budget_.Reserve(kStreamBytes);
  if (!reserved.ok()) return;
  connection->LimitSilence(kSilence);
  const auto port = std::make_shared<StreamPort>(this, std::move(connection), *std::move(holder));
  const absl::StatusOr<uint64_t> number = streams_.Add([port](const absl::Status& reason) { port->Stop(reason); });
  if (!number.ok()) return;
  // Shared, because a function that can be copied holds it.
  stream_threads_.Start("data stream", [this, port, number = *number,
                                        held = std::make_shared<ByteBudget::Reservation>(*std::move(reserved))] {
    port->Run();
    streams_.Remove(number);
  });
}

}  // namespace ballast
