// SPDX-License-Identifier: Apache-2.0
#include "server/replica/standby_service.h"

#include <optional>
#include <utility>

#include "common/grpc_status.h"

namespace ballast {
namespace {

// One stream. Answers are written one at a time; of those that wait only the newest counts.
class Stream : public grpc::ServerBidiReactor<internal::v1::ReplicateRequest, internal::v1::ReplicateResponse> {
 public:
  Stream(const absl::Status& access, StandbyReceiver* receiver) : receiver_(receiver) {
    if (access.ok()) {
      StartRead(&request_);
    } else {
      End(access);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    if (!open_) {
      if (absl::Status status = receiver_->Open(request_.hello()); !status.ok()) return End(status);
      open_ = true;
    } else {
      const absl::StatusOr<std::optional<uint64_t>> position = receiver_->Take(request_);
      if (!position.ok()) return End(position.status());
      if (position->has_value()) Acknowledge(**position);
    }
    StartRead(&request_);
  }

  void OnWriteDone(bool ok) override {
    std::optional<absl::Status> ending;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (ending_.has_value()) {
        ending = ending_;
      } else if (ok && acknowledged_ > response_.position()) {
        WriteLocked();
      }
    }
    if (ending.has_value()) Finish(ToGrpcStatus(*ending));
  }

  void OnDone() override {
    if (open_) receiver_->Close();
    delete this;
  }

 private:
  void Acknowledge(uint64_t position) {
    absl::MutexLock lock(&mutex_);
    acknowledged_ = position;
    if (!writing_) WriteLocked();
  }

  void WriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    response_.set_position(acknowledged_);
    StartWrite(&response_);
  }

  void End(absl::Status status) {
    {
      absl::MutexLock lock(&mutex_);
      if (writing_) {
        ending_ = std::move(status);
        return;
      }
    }
    Finish(ToGrpcStatus(status));
  }

  StandbyReceiver* const receiver_;
  internal::v1::ReplicateRequest request_;
  bool open_ = false;
  absl::Mutex mutex_;
  internal::v1::ReplicateResponse response_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<absl::Status> ending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerBidiReactor<internal::v1::ReplicateRequest, internal::v1::ReplicateResponse>*
StandbyServiceAdapter::Replicate(grpc::CallbackServerContext* context) {
  return new Stream(access_->Check(*context, "StandbyService/Replicate", ""), receiver_);
}

}  // namespace ballast
