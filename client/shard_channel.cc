// SPDX-License-Identifier: Apache-2.0
#include "client/shard_channel.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/renewed_channel.h"
#include "common/status/error_reason.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

// A smaller window could have workers wait for each other's messages that are behind those that wait.
constexpr double kLeastWindow = 8;
// Number of sequence numbers that a shard remembers per worker.
constexpr uint64_t kSequenceWindow = 1024;

using Async = v1::ParameterService::StubInterface::async_interface;

template <typename Messages>
void Refuse(Messages messages, const std::string& name, const std::string& reason) {
  for (ShardMessage& message : messages) {
    ShardReply reply;
    reply.status =
        absl::CancelledError(absl::StrCat(name, ": ", message.name(), ": cancelled before it was sent: ", reason));
    message.done(message, std::move(reply));
  }
}

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

// Owns the connections to one address. Destroyed when it is unused, but never on a gRPC thread, because its slot sender
// waits there for the end of a call.
struct ShardChannel::Route {
  Route(std::string to, const ShardChannelOptions& options);

  std::shared_ptr<grpc::Channel> channel(size_t connection) const {
    return connections[connection % connections.size()]->channel();
  }

  // Null if no calls are made in shared memory.
  std::shared_ptr<SlotCaller> slot_caller() const { return slot_sender == nullptr ? nullptr : slot_sender->caller(); }
  // Null if messages go through shared memory, or no data stream is open, in which case this opens one if it is due.
  std::shared_ptr<StreamCaller> stream_caller() const {
    const bool elsewhere = slot_sender == nullptr || slot_sender->is_refused();
    return elsewhere && stream_sender != nullptr ? stream_sender->caller() : nullptr;
  }

  // Ends the sharing of memory, and the data streams.
  void Shutdown() const;

  // Makes every connection that was lost connect now. An idle one still has the address that its server had when it
  // was lost, and learns of another only from an attempt that fails: better now than when a message needs it. A name
  // that was unknown for a while needs another channel.
  void Reconnect() const {
    for (const auto& connection : connections) {
      connection->Renew();
      connection->channel()->GetState(/*try_to_connect=*/true);
    }
  }

  const std::string address;
  std::vector<std::unique_ptr<RenewedChannel>> connections;
  // Null if shared memory is disabled.
  std::unique_ptr<SlotSender> slot_sender;
  // Null if data streams are disabled.
  std::unique_ptr<StreamSender> stream_sender;
  // Number of attempts that use this route; guarded by the channel's mutex.
  int users = 0;
};

ShardChannel::Route::Route(std::string to, const ShardChannelOptions& options) : address(std::move(to)) {
  const auto open = [this, credentials = options.credentials, silence = options.silence] {
    return OpenChannel(address, credentials, silence);
  };
  for (uint32_t i = 0; i < std::max(options.connections, 1u); ++i) {
    connections.push_back(std::make_unique<RenewedChannel>(open));
  }
  if (options.shared_memory) {
    slot_sender = std::make_unique<SlotSender>([this] { return channel(0); }, options.job, options.pin_memory);
  }
  if (options.data_streams) {
    stream_sender = std::make_unique<StreamSender>([this] { return channel(0); }, options.job, options.silence);
  }
}

void ShardChannel::Route::Shutdown() const {
  if (slot_sender != nullptr) slot_sender->Shutdown();
  if (stream_sender != nullptr) stream_sender->Shutdown();
}

void ShardChannel::ReleaseRoute::operator()(Route* route) const {
  absl::MutexLock lock(&channel->mutex_);
  --route->users;
}

// A message in flight.
struct ShardChannel::Exchange : ShardExchange {
  using ShardExchange::ShardExchange;
  // Index of the connection, modulo the number of connections.
  size_t connection = 0;
  RouteUse route;
  // True while it counts in its lane's `refused`.
  bool refused = false;
};

ShardChannel::ShardChannel(uint32_t rank, std::string address, ShardChannelOptions options)
    : rank_(rank),
      options_(std::move(options)),
      route_(std::make_unique<Route>(std::move(address), options_)),
      window_(options_.messages_in_flight) {}

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
  return RouteUse(route_.get(), ReleaseRoute{this});
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
  route->Shutdown();
  calls_.RetryNow();
  const auto unused = [&]() { return route->users == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&unused));
}

bool ShardChannel::shares_memory() const {
  absl::MutexLock lock(&mutex_);
  return route_->slot_sender != nullptr && route_->slot_sender->has_memory();
}

void ShardChannel::Send(std::vector<ShardMessage> messages) {
  std::string refused;
  {
    absl::MutexLock lock(&mutex_);
    if (shutdown_) refused = shutdown_reason_;
    for (ShardMessage& message : messages) {
      if (shutdown_) break;
      LaneOf(message).queue.push_back(std::move(message));
    }
    if (!shutdown_) ++senders_;
  }
  if (!refused.empty()) return Refuse(std::move(messages), name(), refused);
  SendQueued(/*owned=*/true);
}

void ShardChannel::SendQueued(bool owned) {
  while (true) {
    if (owned) Receive();
    std::shared_ptr<Exchange> exchange;
    {
      absl::MutexLock lock(&mutex_);
      // The caller that queued the messages will look again.
      if (!owned && senders_ > 0) return;
      exchange = TakeLocked(&pushes_);
      if (exchange == nullptr) exchange = TakeLocked(&waits_);
      if (exchange == nullptr) {
        if (owned) --senders_;
        const bool queued = !pushes_.queue.empty() || !waits_.queue.empty();
        if (const auto caller = route_->slot_caller(); caller != nullptr) caller->SetAwaited(queued);
        return;
      }
    }
    Begin(std::move(exchange));
  }
}

std::shared_ptr<ShardChannel::Exchange> ShardChannel::TakeLocked(Lane* lane) {
  if (lane->queue.empty() || lane->in_flight >= window_ || lane->refused > 0) return nullptr;
  const bool pushes = lane->queue.front().pushes();
  if (pushes && !sequences_in_flight_.empty() && next_sequence_ - *sequences_in_flight_.begin() >= kSequenceWindow) {
    return nullptr;
  }
  auto exchange = std::make_shared<Exchange>(std::move(lane->queue.front()), pushes ? next_sequence_++ : 0, &options_);
  lane->queue.pop_front();
  ++lane->in_flight;
  if (pushes) sequences_in_flight_.insert(exchange->sequence());
  exchange->connection = next_connection_++;
  return exchange;
}

void ShardChannel::Record(const ShardMessage& message, FlightEdge edge, absl::StatusCode code) const {
  // In the order of ShardMessage::Kind.
  constexpr FlightActivity kActivities[] = {FlightActivity::kPush,     FlightActivity::kPull,
                                            FlightActivity::kPushPull, FlightActivity::kSetValues,
                                            FlightActivity::kPullRows, FlightActivity::kPushRows};
  FlightEvent event = {.activity = kActivities[static_cast<int>(message.kind)],
                       .edge = edge,
                       .code = code,
                       .peer = rank_,
                       .step = message.step,
                       .amount = message.slices.size() + message.rows.size()};
  if (!message.slices.empty()) {
    event.tensor = message.slices[0].tensor_id;
    event.slice = message.slices[0].slice_index;
  }
  FlightRecorder::OfProcess().Add(event);
}

void ShardChannel::Begin(std::shared_ptr<Exchange> exchange) {
  exchange->Prepare(options_.feedback);
  Record(exchange->message(), FlightEdge::kBegin, absl::StatusCode::kOk);
  const ShardMessage& message = exchange->message();
  const absl::Duration wait = message.may_wait() ? options_.wait_timeout : absl::ZeroDuration();
  calls_.Start(
      message.operation, Options(message.name(), wait),
      // Shared by the attempts and the end of the call.
      [this, exchange](CallAttempt* attempt, absl::Duration time, std::function<void(grpc::Status)> end) {
        BeginAttempt(exchange.get(), attempt, time, std::move(end));
      },
      [this, exchange](absl::Status status, uint32_t) { Finish(exchange, std::move(status)); });
}

void ShardChannel::BeginAttempt(Exchange* exchange, CallAttempt* attempt, absl::Duration time,
                                std::function<void(grpc::Status)> end) {
  // The server's own wait must end before the attempt does.
  const auto wait_ms =
      static_cast<uint32_t>(std::max<int64_t>(absl::ToInt64Milliseconds(time - options_.rpc_timeout), 1));
  end = [this, exchange, end = std::move(end)](const grpc::Status& status) {
    OnAttemptEnd(exchange, status);
    if (options_.on_not_owner && ReasonOf(FromGrpcStatus(status)) == v1::ERROR_REASON_NOT_OWNER) {
      options_.on_not_owner();
    }
    end(status);
  };
  std::optional<CallSpan> span;
  if (options_.tracer != nullptr) {
    span = BeginSpan(exchange->message());
    end = Trace(exchange, *span, std::move(end));
  }
  const bool retries = exchange->state() != ExchangeState::kTaken;
  if (retries && options_.on_retry) options_.on_retry(rank_);
  if (retries) {
    absl::MutexLock lock(&mutex_);
    EndRefusalLocked(exchange);
  }
  exchange->route = UseRoute();
  const Route& route = *exchange->route;
  if (retries) route.Reconnect();
  exchange->StartAttempt(map_epoch_.load(std::memory_order_relaxed), wait_ms,
                         retries ? DirectRoutes() : RoutesFor(*exchange), route.channel(exchange->connection), attempt,
                         span.has_value() ? &span->context : nullptr, std::move(end));
}

void ShardChannel::OnAttemptEnd(Exchange* exchange, const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  const double most = options_.messages_in_flight;
  if (status.ok() && window_ < most) window_ = std::min(window_ + 1 / window_, most);
  if (status.error_code() != grpc::RESOURCE_EXHAUSTED) return;
  window_ = std::max(window_ / 2, std::min(most, kLeastWindow));
  exchange->refused = true;
  ++LaneOf(exchange->message()).refused;
}

void ShardChannel::EndRefusalLocked(Exchange* exchange) {
  if (std::exchange(exchange->refused, false)) --LaneOf(exchange->message()).refused;
}

DirectRoutes ShardChannel::RoutesFor(const Exchange& exchange) const {
  const Route& route = *exchange.route;
  DirectRoutes routes;
  routes.slot_sender = route.slot_sender.get();
  routes.stream = route.stream_caller();
  return routes;
}

CallSpan ShardChannel::BeginSpan(const ShardMessage& message) const {
  CallSpan span = options_.tracer->Begin(MethodOf(message.kind));
  span.peer = rank_;
  span.step = message.pushes() ? message.step + 1 : message.step;
  return span;
}

std::function<void(grpc::Status)> ShardChannel::Trace(const Exchange* exchange, CallSpan span,
                                                      std::function<void(grpc::Status)> end) {
  return
      [exchange, tracer = options_.tracer, span = std::move(span), end = std::move(end)](const grpc::Status& status) {
        CallSpan ended = span;
        ended.code = static_cast<absl::StatusCode>(status.error_code());
        ended.request_bytes = exchange->attempt_bytes_sent();
        ended.response_bytes = exchange->attempt_bytes_received();
        tracer->End(std::move(ended));
        end(status);
      };
}

void ShardChannel::Finish(std::shared_ptr<Exchange> exchange, absl::Status status) {
  ShardReply reply = exchange->End(std::move(status), [this] { return name(); });
  exchange->route = RouteUse();
  ShardMessage& message = exchange->message();
  Record(message, FlightEdge::kEnd, reply.status.code());
  if (reply.status.ok() && message.pushes()) ++acknowledged_pushes_;
  const bool done = exchange->state() == ExchangeState::kDone;
  {
    absl::MutexLock lock(&mutex_);
    --LaneOf(message).in_flight;
    EndRefusalLocked(exchange.get());
    sequences_in_flight_.erase(exchange->sequence());
    if (!done) ++lent_;
  }
  // Send the next message first, because `done` may take long.
  SendQueued(/*owned=*/false);
  if (done) return Complete(message, std::move(reply));
  Exchange* const lent = exchange.get();
  lent->WhenReleased([this, exchange = std::move(exchange), reply = std::move(reply)]() mutable {
    Complete(exchange->message(), std::move(reply));
    exchange.reset();
    absl::MutexLock lock(&mutex_);
    --lent_;
  });
}

void ShardChannel::Complete(ShardMessage& message, ShardReply reply) {
  message.done(message, std::move(reply));
  const RouteUse route = UseRoute();
  if (const auto caller = route->slot_caller(); caller != nullptr) caller->Notify();
  if (const auto caller = route->stream_caller(); caller != nullptr) caller->Notify();
}

std::optional<absl::Duration> ShardChannel::Help(absl::FunctionRef<bool()> ready, absl::Duration timeout) {
  const RouteUse route = UseRoute();
  if (const auto caller = route->slot_caller(); caller != nullptr) return caller->Help(ready, timeout);
  if (const auto caller = route->stream_caller(); caller != nullptr) return caller->Help(ready, timeout);
  return std::nullopt;
}

void ShardChannel::Receive() {
  const RouteUse route = UseRoute();
  if (const auto caller = route->slot_caller(); caller != nullptr) caller->Receive();
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
  UseRoute()->Shutdown();
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
        // gRPC needs the stub only to begin a call.
        v1::ParameterService::Stub stub(route->channel(0));
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

Future<v1::InspectRowsResponse> ShardChannel::InspectRows(v1::InspectRowsRequest request) {
  request.set_job(options_.job);
  return Ask<v1::InspectRowsResponse>(Options("inspect rows", absl::ZeroDuration()), std::move(request),
                                      &Async::InspectRows);
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
        v1::ParameterService::Stub stub(report->route->channel(0));
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
