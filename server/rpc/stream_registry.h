// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/concurrency/clock.h"

namespace ballast {

// Owns the tickets for data streams, and knows the streams that are open. Thread safety: all methods may be called from
// any thread.
class StreamRegistry {
 public:
  // Calls that a client may have without a response.
  static constexpr uint32_t kCalls = 64;
  static constexpr size_t kMaxTickets = 4096;
  static constexpr absl::Duration kTicketLife = absl::Seconds(10);

  // Who opens a stream.
  struct Holder {
    // Token that the client presented; empty: none.
    std::string token;
    // Its address.
    std::string peer;
    // Encrypts the stream; empty: nothing does.
    std::string key;
  };

  explicit StreamRegistry(const Clock* clock = Clock::Real()) : clock_(*clock) {}

  // Call it before Offer. `tls`: streams are encrypted. `most`: streams at a time.
  void Configure(bool tls, size_t most) {
    tls_ = tls;
    most_ = most;
  }

  // Returns a new ticket. RESOURCE_EXHAUSTED if there are too many, or too many streams; UNAVAILABLE after Close.
  absl::StatusOr<v1::OpenDataStreamResponse> Offer(std::string token, std::string peer);
  // Returns who got the ticket, which is then void; nullopt if it is unknown or too old.
  std::optional<Holder> Redeem(absl::string_view ticket);

  // Counts an open stream, and returns its number; Close calls `end` once. UNAVAILABLE after Close.
  absl::StatusOr<uint64_t> Add(std::function<void(const absl::Status&)> end);
  void Remove(uint64_t number);

  // Ends all streams and refuses new ones.
  void Close(const absl::Status& reason);

  size_t size() const;

 private:
  struct Ticket {
    Holder holder;
    absl::Time end;
  };

  const Clock& clock_;
  bool tls_ = false;
  size_t most_ = kMaxTickets;
  mutable absl::Mutex mutex_;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Ticket> tickets_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::function<void(const absl::Status&)>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
