// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/oracle/push_oracle.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/codecs/codec.h"
#include "common/shared_memory/shared_floats.h"
#include "tests/testing/tensors.h"

namespace ballast {

// Memory of one push, and of the pull that may come with it.
struct PushOracle::Flight {
  // Large ones are left where they are by messages in shared memory.
  std::vector<SharedFloats> gradients;
  std::vector<std::vector<float>> values;
  std::vector<TensorGradient> from;
  std::vector<TensorValues> to;
  uint64_t number = 0;
  std::optional<Future<PushResult>> future;
};

struct PushOracle::Worker {
  uint32_t rank = 0;
  std::unique_ptr<Client> client;
  std::thread thread;
  // Used only by the thread until it has ended.
  std::deque<Flight> flights;
  // Sums of the acknowledged gradients, tensor after tensor.
  std::vector<int64_t> sums;
  uint64_t acknowledged = 0, retries = 0, wrong_pulls = 0;
};

PushOracle::PushOracle(OracleJob job)
    : job_(std::move(job)), sync_(job_.client.policy.has_sync()), limit_(job_.pushes) {}

absl::StatusOr<std::unique_ptr<PushOracle>> PushOracle::Start(OracleJob job) {
  if (job.client.policy.has_local_sgd() || job.elements < job.workers) {
    return absl::InvalidArgumentError("oracle: want sync, async or bounded, and an element for each worker");
  }
  std::unique_ptr<PushOracle> oracle(new PushOracle(std::move(job)));
  if (absl::Status status = oracle->Connect(); !status.ok()) return status;
  for (auto& worker : oracle->workers_) {
    worker->thread = std::thread([self = oracle.get(), at = worker.get()] {
      if (self->job_.client.policy.has_async()) {
        self->RunFreely(*at);
      } else {
        self->RunInStep(*at);
      }
      absl::MutexLock lock(&self->mutex_);
      ++self->ended_;
    });
  }
  return oracle;
}

PushOracle::~PushOracle() {
  Stop();
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

absl::Status PushOracle::Connect() {
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    ClientOptions options = job_.client;
    options.shards = job_.ways.empty() ? job_.servers : job_.ways[rank];
    options.workers = job_.workers;
    options.worker = rank;
    auto client = Join(std::move(options), Specs());
    if (!client.ok()) return client.status();
    auto worker = std::make_unique<Worker>();
    worker->rank = rank;
    worker->client = *std::move(client);
    worker->sums.resize(size_t{job_.tensors} * job_.elements);
    const size_t flights = job_.client.policy.has_async() ? std::max(job_.in_flight, 1u) : 1;
    for (size_t i = 0; i < flights; ++i) {
      Flight& flight = worker->flights.emplace_back();
      flight.values.assign(job_.tensors, std::vector<float>(job_.elements));
      for (uint32_t tensor = 0; tensor < job_.tensors; ++tensor) {
        const SharedFloats& gradient = flight.gradients.emplace_back(job_.elements);
        flight.from.push_back({tensor, gradient.span()});
        flight.to.push_back({tensor, absl::MakeSpan(flight.values[tensor])});
      }
    }
    workers_.push_back(std::move(worker));
  }
  return absl::OkStatus();
}

std::vector<v1::TensorSpec> PushOracle::Specs() const {
  std::vector<v1::TensorSpec> specs;
  for (uint32_t i = 0; i < job_.tensors; ++i) specs.push_back(SgdSpec(i, absl::StrCat("count", i), job_.elements));
  for (uint32_t i = 0; i < job_.idle_mib / 4; ++i) {
    v1::TensorSpec& spec = specs.emplace_back(SgdSpec(job_.tensors + i, absl::StrCat("idle", i), 1 << 20));
    spec.mutable_initializer()->mutable_uniform()->set_low(-1);
    spec.mutable_initializer()->mutable_uniform()->set_high(1);
  }
  return specs;
}

float PushOracle::Gradient(uint32_t worker, uint64_t number, uint32_t tensor, uint32_t element) const {
  if (element < job_.workers) return element == worker ? 1 : 0;
  return static_cast<float>(CodecSeed({worker, number, tensor, element}) % 7) - 3;
}

void PushOracle::Fill(Flight& flight, uint32_t worker, uint64_t number) const {
  flight.number = number;
  // A synchronous step applies the mean over the workers.
  const float times = sync_ ? static_cast<float>(job_.workers) : 1;
  for (uint32_t tensor = 0; tensor < job_.tensors; ++tensor) {
    for (uint32_t element = 0; element < job_.elements; ++element) {
      flight.gradients[tensor].data()[element] = times * Gradient(worker, number, tensor, element);
    }
  }
}

bool PushOracle::Begin(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  if (number >= limit_ || !status_.ok()) return false;
  most_begun_ = std::max(most_begun_, number + 1);
  return true;
}

void PushOracle::Stop() {
  absl::MutexLock lock(&mutex_);
  limit_ = std::min(limit_, job_.client.policy.has_async() ? 0 : most_begun_);
}

void PushOracle::Note(Worker& worker, const Flight& flight, const absl::StatusOr<PushResult>& result) {
  absl::Status status = result.status();
  if (status.ok() && result->dropped > 0) {
    status = absl::InternalError(absl::StrCat("worker ", worker.rank, ": push ", flight.number, " was dropped"));
  }
  if (status.ok()) {
    ++worker.acknowledged;
    worker.retries += result->retries;
    for (uint32_t tensor = 0; tensor < job_.tensors; ++tensor) {
      for (uint32_t element = 0; element < job_.elements; ++element) {
        worker.sums[size_t{tensor} * job_.elements + element] +=
            static_cast<int64_t>(Gradient(worker.rank, flight.number, tensor, element));
      }
    }
  }
  absl::MutexLock lock(&mutex_);
  status_.Update(status);
  if (!status.ok()) return;
  ++acknowledged_;
  last_ = absl::Now();
}

void PushOracle::RunFreely(Worker& worker) {
  uint64_t begun = 0, ended = 0;
  const size_t flights = worker.flights.size();
  while (true) {
    if (begun - ended < flights && Begin(begun)) {
      Flight& flight = worker.flights[begun % flights];
      Fill(flight, worker.rank, begun);
      flight.future = worker.client->Push(begun++, 1, flight.from);
      continue;
    }
    if (ended == begun) return;
    Flight& oldest = worker.flights[ended++ % flights];
    Note(worker, oldest, oldest.future->Get());
  }
}

void PushOracle::RunInStep(Worker& worker) {
  Flight& flight = worker.flights[0];
  for (uint64_t step = 0; Begin(step); ++step) {
    Fill(flight, worker.rank, step);
    const absl::StatusOr<PushResult> result = worker.client->PushPull(step, 1, flight.from, flight.to).Get();
    Note(worker, flight, result);
    if (!result.ok()) return;
    if (sync_) worker.wrong_pulls += WrongValues(flight, step + 1);
  }
  // The other workers must not wait for this one.
  const absl::Status paused = worker.client->Pause();
  absl::MutexLock lock(&mutex_);
  status_.Update(paused);
}

uint64_t PushOracle::WrongValues(const Flight& flight, uint64_t steps) const {
  // Each worker's count is the number of steps.
  uint64_t wrong = 0;
  for (const std::vector<float>& values : flight.values) {
    for (uint32_t worker = 0; worker < job_.workers; ++worker) wrong += values[worker] != -static_cast<float>(steps);
  }
  return wrong;
}

absl::StatusOr<absl::Time> PushOracle::AwaitAcknowledgement(absl::Time begin, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto seen = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return last_ >= begin || !status_.ok(); };
  if (!mutex_.AwaitWithDeadline(absl::Condition(&seen), deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat("no push was acknowledged from ", absl::FormatTime(begin), " to ", absl::FormatTime(deadline)));
  }
  if (!status_.ok()) return status_;
  return last_;
}

bool PushOracle::AwaitEnd(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ == workers_.size(); };
  return mutex_.AwaitWithDeadline(absl::Condition(&ended), deadline);
}

uint64_t PushOracle::acknowledged() const {
  absl::MutexLock lock(&mutex_);
  return acknowledged_;
}

absl::StatusOr<OracleReport> PushOracle::Finish() {
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return status_;
  }
  return Compare();
}

absl::StatusOr<OracleReport> PushOracle::Compare() {
  ClientOptions options = job_.client;
  options.shards = job_.servers;
  options.workers = job_.workers;
  auto client = Join(std::move(options), Specs());
  if (!client.ok()) return client.status();
  Flight& flight = workers_[0]->flights[0];
  for (std::vector<float>& values : flight.values) std::fill(values.begin(), values.end(), 0.5f);
  const absl::StatusOr<PullResult> pulled = (*client)->Pull(0, flight.to).Get();
  if (!pulled.ok()) return pulled.status();

  OracleReport report;
  std::vector<int64_t> sums(size_t{job_.tensors} * job_.elements);
  for (const auto& worker : workers_) {
    report.acknowledged += worker->acknowledged;
    report.retries += worker->retries;
    report.wrong_pulls += worker->wrong_pulls;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += worker->sums[i];
    uint64_t lost = 0, duplicated = 0;
    for (const std::vector<float>& values : flight.values) {
      const double applied = -double{values[worker->rank]}, noted = static_cast<double>(worker->acknowledged);
      lost = std::max(lost, static_cast<uint64_t>(std::max(noted - applied, 0.0)));
      duplicated = std::max(duplicated, static_cast<uint64_t>(std::max(applied - noted, 0.0)));
    }
    report.lost += lost;
    report.duplicated += duplicated;
  }
  for (uint32_t tensor = 0; tensor < job_.tensors; ++tensor) {
    for (uint32_t element = 0; element < job_.elements; ++element) {
      const int64_t want = -sums[size_t{tensor} * job_.elements + element];
      report.wrong_weights += flight.values[tensor][element] != static_cast<float>(want);
    }
  }
  return report;
}

}  // namespace ballast
