// SPDX-License-Identifier: Apache-2.0
#include "worker/training/worker.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/job/job_config.h"
#include "common/job/job_length.h"
#include "common/metrics/memory_bytes.h"
#include "common/program/network_link.h"
#include "common/program/this_process.h"
#include "common/status/error_reason.h"
#include "common/status/job_failure.h"
#include "common/storage/file.h"
#include "common/text/number_text.h"
#include "common/trace/trace_file.h"
#include "worker/data/batch_stream.h"
#include "worker/rows/row_exchange.h"
#include "worker/rows/table_saver.h"
#include "worker/rows/table_specs.h"
#include "worker/training/coordinator_leases.h"
#include "worker/training/parameter_exchange.h"
#include "worker/training/training_loop.h"

namespace ballast {
namespace {

// Time for the coordinator to declare a former process of this rank lost; longer than a member's time to live. The
// longer timeout is for a coordinator that may restart meanwhile, which starts that time again.
constexpr absl::Duration kJoinTimeout = absl::Seconds(5);
constexpr absl::Duration kLongJoinTimeout = absl::Seconds(15);

// Time for the coordinator to respond to a worker that it declared lost.
constexpr absl::Duration kReturnTimeout = absl::Seconds(60);
// Timeout of a wait whose time is already over.
constexpr absl::Duration kMinTimeout = absl::Milliseconds(1);

// Gradients of this size are copied in less time than the fixed cost of a push.
constexpr int64_t kMergeBytes = 256 << 10;

// A measured step reads the gradient and a part of the weights once more.
constexpr absl::Duration kMeasureInterval = absl::Seconds(10);

// See DataStream.linger_ms.
constexpr uint32_t kDefaultLingerMs = 200;

// Lets GPUs read and write memory that a server shares, until the last copy of the result is destroyed.
std::shared_ptr<void> RegisterWith(const std::vector<NamedDevice>& devices, absl::Span<char> memory) {
  auto registrations = std::make_shared<std::vector<std::unique_ptr<HostRegistration>>>();
  for (const NamedDevice& each : devices) registrations->push_back(each.device->RegisterHost(memory));
  return registrations;
}

// Returns whether workers may wait for each other, at layers or rows, so that one without data has to say so.
bool Pauses(const v1::Job& job) {
  bool all_async = job.policy().has_async();
  for (const v1::EmbeddingTable& table : job.model().tables()) all_async &= PolicyOf(table, job).has_async();
  return !all_async;
}

Stride StrideOf(const v1::ConsistencyPolicy& policy, uint32_t workers) {
  if (!KeepsLockStep(policy)) return Stride::kOwn;
  const uint32_t quorum = policy.sync().quorum();
  return quorum == 0 || quorum == workers ? Stride::kTogether : Stride::kNewest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(Options options) {
  std::unique_ptr<Worker> worker(new Worker(std::move(options)));
  if (absl::Status status = worker->Open(); !status.ok()) return status;
  return worker;
}

Worker::~Worker() = default;

absl::Status Worker::Open() {
  if (!options_.trace.empty()) {
    if (absl::Status status = CheckTracePath(options_.trace); !status.ok()) return status;
    timeline_ = std::make_unique<TimelineRecorder>(options_.trace_steps);
    tracer_ = std::make_unique<CallTracer>(options_.trace_context, timeline_.get());
  }
  absl::StatusOr<WorkerResources> resources = OpenWorkerResources(
      options_.job, options_.job_folder,
      {.kind = options_.device, .threads = options_.threads, .gpus = options_.gpus, .cuda = options_.cuda},
      timeline_.get());
  if (!resources.ok()) return resources.status();
  resources_.emplace(*std::move(resources));
  return absl::OkStatus();
}

void Worker::OnJobChange(const JobCondition& condition) {
  // An interrupted worker still saves its results, although the others already leave.
  if (condition.state != v1::JOB_STATE_FAILED || interrupted_) return;
  absl::MutexLock lock(&mutex_);
  if (client_ != nullptr) client_->Shutdown(condition.reason);
  if (link_ != nullptr) link_->CancelCalls(condition.reason);
}

std::pair<Client*, CoordinatorLink*> Worker::Connections() {
  absl::MutexLock lock(&mutex_);
  return {client_.get(), link_.get()};
}

absl::Duration Worker::GatherTimeLeft() const {
  const absl::Duration left = std::max(started_ + options_.gather_timeout - absl::Now(), kMinTimeout);
  if (!returns_) return left;
  // The job may also be waiting for a server.
  return std::max({left, kReturnTimeout, ReturnTime(options_.job.durability())});
}

absl::Status Worker::FailToGather(const absl::Status& status, absl::string_view missing) {
  failed_to_gather_ = true;
  const absl::Duration waited = std::min(absl::Ceil(absl::Now() - started_, absl::Seconds(1)), options_.gather_timeout);
  return Annotate(status, absl::StrCat("the job has not gathered within ", absl::FormatDuration(waited), missing));
}

absl::Status Worker::Join() {
  absl::StatusOr<std::unique_ptr<CoordinatorLink>> link =
      CoordinatorLink::Connect(options_.coordinator, GatherTimeLeft(), options_.credentials, options_.job.name());
  if (!link.ok()) return link.status();
  v1::JoinRequest request;
  request.set_role(v1::ROLE_WORKER);
  if (options_.rank.has_value()) request.set_rank(*options_.rank);
  // A process that rejoins asks for the rank that it had.
  if (returns_) request.set_rank(joined_.member().rank());
  request.set_description(DescribeThisProcess());
  request.set_process(getpid());
  *request.mutable_job() = options_.job;
  // The workers' files must be equal, wherever they are, and stay so until the end of the job.
  if (resources_->initial.has_value()) {
    request.mutable_job()->set_init_from(absl::StrCat("checksum ", absl::Hex(resources_->initial->checksum)));
  }
  request.set_train_examples(resources_->train_examples);
  absl::StatusOr<v1::JoinResponse> joined =
      (*link)->Join(std::move(request), OutlivesAServer(options_.job.durability()) ? kLongJoinTimeout : kJoinTimeout);
  if (!joined.ok()) return joined.status();
  joined_ = *std::move(joined);
  if (options_.metrics != nullptr) {
    options_.metrics->Join(options_.job.name(), joined_.member().rank(), joined_.member().incarnation());
    options_.metrics->SetLink(LinkBytesPerSecond(options_.coordinator));
  }
  absl::MutexLock lock(&mutex_);
  link_ = *std::move(link);
  link_->StartHeartbeats([this](const JobCondition& condition) { OnJobChange(condition); });
  return absl::OkStatus();
}

absl::Status Worker::Connect() {
  ClientOptions options = OptionsForWorker(options_.job, joined_);
  options.coordinator = options_.coordinator;
  options.credentials = options_.credentials;
  options.shared_memory = options_.shared_memory;
  options.data_streams = options_.data_streams;
  if (!resources_->model->waits_for_loss()) {
    options.pin_memory = [devices = resources_->devices.devices()](absl::Span<char> memory) {
      return RegisterWith(devices, memory);
    };
  }
  options.connect_timeout = kReturnTimeout;
  options.gather_timeout = std::max(GatherTimeLeft(), absl::Seconds(1));
  options.watch_answers = timeline_ != nullptr;
  options.tracer = tracer_.get();
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(std::move(options));
  if (!client.ok()) return client.status();
  // All workers compute the same length, because their declarations must be equal.
  const uint64_t updates = CountUpdates(options_.job, resources_->train_examples, joined_.workers());
  const v1::Optimizer optimizer = WithScheduleLength(options_.job.optimizer(), updates);
  const absl::Span<const size_t> provided =
      resources_->initial.has_value() ? absl::MakeConstSpan(resources_->initial->provided) : absl::Span<const size_t>();
  absl::Status status =
      (*client)->Declare(ParameterExchange::Specs(*resources_->model, options_.job, optimizer, provided));
  if (status.ok() && options_.job.model().tables_size() > 0) {
    tables_ = TableSpecs(options_.job, FirstTableId(), updates);
    status = (*client)->DeclareTables(tables_);
  }
  if (status.ok() && joined_.member().rank() == 0 && resources_->initial.has_value())
    status = SetInitialValues(**client);
  if (!status.ok()) return status;
  const ShardMap map = (*client)->shard_map();
  {
    absl::MutexLock lock(&mutex_);
    client_ = *std::move(client);
  }
  // The client fetched the map over its own link, so this link does not yet know the control port that the map names.
  Connections().second->Follow(map);
  return absl::OkStatus();
}

absl::Status Worker::SetInitialValues(Client& client) {
  std::vector<std::vector<float>> copies;
  std::vector<FirstValues> tensors;
  for (size_t index : resources_->initial->provided) {
    std::vector<float>& copy = copies.emplace_back(resources_->model->parameters()[index].elements);
    if (absl::Status status = resources_->model->GetParameter(index, absl::MakeSpan(copy)); !status.ok()) return status;
    tensors.push_back({static_cast<uint32_t>(index), copy});
  }
  const absl::Status status = client.SetValues(tensors).Get().status();
  // Other values than before are those of a model that has been trained since, in this process.
  const bool began_before = joined_.member().incarnation() > 1 || joined_.has_resumed_batches();
  if (ReasonOf(status) == v1::ERROR_REASON_VALUES_SET && began_before) return absl::OkStatus();
  if (status.ok() && !began_before) std::cerr << "note: " << resources_->initial->report << std::endl;
  return status;
}

absl::Status Worker::Finish(const v1::JobProgress& progress, bool interrupted) {
  if (!recorder_.has_value()) return absl::OkStatus();
  const auto [client, link] = Connections();
  RunRecorder::Totals totals;
  // Interrupt has already canceled the link's calls.
  if (!interrupted) {
    if (absl::StatusOr<v1::GetProgressResponse> reported = link->GetProgress(); reported.ok()) {
      totals.reported = *std::move(reported);
    }
  }
  absl::StatusOr<std::vector<v1::GetStatusResponse>> shards = client->GetStatus();
  // Saving the model matters more than a complete summary.
  if (!shards.ok()) {
    std::cerr << "warning: the summary lacks the servers' totals: " << shards.status().message() << std::endl;
  }
  if (shards.ok()) totals.shards = *std::move(shards);
  if (!resources_->model->waits_for_loss()) {
    for (const NamedDevice& each : resources_->devices.devices()) {
      totals.gpu_peak_bytes.push_back(each.device->PeakBytes());
    }
  }
  if (absl::Status status = recorder_->Finish(*resources_->model, progress, totals, interrupted); !status.ok()) {
    return status;
  }
  return SaveTables({options_.coordinator, options_.credentials, options_.job.name(), recorder_->folder().tables()},
                    tables_);
}

std::unique_ptr<LeaseSource> Worker::OpenLeases(CoordinatorLink* link) {
  if (resources_->stream == nullptr) return std::make_unique<CoordinatorLeases>(link, GatherTimeLeft());
  const v1::DataStream& stream = options_.job.data().stream();
  return std::make_unique<StreamLeases>(
      link, resources_->stream.get(),
      StreamLeases::Options{
          .gather_timeout = GatherTimeLeft(),
          .batch_size = options_.job.training().batch_size(),
          .linger = absl::Milliseconds(stream.has_linger_ms() ? stream.linger_ms() : kDefaultLingerMs),
          .check = [model = resources_->model.get()](const Dataset& rows) { return CheckLabels(rows, *model); }});
}

absl::Status Worker::Train() {
  const v1::Job& job = options_.job;
  const uint32_t rank = joined_.member().rank();
  const auto [client, link] = Connections();
  ParameterExchange exchange(
      resources_->model.get(), client,
      {.accumulate_batches = std::max(1u, job.training().accumulate_batches()),
       .local_learning_rate = job.policy().local_sgd().learning_rate(),
       .scale_loss = job.training().precision() == v1::FP16,
       .codec = resources_->codec.get(),
       .merge_bytes = kMergeBytes,
       .defer_gradients = SendsFloats(job.codec().gradients()),
       .interrupted = &interrupted_,
       .timeline = timeline_.get(),
       .measure_interval = options_.metrics == nullptr ? absl::InfiniteDuration() : kMeasureInterval});
  MemoryBytes memory = resources_->model->Memory();
  memory.staging += exchange.StagingBytes();
  memory.pinned += exchange.PinnedBytes();
  memory.gradients += resources_->codec->DeviceBytes();
  std::cerr << "memory " << MemoryText(memory) << std::endl;
  const TableSchema* const table = resources_->train->schema();
  const bool resumes = joined_.has_resumed_batches();
  const bool returns = joined_.member().incarnation() > 1 && !resumes;
  if (rank == 0 && !recorder_.has_value()) {
    absl::StatusOr<RunRecorder> recorder =
        RunRecorder::Create({options_.run_dir, job, options_.job_folder, joined_.servers(), joined_.workers(),
                             resources_->devices.Describe(), memory, returns || resumes || options_.continues_run,
                             DescribeModel(job, resources_->train->features(), table == nullptr ? "" : table->ToJson(),
                                           resources_->train->id_fields())});
    if (!recorder.ok()) return recorder.status();
    recorder_ = *std::move(recorder);
    const std::string advice = LabelAdvice(*resources_->train, *resources_->model);
    if (!advice.empty()) std::cerr << "note: " << advice << std::endl;
  }
  if (rank > 0 && !options_.run_dir.empty() && !options_.rank.has_value()) {
    std::cerr << "warning: this is worker " << rank << "; only worker 0 writes into " << options_.run_dir << std::endl;
  }
  const std::unique_ptr<LeaseSource> leases = OpenLeases(link);
  std::optional<RowExchange> rows;
  if (job.model().tables_size() > 0) {
    rows.emplace(resources_->model.get(), client,
                 RowExchange::Options{.first_id = FirstTableId(),
                                      .pulls_early = PullsEarly(job),
                                      .interrupted = &interrupted_,
                                      .timeline = timeline_.get()});
  }
  RowExchange* const row_exchange = rows.has_value() ? &*rows : nullptr;
  BatchStream batches(resources_->train.get(), leases.get(),
                      {.seed = job.seed(),
                       .batch_size = job.training().batch_size(),
                       .shuffle = !job.training().no_shuffle(),
                       .tables = FieldsOfTables(*resources_->model)});
  std::optional<Evaluator> evaluator;
  if (rank == 0 && resources_->test != nullptr) {
    evaluator.emplace(resources_->test.get(), resources_->model.get(), row_exchange, resources_->max_batch);
  }
  const uint32_t every = job.training().report_every_steps();
  TrainingLoop loop({.model = resources_->model.get(),
                     .exchange = &exchange,
                     .rows = row_exchange,
                     .batches = &batches,
                     .coordinator = link,
                     .evaluator = evaluator.has_value() ? &*evaluator : nullptr,
                     .recorder = recorder_.has_value() ? &*recorder_ : nullptr},
                    {.epochs = job.training().epochs(),
                     .report_every_steps = every == 0 ? 10 : every,
                     .batches_per_step = BatchesPerPush(job),
                     .pauses = Pauses(job),
                     .stride = StrideOf(job.policy(), joined_.workers()),
                     .returns = returns,
                     .first_step = joined_.steps(),
                     .resumes = resumes,
                     .first_batch = joined_.resumed_batches(),
                     .seed = job.seed() + rank,
                     .interrupted = &interrupted_,
                     .timeline = timeline_.get(),
                     .metrics = options_.metrics});
  absl::Status status = loop.Run();
  if (status.ok() && !resources_->model->waits_for_loss()) {
    for (const NamedDevice& each : resources_->devices.devices()) {
      std::cerr << "memory of device " << each.name << ": at most " << BytesText(each.device->PeakBytes())
                << " in use at once since the start" << std::endl;
    }
  }
  if (interrupted_) {
    batches.Cancel();
    // Transfers in flight are dropped, because the servers hold the result of training.
    status = recorder_.has_value() ? exchange.AbandonAndPull() : absl::OkStatus();
    if (status.ok()) status = Finish(loop.progress(), true);
    client->Shutdown("interrupted");
    client->WaitUntilIdle();
    return status.ok() ? absl::CancelledError("interrupted") : status;
  }
  if (status.ok()) status = Finish(loop.progress(), false);
  client->Shutdown("the worker ends");
  // A response that arrived with the shutdown may still be decoded into the buffers of `exchange`.
  client->WaitUntilIdle();
  return status;
}

void Worker::WriteTimeline() const {
  resources_->model->Record(nullptr);
  const TimelineRecorder::Recording recording = timeline_->Copy();
  const CallTimeline::Recording calls = tracer_->calls().Copy();
  const absl::Status status = WriteFileAtomically(
      options_.trace, {WorkerTraceJson(recording, calls, joined_.member().rank(), resources_->devices.Describe())});
  if (!status.ok()) std::cerr << "warning: could not write the timeline: " << status.message() << std::endl;
  const std::string left_out = LeftOutText(recording, calls);
  if (!left_out.empty()) std::cerr << "warning: " << left_out << std::endl;
}

absl::Status Worker::Run() {
  const absl::Status status = RunJob();
  if (timeline_ != nullptr) WriteTimeline();
  return status;
}

absl::Status Worker::RunJob() {
  started_ = absl::Now();
  std::cerr << "model " << resources_->model->Describe() << "; "
            << (resources_->stream == nullptr ? absl::StrCat(resources_->train_examples, " training examples")
                                              : "a stream of training examples")
            << "; device " << resources_->devices.Describe() << std::endl;
  if (tracer_ != nullptr) std::cerr << "trace " << tracer_->trace().TraceId() << std::endl;
  absl::Status status = RunMemberships();
  // All workers declare their tensors first. A shard that knows none is that of a new process.
  const bool empty = ReasonOf(status) == v1::ERROR_REASON_NO_JOB;
  lost_shard_ = empty || IsLossOfServer(status);
  return empty ? Annotate(status, "a server was lost, and its shard with it") : status;
}

absl::Status Worker::RunMemberships() {
  while (true) {
    if (std::optional<absl::Status> status = RunMembership(); status.has_value()) return *status;
    Disconnect();
  }
}

void Worker::Disconnect() {
  if (options_.metrics != nullptr) options_.metrics->Leave();
  std::unique_ptr<CoordinatorLink> link;
  std::unique_ptr<Client> client;
  absl::MutexLock lock(&mutex_);
  link.swap(link_);
  client.swap(client_);
}

std::optional<absl::Status> Worker::RunMembership() {
  returns_ = joined_.has_member();
  if (absl::Status status = Join(); !status.ok()) {
    const bool no_response = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    return no_response && !returns_ ? FailToGather(status, ", server 0 does not answer") : status;
  }
  absl::Status status = Connect();
  if (status.ok()) status = Train();
  CoordinatorLink* const link = Connections().second;
  const JobCondition condition = link->condition();
  // The response to another call may report the loss before the next heartbeat does.
  const bool lost = condition.lost || ReasonOf(status) == v1::ERROR_REASON_MEMBER_LOST;
  if (!status.ok() && !interrupted_ && lost) {
    std::cerr << "lost the membership in the job, joining again: "
              << (condition.lost ? condition.reason : std::string(status.message())) << std::endl;
    return std::nullopt;
  }
  if (!status.ok() && !interrupted_ && condition.before_start) {
    status = FailToGather(absl::UnavailableError(condition.reason), ", server 0 was lost");
  } else if (!status.ok() && !interrupted_ && condition.state == v1::JOB_STATE_FAILED) {
    status = JobFailedError(condition.reason, condition.failure);
  }
  // A lost device is also UNAVAILABLE, but only errors from servers carry a reason.
  bool has_reason = false;
  status.ForEachPayload([&](absl::string_view, const absl::Cord&) { has_reason = true; });
  const bool no_response = has_reason && (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status));
  if (no_response && !interrupted_ && condition.state == v1::JOB_STATE_GATHERING) status = FailToGather(status, "");
  const bool well = status.ok() || interrupted_;
  // A worker that timed out while gathering must not fail the job, so that the others still gather and it may rejoin.
  const bool worker_local = absl::IsUnavailable(status) || failed_to_gather_;
  const absl::Status left = link->Leave(well ? "" : std::string(status.message()), worker_local);
  // Only a warning, because the outcome of the job is already decided for this worker.
  if (!left.ok()) {
    std::cerr << "warning: could not report the end of this worker to the coordinator: " << left.message() << std::endl;
  }
  return status;
}

bool Worker::Interrupt() {
  interrupted_ = true;
  absl::MutexLock lock(&mutex_);
  if (link_ == nullptr) return false;
  // Ends a wait for data. The current step continues, because its calls to the shards are not canceled.
  link_->CancelCalls("interrupted");
  return true;
}

}  // namespace ballast
