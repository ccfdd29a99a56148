// SPDX-License-Identifier: Apache-2.0
#include "common/storage/framed_message.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ballast {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

std::string FrameMessage(const google::protobuf::MessageLite& message) {
  const uint32_t bytes = message.ByteSizeLong();
  std::string frame(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  message.AppendToString(&frame);
  return frame;
}

absl::StatusOr<absl::string_view> ParseFramed(absl::string_view body, google::protobuf::MessageLite& to) {
  uint32_t bytes = 0;
  if (body.size() < sizeof(bytes)) return absl::DataLossError(absl::StrCat("got ", body.size(), " bytes, want more"));
  std::memcpy(&bytes, body.data(), sizeof(bytes));
  body.remove_prefix(sizeof(bytes));
  if (bytes > body.size()) {
    return absl::DataLossError(absl::StrCat("got a message of ", bytes, " bytes in ", body.size()));
  }
  if (!to.ParseFromArray(body.data(), bytes)) {
    return absl::DataLossError(absl::StrCat("got ", bytes, " bytes that are not a ", to.GetTypeName()));
  }
  return body.substr(bytes);
}

}  // namespace ballast
