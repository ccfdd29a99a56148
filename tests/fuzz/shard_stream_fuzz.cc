// SPDX-License-Identifier: Apache-2.0
// A standby's input: records, each a kind, a position and bytes. It is refused, or the shard matches the input.
#include "common/concurrency/clock.h"
#include "server/replication/shard_stream.h"
#include "server/replication/standby_receiver.h"
#include "server/shard/parameter_shard.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

constexpr uint64_t kStateBytes = uint64_t{1} << 20;

ParameterShard::Options SmallShard() {
  ParameterShard::Options options;
  options.max_state_bytes = kStateBytes;
  options.open_journal = [](const JobConfig&) -> absl::StatusOr<ShardJournal*> { return nullptr; };
  return options;
}

// A shard of one tensor, as a stream's records.
std::string WholeStream() {
  ParameterShard shard(SmallShard(), Clock::Real());
  JobConfig job;
  job.name = "job";
  job.policy.mutable_sync();
  job.workers = 2;
  job.durability.set_mode(v1::Durability::STANDBY);
  v1::TensorSpec spec;
  spec.set_id(1);
  spec.set_name("w");
  spec.add_shape(3);
  spec.mutable_optimizer()->mutable_momentum()->set_learning_rate(1);
  Require(shard.Declare(job, {{spec, {}}}).ok(), "a shard accepts a tensor");
  std::string stream;
  const auto send = [&](const internal::v1::ReplicateRequest& part) {
    stream += AsInput(std::string(1, static_cast<char>(part.kind())) +
                      std::string(1, static_cast<char>(part.position())) + part.data());
    return true;
  };
  const ShardState capture = shard.Capture([] {});
  SendOutline(0, 0, capture, send);
  SendSlice(0, capture.slices[0], send);
  internal::v1::ShardRecord change;
  internal::v1::LoggedPush& push = *change.mutable_push();
  push.set_incarnation(1);
  push.set_sequence(1);
  push.set_examples(1);
  internal::v1::LoggedPush::Gradient& gradient = *push.add_gradients();
  gradient.set_tensor_id(1);
  gradient.set_bytes(3 * sizeof(float));
  const std::string payload(3 * sizeof(float), '\x3f');
  const std::string kind(1, static_cast<char>(internal::v1::ReplicateRequest::KIND_CHANGE));
  stream += AsInput(kind + std::string(1, '\1') + JoinChange(change, {payload}));
  // The same change again after the end, where the complete shard applies it.
  internal::v1::TransferEnd end;
  end.mutable_windows()->Add(capture.windows.begin(), capture.windows.end());
  end.set_slices(1);
  SendEnd(1, end, send);
  stream += AsInput(kind + std::string(1, '\2') + JoinChange(change, {payload}));
  internal::v1::ShardRecord pause;
  pause.mutable_pause()->set_incarnation(1);
  pause.mutable_pause()->set_worker(1);
  return stream + AsInput(kind + std::string(1, '\3') + JoinChange(pause, {}));
}

constexpr uint32_t kTable = 2;

// A push of a row of the table.
internal::v1::LoggedRows PushOfARow(uint64_t sequence) {
  internal::v1::LoggedRows push;
  push.set_worker(1);
  push.set_incarnation(1);
  push.set_sequence(sequence);
  push.set_examples(1);
  push.set_messages_of_step(1);
  internal::v1::LoggedRows::Table& rows = *push.add_tables();
  rows.set_table_id(kTable);
  rows.set_rows(1);
  rows.set_versions(true);
  rows.set_encoding(v1::ENCODING_FP32);
  rows.set_bytes(2 * sizeof(float));
  rows.set_clock(0);
  return push;
}

// A shard of one table, with a row, as a stream's records.
std::string TableStream() {
  ParameterShard shard(SmallShard(), Clock::Real());
  JobConfig job;
  job.name = "job";
  job.policy.mutable_async()->set_scale_by_staleness(true);
  job.policy.mutable_async()->set_staleness_of(v1::ConsistencyPolicy::TABLE);
  job.workers = 2;
  job.durability.set_mode(v1::Durability::STANDBY);
  OwnedTable table;
  table.spec.set_id(kTable);
  table.spec.set_name("rows");
  table.spec.set_dim(2);
  table.spec.set_range_bits(6);
  table.spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.spans.emplace_back().set_count(64);
  Require(shard.Declare(job, {}, {table}).ok(), "a shard accepts a table");
  const std::string id(8, '\7'), version(4, '\0'), payload(2 * sizeof(float), '\x3f');
  const absl::string_view pieces[] = {payload};
  const RowGradientsView rows{kTable, id, /*unordered=*/false, version, v1::ENCODING_FP32, pieces};
  Require(shard.PushRows("job", {1, 1, 1, 0, 1}, /*last_of_step=*/true, {rows}).ok(), "a shard accepts a row");
  std::string stream;
  const auto send = [&](const internal::v1::ReplicateRequest& part) {
    stream += AsInput(std::string(1, static_cast<char>(part.kind())) +
                      std::string(1, static_cast<char>(part.position())) + part.data());
    return true;
  };
  const ShardState outline = shard.CaptureOutline([] {});
  SendOutline(0, 0, outline, send);
  const std::optional<ShardState::TableEntry> entry = shard.CaptureRanges(kTable, 0, 64, [] {});
  Require(entry.has_value(), "a shard captures its table");
  SendTable(0, *entry, send);
  while (const std::optional<RowsPiece> piece = entry->rows->Next()) SendRows(0, *entry, *piece, send);
  internal::v1::ShardRecord change;
  *change.mutable_rows() = PushOfARow(2);
  const std::string kind(1, static_cast<char>(internal::v1::ReplicateRequest::KIND_CHANGE));
  stream += AsInput(kind + std::string(1, '\1') + JoinChange(change, {id, version, payload}));
  internal::v1::TransferEnd end;
  end.mutable_windows()->Add(outline.windows.begin(), outline.windows.end());
  SendEnd(1, end, send);
  *change.mutable_rows() = PushOfARow(3);
  return stream + AsInput(kind + std::string(1, '\2') + JoinChange(change, {id, version, payload}));
}

}  // namespace

std::vector<std::string> FuzzSeeds() { return {WholeStream(), TableStream()}; }

void FuzzOne(FuzzInput input) {
  ParameterShard shard(SmallShard(), Clock::Real());
  StandbyReceiver receiver(0, &shard, [] {});
  receiver.Begin(1);
  internal::v1::ReplicateRequest hello;
  hello.mutable_hello()->set_standby(1);
  Require(receiver.Open(hello).ok(), "a new standby accepts a stream");
  uint64_t position = 0;
  while (!input.Rest().empty()) {
    internal::v1::ReplicateRequest part;
    const absl::string_view piece = input.Take(input.Number(2));
    FuzzInput record(reinterpret_cast<const uint8_t*>(piece.data()), piece.size());
    part.set_kind(static_cast<internal::v1::ReplicateRequest::Kind>(record.Byte() % 4));
    part.set_position(record.Byte());
    part.set_data(record.Rest().data(), record.Rest().size());
    const absl::StatusOr<internal::v1::ReplicateResponse> taken = receiver.Take(part);
    if (!taken.ok()) break;
    const bool change = part.kind() == internal::v1::ReplicateRequest::KIND_CHANGE;
    if (change) Require(taken->position() == position + 1, "changes come in order");
    Require(taken->whole() == !shard.job_name().empty(), "a shard is visible only when complete");
    position = taken->position();
  }
  Require(shard.status().state_bytes <= kStateBytes, "the shard stays within its memory");
}

}  // namespace ballast
