// SPDX-License-Identifier: Apache-2.0
#include "common/flight/flight_recorder.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace ballast {
namespace {

constexpr std::array<absl::string_view, kFlightActivities> kNames = {
    "push",    "pull", "push_pull", "set_values", "pull_rows", "push_rows", "wait",
    "missing", "step", "data",      "evaluate",   "member",    "lease"};

// Limit on the names that a job with very many tensors may leave here.
constexpr size_t kMaxNames = 100000;

using Words = std::array<uint64_t, 5>;

Words Pack(const FlightEvent& event) {
  return {static_cast<uint64_t>(absl::ToUnixNanos(event.time)),
          uint64_t{event.peer} | uint64_t{static_cast<uint8_t>(event.activity)} << 32 |
              uint64_t{static_cast<uint8_t>(event.edge)} << 40 | static_cast<uint64_t>(event.code) << 48,
          event.step, uint64_t{event.tensor} << 32 | event.slice, event.amount};
}

FlightEvent Unpack(const Words& words) {
  FlightEvent event;
  event.time = absl::FromUnixNanos(static_cast<int64_t>(words[0]));
  event.peer = static_cast<uint32_t>(words[1]);
  event.activity = static_cast<FlightActivity>(words[1] >> 32 & 0xff);
  event.edge = static_cast<FlightEdge>(words[1] >> 40 & 0xff);
  event.code = static_cast<absl::StatusCode>(words[1] >> 48 & 0xff);
  event.step = words[2];
  event.tensor = static_cast<uint32_t>(words[3] >> 32);
  event.slice = static_cast<uint32_t>(words[3]);
  event.amount = words[4];
  return event;
}

}  // namespace

absl::string_view FlightActivityName(FlightActivity activity) {
  const size_t index = static_cast<size_t>(activity);
  return index < kNames.size() ? kNames[index] : "unknown";
}

FlightRecorder& FlightRecorder::OfProcess() {
  static FlightRecorder* const recorder = new FlightRecorder();
  return *recorder;
}

void FlightRecorder::Add(FlightEvent event) {
  if (!on()) return;
  event.time = absl::FromUnixNanos(absl::GetCurrentTimeNanos());
  const Words words = Pack(event);
  const uint64_t number = added_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = slots_[(number - 1) % size_];
  // A reader that sees a new word also sees that the number is no longer the old one.
  slot.number.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < words.size(); ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.number.store(number, std::memory_order_release);
}

void FlightRecorder::NameTensor(uint32_t id, absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  if (tensors_.size() < kMaxNames) tensors_.insert_or_assign(id, std::string(name));
}

FlightRecorder::Copy FlightRecorder::Read() const {
  Copy copy;
  const uint64_t added = added_.load(std::memory_order_acquire);
  copy.overwritten = added - std::min<uint64_t>(added, size_);
  for (uint64_t number = copy.overwritten + 1; number <= added; ++number) {
    const Slot& slot = slots_[(number - 1) % size_];
    if (slot.number.load(std::memory_order_acquire) != number) continue;
    Words words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (slot.number.load(std::memory_order_relaxed) == number) copy.events.push_back(Unpack(words));
  }
  absl::MutexLock lock(&mutex_);
  for (const FlightEvent& event : copy.events) {
    const auto named = tensors_.find(event.tensor);
    if (named != tensors_.end()) copy.tensors.insert(*named);
  }
  return copy;
}

}  // namespace ballast
