// SPDX-License-Identifier: Apache-2.0
// Decodes the data plane's messages around their payloads: the decoder accepts what protobuf accepts, with the same
// result.
#include "ballast/v1/parameter_service.pb.h"
#include "common/wire/limits.h"
#include "common/wire/payload_message.h"
#include "common/wire/payload_scanner.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

// Adds an item back to its envelope.
v1::SliceGradient* AddItem(v1::PushRequest& whole) { return whole.add_gradients(); }
v1::SliceGradient* AddItem(v1::PushPullRequest& whole) { return whole.add_gradients(); }
v1::SliceValue* AddItem(v1::PullResponse& whole) { return whole.add_values(); }
v1::SliceValue* AddItem(v1::PushPullResponse& whole) { return whole.add_values(); }
v1::RowGradients* AddItem(v1::PushRowsRequest& whole) { return whole.add_gradients(); }
v1::RowValues* AddItem(v1::PullRowsResponse& whole) { return whole.add_values(); }

template <typename Envelope, typename Item>
absl::StatusOr<Envelope> Decode(absl::string_view text, size_t piece_bytes, int field) {
  const std::vector<absl::string_view> pieces = Cut(text, piece_bytes);
  auto message = DecodePayloadMessage<Envelope, Item>(pieces, field, kMaxSlicesPerMessage);
  if (!message.ok()) return message.status();
  Envelope whole = message->envelope;
  for (const ItemWithPayload<Item>& item : message->items) {
    Item* const added = AddItem(whole);
    *added = item.item;
    for (absl::string_view piece : item.payload) added->mutable_payload()->append(piece.data(), piece.size());
  }
  whole.DiscardUnknownFields();
  return whole;
}

// Payloads that are found while a message arrives are those of the message.
void CompareScanned(absl::string_view text, int field) {
  const absl::StatusOr<EncodedParts> parts = SplitPayloadMessage({text}, field, kMaxSlicesPerMessage);
  PayloadScanner scanner(field);
  while (!text.empty()) {
    const absl::string_view part = text.substr(0, scanner.next_bytes());
    text.remove_prefix(part.size());
    if (!scanner.in_payload()) {
      scanner.Take(part);
      continue;
    }
    const bool whole = part.size() == scanner.next_bytes();
    if (parts.ok()) {
      Require(whole, "a message has the whole payload");
      Require(scanner.index() < parts->items.size(), "a payload is an item's");
      const Pieces& payload = parts->items[scanner.index()].payload;
      Require(payload.size() == 1 && payload[0].data() == part.data() && payload[0].size() == part.size(),
              "a payload is where it was found");
    }
    scanner.SkipPayload(part.size());
  }
}

template <typename Envelope, typename Item>
void Compare(absl::string_view text, size_t piece_bytes, int field) {
  CompareScanned(text, field);
  const absl::StatusOr<Envelope> ours = Decode<Envelope, Item>(text, piece_bytes, field);
  Envelope theirs;
  if (!theirs.ParseFromArray(text.data(), text.size())) return;
  theirs.DiscardUnknownFields();
  const std::string bytes = theirs.SerializeAsString();
  // Our decoder refuses groups and tags in more bytes than they need.
  if (ours.ok()) Require(ours->SerializeAsString() == bytes, "both decoders give the same message");
  const absl::StatusOr<Envelope> plain = Decode<Envelope, Item>(bytes, piece_bytes, field);
  Require(plain.ok(), "protobuf's output can be decoded");
  Require(plain->SerializeAsString() == bytes, "protobuf's output is decoded unchanged");
}

std::string Seed(char kind, char piece_bytes, const google::protobuf::MessageLite& message) {
  return std::string({kind, piece_bytes}) + message.SerializeAsString();
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  v1::PushRequest push;
  push.mutable_header()->set_job("job");
  push.mutable_header()->set_worker(3);
  push.mutable_header()->set_incarnation(1);
  push.mutable_header()->set_sequence(300);
  push.mutable_header()->set_examples(8);
  for (uint32_t id : {1u, 2u}) {
    v1::SliceGradient* gradient = push.add_gradients();
    gradient->set_tensor_id(id);
    gradient->set_version(1000000);
    gradient->set_encoding(v1::ENCODING_FP32);
    gradient->set_payload(std::string(8 * id, 'g'));
  }
  v1::PushPullRequest push_pull;
  *push_pull.mutable_header() = push.header();
  *push_pull.mutable_gradients() = push.gradients();
  push_pull.set_wait_ms(1000);
  v1::PushRequest shared;
  shared.mutable_in_shared_memory()->set_region(1);
  shared.mutable_in_shared_memory()->set_bytes(100);
  v1::PullResponse pulled;
  v1::SliceValue* value = pulled.add_values();
  value->set_tensor_id(1);
  value->set_payload(std::string(300, 'v'));
  v1::PushPullResponse both;
  both.mutable_outcome()->set_applied(2);
  *both.mutable_values() = pulled.values();
  v1::PushRowsRequest rows;
  *rows.mutable_header() = push.header();
  rows.set_messages_of_step(1);
  v1::RowGradients* gradients = rows.add_gradients();
  gradients->set_table_id(1);
  gradients->set_ids(std::string(16, 'i'));
  gradients->set_unordered(true);
  gradients->set_versions(std::string(8, 'v'));
  gradients->set_payload(std::string(300, 'g'));
  v1::PullRowsResponse pulled_rows;
  v1::RowValues* row_values = pulled_rows.add_values();
  row_values->set_table_id(1);
  row_values->set_rows(2);
  row_values->set_present("\1");
  row_values->set_payload(std::string(300, 'v'));
  return {Seed(0, 0, push),   Seed(0, 7, push), Seed(1, 0, push_pull), Seed(0, 1, shared),
          Seed(2, 5, pulled), Seed(3, 0, both), Seed(4, 9, rows),      Seed(5, 0, pulled_rows)};
}

void FuzzOne(FuzzInput input) {
  const uint8_t kind = input.Byte();
  const uint8_t piece_bytes = input.Byte();
  switch (kind % 6) {
    case 0:
      Compare<v1::PushRequest, v1::SliceGradient>(input.Rest(), piece_bytes, v1::PushRequest::kGradientsFieldNumber);
      break;
    case 1:
      Compare<v1::PushPullRequest, v1::SliceGradient>(input.Rest(), piece_bytes,
                                                      v1::PushPullRequest::kGradientsFieldNumber);
      break;
    case 2:
      Compare<v1::PullResponse, v1::SliceValue>(input.Rest(), piece_bytes, v1::PullResponse::kValuesFieldNumber);
      break;
    case 3:
      Compare<v1::PushPullResponse, v1::SliceValue>(input.Rest(), piece_bytes,
                                                    v1::PushPullResponse::kValuesFieldNumber);
      break;
    case 4:
      Compare<v1::PushRowsRequest, v1::RowGradients>(input.Rest(), piece_bytes,
                                                     v1::PushRowsRequest::kGradientsFieldNumber);
      break;
    default:
      Compare<v1::PullRowsResponse, v1::RowValues>(input.Rest(), piece_bytes, v1::PullRowsResponse::kValuesFieldNumber);
  }
}

}  // namespace ballast
