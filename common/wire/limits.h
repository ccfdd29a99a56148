// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// Largest encoded message of the data plane; also gRPC's default receive limit.
inline constexpr uint64_t kMaxMessageBytes = uint64_t{4} << 20;

// Maximum slices in one message: 4 MiB of empty slices would take many times that in memory.
inline constexpr size_t kMaxSlicesPerMessage = 65536;

// Maximum messages, strings and unknown fields in one request, at every depth. A list of tensors needs about six per
// tensor, in a hundred bytes; 4 MiB of empty elements would take 144 MiB of memory.
inline constexpr size_t kMaxElementsPerMessage = 4 * kMaxSlicesPerMessage;

// Maximum nesting of messages; protobuf itself refuses deeper ones.
inline constexpr int kMaxMessageDepth = 100;

}  // namespace ballast
