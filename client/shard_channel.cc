// SPDX-License-Identifier: Apache-2.0
#include "client/shard_channel.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/slice_message.h"
#include "common/codecs/codec_seed.h"
#include "common/rpc/grpc_status.h"
#include "common/shared_memory/shared_message.h"
#include "common/status/error_reason.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

// Number of sequence numbers that a shard remembers per worker.
constexpr uint64_t kSequenceWindow = 1024;

// If request and response are smaller, sending them is faster than copying them to shared memory.
constexpr uint64_t kMinSharedBytes = uint64_t{16} << 10;

using Async = v1::ParameterService::StubInterface::async_interface;

const char* OperationName(ShardMessage::Kind kind) {
  switch (kind) {
    case ShardMessage::Kind::kPush:
      return "push";
    case ShardMessage::Kind::kPull:
      return "pull";
    case ShardMessage::Kind::kPushPull:
      return "push-pull";
    case ShardMessage::Kind::kSetValues:
      return "set values";
  }
  return "";
}

const std::string& Method(ShardMessage::Kind kind) {
  static const std::string* const kPush = new std::string("/ballast.v1.ParameterService/Push");
  static const std::string* const kPull = new std::string("/ballast.v1.ParameterService/Pull");
  static const std::string* const kPushPull = new std::string("/ballast.v1.ParameterService/PushPull");
  static const std::string* const kSetValues = new std::string("/ballast.v1.ParameterService/SetValues");
  switch (kind) {
    case ShardMessage::Kind::kPush:
      return *kPush;
    case ShardMessage::Kind::kPull:
      return *kPull;
    case ShardMessage::Kind::kPushPull:
      return *kPushPull;
    case ShardMessage::Kind::kSetValues:
      break;
  }
  return *kSetValues;
}

// True for messages with gradients, which have a sequence number.
bool Pushes(ShardMessage::Kind kind) {
  return kind == ShardMessage::Kind::kPush || kind == ShardMessage::Kind::kPushPull;
}

// True for messages that may wait on the server for other workers.
bool MayWait(ShardMessage::Kind kind) {
  return kind == ShardMessage::Kind::kPull || kind == ShardMessage::Kind::kPushPull;
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

// A call that records when its response begins to arrive: the server sends headers when the response is ready.
class WatchedCall : public grpc::ClientUnaryReactor {
 public:
  // `begun` outlives the call, which deletes itself.
  WatchedCall(absl::Time* begun, std::function<void(grpc::Status)> end) : begun_(begun), end_(std::move(end)) {}

  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) *begun_ = absl::Now();
  }
  void OnDone(const grpc::Status& status) override {
    const std::function<void(grpc::Status)> end = std::move(end_);
    delete this;
    end(status);
  }

 private:
  absl::Time* const begun_;
  std::function<void(grpc::Status)> end_;
};

// Returns the time that a server may need to create the tensors: to compute their values, or to read them and their
// optimizer slots from a slow disk.
absl::Duration TimeToCreate(const v1::DeclareTensorsRequest& request) {
  constexpr double kElementsPerSecond = 2 << 20;
  uint64_t elements = 0;
  for (const v1::TensorDeclaration& tensor : request.tensors()) {
    for (const v1::SliceRange& slice : tensor.slices()) elements += slice.elements();
    if (tensor.slices().empty()) elements += CountElements(tensor.spec());
  }
  return absl::Seconds(static_cast<double>(elements) / kElementsPerSecond);
}

}  // namespace

// Owns the connections to one address. Destroyed when it is unused, but never on a gRPC thread, because gRPC 1.51 must
// not lose a channel's last reference there.
struct ShardChannel::Route {
  struct Connection {
    std::unique_ptr<v1::ParameterService::Stub> stub;
    // The same connection, for encoded messages.
    grpc::GenericStub raw;
  };

  Route(std::string to, const ShardChannelOptions& options);

  const std::string address;
  std::vector<std::unique_ptr<Connection>> connections;
  // Null if shared memory is disabled.
  std::unique_ptr<SlotSender> slot_sender;
  // Number of attempts that use this route; guarded by the channel's mutex.
  int users = 0;
};

ShardChannel::Route::Route(std::string to, const ShardChannelOptions& options) : address(std::move(to)) {
  for (uint32_t i = 0; i < std::max(options.connections, 1u); ++i) {
    std::shared_ptr<grpc::Channel> channel = OpenChannel(address, options.credentials, options.silence);
    connections.push_back(
        std::make_unique<Connection>(Connection{v1::ParameterService::NewStub(channel), grpc::GenericStub(channel)}));
  }
  if (options.shared_memory) slot_sender = std::make_unique<SlotSender>(connections[0]->stub.get(), options.job);
}

class ShardChannel::RouteUse {
 public:
  RouteUse() = default;
  RouteUse(ShardChannel* channel, Route* route) : channel_(channel), route_(route) {}
  RouteUse(RouteUse&& other) noexcept { *this = std::move(other); }
  RouteUse& operator=(RouteUse&& other) noexcept {
    std::swap(channel_, other.channel_);
    std::swap(route_, other.route_);
    return *this;
  }
  ~RouteUse() {
    if (route_ == nullptr) return;
    absl::MutexLock lock(&channel_->mutex_);
    --route_->users;
  }

  const Route& operator*() const { return *route_; }
  const Route* operator->() const { return route_; }

 private:
  ShardChannel* channel_ = nullptr;
  Route* route_ = nullptr;
};

// A message in flight.
struct ShardChannel::Exchange {
  ShardMessage message;
  // 0 if the message has no gradients.
  uint64_t sequence = 0;
  // Index of the connection, modulo the number of connections.
  size_t connection = 0;
  RouteUse route;
  MemoryHold hold;
  // Empty for a pull. Encoded once, so that a retry sends the same bytes.
  std::vector<GradientPayload> payloads;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
  // Shared memory for the first attempt's request and response, if used; outlives the route.
  std::optional<BlockLoan> loan;
  uint32_t attempts = 0;
  uint64_t bytes_sent = 0;
  // Set only if responses are watched.
  absl::Time answer_begun = absl::InfiniteFuture();

  bool pushes() const { return Pushes(message.kind); }
  // Returns the approximate size of the larger of request and response.
  uint64_t Bytes() const;
  grpc::ByteBuffer Encode(const ShardChannelOptions& options, uint64_t map_epoch, uint32_t wait_ms) const;
  absl::StatusOr<ReceivedBytes> Answer() const;
  absl::StatusOr<ShardReply> Decode() const;
};

uint64_t ShardChannel::Exchange::Bytes() const {
  uint64_t request_bytes = 0, answer_bytes = 0;
  for (const GradientPayload& payload : payloads) request_bytes += payload.bytes.size();
  for (const SliceTransfer& slice : message.slices) {
    answer_bytes += slice.values.size() * sizeof(float) + slice.encoded_values.bytes.size();
  }
  return std::max(request_bytes, answer_bytes);
}

grpc::ByteBuffer ShardChannel::Exchange::Encode(const ShardChannelOptions& options, uint64_t map_epoch,
                                                uint32_t wait_ms) const {
  if (message.kind == ShardMessage::Kind::kSetValues) {
    v1::SetValuesRequest set;
    set.set_job(options.job);
    set.set_map_epoch(map_epoch);
    return EncodeSlices<v1::SliceValue>(set, v1::SetValuesRequest::kValuesFieldNumber, message.slices, payloads);
  }
  if (message.kind == ShardMessage::Kind::kPull) {
    v1::PullRequest pull;
    pull.set_job(options.job);
    pull.set_step(message.step);
    pull.set_wait_ms(wait_ms);
    if (options.names_worker_in_pulls) pull.set_worker(options.worker);
    pull.set_encoding(options.values);
    pull.set_map_epoch(map_epoch);
    AddRefs(message.slices, &pull);
    return EncodeMessage(pull);
  }
  v1::PushHeader header;
  header.set_job(options.job);
  header.set_worker(options.worker);
  header.set_incarnation(options.incarnation);
  header.set_sequence(sequence);
  header.set_step(message.step);
  header.set_examples(message.examples);
  header.set_map_epoch(map_epoch);
  if (message.schedule_position.has_value()) header.set_schedule_position(*message.schedule_position);
  if (message.kind == ShardMessage::Kind::kPush) {
    v1::PushRequest push;
    *push.mutable_header() = std::move(header);
    return EncodeGradients(push, message.slices, payloads);
  }
  v1::PushPullRequest push_pull;
  *push_pull.mutable_header() = std::move(header);
  push_pull.set_wait_ms(wait_ms);
  push_pull.set_encoding(options.values);
  return EncodeGradients(push_pull, message.slices, payloads);
}

absl::StatusOr<ReceivedBytes> ShardChannel::Exchange::Answer() const {
  const std::optional<v1::SharedSlot> reference = FindReference(response);
  if (!reference.has_value()) return BytesOf(response);
  if (!loan.has_value()) return absl::InternalError("the response is in shared memory, but the request was not");
  const absl::StatusOr<absl::string_view> answer = loan->Answer(*reference);
  if (!answer.ok()) return absl::InternalError(answer.status().message());
  ReceivedBytes bytes = BytesOf(response);
  bytes.pieces.push_back(*answer);
  return bytes;
}

absl::StatusOr<ShardReply> ShardChannel::Exchange::Decode() const {
  const absl::StatusOr<ReceivedBytes> bytes = Answer();
  if (!bytes.ok()) return bytes.status();
  ShardReply reply;
  for (absl::string_view piece : bytes->pieces) reply.bytes_received += piece.size();
  if (message.kind == ShardMessage::Kind::kPush) {
    absl::StatusOr<v1::PushResponse> answer = DecodeMessage<v1::PushResponse>(*bytes);
    if (!answer.ok()) return absl::InternalError(answer.status().message());
    reply.outcome = answer->outcome();
    return reply;
  }
  if (message.kind == ShardMessage::Kind::kSetValues) {
    absl::StatusOr<v1::SetValuesResponse> answer = DecodeMessage<v1::SetValuesResponse>(*bytes);
    if (!answer.ok()) return absl::InternalError(answer.status().message());
    reply.set = *std::move(answer);
    return reply;
  }
  // The two responses differ in the outcome and in the number of the field with the values.
  const int field = message.kind == ShardMessage::Kind::kPull ? int{v1::PullResponse::kValuesFieldNumber}
                                                              : int{v1::PushPullResponse::kValuesFieldNumber};
  auto answer = DecodePayloadMessage<v1::PushPullResponse, v1::SliceValue>(bytes->pieces, field, kMaxSlicesPerMessage);
  if (!answer.ok()) return absl::InternalError(answer.status().message());
  reply.outcome = answer->envelope.outcome();
  absl::StatusOr<std::vector<uint64_t>> versions = DecodeValues(answer->items, message.slices);
  if (!versions.ok()) return versions.status();
  reply.versions = *std::move(versions);
  return reply;
}

ShardChannel::ShardChannel(uint32_t rank, std::string address, ShardChannelOptions options)
    : rank_(rank), options_(std::move(options)), route_(std::make_unique<Route>(std::move(address), options_)) {}

ShardChannel::~ShardChannel() {
  Shutdown("client destroyed");
  WaitUntilIdle();
}

std::string ShardChannel::name() const {
  absl::MutexLock lock(&mutex_);
  return absl::StrCat("shard ", rank_, " at ", route_->address);
}

ShardChannel::RouteUse ShardChannel::UseRoute() {
  absl::MutexLock lock(&mutex_);
  ++route_->users;
  return RouteUse(this, route_.get());
}

void ShardChannel::MoveTo(const std::string& address) {
  // Open the new route and close the old one outside the lock.
  std::unique_ptr<Route> route;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_ || route_->address == address) return;
  }
  route = std::make_unique<Route>(address, options_);
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) return;
    std::swap(route_, route);
  }
  if (route->slot_sender != nullptr) route->slot_sender->Shutdown();
  calls_.RetryNow();
  const auto unused = [&]() { return route->users == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&unused));
}

void ShardChannel::Send(std::vector<ShardMessage> messages) {
  std::string refused;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) refused = shutdown_reason_;
    for (ShardMessage& message : messages) {
      if (shutdown_) break;
      Lane& lane = MayWait(message.kind) ? waits_ : pushes_;
      lane.queue.push_back(std::move(message));
    }
  }
  if (!refused.empty()) return Refuse(std::move(messages), name(), refused);
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
  const bool pushes = Pushes(lane->queue.front().kind);
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
  exchange->connection = next_connection_++;
  return exchange;
}

void ShardChannel::Begin(std::shared_ptr<Exchange> exchange) {
  if (exchange->message.kind != ShardMessage::Kind::kPull) {
    // Error feedback applies only to gradients, not to SetValues.
    exchange->payloads = options_.feedback == nullptr || !exchange->pushes()
                             ? LendGradients(exchange->message.slices, exchange->hold)
                             : EncodePayloads(exchange->message.slices,
                                              CodecSeed({options_.worker, options_.incarnation, exchange->sequence}),
                                              *options_.feedback, exchange->hold);
  }
  const ShardMessage::Kind kind = exchange->message.kind;
  const absl::Duration wait = MayWait(kind) ? options_.wait_timeout : absl::ZeroDuration();
  calls_.Start(
      exchange->message.operation, Options(OperationName(kind), wait),
      // Shared by the attempts and the end of the call.
      [this, exchange](grpc::ClientContext* context, absl::Duration time, std::function<void(grpc::Status)> end) {
        BeginAttempt(exchange.get(), context, time, std::move(end));
      },
      [this, exchange](absl::Status status, uint32_t attempts) { Finish(exchange, std::move(status), attempts); });
}

void ShardChannel::BeginAttempt(Exchange* exchange, grpc::ClientContext* context, absl::Duration time,
                                std::function<void(grpc::Status)> end) {
  // The server's own wait must end before the attempt does.
  const auto wait_ms =
      static_cast<uint32_t>(std::max<int64_t>(absl::ToInt64Milliseconds(time - options_.rpc_timeout), 1));
  if (options_.on_not_owner) {
    end = [this, end = std::move(end)](const grpc::Status& status) {
      if (ReasonOf(FromGrpcStatus(status)) == v1::ERROR_REASON_NOT_OWNER) options_.on_not_owner();
      end(status);
    };
  }
  if (exchange->attempts > 0 && options_.on_retry) options_.on_retry(rank_);
  exchange->route = UseRoute();
  const Route& route = *exchange->route;
  Route::Connection& connection = *route.connections[exchange->connection % route.connections.size()];
  grpc::ByteBuffer request = exchange->Encode(options_, map_epoch_.load(std::memory_order_relaxed), wait_ms);
  exchange->bytes_sent += request.Length();
  // Retries do not use shared memory.
  exchange->loan.reset();
  if (++exchange->attempts == 1 && route.slot_sender != nullptr && exchange->Bytes() >= kMinSharedBytes) {
    exchange->loan = route.slot_sender->Lend(request);
  }
  if (exchange->loan.has_value()) request = EncodeReference(exchange->loan->reference());
  exchange->request.Swap(&request);
  exchange->response.Clear();
  exchange->answer_begun = absl::InfiniteFuture();
  if (options_.watch_answers) {
    auto* const call = new WatchedCall(&exchange->answer_begun, std::move(end));
    connection.raw.PrepareUnaryCall(context, Method(exchange->message.kind), grpc::StubOptions(), &exchange->request,
                                    &exchange->response, call);
    return call->StartCall();
  }
  connection.raw.UnaryCall(context, Method(exchange->message.kind), grpc::StubOptions(), &exchange->request,
                           &exchange->response, std::move(end));
}

void ShardChannel::Finish(std::shared_ptr<Exchange> exchange, absl::Status status, uint32_t attempts) {
  ShardReply reply;
  if (status.ok()) {
    absl::StatusOr<ShardReply> decoded = exchange->Decode();
    if (decoded.ok()) {
      reply = *std::move(decoded);
    } else {
      status = Annotate(decoded.status(), absl::StrCat(name(), ": ", OperationName(exchange->message.kind)));
    }
  }
  exchange->loan.reset();
  exchange->route = RouteUse();
  reply.answered = absl::Now();
  reply.answer_begun = std::min(exchange->answer_begun, reply.answered);
  if (status.ok() && exchange->pushes()) ++acknowledged_pushes_;
  // After a response, the server has the whole request; after a failed attempt, gRPC may still have bytes to send.
  const bool sent = status.ok() && attempts == 1;
  reply.status = std::move(status);
  reply.bytes_sent = exchange->bytes_sent;
  reply.retries = attempts == 0 ? 0 : attempts - 1;
  {
    absl::MutexLock lock(&mutex_);
    --(MayWait(exchange->message.kind) ? waits_ : pushes_).in_flight;
    sequences_in_flight_.erase(exchange->sequence);
    if (!sent) ++lent_;
  }
  // Send the next message first, because `done` may take long.
  SendQueued();
  if (sent) return exchange->message.done(exchange->message, std::move(reply));
  exchange->payloads.clear();
  exchange->request.Clear();
  // Moved out, because the callback owns the exchange, which owns the hold.
  MemoryHold hold = std::move(exchange->hold);
  hold.WhenBack([this, exchange = std::move(exchange), reply = std::move(reply)]() mutable {
    exchange->message.done(exchange->message, std::move(reply));
    exchange.reset();
    absl::MutexLock lock(&mutex_);
    --lent_;
  });
}

void ShardChannel::WaitUntilIdle() {
  calls_.WaitUntilIdle();
  absl::MutexLock lock(&mutex_);
  const auto back = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return lent_ == 0; };
  mutex_.Await(absl::Condition(&back));
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
  Refuse(std::move(dropped), name(), reason);
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
  if (const RouteUse route = UseRoute(); route->slot_sender != nullptr) route->slot_sender->Shutdown();
  calls_.Shutdown(reason);
  Refuse(std::move(dropped), name(), reason);
}

template <typename Response, typename Request>
Future<Response> ShardChannel::Ask(CallOptions options, Request request, StubMethod<Request, Response> method) {
  return calls_.Ask<Response>(
      std::move(options), std::move(request),
      [this, method, route = RouteUse()](grpc::ClientContext* context, const Request* ask, Response* answer,
                                         std::function<void(grpc::Status)> end) mutable {
        route = UseRoute();
        v1::ParameterService::StubInterface& stub = *route->connections[0]->stub;
        (stub.async()->*method)(context, ask, answer, std::move(end));
      });
}

Future<v1::DeclareTensorsResponse> ShardChannel::Declare(v1::DeclareTensorsRequest request) {
  const absl::Duration work = TimeToCreate(request);
  return Ask<v1::DeclareTensorsResponse>(Options("declare", work), std::move(request), &Async::DeclareTensors);
}

Future<v1::GetStatusResponse> ShardChannel::GetStatus(absl::Duration timeout) {
  CallOptions options = Options("status", absl::ZeroDuration());
  options.attempt_timeout = options.retry_timeout = options.total_timeout = timeout;
  v1::GetStatusRequest request;
  request.set_job(options_.job);
  return Ask<v1::GetStatusResponse>(std::move(options), std::move(request), &Async::GetStatus);
}

Future<v1::PauseResponse> ShardChannel::Pause() {
  v1::PauseRequest request;
  request.set_job(options_.job);
  request.set_worker(options_.worker);
  request.set_incarnation(options_.incarnation);
  return Ask<v1::PauseResponse>(Options("pause", absl::ZeroDuration()), std::move(request), &Async::Pause);
}

void ShardChannel::ReportVersions(v1::ReportVersionsRequest request, std::function<void(absl::Status)> done) {
  struct Report {
    v1::ReportVersionsRequest request;
    v1::ReportVersionsResponse response;
    RouteUse route;
  };
  // Shared by the attempts and the end of the call.
  const auto report = std::make_shared<Report>();
  report->request = std::move(request);
  calls_.Start(
      /*tag=*/0, Options("report versions", absl::ZeroDuration()),
      [this, report](grpc::ClientContext* context, absl::Duration, std::function<void(grpc::Status)> end) {
        report->route = UseRoute();
        v1::ParameterService::StubInterface& stub = *report->route->connections[0]->stub;
        stub.async()->ReportVersions(context, &report->request, &report->response, std::move(end));
      },
      [report, done = std::move(done)](const absl::Status& status, uint32_t) {
        report->route = RouteUse();
        done(status);
      });
}

CallOptions ShardChannel::Options(const char* operation, absl::Duration wait) const {
  return {[this, operation] { return absl::StrCat(name(), ": ", operation); }, wait + options_.rpc_timeout,
          options_.retry_timeout, wait + options_.rpc_timeout + options_.retry_timeout};
}

}  // namespace ballast
