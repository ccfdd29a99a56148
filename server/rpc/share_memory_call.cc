// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/share_memory_call.h"

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

class Call : public grpc::ServerWriteReactor<v1::ShareMemoryResponse> {
 public:
  Call(const absl::Status& access, const v1::ShareMemoryRequest& request, const ParameterShard& shard, uint32_t rank,
       RegionRegistry& registry)
      : registry_(registry), ending_(std::make_shared<Ending>(this)) {
    absl::Status status = access;
    if (status.ok()) status = shard.CheckJob(request.job());
    if (status.ok() && request.machine() != MachineId()) {
      status = WithReason(v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE,
                          absl::FailedPreconditionError("the client runs on another machine or as another user"));
    }
    if (status.ok()) {
      absl::StatusOr<std::shared_ptr<SharedRegion>> region =
          registry_.Add([ending = ending_](const absl::Status& reason) { ending->End(reason); });
      status = region.status();
      if (region.ok()) region_ = *std::move(region);
    }
    if (!status.ok()) {
      ending_->End(Annotate(status, absl::StrCat("shard ", rank)));
      return;
    }
    *response_.mutable_region() = region_->Describe();
    StartWrite(&response_);
  }

  void OnCancel() override { ending_->End(absl::CancelledError("the client has disconnected")); }
  void OnDone() override {
    if (region_ != nullptr) {
      const uint64_t id = region_->id();
      // Unmap the region first, so that memory is not counted after the registry has dropped it.
      region_.reset();
      registry_.Release(id);
    }
    delete this;
  }

 private:
  // Ends the call once, on the first request to do so. Outlives the call.
  class Ending {
   public:
    explicit Ending(Call* call) : call_(call) {}

    void End(const absl::Status& status) {
      Call* call = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        std::swap(call, call_);
      }
      if (call != nullptr) call->Finish(ToGrpcStatus(status));
    }

   private:
    absl::Mutex mutex_;
    // Null once the call has ended; until then the call is not deleted.
    Call* call_ ABSL_GUARDED_BY(mutex_);
  };

  RegionRegistry& registry_;
  const std::shared_ptr<Ending> ending_;
  std::shared_ptr<SharedRegion> region_;
  v1::ShareMemoryResponse response_;
};

}  // namespace

grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(const absl::Status& access,
                                                               const v1::ShareMemoryRequest& request,
                                                               const ParameterShard& shard, uint32_t rank,
                                                               RegionRegistry& registry) {
  return new Call(access, request, shard, rank, registry);
}

}  // namespace ballast
