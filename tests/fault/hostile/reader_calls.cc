// SPDX-License-Identifier: Apache-2.0
#include <random>

#include "common/rpc/channel.h"
#include "common/rpc/credentials.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/fault/hostile/attack.h"
#include "tests/testing/message_mutator.h"
#include "tests/testing/raw_call.h"

namespace ballast {
namespace {

using ::google::protobuf::Message;

constexpr int kThreads = 2;

// Sets the job in every request that names one.
void NameJob(const std::string& job, Message& message) {
  const auto* const field = message.GetDescriptor()->FindFieldByName("job");
  if (field == nullptr || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) return;
  message.GetReflection()->SetString(&message, field, job);
}

absl::StatusOr<uint64_t> Run(const HostileTarget& target, absl::Time end) {
  const absl::StatusOr<Credentials> credentials = Credentials::Load(target.reader);
  if (!credentials.ok()) return credentials.status();
  // Protobuf logs a line for each string that is not UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  // Names of the methods, and a request for each.
  std::vector<std::pair<std::string, std::unique_ptr<Message>>> methods;
  for (const auto& [name, type] : AllMethods()) {
    NameJob(target.job, *methods.emplace_back(name, NewRequest(*type)).second);
  }
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (const std::string& address : target.addresses) {
    stubs.push_back(std::make_unique<grpc::GenericStub>(OpenChannel(address, *credentials)));
  }
  std::vector<std::mt19937_64> randoms;
  for (int thread = 0; thread < kThreads; ++thread) randoms.emplace_back(thread);
  return AttackUntil(end, kThreads, [&](int thread, uint64_t attempt) {
    const auto& [name, request] = methods[attempt % methods.size()];
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
    RawCall(*stubs[thread % stubs.size()], context, name,
            AsBuffer(attempt % 3 == 0 ? request->SerializeAsString() : HostileBytes(*request, randoms[thread])));
  });
}

}  // namespace

Attack ReaderCalls() { return {"reader_calls", Run}; }

}  // namespace ballast
