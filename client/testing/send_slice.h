// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "client/shard_channel.h"

namespace ballast {

// Sends a message about slice 0 of tensor 0; its future gets the reply, and `*value` what the server answers.
inline Future<ShardReply> SendSlice(ShardChannel& channel, ShardMessage::Kind kind, absl::Span<const float> gradient,
                                    float* value) {
  Promise<ShardReply> promise;
  Future<ShardReply> future = promise.GetFuture();
  std::vector<ShardMessage> messages(1);
  messages[0].kind = kind;
  messages[0].operation = 1;
  messages[0].slices = {{0, 0, 1, 0, gradient, absl::MakeSpan(value, 1)}};
  messages[0].done = [promise = std::move(promise)](const ShardMessage&, ShardReply reply) mutable {
    promise.Set(std::move(reply));
  };
  channel.Send(std::move(messages));
  return future;
}

}  // namespace ballast
