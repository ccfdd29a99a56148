// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/port/serving_port.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/status/testing/status_matcher.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// Responds to every call with UNIMPLEMENTED, but to "/Hold" only once released: until then its calls block threads.
class HoldingService : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    if (context->method() == "/Hold") let_go_.WaitForNotification();
    return CallbackGenericService::CreateReactor(context);
  }
  void LetGo() { let_go_.Notify(); }

 private:
  absl::Notification let_go_;
};

ServingPort::Options OptionsOf(int threads) {
  ServingPort::Options options;
  options.listen = "127.0.0.1:0";
  options.certificate_refresh = absl::Seconds(5);
  options.max_connections = 64;
  options.max_streams = 64;
  options.max_bytes = uint64_t{64} << 20;
  options.threads = threads;
  return options;
}

auto Open(int threads, HoldingService& service) {
  return ServingPort::Open(OptionsOf(threads),
                           [&](grpc::ServerBuilder& builder) { builder.RegisterCallbackGenericService(&service); });
}

// Owns the calls under way on one channel.
class Calls {
 public:
  explicit Calls(const std::string& address) : stub_(OpenChannel(address, Credentials())) {}

  void Start(const std::string& method) {
    auto call = std::make_unique<Call>();
    const grpc::Slice nothing("");
    call->request = grpc::ByteBuffer(&nothing, 1);
    {
      absl::MutexLock lock(&mutex_);
      ++running_;
    }
    stub_.UnaryCall(&call->context, method, grpc::StubOptions(), &call->request, &call->response,
                    [this](const grpc::Status&) {
                      absl::MutexLock lock(&mutex_);
                      --running_;
                    });
    calls_.push_back(std::move(call));
  }
  bool AwaitAll(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(
                                       +[](int* running) { return *running == 0; }, &running_),
                                   timeout);
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer request, response;
  };

  grpc::GenericStub stub_;
  std::vector<std::unique_ptr<Call>> calls_;
  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(ServingPortTest, AnswersWhileAllThreadsOfAnotherPortAreHeld) {
  HoldingService held_service, free_service;
  const auto held = Open(3, held_service), free = Open(2, free_service);
  ASSERT_THAT(held, IsOk());
  ASSERT_THAT(free, IsOk());
  Calls holding((*held)->address()), others((*free)->address());
  // More than the callback threads that gRPC has for a whole process.
  for (int i = 0; i < 40; ++i) holding.Start("/Hold");
  for (int i = 0; i < 100; ++i) others.Start("/Other");
  EXPECT_TRUE(others.AwaitAll(absl::Seconds(60)));
  EXPECT_FALSE(holding.AwaitAll(absl::ZeroDuration()));
  held_service.LetGo();
  EXPECT_TRUE(holding.AwaitAll(absl::Seconds(60)));
}

TEST(ServingPortTest, LeavesOtherPortsAloneWhenItIsClosed) {
  HoldingService first_service, second_service;
  auto first = Open(2, first_service), second = Open(2, second_service);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  first->reset();
  Calls calls((*second)->address());
  calls.Start("/Other");
  EXPECT_TRUE(calls.AwaitAll(absl::Seconds(60)));
}

TEST(ServingPortTest, NamesTheFlagOfAnAddressThatIsNone) {
  ServingPort::Options options = OptionsOf(1);
  options.listen = "127.0.0.1";
  options.flag = "--control_listen";
  EXPECT_THAT(ServingPort::Open(options, [](grpc::ServerBuilder&) {}),
              Fails(absl::StatusCode::kInvalidArgument, "--control_listen: got \"127.0.0.1\", want HOST:PORT"));
}

}  // namespace
}  // namespace ballast
