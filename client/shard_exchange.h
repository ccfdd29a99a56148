// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/parameter_service.pb.h"
#include "client/data_stream/stream_caller.h"
#include "client/error_feedback.h"
#include "client/rows/row_message.h"
#include "client/shared_memory/slot_sender.h"
#include "client/slice_message.h"
#include "common/rpc/call_attempt.h"
#include "common/trace/trace_context.h"
#include "common/wire/payload_message.h"
#include "grpcpp/channel.h"

namespace ballast {

// The result of one message.
struct ShardReply {
  absl::Status status;
  v1::PushOutcome outcome;
  v1::SetValuesResponse set;
  v1::RowsOutcome rows;
  // Clocks of the tables' rows if the message pulled.
  RowClocks clocks;
  // Versions of the slices' values if the message pulled.
  std::vector<uint64_t> versions;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint32_t retries = 0;
  // When the response began to arrive (equal to `answered` if responses are not watched), and when it was decoded.
  absl::Time answer_begun;
  absl::Time answered;
};

// One message's worth of slices or of rows.
struct ShardMessage {
  enum class Kind { kPush, kPull, kPushPull, kSetValues, kPullRows, kPushRows };
  Kind kind = Kind::kPush;
  // The client's call that this message is part of, from 1.
  uint64_t operation = 0;
  uint64_t step = 0;
  uint32_t examples = 0;
  std::optional<double> schedule_position;
  std::vector<SliceTransfer> slices;
  // Called once, with the message itself, after which the caller's memory belongs to the caller again.
  absl::AnyInvocable<void(const ShardMessage&, ShardReply)> done;
  // Used by kPullRows and kPushRows instead of slices.
  std::vector<RowRun> rows;
  // See PushRowsRequest.
  uint32_t messages_of_step = 0;

  // True for messages with gradients, which have a sequence number.
  bool pushes() const { return kind == Kind::kPush || kind == Kind::kPushPull || kind == Kind::kPushRows; }
  // True for messages that may wait on the server for other workers.
  bool may_wait() const { return kind == Kind::kPull || kind == Kind::kPushPull || kind == Kind::kPullRows; }
  // Returns the call's name for errors, such as "push-pull".
  const char* name() const;
};

// Returns the full name of the call's method: "/ballast.v1.ParameterService/Push".
const std::string& MethodOf(ShardMessage::Kind kind);

// The state of a message in flight:
//
//           attempt                  attempt
//   kTaken ---------> kFirstAttempt ---------> kRetry (and again at each further attempt)
//     |                 |         |              |
//     | failure         | success | failure      | success or failure
//     |                 |         |              |
//     +-----------------|---------+--------------+-----> kLent
//                       v                                  |
//                     kDone <------------------------------+
//                                       release
//
// The server has all bytes of a first attempt that succeeded. In any other case gRPC may still have bytes to send from
// the caller's memory, so the caller gets it back only when gRPC releases it.
enum class ExchangeState { kTaken, kFirstAttempt, kRetry, kLent, kDone };
// `kSuccess` and `kFailure` end the call with all its attempts.
enum class ExchangeEvent { kAttempt, kSuccess, kFailure, kRelease };

// Returns the state after the event, or the same state if the event does not occur in it.
ExchangeState Next(ExchangeState state, ExchangeEvent event);

// The sender of a message, and how the shard is to respond.
struct ExchangeOptions {
  std::string job;
  uint32_t worker = 0;
  uint64_t incarnation = 1;
  // Encoding of pulled values.
  v1::Encoding values = v1::ENCODING_FP32;
  // True if the server must remember the values that the worker pulled.
  bool names_worker_in_pulls = false;
  bool watch_answers = false;
};

// The ways to a shard besides gRPC. Only a first attempt takes them: what fails there is made again over gRPC.
struct DirectRoutes {
  // Shared memory; null: none.
  SlotSender* slot_sender = nullptr;
  // A data stream; null: none is open.
  std::shared_ptr<StreamCaller> stream;
};

// Owns a message on its way to a shard and back: its state, its bytes and the memory lent to gRPC. A gradient is
// encoded once, so that a retry sends the same bytes. Does not know queues, connections, or when a call is retried.
// Thread safety: none; a call makes one attempt at a time.
class ShardExchange {
 public:
  // `sequence` is 0 if the message has no gradients. The options outlive this.
  ShardExchange(ShardMessage message, uint64_t sequence, const ExchangeOptions* options)
      : message_(std::move(message)), sequence_(sequence), options_(*options) {}

  // Encodes the message's gradients; call it before the first attempt. Null for fp32, which is lent without a copy.
  // Rows are always copied, because they are sent in another order than the caller's.
  void Prepare(ErrorFeedback* feedback);

  // Starts an attempt in which the server may wait for `wait_ms`; calls `end` after it. The attempt takes the first of
  // `routes` that is open, otherwise `channel`. `span` makes the attempt; null: it is not traced.
  void StartAttempt(uint64_t map_epoch, uint32_t wait_ms, const DirectRoutes& routes,
                    const std::shared_ptr<grpc::Channel>& channel, CallAttempt* attempt, const TraceContext* span,
                    std::function<void(grpc::Status)> end);

  // Ends the call with the status of its last attempt. `shard` names the shard in errors.
  ShardReply End(absl::Status status, absl::FunctionRef<std::string()> shard);

  // Calls `then`, which may own this, once gRPC has released the memory of an exchange in kLent.
  void WhenReleased(absl::AnyInvocable<void()> then);

  ExchangeState state() const { return state_; }
  uint64_t sequence() const { return sequence_; }
  ShardMessage& message() { return message_; }
  const ShardMessage& message() const { return message_; }
  // Size of the last attempt's request, also if it was in shared memory.
  uint64_t attempt_bytes_sent() const { return attempt_bytes_sent_; }
  // Size of the last attempt's response once the attempt has ended, also if it was in shared memory.
  uint64_t attempt_bytes_received() const;

 private:
  // Calls the server through the loan's slot; returns whether it serves such calls. After that the attempt may have
  // ended.
  bool StartInSlot(CallAttempt& attempt, const TraceContext* span, const std::function<void(grpc::Status)>& end);
  // Calls the server on the stream; returns whether that takes the call.
  bool StartOnStream(const std::shared_ptr<StreamCaller>& stream, const grpc::ByteBuffer& request, CallAttempt& attempt,
                     const TraceContext* span, const std::function<void(grpc::Status)>& end);
  // Returns where the response's payloads go, if it has any.
  PayloadPlaces Places() const;
  // Returns the number of the response's field with values; 0 if it has none.
  int ValuesField() const;
  // Returns the approximate size of the larger of request and response.
  uint64_t Bytes() const;
  v1::PushHeader Header(uint64_t map_epoch) const;
  grpc::ByteBuffer Encode(uint64_t map_epoch, uint32_t wait_ms) const;
  // Encodes a request and, if `slot_sender` is not null and has room, copies it to shared memory; `loan_` then holds it
  // and is to be sent. Gradients with copiers are fetched to where they are sent from.
  absl::StatusOr<grpc::ByteBuffer> MakeRequest(uint64_t map_epoch, uint32_t wait_ms, SlotSender* slot_sender);
  // Fetches gradients with copiers into the caller's memory, once.
  absl::Status FetchGradients();
  grpc::ByteBuffer EncodeRows(uint64_t map_epoch, uint32_t wait_ms) const;
  // The response that is in the loan's slot.
  absl::StatusOr<ReceivedBytes> AnswerIn(const SlotResponse& response) const;
  // The response that came over gRPC or a stream; its payload may be in the loan's slot.
  absl::StatusOr<ReceivedBytes> Answer() const;
  absl::StatusOr<ShardReply> Decode(const absl::StatusOr<ReceivedBytes>& bytes) const;
  absl::Status DecodeResponse(const ReceivedBytes& bytes, ShardReply& reply) const;

  ShardMessage message_;
  const uint64_t sequence_;
  const ExchangeOptions& options_;
  ExchangeState state_ = ExchangeState::kTaken;
  MemoryHold hold_;
  // Empty for a pull.
  std::vector<GradientPayload> payloads_;
  std::vector<RowPayload> row_payloads_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  // Shared memory for the first attempt's request and response, if used.
  std::optional<BlockLoan> loan_;
  // The response to a call in the loan's slot, decoded as it came, because the server wants back what it lent.
  std::optional<absl::StatusOr<ShardReply>> decoded_;
  uint32_t retries_ = 0;
  uint64_t bytes_sent_ = 0;
  uint64_t attempt_bytes_sent_ = 0;
  // True once FetchGradients succeeded.
  bool fetched_ = false;
  // Set only if responses are watched.
  absl::Time answer_begun_ = absl::InfiniteFuture();
};

}  // namespace ballast
