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

// One process's mapping of memory that a server shares with one client, in slots of a message each; v1.SharedRegion
// says how it is laid out and handed to and fro. Whatever the other side does, the memory stays mapped and as long as
// it is; what lies in it may change at any time. Knows nothing of what it carries. Thread safety: all methods may be
// called from any thread; a slot's bytes are its owner's.
class SharedRegion {
 public:
  static constexpr uint32_t kMaxSlots = 60;
  // Room for the largest message, and for a little in front of it.
  static constexpr uint64_t kSlotBytes = kMaxMessageBytes + (64 << 10);

  // What so many slots take in all.
  static uint64_t BytesOf(uint32_t slots);

  // New memory of this process, without a name in any file system. RESOURCE_EXHAUSTED where the machine has none.
  static absl::StatusOr<std::shared_ptr<SharedRegion>> Create(uint32_t slots);
  // Memory that another process of this machine described. FAILED_PRECONDITION where this process cannot have it, or it
  // is not what is described.
  static absl::StatusOr<std::shared_ptr<SharedRegion>> Open(const v1::SharedRegion& description);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;

  // For the client, by whoever created it.
  v1::SharedRegion Describe() const;
  uint64_t id() const { return id_; }
  uint32_t slots() const { return slots_; }

  // `slot` is less than slots().
  absl::Span<char> Slot(uint32_t slot) const;

  // The client's moves: lends a slot of its own to the server; has it back, which is false while the server uses it.
  void Lend(uint32_t slot);
  bool TakeBack(uint32_t slot);

  // The server's moves: takes a slot that is lent, which is false where it is not; gives back what it took.
  bool Borrow(uint32_t slot);
  void GiveBack(uint32_t slot);

 private:
  SharedRegion(int descriptor, char* memory, uint32_t slots, uint64_t id)
      : descriptor_(descriptor), memory_(memory), slots_(slots), id_(id) {}
  std::atomic<uint32_t>& Owner(uint32_t slot) const;

  // -1 where the memory is another process's.
  const int descriptor_;
  char* const memory_;
  const uint32_t slots_;
  const uint64_t id_;
};

// Which machine this process can share memory on, and as which user: equal for two processes that can. Two network
// namespaces count as two machines: an emulated network would otherwise be bypassed.
std::string MachineId();

}  // namespace ballast
