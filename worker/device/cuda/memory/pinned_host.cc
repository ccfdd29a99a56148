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
    absl::MutexLock lock(&owner_.mutex_);
    owner_.pieces_[static_cast<const char*>(memory_.get())] = bytes;
  }
  ~Piece() override {
    absl::MutexLock lock(&owner_.mutex_);
    owner_.pieces_.erase(static_cast<const char*>(memory_.get()));
    owner_.bytes_ -= static_cast<int64_t>(bytes_);
  }

  absl::Span<float> values() override { return {static_cast<float*>(memory_.get()), bytes_ / sizeof(float)}; }
  bool pinned() const override { return true; }

 private:
  PinnedHost& owner_;
  const PinnedMemory memory_;
  const size_t bytes_;
};

std::unique_ptr<HostMemory> PinnedHost::Allocate(int64_t floats) {
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (bytes < kMinBytes) return std::make_unique<UnpinnedMemory>(floats);
  if (!Reserve(bytes)) {
    Warn(absl::StrCat("the limit for each GPU is ", max_bytes_ >> 20, " MiB"));
    return std::make_unique<UnpinnedMemory>(floats);
  }
  absl::StatusOr<PinnedMemory> memory = MakePinnedMemory(bytes);
  if (memory.ok()) return std::make_unique<Piece>(this, *std::move(memory), bytes);
  {
    absl::MutexLock lock(&mutex_);
    bytes_ -= bytes;
  }
  Warn(memory.status().message());
  return std::make_unique<UnpinnedMemory>(floats);
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

void PinnedHost::Warn(absl::string_view why) {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(warned_, true)) return;
  }
  std::cerr << "warning: some tensors' host memory is not pinned, so their copies to and from the GPU are slower: "
            << why << std::endl;
}

}  // namespace ballast
