// SPDX-License-Identifier: Apache-2.0
#include "client/watch/row_watcher.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "client/coordinator_link.h"
#include "client/retrying_call.h"
#include "common/concurrency/named_thread.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/tables/table_spec.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace ballast {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
// Positions in a request; ranges beyond them are received whole again.
constexpr size_t kMaxPositions = size_t{1} << 16;

// Errors that another call would have, too.
bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnimplemented(status) || ReasonOf(status) == v1::ERROR_REASON_WRONG_JOB;
}

absl::Status Unreachable(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_UNREACHABLE, absl::UnavailableError(message));
}

// Owns one call of WatchRows. Reads one message ahead. Thread safety: Next and the destructor by one thread, Cancel by
// any.
class RowStream : public grpc::ClientReadReactor<v1::WatchRowsResponse> {
 public:
  RowStream(v1::ParameterService::Stub* stub, v1::WatchRowsRequest request) : request_(std::move(request)) {
    stub->async()->WatchRows(&context_, &request_, this);
    // Reads begin outside of gRPC's calls, so the call must not end between two of them.
    AddHold();
    StartRead(&response_);
    StartCall();
  }
  ~RowStream() override {
    context_.TryCancel();
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
    }
    RemoveHoldUnlessReading();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
  }

  // Blocks until a message has come, for at most `timeout`, and returns it; nullopt at the end of the stream, whose
  // status is then known. UNAVAILABLE after that.
  absl::StatusOr<std::optional<v1::WatchRowsResponse>> Next(absl::Duration timeout) {
    std::optional<v1::WatchRowsResponse> message;
    absl::MutexLock lock(&mutex_);
    const auto has_news = [this] {
      mutex_.AssertReaderHeld();
      return ended_ || (read_ && !reading_);
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&has_news), timeout)) {
      return Unreachable(absl::StrCat("got nothing for ", absl::FormatDuration(timeout)));
    }
    if (!read_) return message;
    message = std::move(response_);
    response_.Clear();
    read_ = false;
    reading_ = true;
    StartRead(&response_);
    return message;
  }

  grpc::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    bool last = false;
    {
      absl::MutexLock lock(&mutex_);
      reading_ = false;
      read_ = ok;
      last = !ok || closing_;
    }
    if (last) RemoveHoldUnlessReading();
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    status_ = status;
  }

 private:
  void RemoveHoldUnlessReading() {
    {
      absl::MutexLock lock(&mutex_);
      if (reading_ || !std::exchange(held_, false)) return;
    }
    RemoveHold();
  }

  const v1::WatchRowsRequest request_;
  grpc::ClientContext context_;
  mutable absl::Mutex mutex_;
  // gRPC's while a read is under way.
  v1::WatchRowsResponse response_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  // The response has a message.
  bool read_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = true;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

// Owns the thread that watches one shard. Thread safety: Stop may be called from any thread, the destructor after it.
class RowWatcher::Shard {
 public:
  Shard(RowWatcher* watcher, uint32_t rank) : watcher_(watcher), rank_(rank) {}
  ~Shard() {
    if (thread_.joinable()) thread_.join();
  }

  // Call it before Begin.
  void Add(const v1::TableSpec& spec, const RangeSpan& span) {
    Table& table = tables_[spec.id()];
    table.readers.emplace_back(span.first, RowDeltaReader(spec, span.first, span.count));
    ranges_ += span.count;
  }
  uint32_t ranges() const { return ranges_; }

  void Begin() {
    thread_ = NamedThread("row deltas", [this] { watcher_->OnEnd(Watch()); });
  }

  void Stop() {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->Cancel();
  }

  // The error since which no message has come; OK if one has.
  absl::Status condition() const {
    absl::MutexLock lock(&mutex_);
    return condition_;
  }

 private:
  struct Table {
    // By the first range of each span.
    std::vector<std::pair<uint32_t, RowDeltaReader>> readers;
  };

  // Calls the shard again and again. Returns OK at the end, or the error for which it is not called again.
  absl::Status Watch() {
    absl::Time failing_since = absl::InfiniteFuture();
    for (uint32_t attempt = 1;; ++attempt) {
      const uint64_t before = messages_;
      const absl::Status status = WatchOnce();
      if (status.ok() || IsStopping()) return absl::OkStatus();
      const absl::Status named = Annotate(
          status,
          absl::StrCat("shard ", rank_, address_.empty() ? "" : absl::StrCat(" at ", address_), ": watch rows"));
      if (IsFinal(status)) return named;
      SetCondition(named);
      if (messages_ > before + rejected_in_stream_) {
        failing_since = absl::InfiniteFuture();
        attempt = 1;
      }
      failing_since = std::min(failing_since, absl::Now());
      if (absl::Now() - failing_since > watcher_->options_.retry_timeout) return named;
      Pause(RetryBackoff(attempt + 1, 0, kFirstPause));
      ++watcher_->counts_.reconnects;
    }
  }

  absl::Status WatchOnce() {
    rejected_in_stream_ = 0;
    const absl::StatusOr<std::string> address = watcher_->AddressOf(rank_);
    if (!address.ok()) return address.status();
    if (*address != address_) {
      if (absl::Status status = watcher_->options_.credentials.CheckTarget(*address); !status.ok()) return status;
      address_ = *address;
      stub_ = v1::ParameterService::NewStub(OpenChannel(address_, watcher_->options_.credentials));
    }
    RowStream stream(stub_.get(), Request());
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::CancelledError("stopped");
      stream_ = &stream;
    }
    const absl::Status status = Follow(stream);
    {
      absl::MutexLock lock(&mutex_);
      stream_ = nullptr;
    }
    for (auto& [id, table] : tables_) {
      for (auto& [first, reader] : table.readers) reader.EndStream();
    }
    return status;
  }

  v1::WatchRowsRequest Request() const {
    v1::WatchRowsRequest request;
    request.set_job(watcher_->options_.job);
    request.set_encoding(watcher_->options_.encoding);
    request.set_once(watcher_->options_.once);
    for (const auto& [id, table] : tables_) {
      request.add_table_ids(id);
      // A shard does not keep the place of a watcher that was about to end.
      if (watcher_->options_.once) continue;
      for (const auto& [first, reader] : table.readers) {
        for (v1::RangePosition& position : reader.positions()) {
          if (request.after_size() < static_cast<int>(kMaxPositions)) *request.add_after() = std::move(position);
        }
      }
    }
    return request;
  }

  // Takes messages until the end of the stream, or until a delta is rejected.
  absl::Status Follow(RowStream& stream) {
    while (true) {
      absl::StatusOr<std::optional<v1::WatchRowsResponse>> message = stream.Next(watcher_->options_.silence);
      if (!message.ok()) return message.status();
      if (!message->has_value()) break;
      ++messages_;
      SetCondition(absl::OkStatus());
      for (const v1::RowDelta& delta : (*message)->deltas()) {
        if (absl::Status status = Take(delta); !status.ok()) {
          ++watcher_->counts_.rejected;
          rejected_in_stream_ = 1;
          return status;
        }
      }
    }
    const absl::Status status = FromGrpcStatus(stream.status());
    if (!status.ok()) return status;
    if (!watcher_->options_.once) return Unreachable("the shard ended the stream");
    const uint32_t missing = ranges_ - received_;
    if (missing == 0) return absl::OkStatus();
    return Unreachable(absl::StrCat("the shard ended the stream before ", missing, " of ", ranges_, " ranges"));
  }

  RowDeltaReader* ReaderOf(const v1::RowDelta& delta) {
    const auto table = tables_.find(delta.table_id());
    if (table == tables_.end()) return nullptr;
    for (auto& [first, reader] : table->second.readers) {
      if (delta.range() >= first && delta.range() - first < reader.count()) return &reader;
    }
    return nullptr;
  }

  absl::Status Take(const v1::RowDelta& delta) {
    RowDeltaReader* const reader = ReaderOf(delta);
    if (reader == nullptr) {
      return absl::DataLossError(
          absl::StrCat("got range ", delta.range(), " of table ", delta.table_id(), ", want one that was asked for"));
    }
    const bool had = reader->Received(delta.range());
    absl::StatusOr<std::optional<RangeUpdate>> update = reader->Take(delta);
    if (!update.ok()) return update.status();
    if (!update->has_value()) return absl::OkStatus();
    // With `once`, a range that was received from an earlier stream is complete.
    if (had && watcher_->options_.once) return absl::OkStatus();
    ++watcher_->counts_.updates;
    if ((*update)->replaces) ++watcher_->counts_.wholes;
    if (watcher_->options_.on_update) watcher_->options_.on_update(std::move(**update));
    if (!had) {
      ++received_;
      watcher_->OnReceived(1);
    }
    return absl::OkStatus();
  }

  void SetCondition(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    condition_ = status;
  }

  bool IsStopping() const {
    absl::MutexLock lock(&mutex_);
    return stopping_;
  }

  void Pause(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), time);
  }

  RowWatcher* const watcher_;
  const uint32_t rank_;
  uint32_t ranges_ = 0;

  // Confined to the thread, once it has begun.
  std::map<uint32_t, Table> tables_;
  std::string address_;
  std::unique_ptr<v1::ParameterService::Stub> stub_;
  uint32_t received_ = 0;
  uint64_t messages_ = 0;
  // Messages of the last stream that ended it: a stream that begins with them makes no progress.
  uint64_t rejected_in_stream_ = 0;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status condition_ ABSL_GUARDED_BY(mutex_);
  // Null between calls.
  RowStream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

RowWatcher::RowWatcher(RowWatcherOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<RowWatcher>> RowWatcher::Start(RowWatcherOptions options) {
  if (options.tables.empty()) return absl::InvalidArgumentError("watch rows: got no tables, want at least one");
  if (options.coordinator.empty() == options.shards.empty()) {
    return absl::InvalidArgumentError("watch rows: want the address of the coordinator, or those of the shards");
  }
  for (const v1::TableSpec& spec : options.tables) {
    if (absl::Status status = ValidateTableSpec(spec); !status.ok()) return status;
  }
  auto watcher = std::unique_ptr<RowWatcher>(new RowWatcher(std::move(options)));
  absl::StatusOr<ShardMap> map = watcher->Map();
  if (!map.ok()) return map.status();
  for (uint32_t rank = 0; rank < map->shards().size(); ++rank) {
    auto shard = std::make_unique<Shard>(watcher.get(), rank);
    for (const v1::TableSpec& spec : watcher->options_.tables) {
      const PlacedTable* const table = map->FindTable(spec.id());
      if (table == nullptr || table->spec.dim() != spec.dim()) {
        return absl::NotFoundError(absl::StrCat("watch rows: the job has no table ", spec.id(), " \"", spec.name(),
                                                "\" of ", spec.dim(), " weights a row"));
      }
      for (const RangeSpan& span : table->spans) {
        if (span.shard == rank) shard->Add(table->spec, span);
      }
    }
    if (shard->ranges() > 0) watcher->shards_.push_back(std::move(shard));
  }
  {
    absl::MutexLock lock(&watcher->mutex_);
    watcher->running_ = watcher->shards_.size();
    for (const auto& shard : watcher->shards_) watcher->missing_ += shard->ranges();
  }
  for (const auto& shard : watcher->shards_) shard->Begin();
  return watcher;
}

RowWatcher::~RowWatcher() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (const auto& shard : shards_) shard->Stop();
  if (coordinator_ != nullptr) coordinator_->CancelCalls("the watcher is destroyed");
}

absl::StatusOr<ShardMap> RowWatcher::Map() {
  if (options_.coordinator.empty()) {
    ShardMap map(options_.shards);
    if (absl::Status status = map.Place({}, options_.tables); !status.ok()) return status;
    return map;
  }
  auto link =
      CoordinatorLink::Connect(options_.coordinator, options_.connect_timeout, options_.credentials, options_.job);
  if (!link.ok()) return link.status();
  coordinator_ = *std::move(link);
  return coordinator_->GetShardMap();
}

absl::StatusOr<std::string> RowWatcher::AddressOf(uint32_t rank) {
  if (coordinator_ == nullptr) return options_.shards[rank];
  const absl::StatusOr<ShardMap> map = coordinator_->GetShardMap();
  if (!map.ok()) return map.status();
  if (rank < map->shards().size()) return map->shards()[rank];
  return Unreachable(absl::StrCat("the map has ", map->shards().size(), " shards"));
}

void RowWatcher::OnReceived(uint32_t ranges) {
  absl::MutexLock lock(&mutex_);
  missing_ -= ranges;
}

void RowWatcher::OnEnd(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  status_.Update(status);
  --running_;
}

absl::Status RowWatcher::AwaitComplete(absl::Duration timeout) {
  const auto complete = [this] {
    mutex_.AssertReaderHeld();
    return !status_.ok() || (missing_ == 0 && (!options_.once || running_ == 0));
  };
  absl::MutexLock lock(&mutex_);
  if (mutex_.AwaitWithTimeout(absl::Condition(&complete), timeout)) return status_;
  return WithReason(v1::ERROR_REASON_WAIT_TIMEOUT, absl::DeadlineExceededError(absl::StrCat(
                                                       "watch rows: timed out after ", absl::FormatDuration(timeout),
                                                       " waiting for ", missing_, " ranges")));
}

absl::Status RowWatcher::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::Status RowWatcher::condition() const {
  absl::Status status = this->status();
  for (const auto& shard : shards_) status.Update(shard->condition());
  return status;
}

RowWatcher::Counts RowWatcher::counts() const {
  return {counts_.updates, counts_.wholes, counts_.rejected, counts_.reconnects};
}

}  // namespace ballast
