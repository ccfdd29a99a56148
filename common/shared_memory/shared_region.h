// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ballast/v1/parameter_service.pb.h"
#include "common/wire/limits.h"

namespace ballast {

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

 private:
  SharedRegion(int descriptor, char* memory, uint32_t slots, uint64_t id)
      : descriptor_(descriptor), memory_(memory), slots_(slots), id_(id) {}
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
