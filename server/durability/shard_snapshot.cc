// SPDX-License-Identifier: Apache-2.0
#include "server/durability/shard_snapshot.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/concurrency/named_thread.h"
#include "server/shard/shard_record.h"

namespace ballast {
namespace {

void Copy(absl::Span<const float> values, ValueBuffer& to) {
  std::copy(values.begin(), values.end(), to.mutable_values().begin());
}

ValueBuffer ToBuffer(absl::Span<const float> values) {
  if (values.empty()) return {};
  ValueBuffer buffer(values.size());
  Copy(values, buffer);
  return buffer;
}

ValueBuffer ToBuffer(absl::string_view bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), values.size() * sizeof(float), reinterpret_cast<char*>(values.data()));
  return ToBuffer(values);
}

template <typename T>
absl::string_view Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Format 1 stored the gradients in the message.
void TakeGradientsOfFormat1(PolicyState& state) {
  state.sum = ToBuffer(state.fields.sum());
  for (const internal::v1::PolicyState::Held& held : state.fields.held()) {
    state.held.push_back({held.worker(), held.examples(), ToBuffer(held.values())});
  }
  state.fields.clear_sum();
  state.fields.clear_held();
}

}  // namespace

internal::v1::SnapshotHeader MakeHeader(const SnapshotPlace& place, const ShardState& capture) {
  internal::v1::SnapshotHeader header;
  header.set_shard(place.shard);
  header.set_shards(place.shards);
  header.set_position(place.position);
  if (place.parent.has_value()) *header.mutable_parent() = *place.parent;
  *header.mutable_declaration() = EncodeDeclaration(capture.job, capture.tensors, capture.tables);
  header.mutable_windows()->Add(capture.windows.begin(), capture.windows.end());
  return header;
}

internal::v1::SliceState MakeState(const ShardState::SliceEntry& slice) {
  internal::v1::SliceState state;
  state.set_tensor_id(slice.key.tensor_id);
  state.set_slice_index(slice.key.slice_index);
  state.set_version(slice.weights.version);
  state.set_applied(slice.weights.applied);
  *state.mutable_policy() = slice.policy.fields;
  state.set_held_gradients(CountRecords(slice) - 1);
  state.set_pushed(slice.weights.pushed);
  if (slice.weights.set_checksum.has_value()) state.set_set_checksum(*slice.weights.set_checksum);
  if (slice.weights.position.has_value()) state.set_schedule_position(*slice.weights.position);
  return state;
}

internal::v1::TableState MakeState(const ShardState::TableEntry& table) {
  internal::v1::TableState state;
  state.set_table_id(table.id);
  state.set_clock(table.state.clock);
  if (table.state.position.has_value()) state.set_schedule_position(*table.state.position);
  const std::optional<StepAccumulator::State>& step = table.state.step;
  for (const StepMessages::Open& open : step.has_value() ? step->open_steps : table.state.open_steps) {
    internal::v1::TableState::OpenStep* const to = state.add_open_steps();
    to->set_worker(open.worker);
    to->set_incarnation(open.incarnation);
    to->set_step(open.step);
    to->set_received(open.received);
    to->set_expected(open.expected);
  }
  if (table.state.step.has_value()) {
    for (const StepAccumulator::State::Worker& worker : table.state.step->workers) {
      internal::v1::TableState::Worker* const to = state.add_workers();
      to->set_arrived(worker.arrived);
      to->set_paused(worker.paused);
      to->set_incarnation(worker.incarnation);
      to->set_examples(worker.examples);
    }
    state.set_held_rows(table.state.step->messages.size());
  }
  for (const TableTicks::Tick& tick : table.state.ticks) {
    internal::v1::TableState::Tick* const to = state.add_ticks();
    to->set_unix_seconds(tick.unix_seconds);
    to->set_clock(tick.clock);
  }
  *state.mutable_evicted() = table.state.evicted;
  state.set_not_admitted(table.state.not_admitted);
  if (table.state.clocks.has_value()) {
    for (const WorkerClocks::State::Worker& worker : table.state.clocks->workers) {
      internal::v1::PolicyState::Clock* const to = state.add_clocks();
      to->set_paused(worker.paused);
      to->set_finished(worker.finished);
      to->set_clock(worker.clock);
    }
    state.set_slowest(table.state.clocks->slowest);
  }
  return state;
}

uint64_t CountRecords(const ShardState::SliceEntry& slice) {
  return 1 + (slice.policy.sum.size() > 0 ? 1 : 0) + slice.policy.held.size();
}

absl::Status VisitSlice(
    const ShardState::SliceEntry& slice,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::Span<const float>> behind)> take) {
  std::vector<absl::Span<const float>> arrays;
  for (const ValueBuffer& array : slice.weights.arrays) arrays.push_back(array.values());
  if (absl::Status status = take(FrameSlice(MakeState(slice), arrays), arrays); !status.ok()) return status;
  const auto take_gradient = [&](internal::v1::HeldGradient about, absl::Span<const float> values) {
    return take(FrameGradient(std::move(about), values), {values});
  };
  if (slice.policy.sum.size() > 0) {
    internal::v1::HeldGradient about;
    about.set_sum(true);
    if (absl::Status status = take_gradient(std::move(about), slice.policy.sum.values()); !status.ok()) return status;
  }
  for (const PolicyState::Held& held : slice.policy.held) {
    internal::v1::HeldGradient about;
    about.set_worker(held.worker);
    about.set_examples(held.examples);
    if (absl::Status status = take_gradient(std::move(about), held.values.values()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status VisitTableState(
    const ShardState::TableEntry& table,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::string_view> behind)> take) {
  if (absl::Status status = take(FrameTable(MakeState(table)), {}); !status.ok()) return status;
  if (!table.state.step.has_value()) return absl::OkStatus();
  for (const BufferedRows& rows : table.state.step->messages) {
    internal::v1::HeldRows about;
    about.set_worker(rows.worker);
    about.set_incarnation(rows.incarnation);
    about.set_sequence(rows.sequence);
    about.set_examples(rows.examples);
    about.set_rows(rows.hashes.size());
    about.set_uses(!rows.uses.empty());
    const absl::string_view gradients(reinterpret_cast<const char*>(rows.gradients.values().data()),
                                      rows.gradients.size() * sizeof(float));
    absl::Status status = take(FrameHeldRows(std::move(about)), {Bytes(rows.hashes), gradients, Bytes(rows.uses)});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status VisitTable(
    const ShardState::TableEntry& table,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::string_view> behind)> take) {
  if (absl::Status status = VisitTableState(table, take); !status.ok()) return status;
  while (const std::optional<RowsPiece> piece = table.rows->Next()) {
    if (absl::Status status = VisitRows(table, *piece, take); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status VisitRows(
    const ShardState::TableEntry& table, const RowsPiece& piece,
    absl::FunctionRef<absl::Status(absl::string_view frame, absl::Span<const absl::string_view> behind)> take) {
  internal::v1::RowsState about;
  about.set_table_id(table.id);
  about.set_range(piece.range);
  about.set_ranges(piece.ranges);
  about.set_rows(piece.rows.hashes.size());
  about.set_row_bytes(table.rows->row_bytes());
  about.set_removed(piece.rows.removed.size());
  std::vector<absl::string_view> behind = {Bytes(piece.rows.removed), Bytes(piece.rows.hashes),
                                           Bytes(piece.rows.words)};
  for (const std::string& uses : piece.uses) {
    about.add_admission_bytes(uses.size());
    behind.push_back(uses);
  }
  return take(FrameRows(std::move(about)), behind);
}

absl::Status WriteSnapshot(FileSystem* files, const std::string& path, const SnapshotPlace& place,
                           const ShardState& capture) {
  absl::StatusOr<std::unique_ptr<SnapshotWriter>> writer =
      SnapshotWriter::Create(files, path, MakeHeader(place, capture));
  if (!writer.ok()) return writer.status();
  for (const ShardState::SliceEntry& slice : capture.slices) {
    const absl::Status status =
        VisitSlice(slice, [&](absl::string_view frame, absl::Span<const absl::Span<const float>> behind) {
          return (*writer)->Add(frame, behind);
        });
    if (!status.ok()) return status;
  }
  for (const ShardState::TableEntry& table : capture.table_entries) {
    const absl::Status status =
        VisitTable(table, [&](absl::string_view frame, absl::Span<const absl::string_view> behind) {
          return (*writer)->Add(frame, behind);
        });
    if (!status.ok()) return status;
  }
  return (*writer)->Finish();
}

absl::Status VerifySnapshot(const std::string& path, const SnapshotPlace& place, const ShardState& capture) {
  const absl::StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::Open(path);
  if (!reader.ok()) return reader.status();
  const internal::v1::SnapshotHeader& header = (*reader)->header();
  if (header.shard() != place.shard || header.position() != place.position) {
    return absl::DataLossError(absl::StrCat(path, ": has shard ", header.shard(), " at record ", header.position(),
                                            ", want shard ", place.shard, " at record ", place.position));
  }
  size_t slices = 0;
  std::map<uint32_t, uint64_t> rows;
  while (true) {
    const absl::StatusOr<std::optional<SnapshotPart>> part = (*reader)->Next();
    if (!part.ok()) return part.status();
    if (!part->has_value()) break;
    if (const auto* slice = std::get_if<SnapshotSlice>(&**part)) {
      const SliceKey key{slice->state.tensor_id(), slice->state.slice_index()};
      if (slices == capture.slices.size()) {
        return absl::DataLossError(absl::StrCat(path, ": has more than ", slices, " slices"));
      }
      if (!(capture.slices[slices].key == key)) break;
      ++slices;
    } else if (const auto* some = std::get_if<SnapshotRows>(&**part)) {
      rows[some->about.table_id()] += some->hashes.size();
    }
  }
  if (slices != capture.slices.size()) {
    const SliceKey& want = capture.slices[slices].key;
    return absl::DataLossError(absl::StrCat(path, ": has no slice ", want.slice_index, " of tensor ", want.tensor_id));
  }
  for (const ShardState::TableEntry& want : capture.table_entries) {
    if (rows[want.id] == want.rows->rows_read()) continue;
    return absl::DataLossError(
        absl::StrCat(path, ": has ", rows[want.id], " rows of table ", want.id, ", want ", want.rows->rows_read()));
  }
  return absl::OkStatus();
}

ShardState ToCapture(const internal::v1::SnapshotHeader& header) {
  ShardState capture;
  capture.job = DecodeJobConfig(header.declaration());
  capture.tensors = DecodeTensors(header.declaration());
  capture.tables = DecodeTables(header.declaration());
  capture.windows.assign(header.windows().begin(), header.windows().end());
  return capture;
}

ShardState::SliceEntry ToSliceEntry(SnapshotSlice slice) {
  const internal::v1::SliceState& state = slice.state;
  ShardState::SliceEntry to;
  to.key = {state.tensor_id(), state.slice_index()};
  to.weights.version = state.version();
  to.weights.applied = state.applied();
  to.weights.pushed = state.pushed();
  if (state.has_set_checksum()) to.weights.set_checksum = state.set_checksum();
  if (state.has_schedule_position()) to.weights.position = state.schedule_position();
  // Copies and frees one array at a time, because a slice may hold a gradient of each worker.
  std::vector<ValueBuffer>& arrays = to.weights.arrays;
  for (std::vector<float>& array : slice.arrays) {
    // The first are the weights, which clients read.
    arrays.push_back(arrays.empty() ? ValueBuffer::Readable(array.size()) : ValueBuffer(array.size()));
    Copy(std::exchange(array, {}), arrays.back());
  }
  to.policy.fields = state.policy();
  TakeGradientsOfFormat1(to.policy);
  for (SnapshotSlice::Gradient& gradient : slice.gradients) {
    ValueBuffer values = ToBuffer(std::exchange(gradient.values, {}));
    if (gradient.about.sum()) {
      to.policy.sum = std::move(values);
    } else {
      to.policy.held.push_back({gradient.about.worker(), gradient.about.examples(), std::move(values)});
    }
  }
  return to;
}

Table::State ToTableState(SnapshotTable table) {
  const internal::v1::TableState& state = table.state;
  Table::State to;
  to.clock = state.clock();
  if (state.has_schedule_position()) to.position = state.schedule_position();
  for (const internal::v1::TableState::Tick& tick : state.ticks()) {
    to.ticks.push_back({tick.unix_seconds(), tick.clock()});
  }
  to.evicted = state.evicted();
  to.not_admitted = state.not_admitted();
  for (const internal::v1::TableState::OpenStep& open : state.open_steps()) {
    to.open_steps.push_back({open.worker(), open.incarnation(), open.step(), open.received(), open.expected()});
  }
  if (!state.clocks().empty()) {
    to.clocks.emplace().slowest = state.slowest();
    for (const internal::v1::PolicyState::Clock& clock : state.clocks()) {
      to.clocks->workers.push_back({clock.paused(), clock.finished(), clock.clock()});
    }
  }
  if (state.workers().empty()) return to;
  StepAccumulator::State& step = to.step.emplace();
  step.open_steps = std::exchange(to.open_steps, {});
  for (const internal::v1::TableState::Worker& worker : state.workers()) {
    step.workers.push_back({worker.arrived(), worker.paused(), worker.incarnation(), worker.examples()});
  }
  for (SnapshotTable::Held& held : table.held) {
    const internal::v1::HeldRows& about = held.about;
    step.messages.push_back({about.worker(), about.incarnation(), about.sequence(), about.examples(),
                             std::move(held.hashes), ToBuffer(held.gradients), std::move(held.uses)});
  }
  return to;
}

absl::Status AddPart(SnapshotPart part, uint64_t captured_at, ShardBuilder& builder) {
  if (auto* slice = std::get_if<SnapshotSlice>(&part)) return builder.Add(ToSliceEntry(std::move(*slice)), captured_at);
  if (auto* table = std::get_if<SnapshotTable>(&part)) {
    const uint32_t id = table->state.table_id();
    return builder.tables().AddState(id, ToTableState(std::move(*table)), captured_at);
  }
  const auto* const rows = std::get_if<SnapshotRows>(&part);
  if (rows == nullptr) return absl::OkStatus();
  const std::vector<absl::string_view> uses(rows->uses.begin(), rows->uses.end());
  const CapturedRows captured{rows->about.range(), rows->about.ranges(), rows->hashes, rows->images, uses};
  return builder.tables().AddRows(rows->about.table_id(), captured, captured_at);
}

SnapshotThread::SnapshotThread(Options options)
    : options_(std::move(options)), thread_(NamedThread("snapshots", [this] { Run(); })) {}

SnapshotThread::~SnapshotThread() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void SnapshotThread::Request() {
  absl::MutexLock lock(&mutex_);
  due_ = true;
}

uint64_t SnapshotThread::failures() const {
  absl::MutexLock lock(&mutex_);
  return failures_;
}

bool SnapshotThread::AwaitDue() {
  absl::MutexLock lock(&mutex_);
  const auto due = [this] {
    mutex_.AssertReaderHeld();
    return stopping_ || due_;
  };
  mutex_.Await(absl::Condition(&due));
  due_ = false;
  return !stopping_;
}

void SnapshotThread::Run() {
  absl::Duration retry = options_.first_retry;
  while (AwaitDue()) {
    const absl::Status status = options_.take();
    if (status.ok()) {
      retry = options_.first_retry;
      continue;
    }
    // A full disk may have space later; until then the log holds the only copy of the changes.
    options_.on_failure(status, retry);
    absl::MutexLock lock(&mutex_);
    ++failures_;
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), retry);
    retry = std::min(2 * retry, options_.longest_retry);
    due_ = true;
  }
}

}  // namespace ballast
