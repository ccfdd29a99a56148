// SPDX-License-Identifier: Apache-2.0
#include "server/tables/watch/row_delta.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status/error_reason.h"
#include "common/tables/row_chain.h"
#include "common/tables/row_hash.h"
#include "google/protobuf/io/coded_stream.h"

namespace ballast {
namespace {

// Tag of WatchRowsResponse.deltas: field 1, length-delimited.
constexpr uint32_t kDeltasTag = (1 << 3) | 2;
constexpr size_t kMaxVarintBytes = 10;

// Takes up to `most` elements from the front.
absl::Span<const uint64_t> TakeFront(absl::Span<const uint64_t>& from, size_t most) {
  const absl::Span<const uint64_t> taken = from.first(std::min(most, from.size()));
  from.remove_prefix(taken.size());
  return taken;
}

}  // namespace

uint64_t PublishedDelta::bytes() const {
  uint64_t bytes = sizeof(*this);
  for (const std::string& body : bodies) bytes += sizeof(body) + body.size();
  for (const Chain& chain : chains) bytes += sizeof(chain) + chain.after.size() * sizeof(uint64_t);
  return bytes;
}

absl::StatusOr<RowDeltaEncoder> RowDeltaEncoder::Make(uint32_t table_id, uint32_t dim, v1::Encoding encoding) {
  const absl::StatusOr<const Codec*> codec =
      FindCodec(encoding == v1::ENCODING_UNSPECIFIED ? v1::ENCODING_FP32 : encoding);
  if (codec.ok() && (*codec)->encoding() <= v1::ENCODING_BF16) return RowDeltaEncoder(table_id, dim, *codec);
  const std::string got = codec.ok() ? std::string((*codec)->name()) : absl::StrCat(encoding);
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST,
                    absl::InvalidArgumentError(absl::StrCat("encoding: got ", got, ", want fp32, fp16 or bf16")));
}

std::string RowDeltaEncoder::Ids(absl::Span<const uint64_t> hashes) const {
  std::string ids(hashes.size() * sizeof(uint64_t), '\0');
  char* out = ids.data();
  for (uint64_t hash : hashes) {
    const uint64_t id = RowIdOf(hash, table_id_);
    std::memcpy(out, &id, sizeof(id));
    out += sizeof(id);
  }
  return ids;
}

std::vector<std::string> RowDeltaEncoder::EncodeBodies(const RowWeights& rows,
                                                       std::vector<PublishedDelta::Chain>& chains) const {
  std::vector<std::string> bodies;
  absl::Span<const uint64_t> hashes = rows.hashes, removed = rows.removed;
  const float* weights = rows.weights.data();
  do {
    // Evicted ids come before all rows.
    const absl::Span<const uint64_t> evicted = TakeFront(removed, kPartBytes / sizeof(uint64_t));
    const size_t room = kPartBytes - std::min(kPartBytes, evicted.size() * sizeof(uint64_t));
    const size_t most = std::max<size_t>(room / RowBytes(), 1);
    const absl::Span<const uint64_t> some = TakeFront(hashes, removed.empty() ? most : 0);
    v1::RowDelta part;
    part.set_ids(Ids(some));
    part.set_encoding(codec_->encoding());
    part.set_evicted(Ids(evicted));
    const absl::Span<const float> values(weights, some.size() * dim_);
    std::string& payload = *part.mutable_payload();
    payload.resize(codec_->EncodedBytes(values.size()));
    payload.resize(codec_->Encode(values, /*seed=*/0, payload.data()));
    weights += values.size();
    for (PublishedDelta::Chain& chain : chains) {
      const uint64_t before = chain.after.empty() ? chain.before : chain.after.back();
      chain.after.push_back(NextRowChain(before, part.ids(), part.evicted(), part.payload()));
    }
    bodies.push_back(part.SerializeAsString());
  } while (!removed.empty() || !hashes.empty());
  return bodies;
}

EncodedDelta RowDeltaEncoder::Part(const std::shared_ptr<const PublishedDelta>& delta,
                                   const PublishedDelta::Chain& chain, size_t part) const {
  // The fields of a message may come in any order, in pieces.
  v1::RowDelta head;
  head.set_table_id(table_id_);
  head.set_range(delta->range);
  head.set_from_position(delta->from_position);
  head.set_to_position(delta->to_position);
  head.set_chain(chain.after[part]);
  head.set_continues(part + 1 < delta->bodies.size());
  const std::string text = head.SerializeAsString();
  const std::shared_ptr<const std::string> body(delta, &delta->bodies[part]);
  using google::protobuf::io::CodedOutputStream;
  uint8_t prefix[2 * kMaxVarintBytes];
  uint8_t* end = CodedOutputStream::WriteVarint32ToArray(kDeltasTag, prefix);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(text.size() + body->size()), end);
  return {absl::StrCat(absl::string_view(reinterpret_cast<const char*>(prefix), end - prefix), text), body};
}

}  // namespace ballast
