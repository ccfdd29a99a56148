// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/values_response.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/codecs/codec.h"
#include "common/wire/payload_message.h"

namespace ballast {
namespace {

// Upper limit for a slice's response besides its values: two tags, two lengths, and four numbers.
constexpr uint64_t kItemBytes = 40;

grpc::Slice EncodeValue(const Codec& codec, SliceKey key, PulledValues pulled, SharedReservation reservation) {
  const absl::Span<const float> elements = pulled.values.values();
  if (codec.encoding() == v1::ENCODING_FP32) {
    const size_t bytes = elements.size() * sizeof(float);
    if (bytes <= PayloadMessageWriter::kCopiedBytes) return grpc::Slice(elements.data(), bytes);
    return SliceOver(elements.data(), bytes, std::move(pulled.values), std::move(reservation));
  }
  auto encoded = std::make_unique_for_overwrite<char[]>(codec.EncodedBytes(elements.size()));
  char* const data = encoded.get();
  // Random rounding depends on slice and version only, so that all pulls get the same bytes.
  const size_t bytes = codec.Encode(elements, CodecSeed({key.tensor_id, key.slice_index, pulled.version}), data);
  return SliceOver(data, bytes, std::move(encoded), std::move(reservation));
}

}  // namespace

absl::StatusOr<const Codec*> ValueCodec(v1::Encoding encoding) {
  absl::StatusOr<const Codec*> codec = FindCodec(encoding);
  if (!codec.ok() || (*codec)->carries_values()) return codec;
  return absl::InvalidArgumentError(
      absl::StrCat("encoding of values: got ", (*codec)->name(), ", which is for gradients only"));
}

absl::StatusOr<ValuesResponse> EncodeValues(ParameterShard& shard, absl::Span<const SliceKey> keys,
                                            std::optional<uint32_t> worker, const Codec& codec, ByteBudget& budget,
                                            const google::protobuf::MessageLite& envelope, int field) {
  std::vector<PulledValues> pulled;
  pulled.reserve(keys.size());
  uint64_t bytes = 0;
  for (SliceKey key : keys) {
    absl::StatusOr<PulledValues> values = shard.Pull(key, worker);
    if (!values.ok()) return values.status();
    bytes += values->values.size() * sizeof(float);
    if (bytes > kMaxMessageBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the requested slices have more than ", kMaxMessageBytes,
                                                     " bytes; request fewer in one message"));
    }
    pulled.push_back(*std::move(values));
  }
  absl::StatusOr<ByteBudget::Reservation> reserved =
      budget.Reserve(std::max(bytes + kItemBytes * keys.size(), ByteBudget::kCallBytes));
  if (!reserved.ok()) return reserved.status();
  auto reservation = std::make_shared<ByteBudget::Reservation>(*std::move(reserved));
  PayloadMessageWriter writer(envelope);
  MessagePayloads payload;
  for (size_t i = 0; i < keys.size(); ++i) {
    v1::SliceValue value;
    value.set_tensor_id(keys[i].tensor_id);
    value.set_slice_index(keys[i].slice_index);
    value.set_version(pulled[i].version);
    value.set_encoding(codec.encoding());
    const size_t elements = pulled[i].values.size();
    grpc::Slice encoded = EncodeValue(codec, keys[i], std::move(pulled[i]), reservation);
    payload.Add(codec.encoding(), encoded.size(), elements);
    writer.Add(field, value, std::move(encoded));
  }
  return ValuesResponse{writer.Finish(), payload, std::move(reservation)};
}

}  // namespace ballast
