// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "common/metrics/histogram.h"
#include "worker/training/step_meter.h"

namespace ballast {

// Figures of a worker since its process began, for its HTTP pages. Thread safety: all methods may be called from any
// thread.
class WorkerMetrics {
 public:
  // Called when the worker has joined, and when it no longer is a member.
  void Join(const std::string& job, uint32_t rank, uint64_t incarnation);
  void Leave();

  // Adds the work of a report, with the figures of the newest step that was measured.
  void Add(const v1::WorkerProgress& progress, std::optional<float> loss_scale, const StepFigures& figures);
  // Sets the rate of the link to the servers, in bytes per second and direction; nullopt if it is unknown.
  void SetLink(std::optional<double> bytes_per_second);
  // Adds time in which the worker waited for its next batch.
  void AddDataWait(absl::Duration waited);
  // Adds a step that has ended.
  void AddStep(absl::Duration took);

  // OK while the worker is a member of a job.
  absl::Status Ready() const;
  // Empty before the worker has joined.
  std::string job() const;
  // Returns Prometheus' text, with the figures of the process.
  std::string Text() const;

 private:
  mutable absl::Mutex mutex_;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  std::string job_ ABSL_GUARDED_BY(mutex_);
  uint32_t rank_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  // Sums, and the newest of what is not summed.
  v1::WorkerProgress total_ ABSL_GUARDED_BY(mutex_);
  double loss_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<float> loss_scale_ ABSL_GUARDED_BY(mutex_);
  StepFigures figures_ ABSL_GUARDED_BY(mutex_);
  std::optional<double> link_ ABSL_GUARDED_BY(mutex_);
  double data_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  Histogram step_microseconds_;
};

}  // namespace ballast
