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
constexpr uint64_t kOwnerSpacing = 64;
static_assert(kOwnerSpacing * (SharedRegion::kMaxSlots + 1) <= kPageBytes);
static_assert(SharedRegion::kSlotBytes % kPageBytes == 0);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

enum OwnerCode : uint32_t { kClient = 0, kLent = 1, kServer = 2 };

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

std::atomic<uint32_t>& SharedRegion::Owner(uint32_t slot) const {
  return *std::launder(reinterpret_cast<std::atomic<uint32_t>*>(memory_ + kOwnerSpacing * (slot + 1)));
}

void SharedRegion::Lend(uint32_t slot) { Owner(slot).store(kLent, std::memory_order_release); }

bool SharedRegion::TakeBack(uint32_t slot) {
  uint32_t owner = kLent;
  return Owner(slot).compare_exchange_strong(owner, kClient, std::memory_order_acq_rel) || owner == kClient;
}

bool SharedRegion::Borrow(uint32_t slot) {
  uint32_t owner = kLent;
  return Owner(slot).compare_exchange_strong(owner, kServer, std::memory_order_acq_rel);
}

void SharedRegion::GiveBack(uint32_t slot) { Owner(slot).store(kClient, std::memory_order_release); }

std::string MachineId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return absl::StrCat(boot, ":", LinkTarget("/proc/self/ns/pid"), ":", LinkTarget("/proc/self/ns/net"), ":", geteuid());
}

}  // namespace ballast
