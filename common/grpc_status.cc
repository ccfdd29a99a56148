// SPDX-License-Identifier: Apache-2.0
#include "common/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// A message travels in a header, of which gRPC takes 8 KiB in all; escaped, a byte may take three.
constexpr size_t kMaxMessageBytes = 2000;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message().substr(0, kMaxMessageBytes));
  if (status.message().size() > kMaxMessageBytes) message += " ... (cut)";
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
}

absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view context) {
  if (status.ok()) return absl::OkStatus();
  const std::string message =
      context.empty() ? status.error_message() : absl::StrCat(context, ": ", status.error_message());
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), message);
}

}  // namespace ballast
