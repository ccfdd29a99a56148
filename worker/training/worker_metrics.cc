// SPDX-License-Identifier: Apache-2.0
#include "worker/training/worker_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/metrics/metrics_text.h"
#include "common/metrics/work.h"
#include "common/program/this_process.h"

namespace ballast {
namespace {

// Buckets of steps: from 63 us to 134 s.
constexpr int kShortestStep = 6, kLongestStep = 27;

}  // namespace

void WorkerMetrics::Join(const std::string& job, uint32_t rank, uint64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  joined_ = true;
  job_ = job;
  rank_ = rank;
  incarnation_ = incarnation;
}

void WorkerMetrics::Leave() {
  absl::MutexLock lock(&mutex_);
  joined_ = false;
}

void WorkerMetrics::SetLink(std::optional<double> bytes_per_second) {
  absl::MutexLock lock(&mutex_);
  link_ = bytes_per_second;
}

void WorkerMetrics::Add(const v1::WorkerProgress& progress, std::optional<float> loss_scale,
                        const StepFigures& figures) {
  absl::MutexLock lock(&mutex_);
  figures_ = figures;
  total_.set_step(progress.step());
  total_.set_epoch(progress.epoch());
  if (progress.learning_rate() != 0) total_.set_learning_rate(progress.learning_rate());
  if (loss_scale.has_value()) loss_scale_ = loss_scale;
  const v1::Work& work = progress.work();
  if (work.examples() > 0) loss_ = work.loss_sum() / static_cast<double>(work.examples());
  Merge(work, *total_.mutable_work());
}

void WorkerMetrics::AddDataWait(absl::Duration waited) {
  absl::MutexLock lock(&mutex_);
  data_seconds_ += std::max(0.0, absl::ToDoubleSeconds(waited));
}

void WorkerMetrics::AddStep(absl::Duration took) {
  // The machine's clock may have been set back.
  step_microseconds_.Add(static_cast<uint64_t>(std::max<int64_t>(absl::ToInt64Microseconds(took), 0)));
}

absl::Status WorkerMetrics::Ready() const {
  absl::MutexLock lock(&mutex_);
  return joined_ ? absl::OkStatus() : absl::UnavailableError("the worker is not a member of its job yet");
}

std::string WorkerMetrics::job() const {
  absl::MutexLock lock(&mutex_);
  return job_;
}

std::string WorkerMetrics::Text() const {
  MetricsText out;
  out.Gauge("ballast_build_info", "1; the label is the version.", 1, {{"version", kVersion}});
  {
    absl::MutexLock lock(&mutex_);
    const v1::Work& work = total_.work();
    if (!job_.empty()) {
      out.Gauge("ballast_worker_info", "1; the labels say which worker this is.", 1,
                {{"job", job_}, {"worker", absl::StrCat(rank_)}, {"incarnation", absl::StrCat(incarnation_)}});
    }
    out.Counter("ballast_worker_steps_total", "Steps that the worker has begun.", work.steps());
    out.Counter("ballast_worker_examples_total", "Examples that the worker has computed gradients of.",
                work.examples());
    out.BeginCounters("ballast_worker_seconds_total",
                      "Time of the worker: waiting for servers and other workers, waiting for its next batch, and the "
                      "rest, which is mostly computation.");
    const double data = std::min(data_seconds_, std::max(0.0, work.seconds() - work.wait_seconds()));
    out.Sample({{"phase", "wait"}}, work.wait_seconds());
    out.Sample({{"phase", "data"}}, data);
    out.Sample({{"phase", "compute"}}, std::max(0.0, work.seconds() - work.wait_seconds() - data));
    out.Counter("ballast_worker_pushes_total", "Pushes that were acknowledged.", work.pushes());
    out.Counter("ballast_worker_dropped_gradients_total", "Gradients of slices that came after their step was over.",
                work.dropped());
    out.Counter("ballast_worker_skipped_batches_total", "Batches whose gradients were not finite.", work.skipped());
    out.BeginCounters("ballast_worker_message_bytes_total", "Bytes of messages to and from servers.");
    out.Sample({{"direction", "sent"}}, work.bytes_sent());
    out.Sample({{"direction", "received"}}, work.bytes_received());
    out.Counter("ballast_worker_staleness_updates_total", "Sum over pushes of the largest staleness in each.",
                work.staleness_sum());
    out.Gauge("ballast_worker_max_staleness_updates", "Largest staleness of a push so far.", work.max_staleness());
    out.Gauge("ballast_worker_step", "Step that the worker has finished.", total_.step());
    out.Gauge("ballast_worker_epoch", "Epoch of the newest examples, counted from 0.", total_.epoch());
    out.Gauge("ballast_worker_loss", "Mean loss over the examples of the newest report.", loss_);
    out.Gauge("ballast_worker_learning_rate", "Newest learning rate.", total_.learning_rate());
    if (loss_scale_.has_value()) {
      out.Gauge("ballast_worker_loss_scale_ratio", "Factor of the loss in half precision.", *loss_scale_);
    }
    if (figures_.gradient_norm.has_value()) {
      out.Gauge("ballast_worker_gradient_norm",
                "Euclidean norm of the gradient of all tensors, of the newest step that "
                "was measured.",
                *figures_.gradient_norm);
    }
    if (figures_.update_ratio.has_value()) {
      out.Gauge("ballast_worker_update_ratio",
                "Norm of the change of all weights in that step, by all workers, over "
                "the norm of the weights.",
                *figures_.update_ratio);
    }
    if (link_.has_value()) {
      out.Gauge("ballast_worker_link_bytes_per_second", "Rate of the network interface to the servers.", *link_);
    }
  }
  out.BeginHistograms("ballast_worker_step_seconds",
                      "Time of each step from its wait for data until its gradients are computed and handed over.");
  out.SampleHistogram({}, step_microseconds_.ToProto(), 1e-6, kShortestStep, kLongestStep);
  out.AddProcess();
  return out.text();
}

}  // namespace ballast
