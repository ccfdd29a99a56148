// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/stub_peer.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/rpc/grpc_status.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

constexpr std::chrono::seconds kTimeout(60);

// The request's slice_index carries the number of floats to pull.
class CopyingService final : public v1::ParameterService::Service {
 public:
  grpc::Status Push(grpc::ServerContext*, const v1::PushRequest* request, v1::PushResponse*) override {
    Take(request->gradients());
    return grpc::Status::OK;
  }

  grpc::Status Pull(grpc::ServerContext*, const v1::PullRequest* request, v1::PullResponse* response) override {
    for (const v1::SliceRef& slice : request->slices()) Give(slice.slice_index(), response->add_values());
    return grpc::Status::OK;
  }

  grpc::Status PushPull(grpc::ServerContext*, const v1::PushPullRequest* request,
                        v1::PushPullResponse* response) override {
    Take(request->gradients());
    for (const v1::SliceGradient& gradient : request->gradients()) {
      Give(gradient.payload().size() / sizeof(float), response->add_values());
    }
    return grpc::Status::OK;
  }

 private:
  template <typename Gradients>
  void Take(const Gradients& gradients) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const v1::SliceGradient& gradient : gradients) {
      const std::string& payload = gradient.payload();
      weights_.resize(std::max(weights_.size(), payload.size() / sizeof(float)));
      std::memcpy(weights_.data(), payload.data(), payload.size());
    }
  }

  void Give(uint64_t floats, v1::SliceValue* value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    weights_.resize(std::max<size_t>(weights_.size(), floats));
    value->set_payload(weights_.data(), floats * sizeof(float));
  }

  std::mutex mutex_;
  std::vector<float> weights_;
};

}  // namespace

absl::Status ServeStub(const std::string& address_file) {
  CopyingService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError("cannot serve on the loopback");
  const std::string text = absl::StrCat("127.0.0.1:", port, "\n");
  if (absl::Status status = WriteFileAtomically(address_file, {text}); !status.ok()) return status;
  server->Wait();
  return absl::InternalError("the server has stopped");
}

struct StubClient::Parts {
  std::unique_ptr<v1::ParameterService::Stub> stub;

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::ParameterService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    return FromGrpcStatus((stub.get()->*method)(&context, request, response));
  }
};

StubClient::StubClient(const std::string& address) : parts_(std::make_unique<Parts>()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  parts_->stub =
      v1::ParameterService::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

StubClient::~StubClient() = default;

absl::Status StubClient::Push(absl::Span<const float> values, uint64_t floats) {
  v1::PushRequest request;
  request.add_gradients()->set_payload(values.data(), floats * sizeof(float));
  v1::PushResponse response;
  return parts_->Call(&v1::ParameterService::Stub::Push, request, &response);
}

absl::Status StubClient::Pull(std::vector<float>& values, uint64_t floats) {
  v1::PullRequest request;
  request.add_slices()->set_slice_index(floats);
  v1::PullResponse response;
  if (absl::Status status = parts_->Call(&v1::ParameterService::Stub::Pull, request, &response); !status.ok()) {
    return status;
  }
  const std::string& payload = response.values(0).payload();
  std::memcpy(values.data(), payload.data(), payload.size());
  return absl::OkStatus();
}

absl::Status StubClient::PushPull(std::vector<float>& values, uint64_t floats) {
  v1::PushPullRequest request;
  request.add_gradients()->set_payload(values.data(), floats * sizeof(float));
  v1::PushPullResponse response;
  absl::Status status = parts_->Call(&v1::ParameterService::Stub::PushPull, request, &response);
  if (!status.ok()) return status;
  const std::string& payload = response.values(0).payload();
  std::memcpy(values.data(), payload.data(), payload.size());
  return absl::OkStatus();
}

absl::Status StubClient::Empty(const std::string& job) {
  v1::PullRequest request;
  request.set_job(job);
  v1::PullResponse response;
  return parts_->Call(&v1::ParameterService::Stub::Pull, request, &response);
}

}  // namespace ballast
