// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/counting_worker.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

// A step has this many pushes, if the policy is async.
constexpr uint64_t kPushesOfStep = 2;
// One in this many pushes pulls its rows first and names their versions.
constexpr uint64_t kVersionsEvery = 4;

// Powers of two that sum to a power of two: 1, 1, 2, 4, so that fp32 means are exact.
uint32_t ExamplesOf(uint32_t worker) { return worker == 0 ? 1 : uint32_t{1} << (worker - 1); }
uint32_t ExamplesOfAll(uint32_t workers) { return uint32_t{1} << (workers - 1); }

uint64_t DistinctRows(const RowUses& uses) {
  uint64_t rows = 0;
  for (const std::vector<uint64_t>& ids : uses) rows += absl::flat_hash_set<uint64_t>(ids.begin(), ids.end()).size();
  return rows;
}

}  // namespace

ClientOptions ClientOf(const CountingJob& job) {
  ClientOptions options;
  options.shards = job.servers;
  options.coordinator = job.coordinator;
  options.job = "counting";
  if (job.sync) {
    options.policy.mutable_sync()->set_deterministic(true);
  } else {
    options.policy.mutable_async();
  }
  options.durability.set_mode(job.durability);
  options.workers = job.workers;
  // Short, to notice soon that a connection is dead.
  options.rpc_timeout = absl::Seconds(2);
  options.retry_timeout = options.wait_timeout = absl::Minutes(5);
  return options;
}

// Memory of one push, and of the pull before or after it.
struct CountingWorker::Flight {
  explicit Flight(size_t tables) : gradients(tables), values(tables), versions(tables), present(tables) {}

  RowPush PushOf(size_t table, uint32_t id, bool with_versions) const {
    RowPush push = {id, uses[table], gradients[table], {}};
    if (with_versions) push.versions = versions[table];
    return push;
  }

  uint64_t number = 0;
  RowUses uses;
  std::vector<std::vector<float>> gradients, values;
  std::vector<std::vector<uint32_t>> versions;
  std::vector<std::vector<uint8_t>> present;
  std::optional<Future<RowsResult>> future;
};

CountingWorker::CountingWorker(CountingWorkerOptions options)
    : options_(std::move(options)),
      draw_(options_.seed, options_.rows, options_.servers),
      steps_(CountingTables().size()) {
  for (uint32_t i = 0; i < options_.in_flight; ++i) {
    flights_.push_back(std::make_unique<Flight>(CountingTables().size()));
  }
}

CountingWorker::~CountingWorker() = default;

absl::StatusOr<std::unique_ptr<CountingWorker>> CountingWorker::Connect(CountingWorkerOptions options) {
  if (!options.client.policy.has_async() && !options.client.policy.has_sync()) {
    return absl::InvalidArgumentError("counting worker: want policy async or sync");
  }
  std::unique_ptr<CountingWorker> worker(new CountingWorker(std::move(options)));
  auto client = Client::Connect(worker->options_.client);
  if (!client.ok()) return client.status();
  if (absl::Status status = (*client)->DeclareTables(CountingTables()); !status.ok()) return status;
  worker->client_ = *std::move(client);
  return worker;
}

PushKey CountingWorker::KeyOf(uint64_t number) const { return {options_.client.worker, options_.life, number}; }

absl::Status CountingWorker::Run(PushObserver& observer) {
  return options_.client.policy.has_sync() ? RunInStep(observer) : RunFreely(observer);
}

void CountingWorker::Fill(uint64_t number, float gradient, Flight& flight) const {
  flight.number = number;
  flight.uses = draw_.Uses(KeyOf(number));
  if (options_.marks) draw_.Mark(KeyOf(number), flight.uses);
  const std::vector<v1::TableSpec> specs = CountingTables();
  for (size_t table = 0; table < specs.size(); ++table) {
    flight.gradients[table].assign(flight.uses[table].size() * specs[table].dim(), gradient);
  }
}

absl::Status CountingWorker::Pull(uint64_t step, Flight& flight) {
  const std::vector<v1::TableSpec> specs = CountingTables();
  std::vector<RowPull> pulls;
  for (size_t table = 0; table < specs.size(); ++table) {
    const size_t rows = flight.uses[table].size();
    flight.values[table].assign(rows * specs[table].dim(), 0.5f);
    flight.versions[table].assign(rows, 0);
    flight.present[table].assign(rows, 0);
    RowPull& pull = pulls.emplace_back();
    pull.table_id = specs[table].id();
    pull.ids = flight.uses[table];
    pull.values = absl::MakeSpan(flight.values[table]);
    pull.versions = absl::MakeSpan(flight.versions[table]);
    pull.present = absl::MakeSpan(flight.present[table]);
  }
  return client_->PullRows(pulls, step).Get().status();
}

absl::Status CountingWorker::Finish(Flight& flight, PushObserver& observer) {
  const absl::StatusOr<RowsResult> result = flight.future->Get();
  if (!result.ok()) return result.status();
  const uint64_t taken = result->applied + result->kept, want = DistinctRows(flight.uses);
  // A version that was pulled is reached unless a server has lost an update. A duplicate's counts are the first's.
  const bool complete = options_.client.policy.has_sync() || result->duplicate || taken == want;
  if (result->dropped > 0 || result->orphaned > 0 || !complete) {
    return absl::InternalError(absl::StrCat("worker ", options_.client.worker, ": push ", flight.number, ": got ",
                                            taken, " rows applied, ", result->dropped, " dropped, ", result->orphaned,
                                            " orphaned, want ", want, ", 0, 0"));
  }
  return observer.Acknowledge(flight.number, flight.uses, *result);
}

absl::Status CountingWorker::RunFreely(PushObserver& observer) {
  const std::vector<v1::TableSpec> specs = CountingTables();
  const uint64_t first = next_;
  uint64_t ended = next_;
  const auto flight_of = [&](uint64_t number) -> Flight& { return *flights_[(number - first) % flights_.size()]; };
  const auto finish_oldest = [&] { return Finish(flight_of(ended++), observer); };
  while (true) {
    const absl::StatusOr<bool> more = observer.Begin(next_);
    if (!more.ok()) return more.status();
    if (!*more) break;
    Flight& flight = flight_of(next_);
    Fill(next_, -1, flight);
    const bool with_versions = next_ % kVersionsEvery == 0;
    if (with_versions) {
      if (absl::Status status = Pull(0, flight); !status.ok()) return status;
    }
    std::vector<RowPush> pushes;
    for (size_t table = 0; table < specs.size(); ++table) {
      pushes.push_back(flight.PushOf(table, specs[table].id(), with_versions));
    }
    flight.future = client_->PushRows(next_ / kPushesOfStep, 1, pushes,
                                      /*last_of_step=*/next_ % kPushesOfStep == kPushesOfStep - 1);
    if (++next_ - ended < flights_.size()) continue;
    if (absl::Status status = finish_oldest(); !status.ok()) return status;
  }
  while (ended < next_) {
    if (absl::Status status = finish_oldest(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CountingWorker::RunInStep(PushObserver& observer) {
  const std::vector<v1::TableSpec> specs = CountingTables();
  const uint32_t examples = ExamplesOf(options_.client.worker);
  const float gradient = -static_cast<float>(ExamplesOfAll(options_.client.workers)) / static_cast<float>(examples);
  Flight& flight = *flights_[0];
  while (true) {
    const absl::StatusOr<bool> more = observer.Begin(next_);
    if (!more.ok()) return more.status();
    if (!*more) return absl::OkStatus();
    Fill(next_, gradient, flight);
    // A message or more for each table; the last one ends the step.
    std::vector<Future<RowsResult>> earlier;
    for (size_t table = 0; table + 1 < specs.size(); ++table) {
      earlier.push_back(client_->PushRows(next_, examples, {flight.PushOf(table, specs[table].id(), false)}));
    }
    flight.future = client_->PushRows(next_, examples, {flight.PushOf(specs.size() - 1, specs.back().id(), false)},
                                      /*last_of_step=*/true);
    ++next_;
    for (const Future<RowsResult>& push : earlier) {
      if (!push.Get().ok()) return push.Get().status();
    }
    if (absl::Status status = Finish(flight, observer); !status.ok()) return status;
    if (absl::Status status = CheckStep(flight); !status.ok()) return status;
  }
}

absl::Status CountingWorker::CheckStep(Flight& flight) {
  // A step updates a row once, whichever workers used it.
  RowUses all(flight.uses.size());
  for (uint32_t worker = 0; worker < options_.client.workers; ++worker) {
    const RowUses uses = draw_.Uses({worker, options_.life, flight.number});
    for (size_t table = 0; table < all.size(); ++table) {
      all[table].insert(all[table].end(), uses[table].begin(), uses[table].end());
    }
  }
  steps_.Add(all);
  if (absl::Status status = Pull(flight.number + 1, flight); !status.ok()) return status;
  for (size_t table = 0; table < all.size(); ++table) {
    pulled_.Add(steps_.Compare(
        table, {flight.uses[table], flight.values[table], flight.versions[table], flight.present[table]}));
  }
  return absl::OkStatus();
}

}  // namespace ballast
