// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/table.pb.h"
#include "common/codecs/codec.h"
#include "server/tables/range/range_changes.h"

namespace ballast {

// A delta, or a part of one, encoded as a field of a response: the bytes of `head`, then those of `body`. The body is
// shared by all watchers to which it is sent.
struct EncodedDelta {
  std::string head;
  std::shared_ptr<const std::string> body;

  size_t bytes() const { return head.size() + body->size(); }
};

// The change of a range between two positions. Immutable once it is published.
struct PublishedDelta {
  // A chain of the range's deltas: there is one for each time that the range was sent whole.
  struct Chain {
    uint32_t id = 0;
    uint64_t before = 0;
    // After each part.
    std::vector<uint64_t> after;
  };

  uint32_t range = 0;
  uint64_t from_position = 0, to_position = 0;
  // Encoded ids, values and evicted ids, in parts that each fit a message.
  std::vector<std::string> bodies;
  std::vector<Chain> chains;

  // Memory that it takes.
  uint64_t bytes() const;
};

// Encodes the rows of one table for its watchers. Deliberately does not know positions. Thread safety: immutable.
class RowDeltaEncoder {
 public:
  // About the largest part of a delta.
  static constexpr size_t kPartBytes = size_t{1} << 20;

  // INVALID_ARGUMENT unless the encoding is fp32, fp16 or bf16; unspecified: fp32.
  static absl::StatusOr<RowDeltaEncoder> Make(uint32_t table_id, uint32_t dim, v1::Encoding encoding);

  v1::Encoding encoding() const { return codec_->encoding(); }

  // Returns the bodies of a delta's parts, at least one. Adds to each chain its value after each part.
  std::vector<std::string> EncodeBodies(const RowWeights& rows, std::vector<PublishedDelta::Chain>& chains) const;

  // Returns part number `part` of the delta, in a response's field; the delta is shared with the result.
  EncodedDelta Part(const std::shared_ptr<const PublishedDelta>& delta, const PublishedDelta::Chain& chain,
                    size_t part) const;

  // Bytes of a row in a delta.
  uint64_t RowBytes() const { return sizeof(uint64_t) + codec_->EncodedBytes(dim_); }

 private:
  RowDeltaEncoder(uint32_t table_id, uint32_t dim, const Codec* codec)
      : table_id_(table_id), dim_(dim), codec_(codec) {}
  std::string Ids(absl::Span<const uint64_t> hashes) const;

  const uint32_t table_id_;
  const uint32_t dim_;
  const Codec* const codec_;
};

}  // namespace ballast
