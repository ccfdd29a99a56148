// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/unary_reply.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "grpcpp/server_context.h"

namespace ballast {
namespace {

constexpr uint32_t kMaxWaitMs = 600000;
constexpr uint32_t kDefaultWaitMs = 30000;
constexpr char kRetryDelay[] = "retry_delay_ms";
// Milliseconds after which a refused caller should retry.
constexpr char kRetryDelayMs[] = "20";

class UnknownMethod : public grpc::ServerGenericBidiReactor {
 public:
  explicit UnknownMethod(const std::string& method) {
    Finish(ToGrpcStatus(absl::UnimplementedError(absl::StrCat(method, ": this server has no such method"))));
  }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(WithRetryDelay(status, *context)));
  return reactor;
}

absl::Status WithRetryDelay(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) || ReasonOf(status) == v1::ERROR_REASON_TABLE_MEMORY) return status;
  return SubjectOf(status, kRetryDelay).empty() ? WithSubjects(status, {{kRetryDelay, kRetryDelayMs}}) : status;
}

absl::Status WithRetryDelay(const absl::Status& status, grpc::CallbackServerContext& context) {
  absl::Status told = WithRetryDelay(status);
  const std::string delay = SubjectOf(told, kRetryDelay);
  if (!delay.empty()) context.AddTrailingMetadata("retry-delay-ms", delay);
  return told;
}

grpc::ServerGenericBidiReactor* UnknownMethods::CreateReactor(grpc::GenericCallbackServerContext* context) {
  return new UnknownMethod(context->method());
}

absl::StatusOr<absl::Duration> DecodeWait(uint32_t wait_ms) {
  if (wait_ms > kMaxWaitMs) {
    return absl::InvalidArgumentError(absl::StrCat("wait_ms: got ", wait_ms, ", want at most ", kMaxWaitMs));
  }
  return absl::Milliseconds(wait_ms == 0 ? kDefaultWaitMs : wait_ms);
}

}  // namespace ballast
