// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "ballast/internal/v1/standby_service.pb.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "client/data_stream/stream_caller.h"
#include "common/wire/direct_call.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"

namespace ballast {

inline grpc::ByteBuffer AsBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// Sends arbitrary bytes to a method such as "CoordinatorService/Join", like a peer in another language.
inline grpc::Status RawCall(grpc::GenericStub& stub, grpc::ClientContext& context, const std::string& method,
                            const grpc::ByteBuffer& request) {
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  const char* const package = absl::StartsWith(method, "StandbyService/") ? "/ballast.internal.v1." : "/ballast.v1.";
  stub.UnaryCall(&context, package + method, {}, &request, &response, [&](grpc::Status end) {
    status = std::move(end);
    done.Notify();
  });
  done.WaitForNotification();
  return status;
}

// The same with this authorization (unless empty) and timeout.
inline grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                            const std::string& bytes, const std::string& authorization,
                            absl::Duration timeout = absl::Seconds(60)) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  return RawCall(stub, context, method, AsBuffer(bytes));
}

// Returns whether a method such as "ParameterService/Push" can be called on a data stream.
inline bool IsDirect(const std::string& method) {
  return absl::c_linear_search(kDirectMethods, "/ballast.v1." + method);
}

// Sends arbitrary bytes to a method for which IsDirect is true.
inline grpc::Status CallOnStream(StreamCaller& stream, const std::string& method, const std::string& bytes,
                                 absl::Duration timeout) {
  const auto number = absl::c_find(kDirectMethods, "/ballast.v1." + method) - kDirectMethods.begin();
  grpc::Status status(grpc::INTERNAL, "the data stream takes no call");
  // Shared with the end of the call.
  const auto done = std::make_shared<absl::Notification>();
  const uint32_t begun = stream.Begin(static_cast<uint32_t>(number), AsBuffer(bytes), {}, absl::Now() + timeout,
                                      [&status, done](const grpc::Status& end, const grpc::ByteBuffer&, absl::Time) {
                                        status = end;
                                        done->Notify();
                                      });
  if (begun != 0) done->WaitForNotification();
  return status;
}

// Opens a connection of its own.
inline std::shared_ptr<grpc::Channel> OpenConnection(
    const std::string& address,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials()) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

// Makes a call that must succeed, by the generated stub; returns its response.
template <typename Service, typename Request, typename Response>
Response Ask(const std::shared_ptr<grpc::Channel>& channel,
             grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
             const Request& request = Request(), const std::string& authorization = "") {
  grpc::ClientContext context;
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  Response response;
  const grpc::Status status = (Service::NewStub(channel).get()->*method)(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}
inline v1::GetProgressResponse AskProgress(const std::shared_ptr<grpc::Channel>& channel,
                                           const std::string& authorization = "") {
  return Ask<v1::CoordinatorService>(channel, &v1::CoordinatorService::Stub::GetProgress, {}, authorization);
}

// All methods of the proto files, by names such as "CoordinatorService/Join".
inline std::vector<std::pair<std::string, const google::protobuf::MethodDescriptor*>> AllMethods() {
  std::vector<std::pair<std::string, const google::protobuf::MethodDescriptor*>> methods;
  for (const auto* file : {v1::PullRequest::descriptor()->file(), v1::JoinRequest::descriptor()->file(),
                           internal::v1::ReplicateRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        methods.emplace_back(absl::StrCat(service.name(), "/", service.method(m)->name()), service.method(m));
      }
    }
  }
  return methods;
}

// An empty request of a method.
inline std::unique_ptr<google::protobuf::Message> NewRequest(const google::protobuf::MethodDescriptor& method) {
  return std::unique_ptr<google::protobuf::Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
}

}  // namespace ballast
