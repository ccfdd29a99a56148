// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/stream_registry.h"

#include <openssl/rand.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/data_stream/stream_frame.h"
#include "common/data_stream/stream_socket.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Returns nothing if the system has none.
std::optional<std::string> RandomBytes(size_t bytes) {
  std::string random(bytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), static_cast<int>(bytes)) != 1) return std::nullopt;
  return random;
}

}  // namespace

absl::StatusOr<v1::OpenDataStreamResponse> StreamRegistry::Offer(std::string token, std::string peer) {
  const std::optional<std::string> ticket = RandomBytes(kStreamTicketBytes);
  const std::optional<std::string> key = tls_ ? RandomBytes(StreamSocket::kKeyBytes) : std::string();
  if (!ticket.has_value() || !key.has_value()) return absl::InternalError("data stream: no random numbers");
  const absl::Time now = clock_.Now();
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  absl::erase_if(tickets_, [&](const auto& entry) { return entry.second.end <= now; });
  if (tickets_.size() >= kMaxTickets || tickets_.size() + streams_.size() >= most_) {
    return WithReason(v1::ERROR_REASON_SERVER_BUSY,
                      absl::ResourceExhaustedError(
                          absl::StrCat("data stream: got ", streams_.size(), " open ones and ", tickets_.size(),
                                       " clients about to open one, want fewer than ", std::min(most_, kMaxTickets))));
  }
  tickets_[*ticket] = {{std::move(token), std::move(peer), *key}, now + kTicketLife};
  v1::OpenDataStreamResponse response;
  response.set_ticket(*ticket);
  response.set_key(*key);
  response.set_calls(kCalls);
  return response;
}

std::optional<StreamRegistry::Holder> StreamRegistry::Redeem(absl::string_view ticket) {
  absl::MutexLock lock(&mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return std::nullopt;
  Ticket redeemed = std::move(found->second);
  tickets_.erase(found);
  if (redeemed.end <= clock_.Now()) return std::nullopt;
  return std::move(redeemed.holder);
}

absl::StatusOr<uint64_t> StreamRegistry::Add(std::function<void(const absl::Status&)> end) {
  absl::MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  streams_[++last_] = std::move(end);
  return last_;
}

void StreamRegistry::Remove(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(number);
}

void StreamRegistry::Close(const absl::Status& reason) {
  absl::flat_hash_map<uint64_t, std::function<void(const absl::Status&)>> streams;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = reason;
    streams.swap(streams_);
    tickets_.clear();
  }
  for (const auto& [number, end] : streams) end(reason);
}

size_t StreamRegistry::size() const {
  absl::MutexLock lock(&mutex_);
  return streams_.size();
}

}  // namespace ballast
