// SPDX-License-Identifier: Apache-2.0
#include "server/tables/watch/row_publishers.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/concurrency/named_thread.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Bytes of a table that one round publishes at most; a watcher's own limit is that of its connection.
constexpr uint64_t kMaxRoundBytes = uint64_t{32} << 20;

}  // namespace

RowPublishers::RowPublishers(const Options& options) : options_(options), copies_(options.max_copied_bytes) {}

RowPublishers::~RowPublishers() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::StatusOr<std::shared_ptr<TablePublisher>> RowPublishers::UseLocked(const WatchableTable& table,
                                                                         v1::Encoding encoding) {
  Published& published = published_[{table.id, encoding}];
  if (published.publisher == nullptr) {
    absl::StatusOr<std::unique_ptr<TablePublisher>> made =
        TablePublisher::Make(table, encoding, options_.max_retained_bytes / published_.size());
    if (!made.ok()) {
      published_.erase({table.id, encoding});
      return made.status();
    }
    published.publisher = *std::move(made);
  }
  ++published.watches;
  return published.publisher;
}

absl::StatusOr<std::unique_ptr<RowWatch>> RowPublishers::Watch(Request request) {
  if (request.encoding == v1::ENCODING_UNSPECIFIED) request.encoding = v1::ENCODING_FP32;
  {
    absl::MutexLock lock(&mutex_);
    if (watchers_ >= options_.max_watchers) {
      return WithReason(v1::ERROR_REASON_SERVER_BUSY,
                        absl::ResourceExhaustedError(absl::StrCat("got another watcher besides ", watchers_,
                                                                  ", want at most ", options_.max_watchers,
                                                                  " per shard; try again once one has ended")));
    }
    ++watchers_;
  }
  // From here on its destructor counts it.
  auto watch = std::unique_ptr<RowWatch>(new RowWatch(this, request.encoding, request.once));
  std::vector<std::shared_ptr<TablePublisher>> publishers;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    wakes_[watch.get()] = std::make_shared<const std::function<void()>>(std::move(request.wake));
    for (const Request::Table& table : request.tables) {
      absl::StatusOr<std::shared_ptr<TablePublisher>> publisher = UseLocked(table.table, request.encoding);
      status.Update(publisher.status());
      if (!publisher.ok()) break;
      publishers.push_back(*std::move(publisher));
      watch->table_ids_.push_back(table.table.id);
    }
    const bool runs = options_.period < absl::InfiniteDuration();
    if (runs && !thread_.joinable()) thread_ = NamedThread("row versions", [this] { Run(); });
  }
  if (!status.ok()) return status;
  const absl::Time now = options_.clock->Now();
  for (size_t i = 0; i < publishers.size(); ++i) {
    TableWatch::Start start{std::move(request.tables[i].after), request.once};
    watch->tables_.push_back(std::make_unique<TableWatch>(std::move(publishers[i]), std::move(start), &copies_, now));
  }
  return watch;
}

void RowPublishers::Leave(const RowWatch& watch) {
  const absl::Time now = options_.clock->Now();
  absl::MutexLock lock(&mutex_);
  --watchers_;
  wakes_.erase(&watch);
  for (uint32_t id : watch.table_ids_) {
    Published& published = published_[{id, watch.encoding_}];
    --published.watches;
    // A watch that ends once it has everything does not return.
    if (!watch.once_) published.left = now;
  }
}

void RowPublishers::Publish() {
  absl::MutexLock publishing(&publishing_);
  const absl::Time now = options_.clock->Now();
  const absl::Time since = now - options_.retention;
  std::vector<std::shared_ptr<TablePublisher>> publishers, unused;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = published_.begin(); it != published_.end();) {
      Published& published = it->second;
      const bool ended = published.watches == 0 && published.left <= since;
      (ended ? unused : publishers).push_back(published.publisher);
      it = ended ? published_.erase(it) : std::next(it);
    }
  }
  // Ends the following of the tables' ranges, outside the lock.
  unused.clear();
  for (const std::shared_ptr<TablePublisher>& publisher : publishers) {
    publisher->Publish({options_.max_retained_bytes / publishers.size(), now, since, kMaxRoundBytes});
  }
  publishers.clear();
  std::vector<std::shared_ptr<const std::function<void()>>> wakes;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [watch, wake] : wakes_) wakes.push_back(wake);
  }
  for (const auto& wake : wakes) {
    if (*wake) (*wake)();
  }
}

void RowPublishers::Run() {
  const auto stopping = [this] {
    mutex_.AssertReaderHeld();
    return stopping_;
  };
  const auto has_work = [this] {
    mutex_.AssertReaderHeld();
    return stopping_ || !published_.empty();
  };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping), options_.period)) return;
    }
    Publish();
  }
}

size_t RowPublishers::watchers() const {
  absl::MutexLock lock(&mutex_);
  return watchers_;
}

size_t RowPublishers::tables() const {
  absl::MutexLock lock(&mutex_);
  return published_.size();
}

RowWatch::~RowWatch() {
  // The tables' chains end before their publishers may.
  tables_.clear();
  publishers_->Leave(*this);
}

std::vector<EncodedDelta> RowWatch::Next(size_t max_bytes) {
  const absl::Time now = publishers_->options_.clock->Now();
  std::vector<EncodedDelta> next;
  size_t bytes = 0;
  for (size_t i = 0; i < tables_.size() && bytes < max_bytes; ++i) {
    TableWatch& table = *tables_[(first_ + i) % tables_.size()];
    for (EncodedDelta& delta : table.Next(max_bytes - bytes, now)) {
      bytes += delta.bytes();
      next.push_back(std::move(delta));
    }
  }
  first_ = (first_ + 1) % tables_.size();
  return next;
}

bool RowWatch::done() const {
  return std::all_of(tables_.begin(), tables_.end(), [](const auto& table) { return table->done(); });
}

uint64_t RowWatch::fallen_behind() const {
  uint64_t ranges = 0;
  for (const auto& table : tables_) ranges += table->fallen_behind();
  return ranges;
}

}  // namespace ballast
