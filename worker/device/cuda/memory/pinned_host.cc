// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/pinned_host.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {

class PinnedHost::Piece : public HostMemory {
 public:
  Piece(PinnedHost* owner, PinnedMemory memory, size_t bytes)
      : owner_(*owner), memory_(std::move(memory)), bytes_(bytes) {
    std::fill_n(static_cast<char*>(memory_.get()), bytes, 0);
    owner_.Add(memory_.get(), bytes);
  }
  ~Piece() override { owner_.Remove(memory_.get()); }

  absl::Span<float> values() override { return {static_cast<float*>(memory_.get()), bytes_ / sizeof(float)}; }
  bool pinned() const override { return true; }

 private:
  PinnedHost& owner_;
  const PinnedMemory memory_;
  const size_t bytes_;
};

class PinnedHost::Registration : public HostRegistration {
 public:
  Registration(PinnedHost* owner, absl::Span<char> memory, bool ends) : owner_(*owner), memory_(memory), ends_(ends) {
    owner_.Add(memory.data(), memory.size());
  }
  ~Registration() override {
    owner_.Remove(memory_.data());
    if (ends_) cudaHostUnregister(memory_.data());
  }

 private:
  PinnedHost& owner_;
  const absl::Span<char> memory_;
  // False if another device's registration, which holds for this one, comes first.
  const bool ends_;
};

std::unique_ptr<HostMemory> PinnedHost::Allocate(int64_t floats) {
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (bytes < kMinBytes) return std::make_unique<UnpinnedMemory>(floats);
  if (!Reserve(bytes)) {
    WarnOfLimit();
    return std::make_unique<UnpinnedMemory>(floats);
  }
  absl::StatusOr<PinnedMemory> memory = MakePinnedMemory(bytes);
  if (memory.ok()) return std::make_unique<Piece>(this, *std::move(memory), bytes);
  Release(bytes);
  Warn(memory.status().message());
  return std::make_unique<UnpinnedMemory>(floats);
}

std::unique_ptr<HostRegistration> PinnedHost::Register(absl::Span<char> memory) {
  if (!Reserve(static_cast<int64_t>(memory.size()))) {
    WarnOfLimit();
    return nullptr;
  }
  const cudaError_t error = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  const absl::Status status = CudaStatus(error, "cudaHostRegister");
  // Portable: registered once, it is pinned for all devices.
  const bool before = error == cudaErrorHostMemoryAlreadyRegistered;
  if (status.ok() || before) return std::make_unique<Registration>(this, memory, /*ends=*/!before);
  Release(static_cast<int64_t>(memory.size()));
  Warn(status.message());
  return nullptr;
}

void PinnedHost::Add(const void* memory, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  pieces_[static_cast<const char*>(memory)] = bytes;
}

void PinnedHost::Remove(const void* memory) {
  absl::MutexLock lock(&mutex_);
  const auto piece = pieces_.find(static_cast<const char*>(memory));
  bytes_ -= static_cast<int64_t>(piece->second);
  pieces_.erase(piece);
}

bool PinnedHost::Contains(absl::Span<const float> values) const {
  const char* const first = reinterpret_cast<const char*>(values.data());
  absl::MutexLock lock(&mutex_);
  const auto after = pieces_.upper_bound(first);
  if (after == pieces_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return first + values.size() * sizeof(float) <= begin + bytes;
}

bool PinnedHost::Reserve(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (bytes > max_bytes_ - bytes_) return false;
  bytes_ += bytes;
  return true;
}

void PinnedHost::Release(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_ -= bytes;
}

void PinnedHost::WarnOfLimit() { Warn(absl::StrCat("the limit for each GPU is ", max_bytes_ >> 20, " MiB")); }

void PinnedHost::Warn(absl::string_view why) {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(warned_, true)) return;
  }
  std::cerr << "warning: some tensors' host memory is not pinned, so their copies to and from the GPU are slower: "
            << why << std::endl;
}

}  // namespace ballast
