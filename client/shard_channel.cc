// SPDX-License-Identifier: Apache-2.0
#include "client/shard_channel.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/slice_codec.h"

namespace ballast {
namespace {

// How many sequence numbers a shard remembers of each worker.
constexpr uint64_t kSequenceWindow = 1024;

const char* OperationName(ShardMessage::Kind kind) {
  switch (kind) {
    case ShardMessage::Kind::kPush:
      return "push";
    case ShardMessage::Kind::kPull:
      return "pull";
    case ShardMessage::Kind::kPushPull:
      return "push-pull";
  }
  return "";
}

template <typename Messages>
void Refuse(Messages messages, const std::string& name, const std::string& reason) {
  for (ShardMessage& message : messages) {
    ShardReply reply;
    reply.status = absl::CancelledError(
        absl::StrCat(name, ": ", OperationName(message.kind), ": cancelled before it was sent: ", reason));
    message.done(message, std::move(reply));
  }
}

}  // namespace

// A message on its way, with room for whichever of the three calls it is.
struct ShardChannel::Exchange {
  ShardMessage message;
  // 0 for a pull.
  uint64_t sequence = 0;
  v1::ParameterService::Stub* stub = nullptr;
  v1::PushRequest push;
  v1::PushResponse pushed;
  v1::PullRequest pull;
  v1::PullResponse pulled;
  v1::PushPullRequest push_pull;
  v1::PushPullResponse push_pulled;

  void Encode(const ShardChannelOptions& options);
  absl::StatusOr<ShardReply> Decode() const;
};

void ShardChannel::Exchange::Encode(const ShardChannelOptions& options) {
  if (message.kind == ShardMessage::Kind::kPull) {
    pull.set_job(options.job);
    pull.set_step(message.step);
    *pull.mutable_slices() = EncodeRefs(message.slices);
    return;
  }
  const bool pulls = message.kind == ShardMessage::Kind::kPushPull;
  v1::PushHeader* header = pulls ? push_pull.mutable_header() : push.mutable_header();
  header->set_job(options.job);
  header->set_worker(options.worker);
  header->set_incarnation(options.incarnation);
  header->set_sequence(sequence);
  header->set_step(message.step);
  header->set_examples(message.examples);
  *(pulls ? push_pull.mutable_gradients() : push.mutable_gradients()) = EncodeGradients(message.slices);
}

absl::StatusOr<ShardReply> ShardChannel::Exchange::Decode() const {
  ShardReply reply;
  reply.bytes_sent = push.ByteSizeLong() + pull.ByteSizeLong() + push_pull.ByteSizeLong();
  reply.bytes_received = pushed.ByteSizeLong() + pulled.ByteSizeLong() + push_pulled.ByteSizeLong();
  reply.outcome = message.kind == ShardMessage::Kind::kPush ? pushed.outcome() : push_pulled.outcome();
  if (message.kind == ShardMessage::Kind::kPush) return reply;
  absl::StatusOr<std::vector<uint64_t>> versions =
      DecodeValues(message.kind == ShardMessage::Kind::kPull ? pulled.values() : push_pulled.values(), message.slices);
  if (!versions.ok()) return versions.status();
  reply.versions = *std::move(versions);
  return reply;
}

ShardChannel::ShardChannel(uint32_t rank, std::string address, ShardChannelOptions options)
    : rank_(rank), name_(absl::StrCat("shard ", rank, " at ", address)), options_(std::move(options)) {
  for (uint32_t i = 0; i < std::max(options_.connections, 1u); ++i) {
    stubs_.push_back(v1::ParameterService::NewStub(OpenChannel(address)));
  }
}

ShardChannel::~ShardChannel() { Shutdown("client destroyed"); }

void ShardChannel::Send(std::vector<ShardMessage> messages) {
  std::string refused;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) refused = shutdown_reason_;
    for (ShardMessage& message : messages) {
      if (shutdown_) break;
      Lane& lane = message.kind == ShardMessage::Kind::kPush ? pushes_ : waits_;
      lane.queue.push_back(std::move(message));
    }
  }
  if (!refused.empty()) return Refuse(std::move(messages), name_, refused);
  SendQueued();
}

void ShardChannel::SendQueued() {
  while (true) {
    std::shared_ptr<Exchange> exchange;
    {
      absl::MutexLock lock(&mutex_);
      exchange = TakeNextLocked();
    }
    if (exchange == nullptr) return;
    Begin(std::move(exchange));
  }
}

std::shared_ptr<ShardChannel::Exchange> ShardChannel::TakeNextLocked() {
  std::shared_ptr<Exchange> exchange = TakeLocked(&pushes_);
  return exchange != nullptr ? exchange : TakeLocked(&waits_);
}

std::shared_ptr<ShardChannel::Exchange> ShardChannel::TakeLocked(Lane* lane) {
  if (lane->queue.empty() || lane->in_flight >= options_.messages_in_flight) return nullptr;
  const bool pushes = lane->queue.front().kind != ShardMessage::Kind::kPull;
  if (pushes && !sequences_in_flight_.empty() && next_sequence_ - *sequences_in_flight_.begin() >= kSequenceWindow) {
    return nullptr;
  }
  auto exchange = std::make_shared<Exchange>();
  exchange->message = std::move(lane->queue.front());
  lane->queue.pop_front();
  ++lane->in_flight;
  if (pushes) {
    exchange->sequence = next_sequence_++;
    sequences_in_flight_.insert(exchange->sequence);
  }
  exchange->stub = stubs_[next_stub_++ % stubs_.size()].get();
  return exchange;
}

void ShardChannel::Begin(std::shared_ptr<Exchange> exchange) {
  exchange->Encode(options_);
  const ShardMessage::Kind kind = exchange->message.kind;
  const absl::Duration wait = kind == ShardMessage::Kind::kPush ? absl::ZeroDuration() : options_.wait_timeout;
  calls_.Start(
      exchange->message.operation, Options(OperationName(kind), wait),
      // Shared by the attempts and the end of the call.
      [this, exchange](grpc::ClientContext* context, absl::Duration time, std::function<void(grpc::Status)> end) {
        BeginAttempt(exchange.get(), context, time, std::move(end));
      },
      [this, exchange](absl::Status status, uint32_t attempts) {
        Finish(exchange.get(), std::move(status), attempts);
      });
}

void ShardChannel::BeginAttempt(Exchange* exchange, grpc::ClientContext* context, absl::Duration time,
                                std::function<void(grpc::Status)> end) {
  // What remains for the server's own wait: it must end before the attempt does.
  const auto wait_ms =
      static_cast<uint32_t>(std::max<int64_t>(absl::ToInt64Milliseconds(time - options_.rpc_timeout), 1));
  switch (exchange->message.kind) {
    case ShardMessage::Kind::kPush:
      return exchange->stub->async()->Push(context, &exchange->push, &exchange->pushed, std::move(end));
    case ShardMessage::Kind::kPull:
      exchange->pull.set_wait_ms(wait_ms);
      return exchange->stub->async()->Pull(context, &exchange->pull, &exchange->pulled, std::move(end));
    case ShardMessage::Kind::kPushPull:
      exchange->push_pull.set_wait_ms(wait_ms);
      return exchange->stub->async()->PushPull(context, &exchange->push_pull, &exchange->push_pulled, std::move(end));
  }
}

void ShardChannel::Finish(Exchange* exchange, absl::Status status, uint32_t attempts) {
  ShardReply reply;
  if (status.ok()) {
    absl::StatusOr<ShardReply> decoded = exchange->Decode();
    if (decoded.ok()) {
      reply = *std::move(decoded);
    } else {
      status = absl::Status(decoded.status().code(), absl::StrCat(name_, ": ", OperationName(exchange->message.kind),
                                                                  ": ", decoded.status().message()));
    }
  }
  reply.status = std::move(status);
  reply.retries = attempts == 0 ? 0 : attempts - 1;
  {
    absl::MutexLock lock(&mutex_);
    --(exchange->message.kind == ShardMessage::Kind::kPush ? pushes_ : waits_).in_flight;
    sequences_in_flight_.erase(exchange->sequence);
  }
  // The next message leaves first: the one that ended may have much to tell.
  SendQueued();
  exchange->message.done(exchange->message, std::move(reply));
}

void ShardChannel::Cancel(uint64_t operation, const std::string& reason) {
  std::deque<ShardMessage> dropped;
  {
    absl::MutexLock lock(&mutex_);
    for (Lane* lane : {&pushes_, &waits_}) {
      const auto kept = std::stable_partition(lane->queue.begin(), lane->queue.end(),
                                              [&](const ShardMessage& m) { return m.operation != operation; });
      std::move(kept, lane->queue.end(), std::back_inserter(dropped));
      lane->queue.erase(kept, lane->queue.end());
    }
  }
  calls_.CancelTagged(operation, reason);
  Refuse(std::move(dropped), name_, reason);
}

void ShardChannel::Shutdown(const std::string& reason) {
  std::deque<ShardMessage> dropped;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) return;
    shutdown_ = true;
    shutdown_reason_ = reason.empty() ? "shut down" : reason;
    for (Lane* lane : {&pushes_, &waits_}) {
      std::move(lane->queue.begin(), lane->queue.end(), std::back_inserter(dropped));
      lane->queue.clear();
    }
  }
  calls_.Shutdown(reason);
  Refuse(std::move(dropped), name_, reason);
}

Future<v1::DeclareTensorsResponse> ShardChannel::Declare(v1::DeclareTensorsRequest request) {
  return calls_.Ask<v1::DeclareTensorsResponse>(
      Options("declare", absl::ZeroDuration()), std::move(request),
      [stub = stubs_[0].get()](grpc::ClientContext* context, const auto* ask, auto* answer, auto end) {
        stub->async()->DeclareTensors(context, ask, answer, std::move(end));
      });
}

Future<v1::GetStatusResponse> ShardChannel::GetStatus(absl::Duration timeout) {
  CallOptions options = Options("status", absl::ZeroDuration());
  options.attempt_timeout = options.retry_timeout = options.total_timeout = timeout;
  return calls_.Ask<v1::GetStatusResponse>(
      std::move(options), v1::GetStatusRequest(),
      [stub = stubs_[0].get()](grpc::ClientContext* context, const auto* ask, auto* answer, auto end) {
        stub->async()->GetStatus(context, ask, answer, std::move(end));
      });
}

CallOptions ShardChannel::Options(const char* operation, absl::Duration wait) const {
  return {absl::StrCat(name_, ": ", operation), wait + options_.rpc_timeout, options_.retry_timeout,
          wait + options_.rpc_timeout + options_.retry_timeout};
}

}  // namespace ballast
