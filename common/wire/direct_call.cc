// SPDX-License-Identifier: Apache-2.0
#include "common/wire/direct_call.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace ballast {

std::string EncodeDirectError(const grpc::Status& error) {
  const std::string message = error.error_message();
  const auto length = static_cast<uint32_t>(message.size());
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return absl::StrCat(bytes, message, error.error_details());
}

grpc::Status DecodeDirectError(uint32_t code, absl::string_view bytes) {
  uint32_t length = 0;
  if (bytes.size() >= sizeof(length)) {
    std::memcpy(&length, bytes.data(), sizeof(length));
    bytes.remove_prefix(sizeof(length));
    if (code > grpc::OK && code <= grpc::UNAUTHENTICATED && length <= bytes.size()) {
      return grpc::Status(static_cast<grpc::StatusCode>(code), std::string(bytes.substr(0, length)),
                          std::string(bytes.substr(length)));
    }
  }
  return grpc::Status(grpc::INTERNAL, absl::StrCat("error of a direct call: got code ", code, " and a message of ",
                                                   length, " of ", bytes.size(), " bytes, want code 1 to 16"));
}

}  // namespace ballast
