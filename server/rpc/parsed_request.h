// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/rpc/grpc_status.h"
#include "common/wire/limits.h"
#include "common/wire/message_checks.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/unary_reply.h"

namespace ballast {

// A request as received: a message, or an error that says what is wrong with its bytes. If bytes do not parse as the
// method's message, gRPC 1.51 by itself responds with UNIMPLEMENTED and calls no handler. gRPC parses before a
// handler sees the call, so bytes that would become more than kMaxElementsPerMessage objects are not parsed.
template <typename Message>
struct ParsedRequest {
  Message message;
  absl::Status status;
};

// A stream that ends at once with an error.
template <typename Response>
class RefusedStream : public grpc::ServerWriteReactor<Response> {
 public:
  explicit RefusedStream(const absl::Status& status) { this->Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

// Makes gRPC pass on requests that do not parse, so that the response is INVALID_ARGUMENT with the reason
// MALFORMED_MESSAGE. Call it in the constructor of a service for each of its methods, with the index of the method's
// name:
//   MarkMethodCallback(IndexOf<v1::ParameterService>("Pause"), ParsingHandler(this, &ParameterServiceAdapter::Pause));
template <typename Service, typename Request, typename Response>
grpc::internal::MethodHandler* ParsingHandler(Service* service,
                                              grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*,
                                                                                           const Request*, Response*)) {
  return new grpc::internal::CallbackUnaryHandler<ParsedRequest<Request>, Response>(
      [=](grpc::CallbackServerContext* context, const ParsedRequest<Request>* request, Response* response) {
        if (!request->status.ok()) return Answer(context, request->status);
        return (service->*method)(context, &request->message, response);
      });
}

// The same for a method that responds with a stream.
template <typename Service, typename Request, typename Response>
grpc::internal::MethodHandler* ParsingHandler(Service* service, grpc::ServerWriteReactor<Response>* (Service::*method)(
                                                                    grpc::CallbackServerContext*, const Request*)) {
  return new grpc::internal::CallbackServerStreamingHandler<ParsedRequest<Request>, Response>(
      [=](grpc::CallbackServerContext* context,
          const ParsedRequest<Request>* request) -> grpc::ServerWriteReactor<Response>* {
        if (!request->status.ok()) return new RefusedStream<Response>(request->status);
        return (service->*method)(context, &request->message);
      });
}

template <typename Api>
int IndexOf(absl::string_view method) {
  return google::protobuf::DescriptorPool::generated_pool()
      ->FindServiceByName(Api::service_full_name())
      ->FindMethodByName(std::string(method))
      ->index();
}

}  // namespace ballast

namespace grpc {

template <typename Message>
class SerializationTraits<ballast::ParsedRequest<Message>> {
 public:
  static Status Deserialize(ByteBuffer* bytes, ballast::ParsedRequest<Message>* request) {
    // Parsing consumes the bytes; this copy shares their memory.
    const ByteBuffer kept = *bytes;
    // Small requests cannot have too many elements.
    if (kept.Length() / 2 > ballast::kMaxElementsPerMessage) {
      const Slice slice = InOnePiece(kept);
      request->status = ballast::CheckElements(*Message::descriptor(), TextOf(slice), ballast::kMaxElementsPerMessage);
      if (!request->status.ok()) {
        bytes->Clear();
        return Status::OK;
      }
    }
    if (SerializationTraits<Message>::Deserialize(bytes, &request->message).ok()) return Status::OK;
    const Slice slice = InOnePiece(kept);
    request->status = ballast::MalformedMessage(*Message::descriptor(), TextOf(slice));
    return Status::OK;
  }

 private:
  static Slice InOnePiece(const ByteBuffer& bytes) {
    Slice slice;
    return bytes.DumpToSingleSlice(&slice).ok() ? slice : Slice();
  }
  static absl::string_view TextOf(const Slice& slice) {
    return absl::string_view(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
};

}  // namespace grpc
