// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/codecs/codec.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/memory/byte_budget.h"
#include "server/memory/payload_counts.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

using SharedReservation = std::shared_ptr<ByteBudget::Reservation>;

// Returns a view of bytes in `memory`, which lives, with its part of the budget, until gRPC has sent it.
template <typename Memory>
grpc::Slice SliceOver(const void* data, size_t bytes, Memory memory, SharedReservation reservation) {
  struct InFlight {
    Memory memory;
    SharedReservation reservation;
  };
  // gRPC only reads it.
  return grpc::Slice(
      const_cast<void*>(data), bytes, [](void* held) { delete static_cast<InFlight*>(held); },
      new InFlight{std::move(memory), std::move(reservation)});
}

// Returns the codec for the encoding that a pull requests; INVALID_ARGUMENT for one that only gradients have.
absl::StatusOr<const Codec*> ValueCodec(v1::Encoding encoding);

// A response with values. gRPC sends large values from where they are, so what is in `bytes` shares the reservation,
// which covers the values of the whole response.
struct ValuesResponse {
  grpc::ByteBuffer bytes;
  MessagePayloads payload;
  SharedReservation reservation;
};

// Returns a response with `envelope` and, in repeated field `field`, the slices' current values. Records for `worker`,
// if set, that it received them. INVALID_ARGUMENT if the values exceed the limit of a message; RESOURCE_EXHAUSTED if
// the budget has no room for them.
absl::StatusOr<ValuesResponse> EncodeValues(ParameterShard& shard, absl::Span<const SliceKey> keys,
                                            std::optional<uint32_t> worker, const Codec& codec, ByteBudget& budget,
                                            const google::protobuf::MessageLite& envelope, int field);

}  // namespace ballast
