// SPDX-License-Identifier: Apache-2.0
#include "cli/command/server_connection.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"

namespace ballast {
namespace {

class GrpcServerConnection : public ServerConnection {
 public:
  GrpcServerConnection(const std::string& address, bool patient, const std::string& job,
                       const std::shared_ptr<grpc::Channel>& channel)
      : address_(address),
        patient_(patient),
        job_(job),
        coordinator_(v1::CoordinatorService::NewStub(channel)),
        parameters_(v1::ParameterService::NewStub(channel)) {}

  absl::StatusOr<v1::GetProgressResponse> GetProgress(absl::Duration timeout) override {
    v1::GetProgressRequest request;
    request.set_job(job_);
    v1::GetProgressResponse response;
    absl::Status status = Call(
        timeout, [&](grpc::ClientContext* context) { return coordinator_->GetProgress(context, request, &response); });
    if (!status.ok()) return status;
    return response;
  }

  absl::Status ReportEnd(const v1::Member& member, const std::string& how, absl::Duration timeout) override {
    v1::LeaveRequest request;
    *request.mutable_member() = member;
    request.set_failure(how);
    request.set_worker_local(true);
    request.set_job(job_);
    v1::LeaveResponse response;
    return Call(timeout,
                [&](grpc::ClientContext* context) { return coordinator_->Leave(context, request, &response); });
  }

  absl::StatusOr<v1::SaveCheckpointResponse> SaveCheckpoint(v1::SaveCheckpointRequest request,
                                                            absl::Duration timeout) override {
    request.set_job(job_);
    v1::SaveCheckpointResponse response;
    absl::Status status = Call(timeout, [&](grpc::ClientContext* context) {
      return coordinator_->SaveCheckpoint(context, request, &response);
    });
    if (!status.ok()) return status;
    return response;
  }

  absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout) override {
    v1::GetStatusRequest request;
    request.set_job(job_);
    v1::GetStatusResponse response;
    absl::Status status = Call(
        timeout, [&](grpc::ClientContext* context) { return parameters_->GetStatus(context, request, &response); });
    if (!status.ok()) return status;
    return response;
  }

 private:
  template <typename Rpc>
  absl::Status Call(absl::Duration timeout, Rpc rpc) {
    grpc::ClientContext context;
    // Handshakes make progress only during a call: without the wait, a call fails at once and the handshake never ends.
    context.set_wait_for_ready(patient_);
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    const absl::Time start = absl::Now();
    const grpc::Status status = rpc(&context);
    const std::string waited = absl::FormatDuration(absl::Ceil(absl::Now() - start, absl::Milliseconds(100)));
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(
          absl::StrCat("timed out after ", waited, " waiting for a response from the server at ", address_));
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return absl::UnavailableError(
          absl::StrCat("cannot reach a server at ", address_, " (tried for ", waited, "): ", status.error_message()));
    }
    return FromGrpcStatus(status, absl::StrCat("server at ", address_));
  }

  const std::string address_;
  const bool patient_;
  const std::string job_;
  const std::unique_ptr<v1::CoordinatorService::Stub> coordinator_;
  const std::unique_ptr<v1::ParameterService::Stub> parameters_;
};

}  // namespace

std::unique_ptr<ServerConnection> ServerConnection::Open(const std::string& address, const Credentials& credentials,
                                                         bool patient, const std::string& job) {
  return std::make_unique<GrpcServerConnection>(address, patient, job, OpenChannel(address, credentials));
}

}  // namespace ballast
