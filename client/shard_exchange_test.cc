// SPDX-License-Identifier: Apache-2.0
#include "client/shard_exchange.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(ShardExchangeTest, EachEventLeadsToTheStateInTheDiagram) {
  using State = ExchangeState;
  constexpr ExchangeEvent kEvents[] = {ExchangeEvent::kAttempt, ExchangeEvent::kSuccess, ExchangeEvent::kFailure,
                                       ExchangeEvent::kRelease};
  // An event that does not occur in a state leaves it as it is.
  constexpr struct {
    State from;
    State to[4];
  } kTable[] = {
      // attempt, success, failure, release
      {State::kTaken, {State::kFirstAttempt, State::kTaken, State::kLent, State::kTaken}},
      {State::kFirstAttempt, {State::kRetry, State::kDone, State::kLent, State::kFirstAttempt}},
      {State::kRetry, {State::kRetry, State::kLent, State::kLent, State::kRetry}},
      {State::kLent, {State::kLent, State::kLent, State::kLent, State::kDone}},
      {State::kDone, {State::kDone, State::kDone, State::kDone, State::kDone}},
  };
  for (const auto& [from, to] : kTable) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(Next(from, kEvents[i]), to[i]) << "state " << static_cast<int>(from) << ", event " << i;
    }
  }
}

}  // namespace
}  // namespace ballast
