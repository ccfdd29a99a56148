// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ballast {

// Activities of a process. Messages are recorded by both ends: by a server when it takes them up, by a client when it
// sends them.
enum class FlightActivity : uint8_t {
  kPush,
  kPull,
  kPushPull,
  kSetValues,
  kPullRows,
  kPushRows,
  // A pull waits at a shard for other workers.
  kWait,
  // A wait timed out, and the peer is a worker that it was for; the amount is how long it lasted, in milliseconds.
  kMissing,
  // Worker activities: a step, its wait for data, an evaluation.
  kStep,
  kData,
  kEvaluate,
  // Coordinator activities: a member joins, leaves or is lost; a lease begins and ends.
  kMember,
  kLease,
};
inline constexpr int kFlightActivities = 13;

// Name in dumps: "push", "push_pull", "wait" and so on.
absl::string_view FlightActivityName(FlightActivity activity);

enum class FlightEdge : uint8_t { kBegin, kEnd };

// One event. What does not apply is 0, and `peer` kNone.
struct FlightEvent {
  static constexpr uint32_t kNone = 0xffffffff;

  absl::Time time;
  FlightActivity activity = FlightActivity::kPush;
  FlightEdge edge = FlightEdge::kBegin;
  // Result of an activity that ended.
  absl::StatusCode code = absl::StatusCode::kOk;
  // On a server the worker, on a client the shard that the event is about.
  uint32_t peer = kNone;
  uint64_t step = 0;
  // The first slice of a message, and the number of its slices or rows. kNone: no slice.
  uint32_t tensor = kNone;
  uint32_t slice = 0;
  uint64_t amount = 0;

  friend bool operator==(const FlightEvent&, const FlightEvent&) = default;
};

// Owns the newest events of a process, for the question of what it did before something went wrong. An Add takes no
// lock and costs a clock read and some writes; a copy during Adds may lack events that are being written. Thread
// safety: all methods may be called from any thread.
class FlightRecorder {
 public:
  static constexpr size_t kEvents = 10000;

  // The recorder of this process.
  static FlightRecorder& OfProcess();

  explicit FlightRecorder(size_t events = kEvents) : slots_(std::make_unique<Slot[]>(events)), size_(events) {}
  FlightRecorder(const FlightRecorder&) = delete;

  // Starts and stops the recording; on at first.
  void set_on(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Records an event; sets its time to now.
  void Add(FlightEvent event);

  // Names a tensor for dumps.
  void NameTensor(uint32_t id, absl::string_view name);

  struct Copy {
    // Oldest first.
    std::vector<FlightEvent> events;
    // Names of the tensors among them, by id.
    std::map<uint32_t, std::string> tensors;
    // Earlier events, which are no longer there.
    uint64_t overwritten = 0;
  };
  Copy Read() const;

 private:
  // Number of the event from 1, while it is whole; otherwise 0. Then its fields.
  struct Slot {
    std::atomic<uint64_t> number{0};
    std::array<std::atomic<uint64_t>, 5> words = {};
  };

  const std::unique_ptr<Slot[]> slots_;
  const size_t size_;
  std::atomic<bool> on_{true};
  std::atomic<uint64_t> added_{0};
  mutable absl::Mutex mutex_;
  std::map<uint32_t, std::string> tensors_ ABSL_GUARDED_BY(mutex_);
};

// Records an activity's begin, and its end with this object's destruction: with the code of End, or UNKNOWN if the
// activity was left without it.
class FlightScope {
 public:
  explicit FlightScope(FlightEvent begin) : event_(begin) {
    FlightRecorder::OfProcess().Add(event_);
    event_.edge = FlightEdge::kEnd;
    event_.code = absl::StatusCode::kUnknown;
  }
  ~FlightScope() { FlightRecorder::OfProcess().Add(event_); }
  FlightScope(const FlightScope&) = delete;

  void End(const absl::Status& status) { event_.code = status.code(); }

 private:
  FlightEvent event_;
};

}  // namespace ballast
