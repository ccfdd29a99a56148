// SPDX-License-Identifier: Apache-2.0
#include "worker/data/batch_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/concurrency/await_within.h"
#include "common/concurrency/named_thread.h"

namespace ballast {
namespace {

// A larger batch is an error in the job file, which std::bad_alloc would not explain.
constexpr uint64_t kMaxBatchElements = 1ull << 30;

}  // namespace

BatchStream::BatchStream(const Dataset* dataset, LeaseSource* leases, Options options)
    : dataset_(dataset),
      leases_(leases),
      options_(std::move(options)),
      slots_(std::max(1u, options_.prefetch_batches)) {
  const uint32_t threads = std::max(1u, options_.threads);
  threads_.reserve(threads);
  for (uint32_t i = 0; i < threads; ++i) threads_.push_back(NamedThread("batches", [this] { Run(); }));
}

BatchStream::~BatchStream() {
  Cancel();
  for (std::thread& thread : threads_) thread.join();
}

void BatchStream::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  leases_->Cancel();
}

absl::StatusOr<std::optional<Batch>> BatchStream::Next() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &BatchStream::MayReturnLocked));
  if (cancelled_) return absl::CancelledError("reading of training data was canceled");
  Slot& slot = SlotLocked(returned_);
  // An end or an error stays in its slot for later calls.
  if (!slot.status.ok()) return slot.status;
  if (slot.end) return std::nullopt;
  ++returned_;
  slot.ready = false;
  return std::move(slot.batch);
}

const Batch* BatchStream::Peek() const {
  absl::MutexLock lock(&mutex_);
  const Slot& slot = slots_[returned_ % slots_.size()];
  const bool has_batch = slot.ready && slot.status.ok() && !slot.end && slot.batch.examples > 0;
  return has_batch ? &slot.batch : nullptr;
}

bool BatchStream::AwaitLease(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return AwaitWithin(mutex_, absl::Condition(this, &BatchStream::MayReturnLocked), timeout) || !fetching_ ||
         returned_ < planned_;
}

void BatchStream::Recycle(Batch batch) {
  absl::MutexLock lock(&mutex_);
  if (spare_.size() < slots_.size()) spare_.push_back(std::move(batch));
}

bool BatchStream::MayReturnLocked() const { return cancelled_ || slots_[returned_ % slots_.size()].ready; }

bool BatchStream::MayWorkLocked() const {
  if (cancelled_ || ended_) return true;
  const uint64_t ahead = planned_ - returned_;
  if (!current_.has_value()) return ahead < slots_.size() && !fetching_;
  return ahead <= (full_ ? slots_.size() / 2 : slots_.size() - 1);
}

void BatchStream::Run() {
  Scratch scratch{{}, {}, RowIndexer(options_.tables, dataset_->id_fields().size())};
  while (std::optional<Plan> plan = WaitForPlan()) {
    absl::Status status = Fill(*plan, scratch);
    absl::MutexLock lock(&mutex_);
    Slot& slot = SlotLocked(plan->sequence);
    if (!status.ok()) ended_ = true;
    slot.status = std::move(status);
    slot.batch = std::move(plan->batch);
    slot.ready = true;
  }
}

// nullopt once there are no more plans.
std::optional<BatchStream::Plan> BatchStream::WaitForPlan() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &BatchStream::MayWorkLocked));
      if (cancelled_ || ended_) return std::nullopt;
      if (current_.has_value()) return TakePlanLocked();
      fetching_ = true;
    }
    FetchLease();
  }
}

void BatchStream::FetchLease() {
  absl::StatusOr<std::optional<LeasedData>> data = leases_->Next();
  if (data.ok() && data->has_value()) {
    if (absl::Status status = CheckLease(**data); !status.ok()) data = status;
  }
  absl::MutexLock lock(&mutex_);
  fetching_ = false;
  if (!data.ok() || !data->has_value()) {
    EndLocked(data.status());
    return;
  }
  LeasedData& leased = **data;
  const uint64_t size = leased.rows == nullptr ? dataset_->size() : leased.rows->size();
  current_ = Current{leased.lease, leased.lease.steps, Permutation(size, options_.seed, leased.lease.epoch),
                     std::move(leased.rows), leased.lease.begin};
}

absl::Status BatchStream::CheckLease(const LeasedData& data) const {
  const DataLease& lease = data.lease;
  if (lease.id == 0 && lease.steps == 0 && lease.begin == lease.end) return absl::OkStatus();
  const std::string range = absl::StrCat("lease ", lease.id, " of examples ", lease.begin, " to ", lease.end);
  if (data.rows != nullptr && lease.end - lease.begin != data.rows->size()) {
    return absl::InternalError(absl::StrCat(range, " does not fit its ", data.rows->size(), " rows"));
  }
  if (lease.begin > lease.end || (data.rows == nullptr && lease.end > dataset_->size())) {
    return absl::InternalError(absl::StrCat(range, " does not fit the data set, want 0 to ", dataset_->size()));
  }
  const uint64_t examples = lease.end - lease.begin;
  const uint64_t want = std::max<uint64_t>(1, examples / options_.batch_size + (examples % options_.batch_size != 0));
  if (lease.steps < want) {
    return absl::InternalError(
        absl::StrCat(range, " has ", lease.steps, " steps, want at least ", want, " of ", options_.batch_size));
  }
  return absl::OkStatus();
}

BatchStream::Plan BatchStream::TakePlanLocked() {
  DataLease& lease = current_->lease;
  Plan plan = {.sequence = planned_++, .begin = lease.begin, .order = current_->order, .rows = current_->rows};
  full_ = planned_ - returned_ == slots_.size();
  if (plan.rows != nullptr) plan.begin -= current_->first;
  if (!spare_.empty()) {
    plan.batch = std::move(spare_.back());
    spare_.pop_back();
  }
  plan.batch.sequence = plan.sequence;
  plan.batch.lease_id = lease.id;
  plan.batch.epoch = lease.epoch;
  plan.batch.marks_epoch = lease.steps == 0;
  if (plan.batch.marks_epoch) {
    plan.batch.examples = 0;
    current_.reset();
    return plan;
  }
  plan.batch.examples = static_cast<uint32_t>(std::min<uint64_t>(options_.batch_size, lease.end - lease.begin));
  const double made = static_cast<double>(current_->steps - lease.steps) / current_->steps;
  plan.batch.share = lease.share_begin + (lease.share_end - lease.share_begin) * made;
  // The remainder of the lease stays in current_.
  lease.begin += plan.batch.examples;
  --lease.steps;
  plan.batch.last_of_lease = lease.steps == 0;
  if (plan.batch.last_of_lease) current_.reset();
  return plan;
}

void BatchStream::EndLocked(absl::Status status) {
  Slot& slot = SlotLocked(planned_);
  slot.end = true;
  slot.status = std::move(status);
  slot.ready = true;
  ended_ = true;
}

absl::Status BatchStream::Fill(Plan& plan, Scratch& scratch) const {
  Batch& batch = plan.batch;
  const uint64_t width = dataset_->features();
  if (width > kMaxBatchElements / options_.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("a batch has ", options_.batch_size, " x ", width,
                                                   " features, want at most ", kMaxBatchElements, " numbers"));
  }
  std::vector<uint64_t>& indices = scratch.indices;
  indices.resize(batch.examples);
  const bool shuffle = options_.shuffle && plan.rows == nullptr;
  for (uint32_t i = 0; i < batch.examples; ++i) {
    const uint64_t position = plan.begin + i;
    indices[i] = shuffle ? plan.order(position) : position;
  }
  batch.features.resize(batch.examples * width);
  batch.labels.resize(batch.examples);
  const bool with_ids = !options_.tables.empty();
  const Dataset& dataset = plan.rows == nullptr ? *dataset_ : *plan.rows;
  absl::Status status = dataset.Read(indices, absl::MakeSpan(batch.features), absl::MakeSpan(batch.labels),
                                     with_ids ? &scratch.ids : nullptr);
  if (status.ok() && with_ids) scratch.indexer.Index(scratch.ids, batch.tables);
  return status;
}

}  // namespace ballast
