// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// A message is sent twice in the headers, which gRPC limits to 8 KiB in total: as text, in which an escaped byte
// takes three, and in the details, in base64.
constexpr size_t kMaxMessageBytes = 1500;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > kMaxMessageBytes) {
    size_t end = kMaxMessageBytes;
    // Do not cut inside a UTF-8 character.
    while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
    message = absl::StrCat(message.substr(0, end), " ... (truncated)");
  }
  // Some client libraries refuse details whose message differs from the call's.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      EncodeErrorDetails(WithMessage(status, message)));
}

absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view context) {
  if (status.ok()) return absl::OkStatus();
  const std::string message =
      context.empty() ? status.error_message() : absl::StrCat(context, ": ", status.error_message());
  return DecodeErrorDetails(absl::Status(static_cast<absl::StatusCode>(status.error_code()), message),
                            status.error_details());
}

}  // namespace ballast
