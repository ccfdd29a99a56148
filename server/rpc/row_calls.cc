// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"
#include "common/wire/limits.h"
#include "server/rpc/data_call.h"
#include "server/tables/message_rows.h"

// The calls of tables: PullRows and PushRows.
namespace ballast {
namespace {

constexpr size_t kMaxTablesPerMessage = 4096;
// Queries, ids, and fields that this server does not know.
constexpr size_t kMaxPullElements = 16 * kMaxTablesPerMessage;

absl::Status Invalid(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST, absl::InvalidArgumentError(message));
}

template <typename Items, typename TableOf>
absl::Status CheckTables(const Items& items, TableOf table_of) {
  absl::flat_hash_set<uint32_t> seen;
  for (const auto& item : items) {
    if (seen.insert(table_of(item)).second) continue;
    return Invalid(absl::StrCat("got table ", table_of(item), " twice, want each table once in a message"));
  }
  return absl::OkStatus();
}

// Checked queries, and the memory of their rows as fp32.
struct Queries {
  std::vector<MessageRows> orders;
  uint64_t bytes = 0;
};

// Returns the weights of a row of each query's table. Errors name the shard.
absl::StatusOr<std::vector<uint32_t>> RowElements(const v1::PullRowsRequest& request, const ParameterShard& shard) {
  std::vector<uint32_t> dims;
  for (const v1::RowQuery& query : request.queries()) {
    const absl::StatusOr<uint32_t> dim = shard.RowElements(request.job(), query.table_id());
    if (!dim.ok()) return dim.status();
    dims.push_back(*dim);
  }
  return dims;
}

absl::StatusOr<Queries> Order(const v1::PullRowsRequest& request, absl::Span<const uint32_t> dims) {
  if (request.queries_size() > static_cast<int>(kMaxTablesPerMessage)) {
    return Invalid(absl::StrCat("got ", request.queries_size(), " queries, want at most ", kMaxTablesPerMessage));
  }
  const auto table_of = [](const v1::RowQuery& query) { return query.table_id(); };
  if (absl::Status status = CheckTables(request.queries(), table_of); !status.ok()) return status;
  Queries queries;
  for (int i = 0; i < request.queries_size(); ++i) {
    const v1::RowQuery& query = request.queries(i);
    const uint64_t rows = query.ids().size() / sizeof(uint64_t);
    queries.bytes += rows * dims[i] * sizeof(float);
    if (queries.bytes > kMaxMessageBytes) {
      return Invalid(
          absl::StrCat("the rows have more than ", kMaxMessageBytes, " bytes as fp32; ask for fewer in one message"));
    }
    absl::StatusOr<MessageRows> order = MessageRows::Of(query.ids(), query.table_id(), query.unordered());
    if (!order.ok()) return Annotate(order.status(), absl::StrCat("table ", query.table_id()));
    queries.orders.push_back(*std::move(order));
  }
  return queries;
}

template <typename Element>
std::string BytesOfVector(const std::vector<Element>& elements) {
  return std::string(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element));
}

grpc::Slice EncodeRows(const Codec& codec, ValueBuffer values, SharedReservation reservation) {
  const absl::Span<const float> elements = values.values();
  if (codec.encoding() == v1::ENCODING_FP32) {
    return SliceOver(elements.data(), elements.size() * sizeof(float), std::move(values), std::move(reservation));
  }
  auto encoded = std::make_unique_for_overwrite<char[]>(codec.EncodedBytes(elements.size()));
  char* const data = encoded.get();
  const size_t bytes = codec.Encode(elements, /*seed=*/0, data);
  return SliceOver(data, bytes, std::move(encoded), std::move(reservation));
}

}  // namespace

void DataPlane::Call::PushRows() {
  const ReceivedBytes bytes = Request();
  const auto message = DecodePayloadMessage<v1::PushRowsRequest, v1::RowGradients>(
      bytes.pieces, v1::PushRowsRequest::kGradientsFieldNumber, kMaxTablesPerMessage);
  if (!message.ok()) return End(OnShard(message.status()));
  const v1::PushHeader& header = message->envelope.header();
  Identify(header.worker(), header.step() + 1);
  if (absl::Status status = CheckJob(header.job()); !status.ok()) return End(OnShard(status));
  map_epoch_ = header.map_epoch();
  const auto table_of = [](const auto& item) { return item.item.table_id(); };
  if (absl::Status status = CheckTables(message->items, table_of); !status.ok()) return End(OnShard(status));
  std::vector<RowGradientsView> views;
  uint64_t payload = 0;
  for (const auto& [item, pieces] : message->items) {
    views.push_back(
        {item.table_id(), item.ids(), item.unordered(), item.versions(), item.encoding(), pieces, item.uses()});
    if (item.has_clock()) views.back().clock = item.clock();
    payload += PayloadBytes(pieces);
  }
  // Decoded gradients take up to twice their payload; the request's reservation covers the message alone.
  absl::StatusOr<ByteBudget::Reservation> decoded = Budget().Reserve(kMaxMessageBytes + payload);
  if (!decoded.ok()) return End(decoded.status());
  const absl::StatusOr<PushOutcome> outcome = plane_->shard_->PushRows(
      header.job(), DecodeTicket(header), message->envelope.messages_of_step(), views, &plane_->pushed_);
  decoded->Release();
  if (!outcome.ok()) return End(outcome.status());
  DropRequest(ByteBudget::kCallBytes);
  v1::PushRowsResponse answer;
  v1::RowsOutcome& to = *answer.mutable_outcome();
  to.set_applied(outcome->applied);
  to.set_created(outcome->created);
  to.set_kept(outcome->buffered);
  to.set_dropped(outcome->dropped);
  to.set_orphaned(outcome->orphaned);
  to.set_not_admitted(outcome->not_admitted);
  to.set_evicted(outcome->evicted);
  to.set_max_staleness(outcome->max_staleness);
  to.set_duplicate(outcome->duplicate);
  timer_.Enter(CallPhase::kWait);
  plane_->shard_->AwaitDurable(*outcome, Ending(EncodeMessage(answer)));
}

void DataPlane::Call::PullRows() {
  auto request = DecodeMessage<v1::PullRowsRequest>(Request(), kMaxPullElements);
  if (!request.ok()) return End(OnShard(request.status()));
  if (absl::Status status = CheckJob(request->job()); !status.ok()) return End(OnShard(status));
  map_epoch_ = request->map_epoch();
  Identify(CallSpan::kNone, request->step());
  const absl::StatusOr<const Codec*> codec = ValueCodec(request->encoding());
  if (!codec.ok()) return End(OnShard(codec.status()));
  if ((*codec)->encoding() > v1::ENCODING_BF16) {
    return End(
        OnShard(Invalid(absl::StrCat("encoding: got ", (*codec)->name(), ", want fp32, fp16 or bf16 for rows"))));
  }
  const absl::StatusOr<std::vector<uint32_t>> dims = RowElements(*request, *plane_->shard_);
  if (!dims.ok()) return End(dims.status());
  absl::StatusOr<Queries> queries = Order(*request, *dims);
  if (!queries.ok()) return End(OnShard(queries.status()));
  const absl::StatusOr<absl::Duration> wait = DecodeWait(request->wait_ms());
  if (!wait.ok()) return End(wait.status());
  std::vector<uint32_t> tables;
  for (const v1::RowQuery& query : request->queries()) tables.push_back(query.table_id());
  // A call that waits for other workers must hold no budget but that of waits: ids, and their hashes in order.
  DropRequest();
  const uint64_t bytes = 3 * request->ByteSizeLong();
  const auto call = shared_from_this();
  const PullQuery pull{request->step(), std::nullopt};
  const std::string job = request->job();
  auto answer = [call, request = *std::move(request), queries = *std::move(queries),
                 codec = *codec](const absl::Status& status) mutable {
    if (!status.ok()) return call->End(status);
    call->AnswerWithRows(request, queries.orders, queries.bytes, *codec);
  };
  timer_.Enter(CallPhase::kWait);
  // The callback may end the call before AwaitRows returns, but not delete it.
  wait_.Began(plane_->shard_->AwaitRows(job, pull, tables, bytes, *wait, !as_worker_.ok(), std::move(answer)));
}

void DataPlane::Call::AnswerWithRows(const v1::PullRowsRequest& request, absl::Span<const MessageRows> orders,
                                     uint64_t bytes, const Codec& codec) {
  timer_.Enter(CallPhase::kSend);
  absl::StatusOr<ByteBudget::Reservation> reserved = Budget().Reserve(std::max(2 * bytes, ByteBudget::kCallBytes));
  if (!reserved.ok()) return End(reserved.status());
  values_reserved_ = std::make_shared<ByteBudget::Reservation>(*std::move(reserved));
  PayloadMessageWriter writer((v1::PullRowsResponse()));
  MessagePayloads payload;
  for (int i = 0; i < request.queries_size(); ++i) {
    const v1::RowQuery& query = request.queries(i);
    absl::StatusOr<PulledRows> rows =
        plane_->shard_->PullRows(request.job(), query.table_id(), orders[i], query.missing());
    if (!rows.ok()) return End(rows.status());
    v1::RowValues values;
    values.set_table_id(query.table_id());
    values.set_rows(orders[i].ids());
    values.set_encoding(codec.encoding());
    values.set_present(std::move(rows->present));
    if (query.with_versions()) values.set_versions(BytesOfVector(rows->versions));
    if (rows->clock.has_value()) values.set_clock(*rows->clock);
    const size_t elements = rows->values.size();
    grpc::Slice encoded = EncodeRows(codec, std::move(rows->values), values_reserved_);
    payload.Add(codec.encoding(), encoded.size(), elements);
    writer.Add(v1::PullRowsResponse::kValuesFieldNumber, values, std::move(encoded));
  }
  grpc::ByteBuffer response = writer.Finish();
  plane_->pull_bytes_ += response.Length();
  plane_->pulled_.Add(payload);
  timer_.Enter(CallPhase::kWait);
  // The worker may push a gradient of these values, so a recovered shard must not be older than they are.
  plane_->shard_->AwaitDurable(Ending(std::move(response)));
}

}  // namespace ballast
