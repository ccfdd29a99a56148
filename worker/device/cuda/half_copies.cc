// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/half_copies.h"

#include <utility>
#include <vector>

#include "worker/device/cuda/cuda_status.h"

namespace ballast {

// What is given back is given back outside of the lock, for that calls CUDA.

HalfCopies::HalfCopies(MemoryPool* memory) : memory_(*memory) {
  memory_.OnShortage([this] { Drop(); });
}

HalfCopies::~HalfCopies() { memory_.OnShortage(nullptr); }

void HalfCopies::Add(const float* buffer) {
  absl::MutexLock lock(&mutex_);
  kept_.try_emplace(buffer);
}

void HalfCopies::Remove(const float* buffer) {
  std::shared_ptr<const Scratch> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(buffer);
  if (found == kept_.end()) return;
  dropped = std::move(found->second.memory);
  kept_.erase(found);
}

void HalfCopies::Written(const float* buffer) {
  std::shared_ptr<const Scratch> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(buffer);
  if (found != kept_.end()) dropped = std::move(found->second.memory);
}

absl::StatusOr<HalfCopies::Copy> HalfCopies::Get(cudaStream_t stream, HalfType type, const float* values,
                                                 int64_t elements) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = kept_.find(values);
    if (found != kept_.end() && found->second.memory != nullptr && found->second.type == type &&
        found->second.elements >= elements) {
      return Copy(found->second.memory);
    }
  }
  absl::StatusOr<Scratch> memory = Scratch::Make(&memory_, elements * static_cast<int64_t>(sizeof(uint16_t)));
  if (!memory.ok()) return memory.status();
  absl::Status status =
      CudaStatus(LaunchToHalf(stream, type, elements, values, static_cast<uint16_t*>(memory->bytes())), "to half");
  if (!status.ok()) return status;
  auto shared = std::make_shared<const Scratch>(*std::move(memory));
  std::shared_ptr<const Scratch> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(values);
  if (found != kept_.end()) {
    dropped = std::exchange(found->second.memory, shared);
    found->second.type = type;
    found->second.elements = elements;
  }
  return Copy(std::move(shared));
}

void HalfCopies::Drop() {
  std::vector<std::shared_ptr<const Scratch>> dropped;
  absl::MutexLock lock(&mutex_);
  for (auto& [buffer, kept] : kept_) {
    if (kept.memory != nullptr) dropped.push_back(std::move(kept.memory));
  }
}

}  // namespace ballast
