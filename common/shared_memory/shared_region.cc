// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/shared_memory/shared_file.h"

namespace ballast {
namespace {

constexpr char kName[] = "ballast-shared-region";
// Otherwise, the other process could shrink the file, and access to it would crash this process.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kLineBytes = 64;
// Line 0 has the id and what the server offers.
constexpr uint64_t kOfferOffset = 8;
constexpr uint32_t kOffersCalls = 1;
constexpr uint64_t kPiecesOffset = 12;
constexpr uint32_t kTakesPieces = 1;
constexpr uint64_t kServerBellLine = SharedRegion::kMaxSlots + 1;
constexpr uint64_t kClientBellLine = SharedRegion::kMaxSlots + 2;
static_assert(kLineBytes * (kClientBellLine + 1) <= kPageBytes);
static_assert(SharedRegion::kSlotBytes % kPageBytes == 0);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

enum OwnerCode : uint32_t { kClient = 0, kLent = 1, kServer = 2, kCalled = 3, kAnswered = 4 };

// Flags of a call.
constexpr uint32_t kSampled = 1;
constexpr uint32_t kClientTakesPieces = 2;

// Who may use memory that a message lends.
enum LoanCode : uint32_t { kNoLoan = 0, kOpen = 1, kRead = 2, kWithdrawn = 3 };

bool Pass(std::atomic<uint32_t>& loan, LoanCode to) {
  uint32_t now = kOpen;
  return loan.compare_exchange_strong(now, to, std::memory_order_acq_rel);
}

}  // namespace

// Atomic throughout, because the other process may write at any time.
struct SharedRegion::Line {
  std::atomic<uint32_t> owner;
  std::atomic<uint32_t> method, offset, bytes;
  std::atomic<uint64_t> trace_high, trace_low, span;
  std::atomic<uint32_t> flags, code, cancelled;
  std::atomic<uint32_t> request_loan, response_loan;
};

uint64_t SharedRegion::BytesOf(uint32_t slots) { return kPageBytes + slots * kSlotBytes; }

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegion::Create(uint32_t slots) {
  const absl::StatusOr<MadeFile> made = MakeSharedFile(kName, BytesOf(slots), kSeals);
  if (!made.ok()) return made.status();
  const auto id = absl::Uniform<uint64_t>(absl::BitGen());
  std::memcpy(made->memory, &id, sizeof(id));
  return std::shared_ptr<SharedRegion>(new SharedRegion(made->descriptor, made->memory, slots, id));
}

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegion::Open(const v1::SharedRegion& description) {
  const auto error = [&](absl::string_view why) {
    return SharedFileError(description.process(), description.file(), why);
  };
  if (description.slots() == 0 || description.slots() > kMaxSlots || description.slot_bytes() != kSlotBytes) {
    return error(absl::StrCat("got ", description.slots(), " slots of ", description.slot_bytes(), " bytes, want 1 to ",
                              kMaxSlots, " of ", kSlotBytes));
  }
  const uint64_t bytes = BytesOf(description.slots());
  const absl::StatusOr<int> descriptor = OpenSharedFile({.process = description.process(),
                                                         .file = description.file(),
                                                         .name = kName,
                                                         .bytes = bytes,
                                                         .seals = kSeals,
                                                         .flags = O_RDWR});
  if (!descriptor.ok()) return descriptor.status();
  const absl::Cleanup close_it = [descriptor = *descriptor] { close(descriptor); };
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor, 0);
  if (memory == MAP_FAILED) return error(std::strerror(errno));
  std::shared_ptr<SharedRegion> region(
      new SharedRegion(-1, static_cast<char*>(memory), description.slots(), description.id()));
  uint64_t id = 0;
  std::memcpy(&id, memory, sizeof(id));
  if (id != description.id()) return error("has the id of another region");
  return region;
}

SharedRegion::~SharedRegion() {
  munmap(memory_, BytesOf(slots_));
  if (descriptor_ >= 0) close(descriptor_);
}

v1::SharedRegion SharedRegion::Describe() const {
  v1::SharedRegion description;
  description.set_id(id_);
  description.set_process(getpid());
  description.set_file(descriptor_);
  description.set_slots(slots_);
  description.set_slot_bytes(kSlotBytes);
  return description;
}

absl::Span<char> SharedRegion::Slot(uint32_t slot) const {
  return {memory_ + kPageBytes + slot * kSlotBytes, kSlotBytes};
}

SharedRegion::Line& SharedRegion::LineOf(uint32_t slot) const {
  static_assert(sizeof(Line) <= kLineBytes && std::atomic<uint64_t>::is_always_lock_free);
  return *std::launder(reinterpret_cast<Line*>(memory_ + kLineBytes * (slot + 1)));
}

std::atomic<uint32_t>& SharedRegion::Owner(uint32_t slot) const { return LineOf(slot).owner; }

void SharedRegion::Lend(uint32_t slot) { Owner(slot).store(kLent, std::memory_order_release); }

bool SharedRegion::TakeBack(uint32_t slot) {
  std::atomic<uint32_t>& owner = Owner(slot);
  uint32_t now = owner.load(std::memory_order_acquire);
  while (now != kClient) {
    if (now == kServer) return false;
    if (owner.compare_exchange_weak(now, kClient, std::memory_order_acq_rel)) break;
  }
  return true;
}

bool SharedRegion::Borrow(uint32_t slot) {
  uint32_t owner = kLent;
  return Owner(slot).compare_exchange_strong(owner, kServer, std::memory_order_acq_rel);
}

void SharedRegion::GiveBack(uint32_t slot) { Owner(slot).store(kClient, std::memory_order_release); }

void SharedRegion::OfferCalls(bool takes_pieces) {
  std::memcpy(memory_ + kOfferOffset, &kOffersCalls, sizeof(kOffersCalls));
  if (takes_pieces) std::memcpy(memory_ + kPiecesOffset, &kTakesPieces, sizeof(kTakesPieces));
}

bool SharedRegion::offers_calls() const {
  uint32_t offer = 0;
  std::memcpy(&offer, memory_ + kOfferOffset, sizeof(offer));
  return offer == kOffersCalls;
}

bool SharedRegion::takes_pieces() const {
  uint32_t offer = 0;
  std::memcpy(&offer, memory_ + kPiecesOffset, sizeof(offer));
  return offer == kTakesPieces;
}

void SharedRegion::Call(uint32_t slot, const SlotRequest& request) {
  WriteCall(slot, request);
  server_bell().Ring();
}

void SharedRegion::WriteCall(uint32_t slot, const SlotRequest& request) {
  Line& line = LineOf(slot);
  line.method.store(request.method, std::memory_order_relaxed);
  line.offset.store(request.offset, std::memory_order_relaxed);
  line.bytes.store(request.bytes, std::memory_order_relaxed);
  line.trace_high.store(request.caller.trace_high, std::memory_order_relaxed);
  line.trace_low.store(request.caller.trace_low, std::memory_order_relaxed);
  line.span.store(request.caller.span, std::memory_order_relaxed);
  line.flags.store((request.caller.sampled ? kSampled : 0) | (request.takes_pieces ? kClientTakesPieces : 0),
                   std::memory_order_relaxed);
  line.cancelled.store(0, std::memory_order_relaxed);
  line.request_loan.store(request.in_pieces ? kOpen : kNoLoan, std::memory_order_relaxed);
  line.response_loan.store(kNoLoan, std::memory_order_relaxed);
  line.owner.store(kCalled, std::memory_order_release);
}

std::optional<SlotResponse> SharedRegion::TakeResponse(uint32_t slot) {
  Line& line = LineOf(slot);
  if (line.owner.load(std::memory_order_acquire) != kAnswered) return std::nullopt;
  const SlotResponse response = {.code = line.code.load(std::memory_order_relaxed),
                                 .offset = line.offset.load(std::memory_order_relaxed),
                                 .bytes = line.bytes.load(std::memory_order_relaxed),
                                 .in_pieces = line.response_loan.load(std::memory_order_relaxed) != kNoLoan};
  line.owner.store(kClient, std::memory_order_release);
  return response;
}

void SharedRegion::CancelCall(uint32_t slot) {
  LineOf(slot).cancelled.store(1, std::memory_order_release);
  server_bell().Ring();
}

std::optional<SlotRequest> SharedRegion::TakeCall(uint32_t slot) {
  Line& line = LineOf(slot);
  uint32_t owner = kCalled;
  if (line.owner.load(std::memory_order_relaxed) != kCalled ||
      !line.owner.compare_exchange_strong(owner, kServer, std::memory_order_acq_rel)) {
    return std::nullopt;
  }
  const uint32_t flags = line.flags.load(std::memory_order_relaxed);
  return SlotRequest{.method = line.method.load(std::memory_order_relaxed),
                     .offset = line.offset.load(std::memory_order_relaxed),
                     .bytes = line.bytes.load(std::memory_order_relaxed),
                     .in_pieces = line.request_loan.load(std::memory_order_relaxed) != kNoLoan,
                     .takes_pieces = (flags & kClientTakesPieces) != 0,
                     .caller = {.trace_high = line.trace_high.load(std::memory_order_relaxed),
                                .trace_low = line.trace_low.load(std::memory_order_relaxed),
                                .span = line.span.load(std::memory_order_relaxed),
                                .sampled = (flags & kSampled) != 0}};
}

bool SharedRegion::TakeCancel(uint32_t slot) {
  std::atomic<uint32_t>& cancelled = LineOf(slot).cancelled;
  return cancelled.load(std::memory_order_relaxed) != 0 && cancelled.exchange(0, std::memory_order_acq_rel) != 0;
}

void SharedRegion::Respond(uint32_t slot, const SlotResponse& response) {
  Line& line = LineOf(slot);
  line.code.store(response.code, std::memory_order_relaxed);
  line.offset.store(response.offset, std::memory_order_relaxed);
  line.bytes.store(response.bytes, std::memory_order_relaxed);
  line.response_loan.store(response.in_pieces ? kOpen : kNoLoan, std::memory_order_relaxed);
  line.owner.store(kAnswered, std::memory_order_release);
  client_bell().Ring();
}

void SharedRegion::WithdrawRequest(uint32_t slot) { Pass(LineOf(slot).request_loan, kWithdrawn); }

bool SharedRegion::EndRequestLoan(uint32_t slot) { return Pass(LineOf(slot).request_loan, kRead); }

bool SharedRegion::EndResponseLoan(uint32_t slot) { return Pass(LineOf(slot).response_loan, kRead); }

bool SharedRegion::LendsResponse(uint32_t slot) const {
  return LineOf(slot).response_loan.load(std::memory_order_acquire) == kOpen;
}

void SharedRegion::WithdrawResponse(uint32_t slot) { Pass(LineOf(slot).response_loan, kWithdrawn); }

Doorbell& SharedRegion::server_bell() const {
  return *std::launder(reinterpret_cast<Doorbell*>(memory_ + kLineBytes * kServerBellLine));
}

Doorbell& SharedRegion::client_bell() const {
  return *std::launder(reinterpret_cast<Doorbell*>(memory_ + kLineBytes * kClientBellLine));
}

std::string MachineId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return absl::StrCat(boot, ":", LinkTarget("/proc/self/ns/pid"), ":", LinkTarget("/proc/self/ns/net"), ":", geteuid());
}

}  // namespace ballast
