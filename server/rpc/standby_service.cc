// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/standby_service.h"

#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "ballast/internal/v1/standby_service.grpc.pb.h"
#include "common/concurrency/named_thread.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/parsed_request.h"

namespace ballast {
namespace {

// Limits on messages that are read ahead, so that many small ones cost few thread switches.
constexpr size_t kMaxWaiting = 256;
constexpr size_t kMaxWaitingBytes = size_t{2} << 20;

// Owns one stream. Responses are written one at a time, and of those that wait only the newest is written. Messages
// are processed on the stream's own thread: gRPC's few threads carry heartbeats, which must not wait for changes.
class Stream
    : public grpc::ServerBidiReactor<ParsedRequest<internal::v1::ReplicateRequest>, internal::v1::ReplicateResponse> {
 public:
  Stream(const absl::Status& access, StandbyReceiver* receiver) : receiver_(receiver) {
    if (!access.ok()) {
      Finish(ToGrpcStatus(access));
      return;
    }
    taker_ = NamedThread("standby takes", [this] { TakeUntilEnd(); });
    absl::MutexLock lock(&mutex_);
    ReadLocked();
  }

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    if (!ok) {
      ended_ = true;
      return;
    }
    waiting_bytes_ += request_.message.data().size();
    // A malformed message ends the stream.
    ended_ = !request_.status.ok();
    waiting_.push_back(std::exchange(request_, {}));
    ReadLocked();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    broken_ = broken_ || !ok;
    if (!broken_ && answer_.has_value()) WriteLocked();
  }

  void OnDone() override {
    // The thread has called Finish, which is its last action.
    if (taker_.joinable()) taker_.join();
    if (open_) receiver_->Close();
    delete this;
  }

 private:
  using Request = ParsedRequest<internal::v1::ReplicateRequest>;

  void TakeUntilEnd() {
    absl::Status status;
    while (status.ok()) {
      const std::optional<Request> request = AwaitRequest();
      if (!request.has_value()) break;
      status = request->status.ok() ? Take(request->message) : request->status;
    }
    {
      absl::MutexLock lock(&mutex_);
      answer_.reset();
      const auto written = [this] {
        mutex_.AssertReaderHeld();
        return !writing_;
      };
      mutex_.Await(absl::Condition(&written));
    }
    Finish(ToGrpcStatus(status));
  }

  // Returns nothing at the end of the stream.
  std::optional<Request> AwaitRequest() {
    absl::MutexLock lock(&mutex_);
    const auto read = [this] {
      mutex_.AssertReaderHeld();
      return ended_ || !waiting_.empty();
    };
    mutex_.Await(absl::Condition(&read));
    if (waiting_.empty()) return std::nullopt;
    Request request = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= request.message.data().size();
    ReadLocked();
    return request;
  }

  // Starts to read the next message if there is room for it.
  void ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (reading_ || ended_ || waiting_.size() >= kMaxWaiting || waiting_bytes_ >= kMaxWaitingBytes) return;
    reading_ = true;
    StartRead(&request_);
  }

  absl::Status Take(const internal::v1::ReplicateRequest& message) {
    if (!open_) {
      absl::Status status = receiver_->Open(message);
      open_ = status.ok();
      return status;
    }
    absl::StatusOr<internal::v1::ReplicateResponse> answer = receiver_->Take(message);
    if (!answer.ok()) return answer.status();
    absl::MutexLock lock(&mutex_);
    answer_ = *std::move(answer);
    if (!writing_ && !broken_) WriteLocked();
    return absl::OkStatus();
  }

  void WriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    response_.Swap(&*answer_);
    answer_.reset();
    StartWrite(&response_);
  }

  StandbyReceiver* const receiver_;
  std::thread taker_;
  // Confined to the thread `taker_`.
  bool open_ = false;
  // The message that gRPC reads.
  Request request_;
  absl::Mutex mutex_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Messages that were read and not processed.
  std::deque<Request> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The newest unwritten response, and the response being written.
  std::optional<internal::v1::ReplicateResponse> answer_ ABSL_GUARDED_BY(mutex_);
  internal::v1::ReplicateResponse response_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
};

using internal::v1::ReplicateRequest;
using internal::v1::ReplicateResponse;

class StandbyCall : public StandbyStream {
 public:
  explicit StandbyCall(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(internal::v1::StandbyService::NewStub(channel)), stream_(stub_->Replicate(&context_)) {}

  bool Write(const ReplicateRequest& part, bool more) override {
    return stream_->Write(part, more ? grpc::WriteOptions().set_buffer_hint() : grpc::WriteOptions());
  }
  bool Read(ReplicateResponse& response) override { return stream_->Read(&response); }
  void Cancel() override { context_.TryCancel(); }
  absl::Status Finish() override { return FromGrpcStatus(stream_->Finish()); }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<internal::v1::StandbyService::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<ReplicateRequest, ReplicateResponse>> stream_;
};

}  // namespace

StandbyServiceAdapter::StandbyServiceAdapter(StandbyReceiver* receiver, const AccessGuard* access) {
  MarkMethodCallback(IndexOf<internal::v1::StandbyService>("Replicate"),
                     new grpc::internal::CallbackBidiHandler<ParsedRequest<internal::v1::ReplicateRequest>,
                                                             internal::v1::ReplicateResponse>(
                         [=](grpc::CallbackServerContext* context) {
                           return new Stream(access->Check(*context, "StandbyService/Replicate", ""), receiver);
                         }));
}

std::unique_ptr<StandbyStream> CallStandby(const std::shared_ptr<grpc::Channel>& channel) {
  return std::make_unique<StandbyCall>(channel);
}

}  // namespace ballast
