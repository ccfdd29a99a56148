// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/memory/half_copies.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {

// Memory is returned outside the lock, because that calls CUDA.

HalfCopies::HalfCopies(MemoryPool* memory) : memory_(*memory) {
  memory_.OnShortage(this, [this] { Drop(); });
}

HalfCopies::~HalfCopies() { memory_.OnShortage(this, nullptr); }

void HalfCopies::Add(const void* buffer) {
  absl::MutexLock lock(&mutex_);
  kept_[buffer] = {.serial = ++buffers_};
}

void HalfCopies::Remove(const void* buffer) {
  std::shared_ptr<const Scratch> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(buffer);
  if (found == kept_.end()) return;
  dropped = std::move(found->second.memory);
  kept_.erase(found);
}

HalfCopies::TraceEntry* HalfCopies::NoteLocked(const KeptCopies::value_type& kept) {
  if (trace_ == nullptr || trace_->thread_ != std::this_thread::get_id()) return nullptr;
  const auto [entry, is_new] = trace_->entries_.try_emplace(kept.first);
  if (is_new) entry->second.before = kept.second.state;
  return &entry->second;
}

void HalfCopies::Written(const void* buffer) {
  absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(buffer);
  if (found == kept_.end()) return;
  NoteLocked(*found);
  found->second.state.elements = 0;
}

absl::StatusOr<HalfCopies::Copy> HalfCopies::Get(cudaStream_t stream, HalfType type, ConstElements values,
                                                 int64_t elements) {
  if (values.type == ElementTypeOf(type)) return Copy(values.As<uint16_t>());
  if (values.type != ElementType::kFp32) {
    return absl::InternalError("cuda device: the elements and the precision have different 16-bit types");
  }
  std::shared_ptr<const Scratch> memory;
  bool is_buffer = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = kept_.find(values.data);
    is_buffer = found != kept_.end();
    if (is_buffer) {
      Kept& kept = found->second;
      TraceEntry* const entry = NoteLocked(*found);
      if (entry != nullptr && kept.memory != nullptr) entry->memory = kept.memory->bytes();
      if (kept.state.Has(type, elements)) {
        // A copy made in this trace will be made again at each launch, so it is not needed beforehand.
        if (entry != nullptr && !entry->made) entry->needed = {type, std::max(entry->needed.elements, elements)};
        return Copy(kept.memory);
      }
      if (kept.room >= elements) memory = kept.memory;
    }
  }
  if (memory == nullptr) {
    const int64_t bytes = elements * static_cast<int64_t>(sizeof(uint16_t));
    absl::StatusOr<Scratch> taken = is_buffer ? Scratch::MakeLasting(&memory_, bytes) : Scratch::Make(&memory_, bytes);
    if (!taken.ok()) return taken.status();
    memory = std::make_shared<const Scratch>(*std::move(taken));
  }
  absl::Status status = CudaStatus(
      LaunchToHalf(stream, type, elements, values.As<float>(), static_cast<uint16_t*>(memory->bytes())), "to half");
  if (!status.ok()) return status;
  std::shared_ptr<const Scratch> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(values.data);
  if (found == kept_.end()) return Copy(std::move(memory));
  Kept& kept = found->second;
  if (TraceEntry* const entry = NoteLocked(*found); entry != nullptr) entry->made = true;
  if (kept.memory != memory) {
    dropped = std::exchange(kept.memory, memory);
    kept.room = elements;
  }
  kept.state = {type, elements};
  return Copy(std::move(memory));
}

absl::Status HalfCopies::Adopt(cudaStream_t stream, HalfType type, const uint16_t* halves, const void* buffer,
                               int64_t elements) {
  std::shared_ptr<const Scratch> memory;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = kept_.find(buffer);
    if (found == kept_.end() || found->second.memory == nullptr || found->second.room < elements) {
      return absl::OkStatus();
    }
    memory = found->second.memory;
  }
  absl::Status status = CudaStatus(
      cudaMemcpyAsync(memory->bytes(), halves, elements * sizeof(uint16_t), cudaMemcpyDeviceToDevice, stream),
      "cudaMemcpyAsync");
  if (!status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(buffer);
  if (found == kept_.end() || found->second.memory != memory) return absl::OkStatus();
  if (TraceEntry* const entry = NoteLocked(*found); entry != nullptr) {
    entry->made = true;
    entry->memory = memory->bytes();
  }
  found->second.state = {type, elements};
  return absl::OkStatus();
}

void HalfCopies::Drop() {
  std::vector<std::shared_ptr<const Scratch>> dropped;
  absl::MutexLock lock(&mutex_);
  for (auto& [buffer, kept] : kept_) {
    if (kept.memory != nullptr) dropped.push_back(std::move(kept.memory));
    kept.room = kept.state.elements = 0;
  }
}

uint64_t HalfCopies::SerialOf(const void* buffer) const {
  absl::MutexLock lock(&mutex_);
  const auto found = kept_.find(buffer);
  return found == kept_.end() ? 0 : found->second.serial;
}

void HalfCopies::BeginTrace() {
  absl::MutexLock lock(&mutex_);
  trace_ = std::make_unique<Trace>();
}

std::unique_ptr<const HalfCopies::Trace> HalfCopies::EndTrace() {
  absl::MutexLock lock(&mutex_);
  std::unique_ptr<Trace> trace = std::move(trace_);
  for (auto& [buffer, entry] : trace->entries_) {
    const auto found = kept_.find(buffer);
    if (found != kept_.end()) entry.after = std::exchange(found->second.state, entry.before);
  }
  return trace;
}

bool HalfCopies::Fits(const Trace& trace) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [buffer, entry] : trace.entries_) {
    const auto found = kept_.find(buffer);
    if (found == kept_.end()) return false;
    const Kept& kept = found->second;
    if (entry.memory != nullptr && (kept.memory == nullptr || kept.memory->bytes() != entry.memory)) return false;
    if (entry.needed.elements > 0 && !kept.state.Has(entry.needed.type, entry.needed.elements)) return false;
  }
  return true;
}

void HalfCopies::Apply(const Trace& trace) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [buffer, entry] : trace.entries_) {
    const auto found = kept_.find(buffer);
    if (found != kept_.end()) found->second.state = entry.after;
  }
}

}  // namespace ballast
