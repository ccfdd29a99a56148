// SPDX-License-Identifier: Apache-2.0
#include "common/shared_memory/shared_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/random/random.h"
#include "common/shared_memory/shared_file.h"

namespace ballast {
namespace {

constexpr char kName[] = "ballast-shared-heap";
// Without these, a reader could change the memory or, by shrinking it, end this process.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

constexpr uint64_t kPageBytes = SharedHeap::kLeastBytes;
// A reader remembers so many parts of a heap. Those of an owner that always lends the same pieces are fewer.
constexpr size_t kMostKnownParts = 1024;

uint64_t Rounded(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

uint64_t MachineBytes() {
  return Rounded(std::max<uint64_t>(sysconf(_SC_PHYS_PAGES), 1) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
}

// A file beyond its limit would end the process.
bool FileMayHave(uint64_t bytes) {
  rlimit limit = {};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes);
}

absl::StatusOr<int> OpenHeap(const HeapDescription& description) {
  const absl::StatusOr<int> descriptor = OpenSharedFile({.process = description.process,
                                                         .file = description.file,
                                                         .name = kName,
                                                         .bytes = description.bytes,
                                                         .seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
                                                         .flags = O_RDONLY});
  if (!descriptor.ok()) return descriptor.status();
  uint64_t id = 0;
  if (pread(*descriptor, &id, sizeof(id), 0) == sizeof(id) && id == description.id) return *descriptor;
  close(*descriptor);
  return SharedFileError(description.process, description.file, "has the id of another heap");
}

// Addresses that mappings of all readers may take: more than most machines have memory, and an eighth of what a process
// has. A stranger's file may be of any size.
constexpr uint64_t kMostAddresses = uint64_t{1} << 44;
std::atomic<uint64_t> addresses_taken{0};

// Adds a part, which becomes one with those that it touches or overlaps.
void Add(uint64_t offset, uint64_t end, HeapParts& parts) {
  auto part = parts.upper_bound(offset);
  if (part != parts.begin() && std::prev(part)->second >= offset) --part;
  while (part != parts.end() && part->first <= end) {
    offset = std::min(offset, part->first);
    end = std::max(end, part->second);
    part = parts.erase(part);
  }
  parts.emplace(offset, end);
}

// Returns false, and takes nothing, if they would become too many.
bool TakeAddresses(uint64_t bytes) {
  uint64_t taken = addresses_taken;
  do {
    if (bytes > kMostAddresses - taken) return false;
  } while (!addresses_taken.compare_exchange_weak(taken, taken + bytes));
  return true;
}

}  // namespace

SharedHeap& SharedHeap::OfProcess() {
  static auto* const heap = new SharedHeap(MachineBytes());
  return *heap;
}

SharedHeap::SharedHeap(uint64_t bytes) : bytes_(Rounded(bytes)), id_(absl::Uniform<uint64_t>(absl::BitGen())) {
  if (!FileMayHave(bytes_)) return;
  // Linux before 5.1 has no seal that leaves this process, and no other one, its writable mapping.
  const absl::StatusOr<MadeFile> made = MakeSharedFile(kName, bytes_, kSeals);
  if (!made.ok()) return;
  descriptor_ = made->descriptor;
  memory_ = made->memory;
  // A core dump would get memory for each page, to write it.
  madvise(memory_, bytes_, MADV_DONTDUMP);
  std::memcpy(memory_, &id_, sizeof(id_));
  absl::MutexLock lock(&mutex_);
  if (bytes_ > kPageBytes) free_[kPageBytes] = bytes_;
}

SharedHeap::~SharedHeap() {
  if (memory_ == nullptr) return;
  munmap(memory_, bytes_);
  close(descriptor_);
}

void* SharedHeap::Allocate(size_t bytes) {
  if (bytes < kLeastBytes || bytes > bytes_) return nullptr;
  const uint64_t want = Rounded(bytes);
  absl::MutexLock lock(&mutex_);
  // The first part that is large enough, so that memory that was used before is used again.
  const auto found =
      std::find_if(free_.begin(), free_.end(), [&](const auto& part) { return part.second - part.first >= want; });
  if (found == free_.end()) return nullptr;
  const auto [offset, end] = *found;
  free_.erase(found);
  if (end - offset > want) free_[offset + want] = end;
  return memory_ + offset;
}

void SharedHeap::Free(void* memory, size_t bytes) {
  const uint64_t offset = static_cast<char*>(memory) - memory_;
  absl::MutexLock lock(&mutex_);
  Add(offset, offset + Rounded(bytes), free_);
}

std::optional<uint64_t> SharedHeap::Find(absl::string_view bytes) const {
  if (memory_ == nullptr || bytes.data() < memory_ || bytes.data() + bytes.size() > memory_ + bytes_) {
    return std::nullopt;
  }
  return bytes.data() - memory_;
}

std::optional<HeapDescription> SharedHeap::Describe() const {
  if (memory_ == nullptr) return std::nullopt;
  return HeapDescription{id_, static_cast<uint32_t>(getpid()), static_cast<uint32_t>(descriptor_), bytes_};
}

absl::StatusOr<std::shared_ptr<SharedHeapView>> SharedHeapView::Open(const HeapDescription& description) {
  const absl::StatusOr<int> descriptor = OpenHeap(description);
  if (!descriptor.ok()) return descriptor.status();
  const absl::Cleanup close_it = [descriptor = *descriptor] { close(descriptor); };
  void* const memory = mmap(nullptr, description.bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, *descriptor, 0);
  if (memory == MAP_FAILED) {
    return SharedFileError(description.process, description.file, std::strerror(errno));
  }
  // As for the owner.
  madvise(memory, description.bytes, MADV_DONTDUMP);
  return std::shared_ptr<SharedHeapView>(new SharedHeapView(static_cast<const char*>(memory), description.bytes));
}

SharedHeapView::~SharedHeapView() { munmap(const_cast<char*>(memory_), bytes_); }

std::optional<absl::string_view> SharedHeapView::At(uint64_t offset, uint64_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) return std::nullopt;
  return absl::string_view(memory_ + offset, bytes);
}

absl::StatusOr<std::unique_ptr<SharedHeapReader>> SharedHeapReader::Open(const HeapDescription& description) {
  const absl::StatusOr<int> descriptor = OpenHeap(description);
  if (!descriptor.ok()) return descriptor.status();
  std::unique_ptr<SharedHeapReader> reader(new SharedHeapReader(*descriptor));
  if (!TakeAddresses(description.bytes)) return reader;
  reader->mapped_bytes_ = description.bytes;
  reader->view_ = SharedHeapView::Open(description).value_or(nullptr);
  return reader;
}

SharedHeapReader::~SharedHeapReader() {
  view_.reset();
  addresses_taken -= mapped_bytes_;
  close(descriptor_);
}

std::optional<absl::string_view> SharedHeapReader::At(uint64_t offset, uint64_t bytes) const {
  if (view_ == nullptr) return std::nullopt;
  const std::optional<absl::string_view> found = view_->At(offset, bytes);
  if (!found.has_value() || found->empty()) return found;
  if (IsKnown(offset, offset + bytes)) return found;
  constexpr uint64_t kPages = 256;
  const uint64_t ahead = offset % kPageBytes;
  char* const begin = const_cast<char*>(found->data()) - ahead;
  const uint64_t size = ahead + bytes;
  unsigned char pages[kPages];
  for (uint64_t at = 0; at < size; at += kPages * kPageBytes) {
    const uint64_t part = std::min(kPages * kPageBytes, size - at);
    if (mincore(begin + at, part, pages) != 0) return std::nullopt;
    const unsigned char* const end = pages + (part + kPageBytes - 1) / kPageBytes;
    if (!std::all_of(static_cast<const unsigned char*>(pages), end, [](unsigned char page) { return (page & 1) != 0; }))
      return std::nullopt;
  }
  absl::MutexLock lock(&mutex_);
  if (known_.size() == kMostKnownParts) known_.clear();
  Add(offset, offset + bytes, known_);
  return found;
}

bool SharedHeapReader::IsKnown(uint64_t offset, uint64_t end) const {
  absl::MutexLock lock(&mutex_);
  const auto behind = known_.upper_bound(offset);
  return behind != known_.begin() && std::prev(behind)->second >= end;
}

bool SharedHeapReader::Read(uint64_t offset, absl::Span<char> to) const {
  while (!to.empty()) {
    if (offset > INT64_MAX) return false;
    const ssize_t got = pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to.remove_prefix(got);
    offset += got;
  }
  return true;
}

}  // namespace ballast
