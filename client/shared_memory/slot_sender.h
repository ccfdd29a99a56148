// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "ballast/v1/parameter_service.pb.h"
#include "client/shared_memory/slot_caller.h"
#include "common/concurrency/background_threads.h"
#include "common/rpc/call_attempt.h"
#include "common/shared_memory/shared_heap.h"
#include "common/shared_memory/shared_message.h"
#include "common/shared_memory/shared_region.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/byte_buffer.h"

namespace ballast {

// Prepares memory shared with a server for another use, such as a GPU's copies, and undoes that when the last copy of
// the result is destroyed, before the memory is unmapped. Called from any thread.
using PinMemory = std::function<std::shared_ptr<void>(absl::Span<char>)>;

// Owns the list of free slots in a client's shared region. Invariant: a slot that the server may still use is not free.
// Thread safety: all methods may be called from any thread.
class SlotPool {
 public:
  // `pin` is destroyed before the region. Null `caller`: the server serves no calls in slots. `heap`: the server's;
  // null: it has none.
  explicit SlotPool(std::shared_ptr<SharedRegion> region, std::shared_ptr<void> pin = nullptr,
                    std::shared_ptr<SlotCaller> caller = nullptr, std::shared_ptr<SharedHeapView> heap = nullptr);

  // Returns the slot that was freed last, because its memory is still in the caches.
  std::optional<uint32_t> Take();
  // Returns a slot, even if the server may still use it.
  void Return(uint32_t slot);

  SharedRegion& region() { return *region_; }
  const std::shared_ptr<SlotCaller>& caller() const { return caller_; }
  const SharedHeapView* heap() const { return heap_.get(); }
  // Returns whether the server takes requests in pieces.
  bool takes_pieces() const { return caller_ != nullptr && region_->takes_pieces(); }

 private:
  const std::shared_ptr<SharedRegion> region_;
  const std::shared_ptr<void> pin_;
  const std::shared_ptr<SlotCaller> caller_;
  const std::shared_ptr<SharedHeapView> heap_;
  absl::Mutex mutex_;
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  // Slots of calls that ended while the server still used them.
  std::vector<uint32_t> abandoned_ ABSL_GUARDED_BY(mutex_);
};

// Owns a slot that contains a message and is lent to the server until destruction. Thread safety: none.
class BlockLoan {
 public:
  // Copies the message into a slot. If `in_pieces` and the server takes such requests, what is in the heap stays there.
  // Returns nullopt if no slot is free or large enough, or `copy` fails.
  static std::optional<BlockLoan> Make(std::shared_ptr<SlotPool> pool, const grpc::ByteBuffer& message, bool in_pieces,
                                       CopyPiece copy);
  BlockLoan(BlockLoan&& other) noexcept = default;
  BlockLoan& operator=(BlockLoan&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(reference_, other.reference_);
    std::swap(in_pieces_, other.in_pieces_);
    return *this;
  }
  ~BlockLoan() {
    if (pool_ != nullptr) pool_->Return(reference_.slot());
  }

  // Returns whether the message is in pieces, which only a call in the slot can take.
  bool in_pieces() const { return in_pieces_; }
  // The reference to send instead of the message.
  const v1::SharedSlot& reference() const { return reference_; }

  // Returns the response, which the server wrote into the same slot; valid while this object exists. INVALID_ARGUMENT
  // if `answer` refers to another slot.
  absl::StatusOr<absl::string_view> Answer(const v1::SharedSlot& answer) const;
  // Returns the pieces of the response to a call that Begin began.
  absl::StatusOr<std::vector<absl::string_view>> Answer(const SlotResponse& answer) const;
  // Call it once a response in pieces has been read. Returns false if the server had taken back what it lent, so that
  // what was read is worth nothing.
  bool EndResponse() { return pool_->region().EndResponseLoan(reference_.slot()); }

  // Calls the server with the message in the slot, if it serves such calls; returns whether it does. `attempt`, which
  // has the deadline, outlives this function, and may cancel the call; `done` is as for SlotCaller::Begin, and may be
  // called before this returns. `call` says all but the place of the message; the response is in pieces only if it
  // takes them.
  bool Begin(SlotRequest call, CallAttempt& attempt, SlotCaller::Done done);

 private:
  explicit BlockLoan(std::shared_ptr<SlotPool> pool) : pool_(std::move(pool)) {}

  // Null once moved from.
  std::shared_ptr<SlotPool> pool_;
  v1::SharedSlot reference_;
  bool in_pieces_ = false;
};

// Owns a client's share of a local server's shared memory, copies messages into it, and receives the responses to calls
// in it. Requests the memory with the first message, and again after the server was lost; until the server provides
// it, Lend returns nullopt. Offers the server to read this process's heap. Thread safety: all methods may be called
// from any thread. The destructor returns after gRPC's last callback and the last response, so it must not run on their
// threads.
class SlotSender {
 public:
  // Returns the channel to the server at this time; called with locks held, must not block.
  using Channel = std::function<std::shared_ptr<grpc::Channel>()>;

  // `pin` may be empty.
  SlotSender(Channel channel, std::string job, PinMemory pin = {});
  ~SlotSender();
  SlotSender(const SlotSender&) = delete;

  // If request and response are smaller, sending them is faster than copying them to shared memory, unless the server
  // serves calls there.
  static constexpr uint64_t kMinSharedBytes = uint64_t{16} << 10;

  // Copies the message into a slot, as BlockLoan::Make does; nullopt if there is none, or `copy` fails, or the message
  // is better sent. Blocks only in `copy`. `bytes`: size of the larger of request and response.
  std::optional<BlockLoan> Lend(const grpc::ByteBuffer& message, uint64_t bytes, bool in_pieces, CopyPiece copy);

  // Returns whether the server takes requests in pieces now.
  bool takes_pieces() const;

  // Returns whether the server provides memory now.
  bool has_memory() const;
  // Returns whether the server has refused to, as one on another machine does.
  bool is_refused() const;

  // Returns who makes calls in the slots; null if the server serves none there.
  std::shared_ptr<SlotCaller> caller() const {
    absl::MutexLock lock(&mutex_);
    return caller_;
  }

  // Releases the memory and requests none again. Loans stay valid.
  void Shutdown();

 private:
  // The call for whose duration the server provides the memory.
  class Stream;

  void AskIfDueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRegion(const v1::ShareMemoryResponse& shared);
  void OnEnd(const grpc::Status& status);

  const Channel channel_;
  const std::string job_;
  const PinMemory pin_;
  mutable absl::Mutex mutex_;
  bool shutdown_ ABSL_GUARDED_BY(mutex_) = false;
  // Time of the next request for memory; infinite if the server has none for this client.
  absl::Time ask_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // The current or last call.
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  bool streaming_ ABSL_GUARDED_BY(mutex_) = false;
  // Null if there is no memory.
  std::shared_ptr<SlotPool> pool_ ABSL_GUARDED_BY(mutex_);
  // Null if no stream's server serves calls; stays until the stream ends.
  std::shared_ptr<SlotCaller> caller_ ABSL_GUARDED_BY(mutex_);
  // Declared last: its destructor waits for threads that use the channel's messages.
  BackgroundThreads receivers_;
};

}  // namespace ballast
