// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/rows/row_message.h"
#include "client/shard_channel.h"
#include "client/shard_exchange.h"
#include "common/tables/table_spec.h"

// The calls of Client for sparse tables.
namespace ballast {
namespace {

// Returns each shard's messages with its rows; `make_message` returns one without rows.
std::vector<std::vector<ShardMessage>> MessagesFor(const std::vector<std::vector<RowRun>>& by_shard,
                                                   const auto& make_message) {
  std::vector<std::vector<ShardMessage>> messages(by_shard.size());
  for (size_t shard = 0; shard < by_shard.size(); ++shard) {
    for (std::vector<RowRun>& rows : PackRows(by_shard[shard])) {
      messages[shard].push_back(make_message());
      messages[shard].back().rows = std::move(rows);
    }
  }
  return messages;
}

}  // namespace

absl::Status Client::DeclareTables(absl::Span<const v1::TableSpec> specs) {
  for (const v1::TableSpec& spec : specs) {
    if (absl::Status status = ValidateTableSpec(spec); !status.ok()) return status;
  }
  return PlaceAndDeclare({}, specs);
}

Future<RowsResult> Client::PullRows(absl::Span<const RowPull> tables, uint64_t step) {
  const absl::StatusOr<std::vector<Rows>> by_shard = RouteRows(tables, options_.codec.values());
  if (!by_shard.ok()) return MakeReadyFuture<RowsResult>(by_shard.status());
  return SendRows(MessagesFor(*by_shard, [step] {
    ShardMessage message;
    message.kind = ShardMessage::Kind::kPullRows;
    message.step = step;
    return message;
  }));
}

Future<RowsResult> Client::PushRows(uint64_t step, uint32_t examples, absl::Span<const RowPush> tables,
                                    bool last_of_step, std::optional<double> schedule_position) {
  if (examples == 0) tables = {};
  const absl::StatusOr<std::vector<Rows>> by_shard = RouteRows(tables, options_.codec.gradients());
  if (!by_shard.ok()) return MakeReadyFuture<RowsResult>(by_shard.status());
  const auto make_message = [&] {
    ShardMessage message;
    message.kind = ShardMessage::Kind::kPushRows;
    message.step = step;
    message.examples = examples;
    message.schedule_position = schedule_position;
    return message;
  };
  std::vector<std::vector<ShardMessage>> messages = MessagesFor(*by_shard, make_message);
  std::vector<uint32_t> last_to;
  if (last_of_step) {
    for (uint32_t shard : ShardsWithTables()) {
      // Shards may have joined the map since.
      messages.resize(std::max<size_t>(messages.size(), shard + 1));
      if (messages[shard].empty()) messages[shard].push_back(make_message());
      last_to.push_back(shard);
    }
  }
  CountMessages(step, last_to, messages);
  return SendRows(std::move(messages));
}

absl::StatusOr<RowReport> Client::InspectRows(uint32_t table_id, uint32_t top) {
  std::optional<PlacedTable> placed;
  {
    absl::MutexLock lock(&mutex_);
    if (const PlacedTable* const table = map_.FindTable(table_id)) placed = *table;
  }
  if (!placed.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("table ", table_id, " was not declared"));
  }
  const std::vector<ShardChannel*> shards = channels();
  RowReport report(top);
  for (const RangeSpan& span : placed->spans) {
    v1::InspectRowsRequest request;
    request.set_table_id(table_id);
    request.set_top(top);
    const uint32_t end = span.first + span.count;
    for (uint32_t first = span.first; first < end;) {
      request.set_first(first);
      request.set_count(end - first);
      const Future<v1::InspectRowsResponse> answer = shards[span.shard]->InspectRows(request);
      const absl::StatusOr<v1::InspectRowsResponse>& part = answer.Get();
      if (!part.ok()) return part.status();
      if (part->next() <= first || part->next() > end) {
        return absl::InternalError(absl::StrCat("inspect rows: got up to range ", part->next(), ", want a range after ",
                                                first, " up to ", end));
      }
      report.Add(*part);
      first = part->next();
    }
  }
  return report;
}

template <typename Batch>
absl::StatusOr<std::vector<Client::Rows>> Client::RouteRows(absl::Span<const Batch> tables,
                                                            v1::Encoding encoding) const {
  std::vector<PlacedTable> placed;
  std::vector<Rows> by_shard;
  absl::flat_hash_set<uint32_t> seen;
  {
    absl::MutexLock lock(&mutex_);
    by_shard.resize(map_.shards().size());
    for (const Batch& batch : tables) {
      const PlacedTable* const table = map_.FindTable(batch.table_id);
      if (table == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("table ", batch.table_id, " was not declared"));
      }
      if (!seen.insert(batch.table_id).second) {
        return absl::InvalidArgumentError(absl::StrCat("table \"", table->spec.name(), "\" is given twice"));
      }
      placed.push_back(*table);
    }
  }
  // Ordering takes long, so it is not done under the lock.
  for (size_t i = 0; i < tables.size(); ++i) {
    auto rows = OrderRows(placed[i].spec, tables[i], encoding);
    if (!rows.ok()) return rows.status();
    SplitByShard(placed[i], *std::move(rows), by_shard);
  }
  return by_shard;
}

void Client::CountMessages(uint64_t step, absl::Span<const uint32_t> last_to,
                           std::vector<std::vector<ShardMessage>>& by_shard) {
  absl::MutexLock lock(&mutex_);
  for (uint32_t shard = 0; shard < by_shard.size(); ++shard) {
    row_messages_.Add(step, shard, by_shard[shard].size());
    ended_steps_.Send(step, shard, by_shard[shard].size());
  }
  for (uint32_t shard : last_to) ended_steps_.End(step, shard);
  if (last_to.empty()) return;
  const std::vector<uint32_t> counts = row_messages_.Take(step);
  for (uint32_t shard : last_to) by_shard[shard].back().messages_of_step = counts[shard];
}

bool Client::CountEnded(uint32_t shard, const ShardMessage& message, bool acknowledged) {
  absl::MutexLock lock(&mutex_);
  // The shard does not count a message that it refused.
  if (!acknowledged) row_messages_.Remove(message.step, shard);
  return ended_steps_.Finish(message.step, shard, acknowledged) && retried_rows_.erase(shard) > 0;
}

absl::flat_hash_set<uint32_t> Client::ShardsWithTables() const {
  absl::flat_hash_set<uint32_t> shards;
  absl::MutexLock lock(&mutex_);
  for (const PlacedTable& table : map_.tables()) {
    for (const RangeSpan& span : table.spans) shards.insert(span.shard);
  }
  return shards;
}

Future<RowsResult> Client::SendRows(std::vector<std::vector<ShardMessage>> by_shard) {
  Promise<RowsResult> promise;
  Future<RowsResult> future = promise.GetFuture();
  SendAll(std::move(by_shard), [promise = std::move(promise)](absl::StatusOr<Totals> totals) mutable {
    if (!totals.ok()) return promise.Set(totals.status());
    promise.Set(totals->rows);
  });
  return future;
}

}  // namespace ballast
