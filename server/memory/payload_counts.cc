// SPDX-License-Identifier: Apache-2.0
#include "server/memory/payload_counts.h"

#include <string>

#include "common/codecs/codec.h"

namespace ballast {

void PayloadCounts::Add(const MessagePayloads& message) {
  for (size_t encoding = 0; encoding < by_encoding_.size(); ++encoding) {
    const MessagePayloads::Bytes& bytes = message.by_encoding_[encoding];
    if (bytes.plain == 0) continue;
    by_encoding_[encoding].encoded.fetch_add(bytes.encoded, std::memory_order_relaxed);
    by_encoding_[encoding].plain.fetch_add(bytes.plain, std::memory_order_relaxed);
  }
}

uint64_t PayloadCounts::encoded() const {
  uint64_t sum = 0;
  for (const Bytes& bytes : by_encoding_) sum += bytes.encoded.load(std::memory_order_relaxed);
  return sum;
}

void PayloadCounts::Describe(absl::string_view direction, v1::GetStatusResponse& status) const {
  for (size_t encoding = 0; encoding < by_encoding_.size(); ++encoding) {
    const uint64_t plain = by_encoding_[encoding].plain.load(std::memory_order_relaxed);
    if (plain == 0) continue;
    const absl::StatusOr<const Codec*> codec = FindCodec(static_cast<v1::Encoding>(encoding));
    v1::GetStatusResponse::Payload* payload = status.add_payloads();
    payload->set_direction(std::string(direction));
    payload->set_codec(codec.ok() ? std::string((*codec)->name()) : "unknown");
    payload->set_encoded_bytes(by_encoding_[encoding].encoded.load(std::memory_order_relaxed));
    payload->set_plain_bytes(plain);
  }
}

}  // namespace ballast
