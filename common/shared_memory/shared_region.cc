// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

constexpr char kName[] = "ballast-shared-region";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kLineBytes = 64;
// Line 0 has the id and what the server offers.
constexpr uint64_t kOfferOffset = 8;
constexpr uint32_t kOffersCalls = 1;
constexpr uint64_t kServerBellLine = SharedRegion::kMaxSlots + 1;
constexpr uint64_t kClientBellLine = SharedRegion::kMaxSlots + 2;
static_assert(kLineBytes * (kClientBellLine + 1) <= kPageBytes);
static_assert(SharedRegion::kSlotBytes % kPageBytes == 0);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

enum OwnerCode : uint32_t { kClient = 0, kLent = 1, kServer = 2, kCalled = 3, kAnswered = 4 };

constexpr uint32_t kSampled = 1;

std::string LinkTarget(const std::string& path) {
  char target[256];
  const ssize_t size = readlink(path.c_str(), target, sizeof(target));
  return size < 0 ? std::string() : std::string(target, size);
}

// Returns null on failure, with errno set.
char* Map(int descriptor, uint64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

}  // namespace

// Atomic throughout, because the other process may write at any time.
struct SharedRegion::Line {
  std::atomic<uint32_t> owner;
  std::atomic<uint32_t> method, offset, bytes;
  std::atomic<uint64_t> trace_high, trace_low, span;
  std::atomic<uint32_t> flags, code, cancelled;
};

uint64_t SharedRegion::BytesOf(uint32_t slots) { return kPageBytes + slots * kSlotBytes; }

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegion::Create(uint32_t slots) {
  const uint64_t bytes = BytesOf(slots);
  const auto error = [&](const char* call) {
    return WithReason(v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE,
                      absl::ResourceExhaustedError(
                          absl::StrCat("shared memory of ", bytes, " bytes: ", call, ": ", std::strerror(errno))));
  };
  const int descriptor = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return error("memfd_create");
  absl::Cleanup close_it = [descriptor] { close(descriptor); };
  if (ftruncate(descriptor, bytes) != 0) return error("ftruncate");
  // Without the seals, the other process could shrink the file, and access to it would crash this process.
  if (fcntl(descriptor, F_ADD_SEALS, kSeals) != 0) return error("sealing it");
  char* const memory = Map(descriptor, bytes);
  if (memory == nullptr) return error("mmap");
  std::move(close_it).Cancel();
  const auto id = absl::Uniform<uint64_t>(absl::BitGen());
  std::memcpy(memory, &id, sizeof(id));
  return std::shared_ptr<SharedRegion>(new SharedRegion(descriptor, memory, slots, id));
}

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegion::Open(const v1::SharedRegion& description) {
  const std::string path = absl::StrCat("/proc/", description.process(), "/fd/", description.file());
  const auto error = [&](absl::string_view why) {
    return WithReason(v1::ERROR_REASON_SHARED_MEMORY_UNAVAILABLE,
                      absl::FailedPreconditionError(absl::StrCat("shared memory at ", path, ": ", why)));
  };
  if (description.slots() == 0 || description.slots() > kMaxSlots || description.slot_bytes() != kSlotBytes) {
    return error(absl::StrCat("got ", description.slots(), " slots of ", description.slot_bytes(), " bytes, want 1 to ",
                              kMaxSlots, " of ", kSlotBytes));
  }
  // Checked before open, because opening any other kind of file could have an effect.
  if (!absl::StartsWith(LinkTarget(path), absl::StrCat("/memfd:", kName))) {
    return error("is not memory that Ballast shares");
  }
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return error(std::strerror(errno));
  const absl::Cleanup close_it = [descriptor] { close(descriptor); };
  const uint64_t bytes = BytesOf(description.slots());
  struct stat found = {};
  if (fstat(descriptor, &found) != 0 || static_cast<uint64_t>(found.st_size) != bytes ||
      (fcntl(descriptor, F_GET_SEALS) & kSeals) != kSeals) {
    return error(absl::StrCat("is not ", bytes, " bytes that cannot shrink"));
  }
  char* const memory = Map(descriptor, bytes);
  if (memory == nullptr) return error(std::strerror(errno));
  std::shared_ptr<SharedRegion> region(new SharedRegion(-1, memory, description.slots(), description.id()));
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

void SharedRegion::OfferCalls() { std::memcpy(memory_ + kOfferOffset, &kOffersCalls, sizeof(kOffersCalls)); }

bool SharedRegion::offers_calls() const {
  uint32_t offer = 0;
  std::memcpy(&offer, memory_ + kOfferOffset, sizeof(offer));
  return offer == kOffersCalls;
}

void SharedRegion::Call(uint32_t slot, const SlotRequest& request) {
  Line& line = LineOf(slot);
  line.method.store(request.method, std::memory_order_relaxed);
  line.offset.store(request.offset, std::memory_order_relaxed);
  line.bytes.store(request.bytes, std::memory_order_relaxed);
  line.trace_high.store(request.caller.trace_high, std::memory_order_relaxed);
  line.trace_low.store(request.caller.trace_low, std::memory_order_relaxed);
  line.span.store(request.caller.span, std::memory_order_relaxed);
  line.flags.store(request.caller.sampled ? kSampled : 0, std::memory_order_relaxed);
  line.cancelled.store(0, std::memory_order_relaxed);
  line.owner.store(kCalled, std::memory_order_release);
  server_bell().Ring();
}

std::optional<SlotResponse> SharedRegion::TakeResponse(uint32_t slot) {
  Line& line = LineOf(slot);
  if (line.owner.load(std::memory_order_acquire) != kAnswered) return std::nullopt;
  const SlotResponse response = {.code = line.code.load(std::memory_order_relaxed),
                                 .offset = line.offset.load(std::memory_order_relaxed),
                                 .bytes = line.bytes.load(std::memory_order_relaxed)};
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
  return SlotRequest{.method = line.method.load(std::memory_order_relaxed),
                     .offset = line.offset.load(std::memory_order_relaxed),
                     .bytes = line.bytes.load(std::memory_order_relaxed),
                     .caller = {.trace_high = line.trace_high.load(std::memory_order_relaxed),
                                .trace_low = line.trace_low.load(std::memory_order_relaxed),
                                .span = line.span.load(std::memory_order_relaxed),
                                .sampled = (line.flags.load(std::memory_order_relaxed) & kSampled) != 0}};
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
  line.owner.store(kAnswered, std::memory_order_release);
  client_bell().Ring();
}

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
