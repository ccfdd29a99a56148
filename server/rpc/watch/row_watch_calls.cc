// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/watch/row_watch_calls.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/slice.h"

namespace ballast {
namespace {

// Bytes that a call prepares at once, and those of a message, about: a part of a delta may be larger.
constexpr size_t kPreparedBytes = size_t{512} << 10;
constexpr size_t kMessageBytes = size_t{1} << 20;
// Smaller bodies are cheaper to copy than to reference.
constexpr size_t kCopiedBytes = 2048;
// A caller takes 5 s without a message for the loss of its connection.
constexpr absl::Duration kSignOfLife = absl::Seconds(4);

absl::Status Invalid(absl::string_view message) {
  return WithReason(v1::ERROR_REASON_INVALID_REQUEST, absl::InvalidArgumentError(message));
}

grpc::Slice SliceOf(std::shared_ptr<const std::string> body) {
  if (body->size() <= kCopiedBytes) return grpc::Slice(*body);
  const std::string& bytes = *body;
  using Held = std::shared_ptr<const std::string>;
  // gRPC only reads it.
  return grpc::Slice(
      const_cast<char*>(bytes.data()), bytes.size(), [](void* held) { delete static_cast<Held*>(held); },
      new Held(std::move(body)));
}

// Takes the next message from the front; at least one delta.
grpc::ByteBuffer TakeMessage(std::deque<EncodedDelta>& deltas) {
  std::vector<grpc::Slice> slices;
  for (size_t bytes = 0; !deltas.empty() && bytes < kMessageBytes; deltas.pop_front()) {
    EncodedDelta& delta = deltas.front();
    bytes += delta.bytes();
    slices.emplace_back(delta.head);
    slices.push_back(SliceOf(std::move(delta.body)));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace

// Owns one call. Responses are written one at a time; while one is written, nothing is prepared. Shared by gRPC, until
// OnDone, and by tasks of the executor. Nothing is written after the end. Thread safety: gRPC's methods as gRPC calls
// them, the others from any thread.
class RowWatchCalls::Call : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                            public std::enable_shared_from_this<Call> {
 public:
  Call(RowWatchCalls* calls, grpc::CallbackServerContext* context, v1::WatchRowsRequest request)
      : calls_(calls), context_(context), request_(std::move(request)) {}

  // gRPC holds the call until OnDone.
  void HoldForGrpc() { for_grpc_ = shared_from_this(); }

  // Prepares and writes what there is, unless that is under way.
  void Wake() {
    {
      absl::MutexLock lock(&mutex_);
      if (ended_) return;
      if (writing_) {
        // The context lives until OnDone, which comes after the end.
        if (absl::Now() - begun_ > calls_->options_.stall_timeout) context_->TryCancel();
        return;
      }
      again_ = true;
      if (preparing_) return;
      preparing_ = true;
    }
    const absl::Status taken = calls_->options_.executor->Submit([call = shared_from_this()] { call->Prepare(); });
    if (taken.ok()) return;
    // The next round wakes it again.
    absl::MutexLock lock(&mutex_);
    preparing_ = false;
  }

  void End(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (std::exchange(ended_, true)) return;
    }
    Finish(ToGrpcStatus(status));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client has disconnected"));
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      response_.Clear();
    }
    Wake();
  }
  void OnCancel() override { End(absl::CancelledError("the client has disconnected")); }
  void OnDone() override {
    {
      absl::MutexLock lock(&calls_->mutex_);
      calls_->calls_.erase(this);
    }
    const std::shared_ptr<Call> last = std::move(for_grpc_);
  }

 private:
  // Runs in one thread at a time.
  void Prepare() {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (ended_ || !again_) {
          preparing_ = false;
          return;
        }
        again_ = false;
      }
      absl::Status status = calls_->options_.serving();
      if (status.ok()) status = Fill();
      if (!status.ok()) return End(calls_->OnShard(status));
      if (deltas_.empty() && watch_->done()) return End(absl::OkStatus());
      absl::MutexLock lock(&mutex_);
      if (deltas_.empty() && absl::Now() - begun_ < kSignOfLife) continue;
      preparing_ = false;
      if (ended_) return;
      writing_ = true;
      begun_ = absl::Now();
      response_ = TakeMessage(deltas_);
      StartWrite(&response_);
      return;
    }
  }

  // Gets the next deltas if none are left.
  absl::Status Fill() {
    if (watch_ == nullptr) {
      absl::StatusOr<std::unique_ptr<RowWatch>> watch = calls_->Watch(request_, [weak = weak_from_this()] {
        if (const std::shared_ptr<Call> call = weak.lock(); call != nullptr) call->Wake();
      });
      if (!watch.ok()) return watch.status();
      watch_ = *std::move(watch);
      request_.Clear();
    }
    if (!deltas_.empty()) return absl::OkStatus();
    for (EncodedDelta& delta : watch_->Next(kPreparedBytes)) deltas_.push_back(std::move(delta));
    return absl::OkStatus();
  }

  RowWatchCalls* const calls_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<Call> for_grpc_;

  // Confined to Prepare.
  v1::WatchRowsRequest request_;
  std::unique_ptr<RowWatch> watch_;
  std::deque<EncodedDelta> deltas_;

  // gRPC reads it while a write is under way.
  grpc::ByteBuffer response_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // A task is queued or runs, and whether it has something to do.
  bool preparing_ ABSL_GUARDED_BY(mutex_) = false;
  bool again_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Time at which the last write began.
  absl::Time begun_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

RowWatchCalls::RowWatchCalls(const ParameterShard* shard, Options options)
    : shard_(shard), options_(std::move(options)), publishers_(options_.publishers) {}

RowWatchCalls::~RowWatchCalls() = default;

absl::Status RowWatchCalls::OnShard(const absl::Status& status) const {
  return Annotate(status, absl::StrCat("shard ", options_.rank));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RowWatchCalls::Begin(grpc::CallbackServerContext* context,
                                                                 absl::StatusOr<v1::WatchRowsRequest> request) {
  absl::Status status = request.status();
  const auto call = std::make_shared<Call>(this, context, request.ok() ? *std::move(request) : v1::WatchRowsRequest());
  call->HoldForGrpc();
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok()) status = closed_;
    calls_[call.get()] = call;
  }
  if (status.ok()) {
    call->Wake();
  } else {
    call->End(OnShard(status));
  }
  return call.get();
}

absl::StatusOr<std::unique_ptr<RowWatch>> RowWatchCalls::Watch(const v1::WatchRowsRequest& request,
                                                               std::function<void()> wake) {
  RowPublishers::Request watch;
  if (request.table_ids().empty()) return Invalid("got no tables, want at least one");
  absl::flat_hash_map<uint32_t, size_t> index_of;
  for (uint32_t id : request.table_ids()) {
    if (!index_of.emplace(id, watch.tables.size()).second) {
      return Invalid(absl::StrCat("got table ", id, " twice, want each table once"));
    }
    absl::StatusOr<WatchableTable> table = shard_->Watchable(request.job(), id);
    if (!table.ok()) return table.status();
    watch.tables.push_back({*std::move(table), {}});
  }
  for (const v1::RangePosition& after : request.after()) {
    const auto index = index_of.find(after.table_id());
    if (index == index_of.end()) {
      return Invalid(absl::StrCat("got a range of table ", after.table_id(), ", want one of the tables to watch"));
    }
    RowPublishers::Request::Table& to = watch.tables[index->second];
    const uint32_t first = to.table.first_range;
    if (after.range() < first || after.range() - first >= to.table.ranges.size()) {
      return Invalid(absl::StrCat("got range ", after.range(), " of table ", after.table_id(), ", want one of ", first,
                                  " to ", first + to.table.ranges.size() - 1));
    }
    const WatchedPosition position{after.position(), after.chain()};
    if (!to.after.emplace(after.range(), position).second) {
      return Invalid(
          absl::StrCat("got range ", after.range(), " of table ", after.table_id(), " twice, want each range once"));
    }
  }
  watch.encoding = request.encoding();
  watch.once = request.once();
  watch.wake = std::move(wake);
  return publishers_.Watch(std::move(watch));
}

void RowWatchCalls::Close(const absl::Status& reason) {
  std::vector<std::shared_ptr<Call>> open;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = reason;
    for (const auto& [address, weak] : calls_) {
      if (std::shared_ptr<Call> call = weak.lock(); call != nullptr) open.push_back(std::move(call));
    }
  }
  for (const std::shared_ptr<Call>& call : open) call->End(OnShard(reason));
}

}  // namespace ballast
