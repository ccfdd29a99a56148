// SPDX-License-Identifier: Apache-2.0
#include "client/c/ballast.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/program/completion_queue.h"
#include "client/program/operation_starter.h"
#include "client/program/program_environment.h"
#include "client/program/program_worker.h"
#include "common/data/permutation.h"
#include "common/job/job_file_checker.h"
#include "common/program/this_process.h"
#include "common/rpc/credentials.h"
#include "common/status/error_reason.h"
#include "common/trace/trace_context.h"

// An error, with the strings that its functions return.
struct ballast_error {
  explicit ballast_error(const absl::Status& status)
      : code(static_cast<int>(status.code())), message(status.message()) {
    const ballast::v1::ErrorReason known = ballast::ReasonOf(status);
    if (known != ballast::v1::ERROR_REASON_UNSPECIFIED) {
      reason = std::string(absl::StripPrefix(ballast::v1::ErrorReason_Name(known), "ERROR_REASON_"));
    }
    for (auto& subject : ballast::SubjectsOf(status)) details.push_back(subject);
  }

  const int code;
  std::string reason;
  const std::string message;
  std::vector<std::pair<std::string, std::string>> details;
};

namespace {

// Sums up what a worker's operations have exchanged since the last report. Thread safety: any thread may call it.
class ExchangeCounter {
 public:
  void Add(const ballast_result& result, bool pushes) {
    absl::MutexLock lock(&mutex_);
    work_.set_bytes_sent(work_.bytes_sent() + result.bytes_sent);
    work_.set_bytes_received(work_.bytes_received() + result.bytes_received);
    if (!pushes) return;
    work_.set_pushes(work_.pushes() + 1);
    work_.set_staleness_sum(work_.staleness_sum() + result.max_staleness);
    work_.set_max_staleness(std::max<uint64_t>(work_.max_staleness(), result.max_staleness));
    work_.set_dropped(work_.dropped() + result.dropped);
  }
  ballast::v1::Work Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(work_, {});
  }

 private:
  absl::Mutex mutex_;
  ballast::v1::Work work_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

// A worker and the outcomes of its operations.
struct ballast_worker {
  explicit ballast_worker(std::unique_ptr<ballast::ProgramWorker> joined) : worker(std::move(joined)) {}
  ~ballast_worker() { queue.Close(); }

  ballast::CompletionQueue<ballast_result> queue;
  ExchangeCounter exchanged;
  // Declared last, because the ends of its calls use the queue.
  const std::unique_ptr<ballast::ProgramWorker> worker;
  // Ends before them.
  ballast::OperationStarter starter;
};

namespace {

using ballast::ProgramWorker;

ballast_error* ToError(const absl::Status& status) { return status.ok() ? nullptr : new ballast_error(status); }

// The longest time that a caller can name; more would overflow.
constexpr double kMaxSeconds = 1e9;

absl::Duration Seconds(double seconds) {
  return std::isnan(seconds) ? absl::ZeroDuration() : absl::Seconds(std::clamp(seconds, 0.0, kMaxSeconds));
}

absl::Status CheckPresent(const void* pointer, const char* name) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": got NULL, want a pointer"));
}

// More tensors or tables than any call has: a negative number, or one of another type.
constexpr uint64_t kMaxCount = 1 << 24;

absl::Status CheckArray(const void* pointer, uint64_t count, const char* name) {
  if (count > kMaxCount) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": got a count of ", count, ", want at most ", kMaxCount));
  }
  return count == 0 ? absl::OkStatus() : CheckPresent(pointer, name);
}

// Checks what an operation on tensors was given.
absl::Status CheckTensors(const ballast_tensor* tensors, size_t count, const char* name, bool need_data = true) {
  absl::Status status = CheckArray(tensors, count, name);
  for (size_t i = 0; status.ok() && need_data && i < count; ++i) {
    if (tensors[i].elements > 0) status = CheckPresent(tensors[i].data, name);
  }
  return status;
}

absl::Status CheckPush(const ballast_step* step, const ballast_tensor* gradients, size_t count) {
  const absl::Status status = CheckPresent(step, "step");
  return status.ok() ? CheckTensors(gradients, count, "gradients", step->examples > 0) : status;
}

absl::Status CheckPushPull(const ballast_step* step, const ballast_tensor* gradients, const ballast_tensor* values,
                           size_t count) {
  const absl::Status status = CheckPush(step, gradients, count);
  return status.ok() ? CheckTensors(values, count, "values") : status;
}

absl::Status CheckRows(const ballast_rows* tables, size_t count) {
  absl::Status status = CheckArray(tables, count, "tables");
  for (size_t i = 0; status.ok() && i < count; ++i) {
    if (tables[i].count > 0) status = CheckPresent(tables[i].ids, "ids");
    if (status.ok() && tables[i].elements > 0) status = CheckPresent(tables[i].data, "rows");
  }
  return status;
}

std::string TextOr(const char* text, const std::string& otherwise) {
  return text == nullptr || text[0] == '\0' ? otherwise : text;
}

ballast_result ToResult(const ballast::PushResult& result) {
  return {result.applied,    result.buffered,       result.dropped,      result.max_staleness, 0,
          result.bytes_sent, result.bytes_received, result.learning_rate};
}

ballast_result ToResult(const ballast::PullResult& result) { return {0, 0, 0, 0, 0, 0, result.bytes_received, 0}; }

ballast_result ToResult(const ballast::SetResult& result) { return {result.set, 0, 0, 0, 0, 0, 0, 0}; }

ballast_result ToResult(const ballast::RowsResult& result) {
  return {result.applied, result.kept,       result.dropped,        result.max_staleness,
          result.created, result.bytes_sent, result.bytes_received, 0};
}

// Starts a registered operation with `call`, which returns its future. `pushes`: it sends gradients.
template <typename Call>
void Start(ballast_worker* worker, uint64_t operation, bool pushes, Call call) {
  // The worker's destructor ends its calls, so it outlives them.
  call().OnReady([worker, operation, pushes](const auto& outcome) {
    if (!outcome.ok()) return worker->queue.End(operation, worker->worker->Explain(outcome.status()));
    const ballast_result result = ToResult(*outcome);
    worker->exchanged.Add(result, pushes);
    worker->queue.End(operation, result);
  });
}

// Registers the operation and starts it, unless its arguments are at fault.
template <typename Call>
uint64_t Begin(ballast_worker* worker, std::string what, bool pushes, const absl::Status& arguments, Call call) {
  const uint64_t operation = worker->queue.Begin(std::move(what));
  if (!arguments.ok()) {
    worker->queue.End(operation, arguments);
    return operation;
  }
  Start(worker, operation, pushes, std::move(call));
  return operation;
}

std::string Describe(const char* call, size_t count, const char* noun, uint64_t step) {
  return absl::StrCat(call, " of ", count, " ", noun, count == 1 ? "" : "s", " at step ", step);
}

std::vector<ballast::TensorGradient> ToGradients(const ballast_tensor* tensors, size_t count, uint32_t examples) {
  std::vector<ballast::TensorGradient> gradients;
  gradients.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t elements = examples == 0 ? 0 : tensors[i].elements;
    gradients.push_back({tensors[i].id, absl::MakeConstSpan(tensors[i].data, elements), {}});
  }
  return gradients;
}

std::vector<ballast::TensorValues> ToValues(const ballast_tensor* tensors, size_t count) {
  std::vector<ballast::TensorValues> values;
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    values.push_back({tensors[i].id, absl::MakeSpan(tensors[i].data, tensors[i].elements), {}});
  }
  return values;
}

std::optional<double> PositionOf(const ballast_step& step) {
  return step.position >= 0 ? std::make_optional(step.position) : std::nullopt;
}

uint64_t StepOf(const ballast_step* step) { return step == nullptr ? 0 : step->step; }

// Parses texts of specs and declares them.
template <typename Spec, typename DeclareAll>
absl::Status Declare(const char* kind, const char* const* texts, size_t count, uint32_t* ids, DeclareAll declare) {
  absl::Status given = CheckArray(texts, count, "specs");
  if (given.ok()) given = CheckArray(ids, count, "ids");
  if (!given.ok()) return given;
  std::vector<Spec> specs(count);
  for (size_t i = 0; i < count; ++i) {
    absl::Status status = CheckPresent(texts[i], kind);
    if (status.ok()) status = ballast::ParseMessageText(texts[i], kind, absl::StrCat("the ", kind), &specs[i]);
    if (!status.ok()) return status;
  }
  const absl::StatusOr<std::vector<uint32_t>> assigned = declare(std::move(specs));
  if (!assigned.ok()) return assigned.status();
  std::copy(assigned->begin(), assigned->end(), ids);
  return absl::OkStatus();
}

absl::StatusOr<ProgramWorker::Options> ToOptions(const ballast_options& given) {
  absl::StatusOr<ballast::ProgramEnvironment> environment = ballast::ReadProgramEnvironment();
  if (!environment.ok()) return environment.status();
  ProgramWorker::Options options;
  options.coordinator = TextOr(given.coordinator, environment->coordinator);
  options.rank = environment->rank;
  if (given.rank_plus_1 > 0) options.rank = given.rank_plus_1 - 1;
  options.examples = given.examples;
  options.gather_timeout = environment->gather_timeout;
  if (given.gather_seconds > 0) options.gather_timeout = Seconds(given.gather_seconds);
  ballast::SecurityOptions& security = environment->security;
  security.tls.authorities = TextOr(given.tls_ca, security.tls.authorities);
  security.tls.certificate = TextOr(given.tls_cert, security.tls.certificate);
  security.tls.key = TextOr(given.tls_key, security.tls.key);
  security.token_file = TextOr(given.token_file, security.token_file);
  absl::StatusOr<ballast::Credentials> credentials = ballast::Credentials::Load(security);
  if (!credentials.ok()) return credentials.status();
  options.credentials = *std::move(credentials);
  absl::Status status = CheckPresent(given.job, "job");
  if (status.ok()) status = ballast::ParseMessageText(given.job, "job", "the job", &options.job);
  if (!status.ok()) return status;
  ballast::ReplaceFields(*environment, options.job);
  options.run_dir = environment->run_dir;
  options.flight_dir = environment->flight_dir;
  options.trace = ballast::TraceContextOfEnvironment();
  return options;
}

absl::Status Join(const ballast_options* given, ballast_worker** joined) {
  absl::Status status = CheckPresent(given, "options");
  if (status.ok()) status = CheckPresent(joined, "worker");
  if (!status.ok()) return status;
  if (given->size == 0 || given->size % alignof(ballast_options) != 0 || given->size > sizeof(ballast_options)) {
    return absl::InvalidArgumentError(absl::StrCat("options: got a size of ", given->size, ", want at most ",
                                                   sizeof(ballast_options), ", the size in library ",
                                                   ballast::kVersion));
  }
  // A program that was compiled with an older header has fewer options.
  ballast_options all = {};
  std::memcpy(&all, given, given->size);
  absl::StatusOr<ProgramWorker::Options> options = ToOptions(all);
  if (!options.ok()) return options.status();
  absl::StatusOr<std::unique_ptr<ProgramWorker>> worker = ProgramWorker::Join(*std::move(options));
  if (!worker.ok()) return worker.status();
  *joined = new ballast_worker(*std::move(worker));
  return absl::OkStatus();
}

// Leases and catching up pause this worker, or push for it.
absl::Status CheckIdle(const ballast_worker* worker, const char* call) {
  const uint64_t in_flight = worker->queue.in_flight();
  if (in_flight == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(call, ": got ", in_flight, " operations in flight, want none"));
}

ballast_error* NoWorker() { return ToError(CheckPresent(nullptr, "worker")); }

}  // namespace

const char* ballast_version(void) { return ballast::kVersion; }

int ballast_error_code(const ballast_error* error) { return error == nullptr ? 0 : error->code; }
const char* ballast_error_reason(const ballast_error* error) { return error == nullptr ? "" : error->reason.c_str(); }
const char* ballast_error_message(const ballast_error* error) { return error == nullptr ? "" : error->message.c_str(); }
size_t ballast_error_details(const ballast_error* error) { return error == nullptr ? 0 : error->details.size(); }
const char* ballast_error_detail_name(const ballast_error* error, size_t index) {
  return index < ballast_error_details(error) ? error->details[index].first.c_str() : "";
}
const char* ballast_error_detail_value(const ballast_error* error, size_t index) {
  return index < ballast_error_details(error) ? error->details[index].second.c_str() : "";
}
void ballast_error_free(ballast_error* error) { delete error; }

ballast_error* ballast_join(const ballast_options* options, ballast_worker** worker) {
  return ToError(Join(options, worker));
}

ballast_error* ballast_leave(ballast_worker* worker, const char* failure) {
  if (worker == nullptr) return NoWorker();
  const absl::Status status = worker->worker->Leave(TextOr(failure, ""));
  worker->queue.Close();
  return ToError(status);
}

void ballast_free(ballast_worker* worker) { delete worker; }

void ballast_get_membership(const ballast_worker* worker, ballast_membership* membership) {
  if (membership == nullptr) return;
  *membership = {};
  if (worker == nullptr) return;
  const ProgramWorker& member = *worker->worker;
  *membership = {member.rank(), member.workers(), member.servers(), member.returns(), member.first_step()};
}

ballast_error* ballast_declare(ballast_worker* worker, const char* const* specs, size_t count, uint32_t* ids) {
  if (worker == nullptr) return NoWorker();
  return ToError(Declare<ballast::v1::TensorSpec>(
      "tensor", specs, count, ids, [&](auto parsed) { return worker->worker->Declare(std::move(parsed)); }));
}

ballast_error* ballast_declare_tables(ballast_worker* worker, const char* const* specs, size_t count, uint32_t* ids) {
  if (worker == nullptr) return NoWorker();
  return ToError(Declare<ballast::v1::TableSpec>(
      "table", specs, count, ids, [&](auto parsed) { return worker->worker->DeclareTables(std::move(parsed)); }));
}

uint64_t ballast_set_values(ballast_worker* worker, const ballast_tensor* tensors, size_t count) {
  if (worker == nullptr) return 0;
  return Begin(worker, Describe("setting", count, "tensor", 0), false, CheckTensors(tensors, count, "values"), [&] {
    std::vector<ballast::FirstValues> values;
    for (size_t i = 0; i < count; ++i) {
      values.push_back({tensors[i].id, absl::MakeConstSpan(tensors[i].data, tensors[i].elements)});
    }
    return worker->worker->client().SetValues(values);
  });
}

uint64_t ballast_push(ballast_worker* worker, const ballast_step* step, const ballast_tensor* gradients, size_t count) {
  if (worker == nullptr) return 0;
  const absl::Status given = CheckPush(step, gradients, count);
  return Begin(worker, Describe("push", count, "tensor", StepOf(step)), true, given, [&] {
    return worker->worker->client().Push(step->step, step->examples, ToGradients(gradients, count, step->examples),
                                         PositionOf(*step));
  });
}

uint64_t ballast_pull(ballast_worker* worker, uint64_t step, const ballast_tensor* values, size_t count) {
  if (worker == nullptr) return 0;
  return Begin(worker, Describe("pull", count, "tensor", step), false, CheckTensors(values, count, "values"),
               [&] { return worker->worker->client().Pull(step, ToValues(values, count)); });
}

uint64_t ballast_push_pull(ballast_worker* worker, const ballast_step* step, const ballast_tensor* gradients,
                           const ballast_tensor* values, size_t count) {
  if (worker == nullptr) return 0;
  const absl::Status given = CheckPushPull(step, gradients, values, count);
  return Begin(worker, Describe("push-pull", count, "tensor", StepOf(step)), true, given, [&] {
    return worker->worker->client().PushPull(step->step, step->examples, ToGradients(gradients, count, step->examples),
                                             ToValues(values, count), PositionOf(*step));
  });
}

uint64_t ballast_push_pull_owned(ballast_worker* worker, const ballast_step* step, const ballast_tensor* gradients,
                                 const ballast_tensor* values, size_t count) {
  if (worker == nullptr) return 0;
  const absl::Status given = CheckPushPull(step, gradients, values, count);
  const uint64_t operation = worker->queue.Begin(Describe("push-pull", count, "tensor", StepOf(step)), true);
  if (!given.ok()) {
    worker->queue.End(operation, given);
    return operation;
  }
  worker->starter.Start([worker, operation, step = *step, sent = ToGradients(gradients, count, step->examples),
                         received = ToValues(values, count)] {
    Start(worker, operation, true, [&] {
      return worker->worker->client().PushPull(step.step, step.examples, sent, received, PositionOf(step));
    });
  });
  return operation;
}

uint64_t ballast_pull_rows(ballast_worker* worker, uint64_t step, const ballast_rows* tables, size_t count) {
  if (worker == nullptr) return 0;
  return Begin(worker, Describe("pull of rows", count, "table", step), false, CheckRows(tables, count), [&] {
    std::vector<ballast::RowPull> pulls;
    for (size_t i = 0; i < count; ++i) {
      const ballast_rows& rows = tables[i];
      ballast::RowPull& pull = pulls.emplace_back();
      pull.table_id = rows.table;
      pull.ids = absl::MakeConstSpan(rows.ids, rows.count);
      pull.values = absl::MakeSpan(rows.data, rows.elements);
      if (rows.versions != nullptr) pull.versions = absl::MakeSpan(rows.versions, rows.count);
    }
    return worker->worker->client().PullRows(pulls, step);
  });
}

uint64_t ballast_push_rows(ballast_worker* worker, const ballast_step* step, const ballast_rows* tables, size_t count,
                           int last_of_step) {
  if (worker == nullptr) return 0;
  absl::Status given = CheckPresent(step, "step");
  if (given.ok()) given = CheckRows(tables, count);
  return Begin(worker, Describe("push of rows", count, "table", StepOf(step)), true, given, [&] {
    std::vector<ballast::RowPush> pushes;
    for (size_t i = 0; i < count; ++i) {
      const ballast_rows& rows = tables[i];
      ballast::RowPush& push = pushes.emplace_back();
      push.table_id = rows.table;
      push.ids = absl::MakeConstSpan(rows.ids, rows.count);
      push.gradients = absl::MakeConstSpan(rows.data, rows.elements);
      if (rows.versions != nullptr) push.versions = absl::MakeConstSpan(rows.versions, rows.count);
    }
    return worker->worker->client().PushRows(step->step, step->examples, pushes, last_of_step != 0, PositionOf(*step));
  });
}

ballast_error* ballast_wait(ballast_worker* worker, uint64_t operation, double seconds, ballast_result* result) {
  if (worker == nullptr) return NoWorker();
  const absl::StatusOr<ballast_result> outcome = worker->queue.Wait(operation, Seconds(seconds));
  if (outcome.ok() && result != nullptr) *result = *outcome;
  return ToError(outcome.status());
}

ballast_error* ballast_wait_any(ballast_worker* worker, double seconds, uint64_t* operation, ballast_result* result) {
  if (operation != nullptr) *operation = 0;
  if (worker == nullptr) return NoWorker();
  if (absl::Status status = CheckPresent(operation, "operation"); !status.ok()) return ToError(status);
  const auto completed = worker->queue.WaitAny(Seconds(seconds));
  *operation = completed.operation;
  if (completed.operation == 0) {
    return worker->queue.closed() ? ToError(absl::CancelledError("the worker has left the job")) : nullptr;
  }
  if (completed.result.ok() && result != nullptr) *result = *completed.result;
  return ToError(completed.result.status());
}

ballast_error* ballast_next_lease(ballast_worker* worker, double seconds, ballast_lease* lease, int* finished) {
  if (worker == nullptr) return NoWorker();
  absl::Status given = CheckPresent(lease, "lease");
  if (given.ok()) given = CheckPresent(finished, "finished");
  if (given.ok()) given = CheckIdle(worker, "next lease");
  if (!given.ok()) return ToError(given);
  const absl::StatusOr<std::optional<ProgramWorker::Lease>> next = worker->worker->NextLease(Seconds(seconds));
  if (!next.ok()) return ToError(next.status());
  *finished = !next->has_value();
  if (!next->has_value()) return nullptr;
  const ballast::v1::Lease& range = (*next)->range;
  *lease = {range.id(),  range.epoch(),       range.steps(),     range.begin(),
            range.end(), range.share_begin(), range.share_end(), (*next)->behind};
  return nullptr;
}

ballast_error* ballast_complete_lease(ballast_worker* worker, uint64_t lease, uint64_t steps, uint64_t batches) {
  if (worker == nullptr) return NoWorker();
  return ToError(worker->worker->CompleteLease(lease, steps, batches));
}

ballast_error* ballast_pause(ballast_worker* worker) {
  if (worker == nullptr) return NoWorker();
  if (absl::Status status = CheckIdle(worker, "pause"); !status.ok()) return ToError(status);
  return ToError(worker->worker->Pause());
}

ballast_error* ballast_catch_up(ballast_worker* worker, const ballast_tensor* values, size_t count, uint64_t* step) {
  if (worker == nullptr) return NoWorker();
  absl::Status given = CheckTensors(values, count, "values");
  if (given.ok()) given = CheckPresent(step, "step");
  if (given.ok()) given = CheckIdle(worker, "catch up");
  if (!given.ok()) return ToError(given);
  const absl::StatusOr<uint64_t> next = worker->worker->CatchUp(ToValues(values, count));
  if (next.ok()) *step = *next;
  return ToError(next.status());
}

ballast_error* ballast_shuffled(uint64_t n, uint64_t seed, uint32_t epoch, uint64_t begin, uint64_t count,
                                uint64_t* examples) {
  if (begin > n || count > n - begin) {
    return ToError(absl::InvalidArgumentError(
        absl::StrCat("positions: got ", count, " from ", begin, " on, want at most ", n, " in all")));
  }
  if (count == 0) return nullptr;
  if (absl::Status status = CheckPresent(examples, "examples"); !status.ok()) return ToError(status);
  const ballast::Permutation order(n, seed, epoch);
  for (uint64_t i = 0; i < count; ++i) examples[i] = order(begin + i);
  return nullptr;
}

ballast_error* ballast_report(ballast_worker* worker, const ballast_progress* progress) {
  if (worker == nullptr) return NoWorker();
  if (absl::Status status = CheckPresent(progress, "progress"); !status.ok()) return ToError(status);
  ballast::v1::WorkerProgress mine;
  mine.set_step(progress->step);
  mine.set_epoch(progress->epoch);
  mine.set_learning_rate(progress->learning_rate);
  ballast::v1::Work& work = *mine.mutable_work();
  work = worker->exchanged.Take();
  work.set_examples(progress->examples);
  work.set_loss_sum(progress->loss_sum);
  work.set_steps(progress->steps);
  work.set_seconds(progress->seconds);
  work.set_wait_seconds(progress->wait_seconds);
  std::optional<ballast::v1::Evaluation> evaluation;
  if (progress->evaluated != 0) {
    evaluation.emplace();
    evaluation->set_epoch(progress->epochs_done);
    evaluation->set_step(progress->step);
    evaluation->set_loss(progress->test_loss);
    if (progress->test_accuracy >= 0) evaluation->set_accuracy(progress->test_accuracy);
  }
  return ToError(worker->worker->Report(std::move(mine), std::move(evaluation)).status());
}
