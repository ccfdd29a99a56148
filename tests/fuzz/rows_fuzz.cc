// SPDX-License-Identifier: Apache-2.0
// Rows on their way into a shard: the order of a message's ids, and PushRows requests, which are refused as a whole or
// change exactly the rows that they name.
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "ballast/v1/parameter_service.pb.h"
#include "common/concurrency/clock.h"
#include "common/tables/row_hash.h"
#include "common/wire/payload_message.h"
#include "server/shard/parameter_shard.h"
#include "server/tables/message_rows.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

constexpr uint32_t kTable = 1;
constexpr uint32_t kDim = 2;
constexpr size_t kMaxTables = 16;
constexpr uint64_t kStateBytes = uint64_t{2} << 20;

uint64_t IdAt(absl::string_view ids, size_t at) {
  uint64_t id;
  std::memcpy(&id, ids.data() + at * sizeof(id), sizeof(id));
  return id;
}

absl::string_view BytesOf(const std::vector<uint64_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t)};
}

// The order is that of the distinct hashes; without `unordered`, the message has it already.
void CheckOrder(absl::string_view ids, uint32_t table, bool unordered) {
  const absl::StatusOr<MessageRows> rows = MessageRows::Of(ids, table, unordered);
  std::map<uint64_t, uint32_t> index_of;
  bool ascending = true;
  for (size_t at = 0; at < ids.size() / sizeof(uint64_t); ++at) {
    const uint64_t hash = RowHash(IdAt(ids, at), table);
    Require(RowIdOf(hash, table) == IdAt(ids, at), "a hash stands for its id");
    ascending = ascending && (index_of.empty() || hash > index_of.rbegin()->first);
    index_of[hash] = 0;
  }
  const bool whole = ids.size() % sizeof(uint64_t) == 0;
  Require(rows.ok() == (whole && (ascending || unordered)), "only complete ids in order are accepted");
  if (!rows.ok()) return;
  Require(rows->ids() == ids.size() / sizeof(uint64_t), "no id is lost");
  Require(rows->in_order() == ascending, "ids in order are not sorted again");
  Require(rows->hashes().size() == index_of.size(), "each hash is there once");
  uint32_t next = 0;
  for (auto& [hash, index] : index_of) {
    Require(rows->hashes()[next] == hash, "hashes ascend");
    index = next++;
  }
  for (size_t at = 0; at < rows->row_of().size(); ++at) {
    Require(rows->row_of()[at] == index_of[RowHash(IdAt(ids, at), table)], "each id has its row");
  }
}

std::unique_ptr<ParameterShard> ShardOfATable() {
  ParameterShard::Options options;
  options.max_state_bytes = kStateBytes;
  auto shard = std::make_unique<ParameterShard>(std::move(options), Clock::Real());
  JobConfig job;
  job.name = "job";
  job.policy.mutable_async()->set_scale_by_staleness(true);
  job.policy.mutable_async()->set_staleness_of(v1::ConsistencyPolicy::TABLE);
  job.workers = 2;
  OwnedTable table;
  table.spec.set_id(kTable);
  table.spec.set_name("rows");
  table.spec.set_dim(kDim);
  table.spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.spans.emplace_back().set_count(4096);
  Require(shard->Declare(job, {}, {table}).ok(), "a shard accepts a table");
  return shard;
}

// Pushes the request as the server does.
absl::StatusOr<PushOutcome> Push(ParameterShard& shard, absl::Span<const absl::string_view> pieces) {
  const auto message = DecodePayloadMessage<v1::PushRowsRequest, v1::RowGradients>(
      pieces, v1::PushRowsRequest::kGradientsFieldNumber, kMaxTables);
  if (!message.ok()) return message.status();
  const v1::PushHeader& header = message->envelope.header();
  const PushTicket ticket{header.worker(), header.incarnation(), header.sequence(),
                          header.step(),   header.examples(),    {}};
  std::vector<RowGradientsView> views;
  std::set<uint32_t> tables;
  for (const auto& [item, payload] : message->items) {
    // The server refuses it before it asks the shard.
    if (!tables.insert(item.table_id()).second) return absl::InvalidArgumentError("a table twice");
    views.push_back({item.table_id(), item.ids(), item.unordered(), item.versions(), item.encoding(), payload});
    if (item.has_clock()) views.back().clock = item.clock();
  }
  return shard.PushRows(header.job(), ticket, message->envelope.messages_of_step(), views);
}

std::string Request(const std::vector<uint64_t>& ids, v1::Encoding encoding, const std::string& versions,
                    std::optional<uint64_t> clock = std::nullopt) {
  v1::PushRowsRequest request;
  request.mutable_header()->set_job("job");
  request.mutable_header()->set_incarnation(1);
  request.mutable_header()->set_sequence(1);
  request.mutable_header()->set_examples(1);
  request.set_messages_of_step(1);
  v1::RowGradients& rows = *request.add_gradients();
  rows.set_table_id(kTable);
  rows.set_ids(std::string(BytesOf(ids)));
  rows.set_unordered(true);
  rows.set_versions(versions);
  rows.set_encoding(encoding);
  if (clock.has_value()) rows.set_clock(*clock);
  rows.set_payload(std::string(ids.size() * kDim * (encoding == v1::ENCODING_FP32 ? 4 : 2), '\x3f'));
  return request.SerializeAsString();
}

void CheckPush(FuzzInput input) {
  const uint8_t piece_bytes = input.Byte();
  const std::unique_ptr<ParameterShard> shard = ShardOfATable();
  const absl::StatusOr<PushOutcome> outcome = Push(*shard, Cut(input.Rest(), piece_bytes));
  const ShardStatus status = shard->status();
  Require(status.state_bytes <= kStateBytes, "the shard stays within its memory");
  Require(status.tables[0].rows == (outcome.ok() ? outcome->created : 0), "a push creates what it says, or nothing");
  if (!outcome.ok()) return;
  Require(outcome->created == outcome->applied, "all rows of the first push begin with it");
  Require(outcome->orphaned <= outcome->applied, "an orphaned row is applied");
  Require(outcome->max_staleness == 0, "no step has ended before the first push");
  const absl::StatusOr<PushOutcome> again = Push(*shard, Cut(input.Rest(), piece_bytes));
  Require(again.ok() && again->duplicate && again->created == outcome->created, "a retry gets the outcome");
  v1::PushRowsRequest request;
  if (!request.ParseFromArray(input.Rest().data(), input.Rest().size())) return;
  for (const v1::RowGradients& rows : request.gradients()) {
    const absl::StatusOr<MessageRows> order = MessageRows::Of(rows.ids(), kTable, /*unordered=*/true);
    if (!order.ok() || request.header().examples() == 0) continue;
    const absl::StatusOr<PulledRows> pulled = shard->PullRows("job", kTable, *order, v1::RowQuery::MISSING_INITIAL);
    Require(pulled.ok() && pulled->present.empty(), "the rows that were pushed exist");
    for (float value : pulled->values.values()) Require(std::isfinite(value), "weights are finite");
    for (uint32_t version : pulled->versions) Require(version == 1, "a row is updated once");
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::vector<uint64_t> ids = {0, 5, ~uint64_t{0}, 5};
  const std::string order = std::string(BytesOf(ids));
  return {std::string("\0\1\0\0\0\1", 6) + order,
          std::string("\0\1\0\0\0\0", 6) + order.substr(0, 8),
          std::string("\1\0", 2) + Request(ids, v1::ENCODING_FP32, ""),
          std::string("\1\7", 2) + Request(ids, v1::ENCODING_BF16, std::string(16, '\0')),
          std::string("\1\3", 2) + Request({9}, v1::ENCODING_FP16, std::string("\5\0\0\0", 4)),
          std::string("\1\2", 2) + Request({9, 4}, v1::ENCODING_FP32, "", /*clock=*/0),
          std::string("\1\5", 2) + Request({9, 4}, v1::ENCODING_BF16, "", ~uint64_t{0})};
}

void FuzzOne(FuzzInput input) {
  if (input.Byte() % 2 == 1) return CheckPush(input);
  const uint32_t table = static_cast<uint32_t>(input.Number(4));
  const bool unordered = input.Byte() % 2 == 1;
  CheckOrder(input.Rest(), table, unordered);
}

}  // namespace ballast
