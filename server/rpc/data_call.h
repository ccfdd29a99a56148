// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/status/error_reason.h"
#include "common/wire/payload_message.h"
#include "server/rpc/call_phases.h"
#include "server/rpc/cancellable_wait.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/values_response.h"
#include "server/tables/message_rows.h"

namespace ballast {

// Owns one call: the client sends one message and gets one. Shared by gRPC, until OnDone, and by each callback that
// another thread still has to run; the last of them deletes the call. Thread safety: gRPC's methods as gRPC calls them;
// the others run in one thread at a time, and change nothing after the call has ended.
class DataPlane::Call : public grpc::ServerGenericBidiReactor, public std::enable_shared_from_this<Call> {
 public:
  using Handler = void (Call::*)();

  // Null `phases`: the call's time is not measured.
  static Call* Begin(Handler handler, CallPhases* phases, DataPlane* plane,
                     grpc::GenericCallbackServerContext* context);

  Call(Handler handler, CallPhases* phases, DataPlane* plane, grpc::GenericCallbackServerContext* context)
      : handler_(handler), plane_(plane), context_(context), timer_(phases, Clock::Real()) {}

  void Push();
  void Pull();
  void PushPull();
  void SetValues();
  void PullRows();
  void PushRows();

  void OnReadDone(bool ok) override;

  void OnCancel() override { wait_.Cancel(); }
  // gRPC has sent the response. A callback may keep the call for a moment longer, but not what the budget covers.
  void OnDone() override {
    timer_.End();
    if (span_ != nullptr) EndSpan();
    response_.Clear();
    reserved_.Release();
    values_reserved_.reset();
    const std::shared_ptr<Call> last = std::move(for_grpc_);
  }

 private:
  absl::string_view Method() const { return absl::StripPrefix(context_->method(), "/ballast.v1."); }
  // Checks the job that the request names, which is unknown when the call begins.
  absl::Status CheckJob(const std::string& job) const { return plane_->access_->CheckJob(*context_, Method(), job); }

  // Begins a span if the client traces the call.
  void BeginSpan();
  // Says for the span which worker's step the call is about.
  void Identify(uint32_t worker, uint64_t step) {
    if (span_ == nullptr) return;
    span_->peer = worker;
    span_->step = step;
  }
  void EndSpan();

  // Checks what is known before the message is read, and reserves memory for it.
  absl::Status Admit();

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

  // Handles the request, whose bytes are in shared memory if there is a reference.
  void Handle(const std::optional<v1::SharedSlot>& reference);

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

  // Copies the request from shared memory, into the budget reserved for a message from the network.
  absl::Status Borrow(const v1::SharedSlot& reference);
  // The bytes in the call followed by those in shared memory: in that order they are one message.
  ReceivedBytes Request() const {
    ReceivedBytes bytes = BytesOf(request_);
    if (slot_.has_value()) bytes.pieces.push_back(own_request_.bytes());
    return bytes;
  }

  // Frees the request and its reservation, except for `kept_bytes`: those of a response without values, until gRPC has
  // sent it.
  void DropRequest(uint64_t kept_bytes = 0) {
    request_.Clear();
    own_request_ = {};
    reserved_.ShrinkTo(kept_bytes);
  }

  void EndWith(grpc::ByteBuffer response);
  void End(const absl::Status& status);
  // Returns a callback that ends the call with `response`, or with an error if its durability fails.
  std::function<void(absl::Status)> Ending(grpc::ByteBuffer response);
  absl::Status OnShard(const absl::Status& status) const {
    return Annotate(status, absl::StrCat("shard ", plane_->rank_));
  }

  const Handler handler_;
  DataPlane* const plane_;
  grpc::GenericCallbackServerContext* const context_;
  // Changed before each step that may end the call in another thread.
  CallTimer timer_;
  // Null if the client does not trace the call.
  std::unique_ptr<CallSpan> span_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  // The budget of the request, then of the small response to a push.
  ByteBudget::Reservation reserved_;
  // The budget of a response with values until gRPC has sent it, which a peer that does not read delays. Shared with
  // values that gRPC sends from the shard's memory, which may be freed later.
  std::shared_ptr<ByteBudget::Reservation> values_reserved_;
  // OK if the caller may act as a worker; otherwise the reason.
  absl::Status as_worker_;
  // The shared-memory slot of request and response, if used. Nothing in it is read twice.
  std::optional<SlotView> slot_;
  // The request's copy.
  BufferPool::Buffer own_request_;
  CancellableWait wait_{[shard = plane_->shard_](WaitList::Ticket ticket) { shard->CancelPull(ticket); }};
  // Epoch of the shard map that the sender used.
  uint64_t map_epoch_ = 0;
  // gRPC's reference: it only knows an address. Null after OnDone.
  std::shared_ptr<Call> for_grpc_;
};

}  // namespace ballast
