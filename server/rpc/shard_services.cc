// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/shard_services.h"

#include <algorithm>

#include "common/concurrency/executor.h"
#include "common/program/core_count.h"

namespace ballast {
namespace {

// Limit on the tasks queued in each executor. Nearly all hold part of the budget of bytes in flight, which ends
// first.
constexpr size_t kMaxQueued = size_t{1} << 16;
// Two, because a slow disk may block one.
constexpr int kMinWorkThreads = 2;

// The memory of watchers is not part of the bytes in flight: recent deltas, and ranges that are being sent, each take
// up to a quarter as much.
RowWatchCalls::Options WatchOptions(uint32_t rank, uint64_t max_bytes_in_flight, const ServingGate* serving,
                                    Executor* executor) {
  RowWatchCalls::Options options;
  options.rank = rank;
  options.serving = [serving] { return serving->Check(); };
  options.executor = executor;
  RowPublishers::Options& publishers = options.publishers;
  publishers.max_retained_bytes = std::min(publishers.max_retained_bytes, max_bytes_in_flight / 4);
  publishers.max_copied_bytes = std::min(publishers.max_copied_bytes, max_bytes_in_flight / 4);
  return options;
}

}  // namespace

ShardServices::ShardServices(uint32_t rank, uint64_t max_bytes_in_flight, ParameterShard* shard,
                             StandbyReceiver* receiver, const ServingGate* serving, const TokenTable* tokens,
                             CallTracing* tracing)
    : access_(tokens, [shard] { return shard->job_name(); }),
      standby_service_(receiver, &access_),
      declarations_(1, kMaxQueued),
      work_(std::max(kMinWorkThreads, CoreCount()), kMaxQueued),
      data_plane_(rank, shard, &access_, serving, &work_, max_bytes_in_flight, tracing),
      watches_(shard, WatchOptions(rank, max_bytes_in_flight, serving, &work_)),
      parameter_service_(rank, shard, &data_plane_, &access_, serving, &watches_, {&declarations_, &work_}),
      status_service_(&parameter_service_) {}

void ShardServices::AddTo(grpc::ServerBuilder& data) {
  data.RegisterService(&parameter_service_);
  data.RegisterCallbackGenericService(&data_plane_);
  data.RegisterService(&standby_service_);
}

void ShardServices::Shutdown() {
  declarations_.Shutdown();
  work_.Shutdown();
}

}  // namespace ballast
