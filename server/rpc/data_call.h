// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/status/error_reason.h"
#include "common/wire/limits.h"
#include "common/wire/payload_message.h"
#include "server/rpc/call_phases.h"
#include "server/rpc/cancellable_wait.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/values_response.h"
#include "server/tables/message_rows.h"

namespace ballast {

// Owns one call: the client sends one message and gets one. What carries them is the subclass's part: it makes the
// call when the client begins it, passes the request to Handle, and sends what Send and Fail get. Shared by its
// carrier, until the response has left, and by each callback that another thread still has to run; the last of them
// deletes the call. Thread safety: Cancel may be called from any thread; the others run in one thread at a time, and
// change nothing after the call has ended.
class DataPlane::Call : public std::enable_shared_from_this<Call> {
 public:
  using Handler = void (Call::*)();
  struct Method {
    // "/ballast.v1.ParameterService/Push".
    absl::string_view path;
    Handler handler;
    // Null: the call's time is not measured.
    CallPhases* phases;
  };
  static std::array<Method, 6> Methods(DataPlane& plane);
  // Returns the method of a direct call, whose number is an index in kDirectMethods.
  static Method DirectMethod(DataPlane& plane, uint32_t number);

  virtual ~Call() = default;

  // Ends the call's wait for other workers.
  void Cancel() { wait_.Cancel(); }

  void Push();
  void Pull();
  void PushPull();
  void SetValues();
  void PullRows();
  void PushRows();

 protected:
  Call(const Method& method, DataPlane* plane)
      : handler_(method.handler), path_(method.path), plane_(plane), timer_(method.phases, Clock::Real()) {}

  // The carrier's part, of a call that has not ended yet. Both end it.
  virtual void Send(grpc::ByteBuffer response) = 0;
  virtual void Fail(const absl::Status& status) = 0;
  // The shard has taken the request's gradients.
  virtual void Pushed(const PushOutcome&) {}
  // Returns whether an answer's values may stay where they are.
  virtual bool TakesPieces() const { return false; }
  // Soon calls `then`, which keeps the call, in a thread for the client.
  virtual void RunLater(absl::AnyInvocable<void() &&> then) = 0;
  // The token that the client presented; valid as long as the call.
  virtual absl::string_view Token() const = 0;
  // The client's address.
  virtual std::string Peer() const = 0;

  // Begins a span for a call that the client traces.
  void BeginSpan(const TraceContext& caller);
  // The same for a direct call, if the client traces it.
  void BeginDirectSpan(const TraceContext& caller);
  // Checks what is known before the message is read, and reserves memory for it and for what is parsed from it.
  // `request_bytes`: its size, if that is known.
  absl::Status Admit(uint64_t request_bytes = kMaxMessageBytes);
  // Handles the request, which is `connection_part` followed by `memory_parts`. Takes both.
  void Handle(grpc::ByteBuffer& connection_part, std::vector<BufferPool::Buffer> memory_parts);
  // The same with one part in memory, which may be empty.
  void Handle(grpc::ByteBuffer& connection_part, BufferPool::Buffer memory_part);
  void End(const absl::Status& status);
  // The response has left. A callback may keep the call for a moment longer, but not what the budget covers.
  void Sent();
  // The same for a response whose values are still read where they are, but no longer count.
  void SentInPieces();

  // Returns whether the request has gradients of slices, so that it is about as large as its response.
  bool PushesSlices() const { return handler_ == &Call::Push || handler_ == &Call::PushPull; }
  absl::Status OnShard(const absl::Status& status) const {
    return Annotate(status, absl::StrCat("shard ", plane_->rank_));
  }
  DataPlane& plane() const { return *plane_; }
  CallTimer& timer() { return timer_; }

 private:
  // Returns "ParameterService/Push".
  absl::string_view Name() const { return absl::StripPrefix(path_, "/ballast.v1."); }
  // Checks the job that the request names, which is unknown when the call begins.
  absl::Status CheckJob(const std::string& job) const { return plane_->access_->CheckJob(Token(), Name(), job); }

  // Says for the span which worker's step the call is about.
  void Identify(uint32_t worker, uint64_t step) {
    if (span_ == nullptr) return;
    span_->peer = worker;
    span_->step = step;
  }
  void EndSpan();

  ByteBudget& Budget() { return as_worker_.ok() ? plane_->budget_ : plane_->reader_budget_; }

  struct ResponseOptions {
    uint32_t wait_ms = 0;
    v1::Encoding encoding = v1::ENCODING_UNSPECIFIED;
  };
  // A push that the shard has accepted.
  template <typename Envelope>
  struct Taken {
    Envelope envelope;
    std::vector<SliceKey> keys;
    PushOutcome outcome;
  };

  // Returns decode(most items), at first with as many as the request's reservation covers: an item may have 2 bytes in
  // a message. If that fails, reserves as much as for the largest message.
  template <typename Decode>
  auto DecodeCovered(size_t most_items, Decode decode) -> decltype(decode(most_items)) {
    // All that is parsed from an item, and looked up for it.
    constexpr uint64_t kItemBytes = 256;
    const size_t covered = reserved_.bytes() / kItemBytes;
    if (covered >= most_items) return decode(most_items);
    if (auto decoded = decode(covered); decoded.ok()) return decoded;
    if (reserved_.bytes() < kMaxMessageBytes) {
      absl::StatusOr<ByteBudget::Reservation> rest = Budget().Reserve(kMaxMessageBytes - reserved_.bytes());
      if (!rest.ok()) return rest.status();
      reserved_.Add(*std::move(rest));
    }
    return decode(most_items);
  }

  // Decodes the request, checks its envelope with `check`, and passes it to the shard.
  template <typename Envelope, typename Check>
  absl::StatusOr<Taken<Envelope>> TakePush(Check check);

  // Waits as `pull` requires, then ends the call with `envelope` and the slices' values.
  template <typename Response>
  void AnswerWithValues(const std::string& job, const PullQuery& pull, std::vector<SliceKey> keys,
                        const ResponseOptions& options, const Response& envelope);

  // Ends the call with the rows of each query, which `orders` has; `bytes`: their size as fp32.
  void AnswerWithRows(const v1::PullRowsRequest& request, absl::Span<const MessageRows> orders, uint64_t bytes,
                      const Codec& codec);

  // All parts of the request: in their order they are one message.
  ReceivedBytes Request() const {
    ReceivedBytes bytes = BytesOf(request_);
    for (const BufferPool::Buffer& part : memory_parts_) {
      if (!part.bytes().empty()) bytes.pieces.push_back(part.bytes());
    }
    return bytes;
  }

  // Frees the request and its reservation, except for `kept_bytes`: those of a response without values, until it has
  // left.
  void DropRequest(uint64_t kept_bytes = 0) {
    request_.Clear();
    memory_parts_.clear();
    reserved_.ShrinkTo(kept_bytes);
  }

  // Calls `then`, which answers the call after a wait: in this thread, or, if the work is for another client's call, in
  // a thread for this call's client. Otherwise the worker that ends a wait would have the answers to all others written
  // before its own. `lends`: the answer may lend its values instead of copying or encoding them.
  void RunForClient(absl::AnyInvocable<void() &&> then, bool lends);

  void EndWith(grpc::ByteBuffer response);
  // Returns a callback that ends the call with `response`, or with an error if its durability fails.
  std::function<void(absl::Status)> Ending(grpc::ByteBuffer response);

  const Handler handler_;
  const absl::string_view path_;
  DataPlane* const plane_;
  // Changed before each step that may end the call in another thread.
  CallTimer timer_;
  // Null if the client does not trace the call.
  std::unique_ptr<CallSpan> span_;
  grpc::ByteBuffer request_;
  // The copy of what was in shared memory, or what came on a data stream.
  std::vector<BufferPool::Buffer> memory_parts_;
  // The budget of the request, then of the small response to a push.
  ByteBudget::Reservation reserved_;
  // The budget of a response with values until it has left, which a peer that does not read delays. Shared with values
  // that gRPC sends from the shard's memory, which may be freed later.
  std::shared_ptr<ByteBudget::Reservation> values_reserved_;
  // OK if the caller may act as a worker; otherwise the reason.
  absl::Status as_worker_;
  CancellableWait wait_{[shard = plane_->shard_](WaitList::Ticket ticket) { shard->CancelPull(ticket); }};
  // Epoch of the shard map that the sender used.
  uint64_t map_epoch_ = 0;
  // Size of a push-pull's request, which is about that of its response; otherwise unknown.
  uint64_t response_bytes_ = std::numeric_limits<uint64_t>::max();
};

}  // namespace ballast
