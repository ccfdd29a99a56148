// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace ballast {

// Direct calls: those of the data plane that a client makes without gRPC, in shared memory or on a data stream, with
// the same messages and errors.

// The methods, by the number that the client sends.
inline constexpr std::array<absl::string_view, 6> kDirectMethods = {
    "/ballast.v1.ParameterService/Push",     "/ballast.v1.ParameterService/Pull",
    "/ballast.v1.ParameterService/PushPull", "/ballast.v1.ParameterService/SetValues",
    "/ballast.v1.ParameterService/PullRows", "/ballast.v1.ParameterService/PushRows"};

// The error with which a call ends, besides its code: the length of its message (4 bytes), the message, and the
// details.
std::string EncodeDirectError(const grpc::Status& error);
// INTERNAL if the bytes are malformed or the code is not one of gRPC's.
grpc::Status DecodeDirectError(uint32_t code, absl::string_view bytes);

}  // namespace ballast
