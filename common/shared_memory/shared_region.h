// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/shared_memory/doorbell.h"
#include "common/trace/trace_context.h"
#include "common/wire/limits.h"

namespace ballast {

// A call made in a slot, as v1.SharedRegion defines it: what the client writes beside the slot.
struct SlotRequest {
  // Index in kDirectMethods.
  uint32_t method = 0;
  // Place of the message in the slot. The server has checked neither.
  uint32_t offset = 0;
  uint32_t bytes = 0;
  // The message is in pieces (shared_message.h).
  bool in_pieces = false;
  // The client reads the server's heap, so that the response may be in pieces.
  bool takes_pieces = false;
  // The span that makes the call, as in `traceparent`; 0: the call is not traced.
  TraceContext caller;
};

// The end of a call made in a slot: what the server writes beside the slot.
struct SlotResponse {
  // gRPC's status code. Unless it is 0, the slot holds an error (EncodeDirectError) instead of a message.
  uint32_t code = 0;
  uint32_t offset = 0;
  uint32_t bytes = 0;
  // The message is in pieces. The client must call EndResponseLoan.
  bool in_pieces = false;
};

// Owns one process's mapping of memory that a server shares with one client, in slots of one message each;
// v1.SharedRegion defines the layout and the handover of slots. Invariant: whatever the other process does, the
// memory stays mapped and keeps its size, but its content may change at any time. Does not know the messages. Thread
// safety: all methods may be called from any thread; a slot's bytes belong to its owner.
class SharedRegion {
 public:
  static constexpr uint32_t kMaxSlots = 60;
  // Fits the largest message, plus padding before it.
  static constexpr uint64_t kSlotBytes = kMaxMessageBytes + (64 << 10);

  // Returns the total size of a region with that many slots.
  static uint64_t BytesOf(uint32_t slots);

  // Allocates memory of this process without a name in any file system. RESOURCE_EXHAUSTED if none is left.
  static absl::StatusOr<std::shared_ptr<SharedRegion>> Create(uint32_t slots);
  // Maps memory that another process on this machine described. FAILED_PRECONDITION if this process cannot access it,
  // or it does not match the description.
  static absl::StatusOr<std::shared_ptr<SharedRegion>> Open(const v1::SharedRegion& description);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;

  // Returns the description for the client; only valid in the process that created the region.
  v1::SharedRegion Describe() const;
  uint64_t id() const { return id_; }
  uint32_t slots() const { return slots_; }

  // All of the mapping, from the beginning of a page.
  absl::Span<char> memory() const { return {memory_, BytesOf(slots_)}; }
  // `slot` is less than slots().
  absl::Span<char> Slot(uint32_t slot) const;

  // Called by the client: Lend passes one of its slots to the server; TakeBack returns false while the server uses
  // it.
  void Lend(uint32_t slot);
  bool TakeBack(uint32_t slot);

  // Called by the server: Borrow returns false if the slot is not lent; GiveBack returns a borrowed slot.
  bool Borrow(uint32_t slot);
  void GiveBack(uint32_t slot);

  // Called by the server, before the client opens the region: it serves calls in slots, and takes requests in pieces if
  // it reads the client's heap.
  void OfferCalls(bool takes_pieces);
  // Returns whether the server does.
  bool offers_calls() const;
  bool takes_pieces() const;

  // Called by the client. Call begins a call with the message in one of its slots, which is the server's until
  // TakeResponse returns the response, or TakeBack true. CancelCall asks the server to end the call soon. WriteCall is
  // Call without ringing the server's bell, which must be next.
  void Call(uint32_t slot, const SlotRequest& request);
  void WriteCall(uint32_t slot, const SlotRequest& request);
  std::optional<SlotResponse> TakeResponse(uint32_t slot);
  void CancelCall(uint32_t slot);

  // Called by the server. TakeCall begins to serve a call, if there is a new one in the slot, with Respond to end it.
  // TakeCancel returns whether the client has asked to end the call since the last TakeCancel.
  std::optional<SlotRequest> TakeCall(uint32_t slot);
  bool TakeCancel(uint32_t slot);
  void Respond(uint32_t slot, const SlotResponse& response);

  // A message in pieces lends memory of its sender's heap, from Call or Respond until the receiver ends the loan or the
  // sender withdraws it. The receiver first reads everything, then ends the loan; if that returns false, the sender has
  // withdrawn it, and what was read is worth nothing. So neither waits for the other. The client withdraws a request
  // and ends the loan of a response.
  void WithdrawRequest(uint32_t slot);
  bool EndRequestLoan(uint32_t slot);
  void WithdrawResponse(uint32_t slot);
  bool EndResponseLoan(uint32_t slot);
  // Called by the server: returns whether the loan of the slot's last response has not ended yet.
  bool LendsResponse(uint32_t slot) const;

  // Rung for the server when there is a new or a cancelled call, and for the client when there is a response.
  Doorbell& server_bell() const;
  Doorbell& client_bell() const;

 private:
  struct Line;

  SharedRegion(int descriptor, char* memory, uint32_t slots, uint64_t id)
      : descriptor_(descriptor), memory_(memory), slots_(slots), id_(id) {}
  Line& LineOf(uint32_t slot) const;
  std::atomic<uint32_t>& Owner(uint32_t slot) const;

  // -1 if another process created the memory.
  const int descriptor_;
  char* const memory_;
  const uint32_t slots_;
  const uint64_t id_;
};

// Identifies the machine, namespaces and user: equal for two processes that can share memory. Two network namespaces
// count as two machines, because shared memory would otherwise bypass an emulated network.
std::string MachineId();

}  // namespace ballast
