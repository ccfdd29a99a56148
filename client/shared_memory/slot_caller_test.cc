// SPDX-License-Identifier: Apache-2.0
#include "client/shared_memory/slot_caller.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/shared_memory/shared_message.h"
#include "common/wire/direct_call.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// A ring that is lost would fail the tests that limit their time.
constexpr absl::Duration kLongestWait = absl::Minutes(5);

// Status and response with which a call has ended.
class Outcome {
 public:
  void Set(const grpc::Status& status, const SlotResponse& response) {
    status_ = status;
    response_ = response;
    // Fails the second time.
    ended_.Notify();
  }

  bool ended() const { return ended_.HasBeenNotified(); }
  const grpc::Status& status() const {
    ended_.WaitForNotification();
    return status_;
  }
  const SlotResponse& response() const {
    ended_.WaitForNotification();
    return response_;
  }

 private:
  absl::Notification ended_;
  grpc::Status status_;
  SlotResponse response_;
};

class SlotCallerTest : public testing::Test {
 protected:
  explicit SlotCallerTest(
      bool (*processor_is_free)() = [] { return true; }, absl::Duration longest_absence = absl::Milliseconds(10))
      : caller_(*SharedRegion::Open(server_->Describe()), {.processor_is_free = processor_is_free,
                                                           .longest_wait = kLongestWait,
                                                           .longest_absence = longest_absence}) {}
  ~SlotCallerTest() override {
    caller_.End(grpc::Status(grpc::UNAVAILABLE, "test over"));
    receiver_.join();
  }

  using Call = std::shared_ptr<Outcome>;

  Call Begin(uint32_t slot, absl::Duration timeout = absl::Minutes(10)) {
    const auto call = std::make_shared<Outcome>();
    number_ = caller_.Begin(slot, {.method = 2, .offset = 64, .bytes = 1000, .in_pieces = true}, absl::Now() + timeout,
                            [this, call](const grpc::Status& status, const SlotResponse& response) {
                              call->Set(status, response);
                              caller_.Notify();
                            });
    return call;
  }

  const std::shared_ptr<SharedRegion> server_ = *SharedRegion::Create(4);
  SlotCaller caller_;
  // Number of the last call.
  uint64_t number_ = 0;
  std::thread receiver_{[this] { caller_.Run(); }};
};

TEST_F(SlotCallerTest, ACallEndsWithItsResponse) {
  const Call first = Begin(1), second = Begin(3);
  const std::optional<SlotRequest> request = server_->TakeCall(3);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->method, 2u);
  EXPECT_EQ(request->offset, 64u);
  EXPECT_EQ(request->bytes, 1000u);
  EXPECT_FALSE(server_->TakeCall(3).has_value()) << "taken twice";
  server_->Respond(3, {.code = 0, .offset = 8, .bytes = 9});
  EXPECT_TRUE(second->status().ok());
  EXPECT_EQ(second->response().offset, 8u);
  EXPECT_EQ(second->response().bytes, 9u);
  EXPECT_FALSE(first->ended());
}

TEST_F(SlotCallerTest, AThreadThatHelpsReceivesItself) {
  constexpr int kRounds = 50;
  int received = 0;
  const absl::Time begun = absl::Now();
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<std::thread::id> receiver{};
    caller_.Begin(0, {}, absl::Now() + absl::Minutes(10), [&](const grpc::Status&, const SlotResponse&) {
      receiver = std::this_thread::get_id();
      caller_.Notify();
    });
    absl::Notification helps;
    std::thread server([&] {
      helps.WaitForNotification();
      EXPECT_TRUE(server_->TakeCall(0).has_value());
      server_->Respond(0, {});
    });
    const auto over = [&] {
      if (!helps.HasBeenNotified()) helps.Notify();
      return receiver.load() != std::thread::id();
    };
    EXPECT_TRUE(caller_.Help(over, absl::Minutes(5)).has_value());
    server.join();
    received += receiver.load() == std::this_thread::get_id() ? 1 : 0;
  }
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
  // The others came while Run's thread still looked for responses.
  EXPECT_GT(received, kRounds / 2);
  // Then the other thread receives again.
  const Call later = Begin(1);
  ASSERT_TRUE(server_->TakeCall(1).has_value());
  server_->Respond(1, {});
  EXPECT_TRUE(later->status().ok());
}

TEST_F(SlotCallerTest, HelpEndsWithItsTimeoutWithNewsFromElsewhereAndWithTheCalls) {
  EXPECT_TRUE(caller_.Help([] { return false; }, absl::Milliseconds(5)).has_value());
  std::atomic<bool> news{false};
  std::thread other([&] {
    news = true;
    caller_.Notify();
  });
  const absl::Time begun = absl::Now();
  EXPECT_TRUE(caller_.Help([&] { return news.load(); }, absl::Minutes(5)).has_value());
  other.join();
  std::thread ends([&] { caller_.End(grpc::Status(grpc::UNAVAILABLE, "server lost")); });
  caller_.Help([] { return false; }, absl::Minutes(5));
  ends.join();
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
  EXPECT_FALSE(caller_.Help([] { return false; }, absl::Minutes(5)).has_value());
}

TEST_F(SlotCallerTest, AnErrorHasItsMessageAndDetails) {
  const Call call = Begin(0);
  ASSERT_TRUE(server_->TakeCall(0).has_value());
  const std::string error = EncodeDirectError(grpc::Status(grpc::ABORTED, "too late", "details"));
  std::memcpy(server_->Slot(0).data(), error.data(), error.size());
  server_->Respond(0, {.code = grpc::ABORTED, .offset = 0, .bytes = static_cast<uint32_t>(error.size())});
  EXPECT_EQ(call->status().error_code(), grpc::ABORTED);
  EXPECT_EQ(call->status().error_message(), "too late");
  EXPECT_EQ(call->status().error_details(), "details");
}

TEST_F(SlotCallerTest, ADamagedErrorIsOneOfTheServer) {
  for (const SlotResponse& damaged :
       {SlotResponse{.code = 17, .offset = 0, .bytes = 100}, SlotResponse{.code = 1, .offset = 0, .bytes = 3},
        SlotResponse{.code = 1, .offset = 0xfffffff0, .bytes = 0xfffffff0}}) {
    const Call call = Begin(0);
    ASSERT_TRUE(server_->TakeCall(0).has_value());
    server_->Respond(0, damaged);
    EXPECT_EQ(call->status().error_code(), grpc::INTERNAL);
    EXPECT_THAT(call->status().error_message(), HasSubstr(absl::StrCat("got code ", damaged.code)));
  }
}

TEST_F(SlotCallerTest, CancelEndsACallAndTellsTheServer) {
  const Call call = Begin(0);
  ASSERT_TRUE(server_->TakeCall(0).has_value());
  EXPECT_FALSE(server_->TakeCancel(0));
  caller_.Cancel(0, number_ + 1);
  EXPECT_FALSE(call->ended());
  caller_.Cancel(0, number_);
  EXPECT_EQ(call->status().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(server_->TakeCancel(0));
  EXPECT_FALSE(server_->TakeCancel(0));
  EXPECT_FALSE(server_->EndRequestLoan(0)) << "the caller may have changed what the message lent";
}

TEST_F(SlotCallerTest, ACallEndsAtItsDeadline) {
  const Call soon = Begin(0, absl::Milliseconds(20)), later = Begin(1);
  EXPECT_EQ(soon->status().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_FALSE(later->ended());
  EXPECT_FALSE(server_->EndRequestLoan(0));
  EXPECT_TRUE(server_->EndRequestLoan(1));
}

TEST_F(SlotCallerTest, EndEndsAllCallsAndRefusesNewOnes) {
  const Call call = Begin(0);
  caller_.End(grpc::Status(grpc::UNAVAILABLE, "server lost"));
  EXPECT_EQ(call->status().error_message(), "server lost");
  EXPECT_FALSE(server_->EndRequestLoan(0));
  const Call refused = Begin(1);
  EXPECT_EQ(number_, 0u);
  EXPECT_FALSE(server_->TakeCall(1).has_value());
}

TEST_F(SlotCallerTest, EveryCallOfManyEndsOnce) {
  constexpr int kRounds = 2000;
  std::thread server([&] {
    for (int served = 0; served < 4 * kRounds;) {
      const uint32_t seen = server_->server_bell().rings();
      const int before = served;
      for (uint32_t slot = 0; slot < 4; ++slot) {
        if (!server_->TakeCall(slot).has_value()) continue;
        server_->Respond(slot, {.code = 0, .offset = slot, .bytes = 0});
        ++served;
      }
      if (served == before) server_->server_bell().Wait(seen, absl::Seconds(30));
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    const Call calls[] = {Begin(0), Begin(1), Begin(2), Begin(3)};
    for (uint32_t slot = 0; slot < 4; ++slot) {
      ASSERT_TRUE(calls[slot]->status().ok());
      EXPECT_EQ(calls[slot]->response().offset, slot);
    }
  }
  server.join();
}

// Without a processor for the receiver.
class BusySlotCallerTest : public SlotCallerTest {
 protected:
  using Receiver = std::atomic<std::thread::id>;

  explicit BusySlotCallerTest(absl::Duration longest_absence = absl::Milliseconds(10))
      : SlotCallerTest([] { return false; }, longest_absence) {}

  // Helps for a moment; then the server responds to a call, and `receiver` is the thread that gets the response.
  void RespondAfterHelp(Receiver& receiver) {
    caller_.Help([] { return true; }, absl::ZeroDuration());
    caller_.Begin(0, {}, absl::Now() + absl::Minutes(10),
                  [&](const grpc::Status&, const SlotResponse&) { receiver = std::this_thread::get_id(); });
    ASSERT_TRUE(server_->TakeCall(0).has_value());
    server_->Respond(0, {});
  }
  static std::thread::id Await(const Receiver& receiver) {
    while (receiver.load() == std::thread::id()) std::this_thread::yield();
    return receiver;
  }
};

TEST_F(BusySlotCallerTest, ReceivesIfTheThreadThatHasHelpedDoesNotComeBack) {
  const absl::Time begun = absl::Now();
  for (int round = 0; round < 10; ++round) {
    Receiver receiver{};
    RespondAfterHelp(receiver);
    EXPECT_EQ(Await(receiver), receiver_.get_id());
  }
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
}

TEST_F(BusySlotCallerTest, ReceivesForThreadsThatDoNotHelp) {
  const Call call = Begin(0);
  ASSERT_TRUE(server_->TakeCall(0).has_value());
  server_->Respond(0, {});
  caller_.Receive();
  EXPECT_TRUE(call->status().ok());
}

// The receiver stays away for longer than a test lasts.
class PatientSlotCallerTest : public BusySlotCallerTest {
 protected:
  PatientSlotCallerTest() : BusySlotCallerTest(kLongestWait) {}
};

TEST_F(PatientSlotCallerTest, LeavesResponsesToTheThreadThatHasHelped) {
  constexpr int kRounds = 200;
  int received = 0;
  for (int round = 0; round < kRounds; ++round) {
    Receiver receiver{};
    RespondAfterHelp(receiver);
    caller_.Receive();
    received += Await(receiver) == std::this_thread::get_id() ? 1 : 0;
  }
  // The others came before it was away.
  EXPECT_GT(received, kRounds / 2);
}

TEST_F(PatientSlotCallerTest, ReceivesWhatMessagesWaitFor) {
  const absl::Time begun = absl::Now();
  for (int round = 0; round < 50; ++round) {
    Receiver before{}, after{};
    caller_.SetAwaited(true);
    RespondAfterHelp(before);
    EXPECT_EQ(Await(before), receiver_.get_id());
    caller_.SetAwaited(false);
    RespondAfterHelp(after);
    caller_.SetAwaited(true);
    EXPECT_EQ(Await(after), receiver_.get_id());
  }
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
}

class TurnsTest : public SlotCallerTest, public testing::WithParamInterface<bool (*)()> {
 protected:
  TurnsTest() : SlotCallerTest(GetParam()) {}
};

TEST_P(TurnsTest, NoResponseIsLostWhileThreadsTakeTurns) {
  std::atomic<bool> stop{false};
  std::thread server([&] {
    while (!stop) {
      for (uint32_t slot = 0; slot < 4; ++slot) {
        if (server_->TakeCall(slot).has_value()) server_->Respond(slot, {});
      }
      std::this_thread::yield();
    }
  });
  const absl::Time begun = absl::Now();
  // Without a processor, one that waits without help waits until Run comes back.
  const int rounds = GetParam()() ? 3000 : 300;
  for (int round = 0; round < rounds; ++round) {
    const Call helped = Begin(0), other = Begin(1);
    if (round % 2 == 0) caller_.Receive();
    if (round % 3 != 0) caller_.Help([&] { return helped->ended(); }, absl::Minutes(5));
    EXPECT_TRUE(helped->status().ok());
    EXPECT_TRUE(other->status().ok());
  }
  // A lost one would cost Run or Help minutes.
  EXPECT_LT(absl::Now() - begun, absl::Minutes(1));
  stop = true;
  server.join();
}

INSTANTIATE_TEST_SUITE_P(Processors, TurnsTest,
                         testing::Values(
                             +[] { return true; }, +[] { return false; }),
                         [](const auto& is_free) { return is_free.param() ? "Free" : "Busy"; });

}  // namespace
}  // namespace ballast
