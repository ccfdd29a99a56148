// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/standby_call.h"

#include "ballast/internal/v1/standby_service.grpc.pb.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/grpcpp.h"

namespace ballast {
namespace {

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

std::unique_ptr<StandbyStream> CallStandby(const std::shared_ptr<grpc::Channel>& channel) {
  return std::make_unique<StandbyCall>(channel);
}

}  // namespace ballast
