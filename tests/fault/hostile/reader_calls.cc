// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/reader_calls.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "ballast/internal/v1/standby_service.pb.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/credentials.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/testing/message_mutator.h"

namespace ballast {
namespace {

using ::google::protobuf::Message;

constexpr int kThreads = 2;

struct Method {
  // Path like "/ballast.v1.ParameterService/Pull".
  std::string path;
  std::unique_ptr<const Message> request;
};

// Sets the job in every request that names one.
void NameJob(const std::string& job, Message& message) {
  const auto* const field = message.GetDescriptor()->FindFieldByName("job");
  if (field == nullptr || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) return;
  message.GetReflection()->SetString(&message, field, job);
}

std::vector<Method> AllMethods(const std::string& job) {
  std::vector<Method> methods;
  for (const auto* file : {v1::PullRequest::descriptor()->file(), v1::JoinRequest::descriptor()->file(),
                           internal::v1::ReplicateRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        const auto& method = *service.method(m);
        std::unique_ptr<Message> request(
            google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
        NameJob(job, *request);
        methods.push_back({absl::StrCat("/", service.full_name(), "/", method.name()), std::move(request)});
      }
    }
  }
  return methods;
}

void Call(grpc::GenericStub& stub, const std::string& path, const std::string& bytes) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  absl::Notification done;
  stub.UnaryCall(&context, path, {}, &request, &response, [&](const grpc::Status&) { done.Notify(); });
  done.WaitForNotification();
}

absl::StatusOr<uint64_t> Run(const HostileTarget& target, absl::Time end) {
  const absl::StatusOr<Credentials> credentials = Credentials::Load(target.reader);
  if (!credentials.ok()) return credentials.status();
  // Protobuf logs a line for each string that is not UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  const std::vector<Method> methods = AllMethods(target.job);
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (const std::string& address : target.addresses) {
    stubs.push_back(std::make_unique<grpc::GenericStub>(OpenChannel(address, *credentials)));
  }
  std::vector<std::mt19937_64> randoms;
  for (int thread = 0; thread < kThreads; ++thread) randoms.emplace_back(thread);
  return AttackUntil(end, kThreads, [&](int thread, uint64_t attempt) {
    const Method& method = methods[attempt % methods.size()];
    const std::string bytes =
        attempt % 3 == 0 ? method.request->SerializeAsString() : HostileBytes(*method.request, randoms[thread]);
    Call(*stubs[thread % stubs.size()], method.path, bytes);
  });
}

}  // namespace

Attack ReaderCalls() { return {"reader_calls", Run}; }

}  // namespace ballast
