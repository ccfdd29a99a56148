// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/rpc/credentials.h"
#include "grpcpp/client_context.h"
#include "tests/fault/hostile/attack.h"

namespace ballast {
namespace {

constexpr int kThreads = 2;
// Calls in flight per thread; every other one is cancelled after a while.
constexpr int kInFlight = 64;
constexpr uint64_t kNeverStep = uint64_t{1} << 50;

// Owns calls in flight until all have ended.
class Calls {
 public:
  ~Calls() {
    for (auto& call : calls_) call->context.TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* running) { return *running == 0; }, &running_));
  }

  void Start(v1::ParameterService::Stub& stub, v1::PullRequest request, absl::Duration timeout) {
    auto call = std::make_unique<Call>();
    call->request = std::move(request);
    call->context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    {
      absl::MutexLock lock(&mutex_);
      ++running_;
    }
    stub.async()->Pull(&call->context, &call->request, &call->response, [this](const grpc::Status&) {
      absl::MutexLock lock(&mutex_);
      --running_;
    });
    calls_.push_back(std::move(call));
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::PullRequest request;
    v1::PullResponse response;
  };

  std::vector<std::unique_ptr<Call>> calls_;
  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<uint64_t> Run(const HostileTarget& target, absl::Time end) {
  const absl::StatusOr<Credentials> credentials = Credentials::Load(target.reader);
  if (!credentials.ok()) return credentials.status();
  std::vector<std::unique_ptr<v1::ParameterService::Stub>> stubs;
  for (const std::string& address : target.addresses) {
    stubs.push_back(v1::ParameterService::NewStub(OpenChannel(address, *credentials)));
  }
  return kInFlight * AttackUntil(end, kThreads, [&](int, uint64_t attempt) {
           Calls calls;
           for (int i = 0; i < kInFlight; ++i) {
             v1::PullRequest request;
             request.set_job(target.job);
             request.set_step(kNeverStep + i);
             request.set_wait_ms(i % 4 == 0 ? 1 : 60000);
             // Existing and missing tensors, once or many times.
             for (uint32_t slice = 0; slice < (i % 8 == 0 ? 65536u : 1u); ++slice) {
               request.add_slices()->set_tensor_id((attempt + i) % 6);
             }
             calls.Start(*stubs[i % stubs.size()], std::move(request), absl::Milliseconds(i % 2 == 0 ? 500 : 100));
           }
         });
}

}  // namespace

Attack WaitingPulls() { return {"waiting_pulls", Run}; }

}  // namespace ballast
