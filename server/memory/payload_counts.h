// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "ballast/v1/parameter_service.pb.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Bytes of the payloads of one message by codec, as encoded and as 32-bit floats. Thread safety: none.
class MessagePayloads {
 public:
  struct Bytes {
    uint64_t encoded = 0, plain = 0;
  };

  void Add(v1::Encoding encoding, uint64_t encoded, uint64_t elements) {
    Bytes& bytes = by_encoding_[IndexOf(encoding)];
    bytes.encoded += encoded;
    bytes.plain += elements * sizeof(float);
  }

 private:
  friend class PayloadCounts;
  static constexpr size_t kEncodings = v1::Encoding_ARRAYSIZE;

  // An encoding that is not set means fp32; payloads of unknown ones are refused.
  static size_t IndexOf(v1::Encoding encoding) {
    const size_t index = encoding == v1::ENCODING_UNSPECIFIED ? v1::ENCODING_FP32 : encoding;
    return index < kEncodings ? index : 0;
  }

  // By encoding.
  std::array<Bytes, kEncodings> by_encoding_;
};

// Counts the payloads of many messages. An Add takes two atomic additions for each codec in a message, without a lock.
// Thread safety: all methods may be called from any thread.
class PayloadCounts {
 public:
  void Add(const MessagePayloads& message);

  // Bytes of all codecs as encoded.
  uint64_t encoded() const;

  // Adds an item for each codec that was used. `direction`: "push" or "pull".
  void Describe(absl::string_view direction, v1::GetStatusResponse& status) const;

 private:
  struct Bytes {
    std::atomic<uint64_t> encoded{0}, plain{0};
  };

  // By encoding.
  std::array<Bytes, MessagePayloads::kEncodings> by_encoding_;
};

}  // namespace ballast
