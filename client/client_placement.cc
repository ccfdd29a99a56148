// SPDX-License-Identifier: Apache-2.0
// Finding the shards of a client's job, and declaring tensors and tables there. Its operations are in client.cc.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/coordinator_link.h"
#include "client/error_feedback.h"
#include "client/shard_channel.h"
#include "client/shard_map_follower.h"
#include "common/codecs/codec.h"
#include "common/job/job_config.h"
#include "common/program/this_process.h"
#include "common/status/error_reason.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

// Limit for the tensors in one DeclareTensorsRequest, well under the limit for a message.
constexpr size_t kMaxDeclarationBytes = kMaxMessageBytes / 2;

// Keep-alive timeout for shards that may move: messages stuck in a dead connection delay their retry at most this long.
constexpr absl::Duration kMovingPeerTimeout = absl::Seconds(4);

v1::TensorDeclaration DeclarationFor(const PlacedTensor& tensor, uint32_t shard) {
  v1::TensorDeclaration declaration;
  *declaration.mutable_spec() = tensor.spec;
  for (const PlacedSlice& slice : tensor.slices) {
    if (slice.shard != shard) continue;
    v1::SliceRange* range = declaration.add_slices();
    range->set_index(slice.index);
    range->set_offset(slice.offset);
    range->set_elements(slice.elements);
  }
  return declaration;
}

v1::DeclareTensorsRequest EmptyDeclaration(const ClientOptions& options) {
  v1::DeclareTensorsRequest empty;
  empty.set_job(options.job);
  *empty.mutable_policy() = options.policy;
  empty.set_workers(options.workers);
  empty.set_protocol_version(kProtocolVersion);
  *empty.mutable_durability() = options.durability;
  return empty;
}

// Owns the declarations to one shard: as few as the limit on their size allows, but at least one. A shard without
// slices must know the job too, because it handles pauses, captures and standbys like the others. Thread safety: none.
class DeclarationPacker {
 public:
  explicit DeclarationPacker(v1::DeclareTensorsRequest empty) : empty_(std::move(empty)), requests_({empty_}) {}

  // Returns the request that takes another `bytes`.
  v1::DeclareTensorsRequest& For(size_t bytes) {
    if (bytes_ > 0 && bytes_ + bytes > kMaxDeclarationBytes) {
      requests_.push_back(empty_);
      bytes_ = 0;
    }
    bytes_ += bytes;
    return requests_.back();
  }

  std::vector<v1::DeclareTensorsRequest> Take() { return std::move(requests_); }

 private:
  const v1::DeclareTensorsRequest empty_;
  std::vector<v1::DeclareTensorsRequest> requests_;
  // Bytes in the last request.
  size_t bytes_ = 0;
};

ShardChannelOptions ChannelOptionsFor(const ClientOptions& options) {
  ShardChannelOptions channel;
  channel.job = options.job;
  channel.worker = options.worker;
  channel.incarnation = options.incarnation;
  channel.connections = options.channels_per_shard;
  channel.messages_in_flight = options.messages_in_flight;
  channel.shared_memory = options.shared_memory;
  channel.data_streams = options.data_streams;
  channel.pin_memory = options.pin_memory;
  channel.credentials = options.credentials;
  channel.watch_answers = options.watch_answers;
  channel.tracer = options.tracer;
  channel.rpc_timeout = options.rpc_timeout;
  channel.retry_timeout = options.retry_timeout;
  channel.wait_timeout = options.wait_timeout;
  channel.values = options.codec.values();
  // Send it only if it is needed, because a reader's token does not permit naming a worker.
  channel.names_worker_in_pulls = options.policy.async().delay_compensation() > 0;
  return channel;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<const Codec>> codec = MakeGradientCodec(options.codec);
  if (!codec.ok()) return codec.status();
  if (options.incarnation == 0) options.incarnation = absl::ToUnixMicros(absl::Now());
  auto client = std::unique_ptr<Client>(new Client(std::move(options)));
  if ((*codec)->encoding() != v1::ENCODING_FP32) client->feedback_ = std::make_unique<ErrorFeedback>(*std::move(codec));
  if (absl::Status status = client->Reach(); !status.ok()) return status;
  return client;
}

absl::Status Client::Reach() {
  if (options_.coordinator.empty()) {
    if (absl::Status status = UseMap(ShardMap(options_.shards)); !status.ok()) return status;
    std::vector<Future<v1::GetStatusResponse>> answers;
    for (ShardChannel* channel : channels()) answers.push_back(channel->GetStatus(options_.connect_timeout));
    absl::Status status;
    for (const auto& answer : answers) status.Update(answer.Get().status());
    return status;
  }
  auto link =
      CoordinatorLink::Connect(options_.coordinator, options_.connect_timeout, options_.credentials, options_.job);
  if (!link.ok()) return link.status();
  coordinator_ = *std::move(link);
  ShardMapFollower::Calls calls;
  calls.get = [this] { return coordinator_->GetShardMap(); };
  calls.await = [this](uint64_t epoch, absl::Duration wait) { return coordinator_->AwaitShardMap(epoch, wait); };
  calls.use = [this](ShardMap map) { return FollowMap(std::move(map)); };
  calls.fail = [this](const std::string& reason) { Shutdown(reason); };
  map_follower_ = std::make_unique<ShardMapFollower>(follows_, std::move(calls));
  absl::StatusOr<ShardMap> map = coordinator_->GetShardMap();
  if (!map.ok()) return map.status();
  // Before tensors are placed, servers may still be joining.
  return map->tensors().empty() && map->tables().empty() ? absl::OkStatus() : UseMap(*std::move(map));
}

absl::Status Client::UseMap(ShardMap map) {
  absl::MutexLock lock(&mutex_);
  const std::vector<std::string>& known = map_.shards();
  const std::vector<std::string>& shards = map.shards();
  // Maps only grow, so the newer one contains the older one.
  if (!channels_.empty() && map.epoch() < map_.epoch()) return absl::OkStatus();
  if (shards.size() < known.size() || (!follows_ && !std::equal(known.begin(), known.end(), shards.begin()))) {
    return WithReason(
        v1::ERROR_REASON_NOT_SERVING,
        absl::FailedPreconditionError("shard map: the shards' addresses have changed since they were first seen"));
  }
  for (const std::string& shard : shards) {
    if (absl::Status status = options_.credentials.CheckTarget(shard); !status.ok()) return status;
  }
  for (uint32_t rank = channels_.size(); rank < shards.size(); ++rank) {
    ShardChannelOptions channel = ChannelOptionsFor(options_);
    channel.silence = follows_ ? kMovingPeerTimeout : kPeerSilence;
    channel.feedback = feedback_.get();
    // A client that follows moving shards gets newer maps anyway.
    if (coordinator_ != nullptr && !follows_) channel.on_not_owner = [this] { map_follower_->Refresh(); };
    // With other durabilities, a shard recovers every acknowledged update or does not return.
    if (options_.durability.mode() == v1::Durability::WAL) {
      channel.on_retry = [this](uint32_t shard) { OnRetry(shard); };
    }
    channels_.push_back(std::make_unique<ShardChannel>(rank, shards[rank], std::move(channel)));
  }
  for (const PlacedTensor& tensor : map.tensors()) {
    const std::vector<uint64_t> none(tensor.slices.size(), 0);
    tensors_.try_emplace(tensor.spec.id(), Tensor{tensor, none, none});
  }
  map_ = std::move(map);
  for (const auto& channel : channels_) channel->UseEpoch(map_.epoch());
  if (map_follower_ != nullptr) map_follower_->OnMapUsed(map_.epoch());
  return absl::OkStatus();
}

absl::Status Client::FollowMap(ShardMap map) {
  if (absl::Status status = UseMap(std::move(map)); !status.ok() || !follows_) return status;
  const std::vector<std::string> shards = shard_map().shards();
  for (ShardChannel* channel : channels()) channel->MoveTo(shards[channel->rank()]);
  return absl::OkStatus();
}

absl::StatusOr<ShardMap> Client::Place(absl::Span<const v1::TensorSpec> specs, absl::Span<const v1::TableSpec> tables) {
  if (coordinator_ != nullptr) {
    return coordinator_->PlaceTensors(options_.job, specs, tables, options_.gather_timeout);
  }
  ShardMap map = shard_map();
  if (absl::Status status = map.Place(specs, tables); !status.ok()) return status;
  return map;
}

absl::Status Client::Declare(absl::Span<const v1::TensorSpec> specs) {
  for (const v1::TensorSpec& spec : specs) {
    if (absl::Status status = ValidateTensorSpec(spec); !status.ok()) return status;
  }
  return PlaceAndDeclare(specs, {});
}

absl::Status Client::PlaceAndDeclare(absl::Span<const v1::TensorSpec> specs, absl::Span<const v1::TableSpec> tables) {
  if (absl::Status status = ValidatePolicy(options_.policy, options_.workers); !status.ok()) return status;
  absl::StatusOr<ShardMap> map = Place(specs, tables);
  if (!map.ok()) return map.status();
  if (absl::Status status = UseMap(*map); !status.ok()) return status;
  const auto missing = [](const char* kind, const auto& spec) {
    return absl::InternalError(absl::StrCat("shard map: ", kind, " \"", spec.name(), "\" is missing"));
  };
  std::vector<Future<v1::DeclareTensorsResponse>> answers;
  for (ShardChannel* channel : channels()) {
    DeclarationPacker packer(EmptyDeclaration(options_));
    for (const v1::TensorSpec& spec : specs) {
      const PlacedTensor* placed = map->Find(spec.id());
      if (placed == nullptr) return missing("tensor", spec);
      v1::TensorDeclaration declaration = DeclarationFor(*placed, channel->rank());
      if (declaration.slices_size() > 0) *packer.For(declaration.ByteSizeLong()).add_tensors() = std::move(declaration);
    }
    for (const v1::TableSpec& spec : tables) {
      const PlacedTable* placed = map->FindTable(spec.id());
      if (placed == nullptr) return missing("table", spec);
      v1::PlacedTable part = PartOfShard(*placed, channel->rank());
      if (part.spans_size() > 0) *packer.For(part.ByteSizeLong()).add_tables() = std::move(part);
    }
    for (v1::DeclareTensorsRequest& request : packer.Take()) answers.push_back(channel->Declare(std::move(request)));
  }
  absl::Status status;
  for (const auto& answer : answers) status.Update(answer.Get().status());
  return status;
}

}  // namespace ballast
