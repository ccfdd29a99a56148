// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/control/control_probe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/program/this_process.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/grpcpp.h"

namespace ballast {
namespace {

constexpr int kThreads = 3;
// Pause between two rounds of a thread's calls.
constexpr absl::Duration kPause = absl::Milliseconds(5);
// A call that takes this long counts as a failure.
constexpr absl::Duration kTimeout = absl::Seconds(30);

std::shared_ptr<grpc::Channel> Open(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

double PercentileOf(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// Rounds to hundredths.
double Rounded(double milliseconds) { return std::round(milliseconds * 100) / 100; }

}  // namespace

void Latencies::Add(const std::string& call, absl::Duration took, const absl::Status& status) {
  milliseconds_[call].push_back(absl::ToDoubleMilliseconds(took));
  if (status.ok()) return;
  ++failed_;
  failure_.Update(status);
}

void Latencies::Add(const Latencies& other) {
  for (const auto& [call, values] : other.milliseconds_) {
    milliseconds_[call].insert(milliseconds_[call].end(), values.begin(), values.end());
  }
  failed_ += other.failed_;
  failure_.Update(other.failure_);
}

uint64_t Latencies::calls() const {
  uint64_t calls = 0;
  for (const auto& [call, values] : milliseconds_) calls += values.size();
  return calls;
}

double Latencies::Percentile(double share) const {
  std::vector<double> all;
  for (const auto& [call, values] : milliseconds_) all.insert(all.end(), values.begin(), values.end());
  return PercentileOf(std::move(all), share);
}

nlohmann::ordered_json Latencies::ToJson() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [call, values] : milliseconds_) {
    json[call] = {{"calls", values.size()},
                  {"ms_p50", Rounded(PercentileOf(values, 0.5))},
                  {"ms_p99", Rounded(PercentileOf(values, 0.99))},
                  {"ms_max", Rounded(PercentileOf(values, 1))}};
  }
  return json;
}

v1::Job ControlProbe::Job(const v1::Durability& durability) {
  v1::Job job;
  job.set_name("control");
  job.mutable_training()->set_epochs(1);
  job.mutable_training()->set_batch_size(1);
  job.mutable_policy()->mutable_async();
  *job.mutable_durability() = durability;
  return job;
}

ControlProbe::ControlProbe(const std::string& address, const v1::Durability& durability) : durability_(durability) {
  const std::shared_ptr<grpc::Channel> channel = Open(address);
  coordinator_ = v1::CoordinatorService::NewStub(channel);
  shard_ = v1::ParameterService::NewStub(channel);
}

absl::StatusOr<std::unique_ptr<ControlProbe>> ControlProbe::Start(const std::string& address,
                                                                  const v1::Durability& durability) {
  std::unique_ptr<ControlProbe> probe(new ControlProbe(address, durability));
  for (uint32_t rank : {1, 0}) {
    absl::StatusOr<v1::Member> member = probe->Join(rank, kTimeout);
    if (!member.ok()) return member.status();
    probe->worker_ = *std::move(member);
  }
  return probe;
}

absl::StatusOr<v1::Member> ControlProbe::Join(uint32_t rank, absl::Duration timeout) {
  v1::JoinRequest request;
  request.set_protocol_version(kProtocolVersion);
  request.set_version(kVersion);
  request.set_role(v1::ROLE_WORKER);
  request.set_rank(rank);
  request.set_description(absl::StrCat("probe ", rank));
  *request.mutable_job() = Job(durability_);
  request.set_train_examples(uint64_t{1} << 40);
  v1::JoinResponse response;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  const grpc::Status status = coordinator_->Join(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response.member();
}

template <typename Rpc>
void ControlProbe::Call(const char* name, absl::Duration timeout, Latencies& latencies, Rpc rpc) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  const absl::Time begun = absl::Now();
  const grpc::Status status = rpc(&context);
  latencies.Add(name, absl::Now() - begun, FromGrpcStatus(status, name));
}

void ControlProbe::Heartbeat(absl::Duration timeout, Latencies& latencies) {
  v1::HeartbeatRequest request;
  *request.mutable_member() = worker_;
  v1::HeartbeatResponse response;
  Call("heartbeat", timeout, latencies,
       [&](grpc::ClientContext* context) { return coordinator_->Heartbeat(context, request, &response); });
}

void ControlProbe::TakeLease(absl::Duration timeout, Latencies& latencies) {
  v1::AcquireLeaseRequest acquire;
  *acquire.mutable_member() = worker_;
  // During a checkpoint no data is handed out; that wait must not be measured.
  acquire.set_wait_ms(1);
  v1::AcquireLeaseResponse lease;
  Call("acquire_lease", timeout, latencies,
       [&](grpc::ClientContext* context) { return coordinator_->AcquireLease(context, acquire, &lease); });
  if (!lease.has_lease()) return;
  v1::CompleteLeaseRequest complete;
  *complete.mutable_member() = worker_;
  complete.set_lease_id(lease.lease().id());
  v1::CompleteLeaseResponse completed;
  Call("complete_lease", timeout, latencies,
       [&](grpc::ClientContext* context) { return coordinator_->CompleteLease(context, complete, &completed); });
}

void ControlProbe::Read(absl::Duration timeout, Latencies& latencies) {
  v1::GetProgressResponse progress;
  Call("get_progress", timeout, latencies, [&](grpc::ClientContext* context) {
    return coordinator_->GetProgress(context, v1::GetProgressRequest(), &progress);
  });
  v1::GetStatusResponse status;
  Call("get_status", timeout, latencies,
       [&](grpc::ClientContext* context) { return shard_->GetStatus(context, v1::GetStatusRequest(), &status); });
}

void ControlProbe::JoinAgain(absl::Duration timeout, Latencies& latencies) {
  const absl::Time begun = absl::Now();
  const absl::Status joined = Join(1, timeout).status();
  latencies.Add("join", absl::Now() - begun, joined);
}

void ControlProbe::CallAll(int thread, absl::Duration timeout, Latencies& latencies) {
  switch (thread) {
    case 0:
      Heartbeat(timeout, latencies);
      return TakeLease(timeout, latencies);
    case 1:
      return Read(timeout, latencies);
    default:
      return JoinAgain(timeout, latencies);
  }
}

absl::Status ControlProbe::CallEach(absl::Duration timeout) {
  Latencies latencies;
  for (int thread = 0; thread < kThreads; ++thread) CallAll(thread, timeout, latencies);
  return latencies.failure();
}

absl::Status ControlProbe::CallReaders(absl::Duration timeout) {
  Latencies latencies;
  Heartbeat(timeout, latencies);
  Read(timeout, latencies);
  return latencies.failure();
}

absl::StatusOr<uint64_t> ControlProbe::CountLost() {
  v1::GetProgressResponse response;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kTimeout));
  const grpc::Status status = coordinator_->GetProgress(&context, v1::GetProgressRequest(), &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response.progress().workers_lost();
}

bool ControlProbe::stopping() {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kPause);
  return stopping_;
}

void ControlProbe::RunUntilStopped(int thread) {
  Latencies latencies;
  while (!stopping()) CallAll(thread, kTimeout, latencies);
  absl::MutexLock lock(&mutex_);
  latencies_.Add(latencies);
}

void ControlProbe::Run() {
  for (int thread = 0; thread < kThreads; ++thread) threads_.emplace_back([this, thread] { RunUntilStopped(thread); });
}

Latencies ControlProbe::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  absl::MutexLock lock(&mutex_);
  stopping_ = false;
  return std::exchange(latencies_, Latencies());
}

}  // namespace ballast
