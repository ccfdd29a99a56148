// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// Largest encoded message of the data plane, and gRPC's default limit on what is received.
inline constexpr uint64_t kMaxMessageBytes = uint64_t{4} << 20;

// Slices in one message at most: what 4 MiB of empty ones would make of themselves in memory is many times more.
inline constexpr size_t kMaxSlicesPerMessage = 65536;

// Messages, texts and unknown fields within one request at most, at every depth. A list of tensors needs about six for
// each, in a hundred bytes; 4 MiB of empty ones would take 144 MiB of memory.
inline constexpr size_t kMaxElementsPerMessage = 4 * kMaxSlicesPerMessage;

// Messages within messages, as protobuf itself refuses deeper ones.
inline constexpr int kMaxMessageDepth = 100;

}  // namespace ballast
