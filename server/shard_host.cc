// SPDX-License-Identifier: Apache-2.0
#include "server/shard_host.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/concurrency/clock.h"
#include "common/job/job_config.h"
#include "common/status/error_reason.h"
#include "server/rpc/data_plane.h"

namespace ballast {

ShardHost::ShardHost(const ServerOptions& options, const TokenTable* tokens, std::function<void()> heartbeat_now,
                     OpenStandby open_standby)
    : options_(options),
      heartbeat_now_(std::move(heartbeat_now)),
      serving_(!options_.with_standby),
      shard_(ShardOptions(), Clock::Real()),
      tracing_(options_.calls, options_.log),
      receiver_(options_.rank, &shard_, heartbeat_now_),
      services_(options_.rank, options_.max_bytes_in_flight, &shard_, &receiver_, &serving_, tokens, &tracing_) {
  if (!options_.with_standby) return;
  StandbyJournal::Options journal;
  journal.shard = options_.rank;
  journal.max_queued_bytes = options_.max_bytes_in_flight;
  journal.open = std::move(open_standby);
  journal.on_news = heartbeat_now_;
  journal.log = options_.log;
  standby_journal_ = std::make_unique<StandbyJournal>(std::move(journal), &shard_);
}

absl::Status ShardHost::Open() {
  if (absl::Status status = OpenCheckpoints(); !status.ok()) return status;
  return Recover();
}

absl::Status ShardHost::OpenCheckpoints() {
  if (!options_.resume.empty()) {
    absl::StatusOr<CheckpointSource> source = CheckpointSource::Open(options_.resume);
    if (!source.ok()) return source.status();
    resume_ = *std::move(source);
  }
  checkpoint_writer_ = std::make_unique<CheckpointWriter>(options_.files, options_.checkpoint_dir, options_.rank);
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  if (absl::Status status = options_.files->MakeFolder(options_.checkpoint_dir); !status.ok()) return status;
  checkpoints_.emplace(options_.files, options_.checkpoint_dir);
  return absl::OkStatus();
}

absl::Status ShardHost::Recover() {
  if (options_.state_dir.empty() || options_.with_standby) return absl::OkStatus();
  ShardStore::Options options;
  options.folder = options_.state_dir;
  options.shard = options_.rank;
  options.on_failure = options_.on_fatal;
  options.log = options_.log;
  absl::StatusOr<std::unique_ptr<ShardStore>> store = ShardStore::Open(std::move(options), options_.files, &shard_);
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  const absl::StatusOr<ShardStore::Recovered> recovered = store_->Recover();
  if (!recovered.ok()) return recovered.status();
  if (recovered->found) options_.on_recovered(*recovered);
  return absl::OkStatus();
}

CoordinatorMember::Events ShardHost::MemberEvents() {
  CoordinatorMember::Events events;
  events.job = [this] { return shard_.job_name(); };
  events.return_time = [this] {
    const v1::Durability durability = shard_.job_config().durability;
    return OutlivesAServer(durability) ? ReturnTime(durability) : absl::ZeroDuration();
  };
  events.on_job_failed = [this](const absl::Status& failure) {
    shard_.Close(failure);
    options_.on_job_failed(failure);
  };
  // Both wait for pushes under way, which may wait for a disk; heartbeats must not.
  events.on_absent = [this](const std::vector<v1::Member>& absent) { PauseSoon(absent); };
  events.on_capture = [this](uint64_t checkpoint, uint32_t servers) {
    // If the task is refused, the coordinator abandons the checkpoint.
    services_.work()
        .Submit([this, checkpoint, servers] {
          const uint64_t parent = checkpoint_writer_->Parent();
          checkpoint_writer_->Begin(checkpoint, servers, shard_.CaptureCheckpoint(checkpoint, parent));
          captured_ = checkpoint;
          heartbeat_now_();
        })
        .IgnoreError();
  };
  events.checkpoint_part = [this] { return DescribePart(); };
  events.caused_waits = [this] { return shard_.caused_waits(); };
  events.on_part = [this](const v1::Member& member) { AssumeRole(member); };
  events.on_state = [this](v1::JobState state) { gathering_ = state == v1::JOB_STATE_GATHERING; };
  events.pair_news = [this]() -> ReplicationReport {
    if (!options_.with_standby) return {};
    return {standby_journal_->Report(), receiver_.lost()};
  };
  events.on_heard = [this](const ReplicationReport& news) {
    if (options_.with_standby) standby_journal_->OnHeartbeat(news.standby);
  };
  events.on_standby = [this](const v1::StandbyTarget& standby) {
    if (options_.with_standby) standby_journal_->Feed(standby);
  };
  events.on_displaced = [this](absl::Status reason) {
    if (!options_.with_standby) return options_.on_fatal(std::move(reason));
    serving_.Close();
    standby_journal_->Close(
        WithReason(v1::ERROR_REASON_NOT_SERVING,
                   absl::UnavailableError(absl::StrCat("another server holds the shard: ", reason.message()))));
    options_.on_displaced(std::move(reason));
  };
  events.on_fatal = options_.on_fatal;
  return events;
}

absl::Status ShardHost::Ready() const {
  // Workers may start only once all servers and standbys are ready.
  const bool follows = receiver_.following() || (receiver_.awaits_server() && gathering_);
  return follows ? absl::OkStatus() : serving_.Check();
}

v1::CheckpointPart ShardHost::DescribePart() const {
  v1::CheckpointPart part;
  part.set_id(captured_.load());
  if (part.id() == 0) return part;
  part.set_stage(v1::CheckpointPart::STAGE_CAPTURED);
  const std::optional<CheckpointWriter::Outcome> outcome = checkpoint_writer_->outcome();
  if (!outcome.has_value() || outcome->id != part.id()) return part;
  if (!outcome->digest.ok()) {
    part.set_stage(v1::CheckpointPart::STAGE_FAILED);
    part.set_failure(std::string(outcome->digest.status().message()));
    return part;
  }
  part.set_stage(v1::CheckpointPart::STAGE_WRITTEN);
  part.set_bytes(outcome->digest->bytes);
  part.set_checksum(outcome->digest->checksum);
  return part;
}

void ShardHost::PauseSoon(const std::vector<v1::Member>& absent) {
  // The next heartbeat repeats the list, because a worker wrongly declared lost may push and is then waited for
  // again.
  if (pausing_.exchange(true)) return;
  const absl::Status taken = services_.work().Submit([this, absent] {
    const std::string job = shard_.job_name();
    for (const v1::Member& worker : absent) {
      // Pause is refused if a newer incarnation has pushed already; then no pause is needed.
      if (!job.empty()) shard_.Pause(job, worker.rank(), worker.incarnation()).IgnoreError();
    }
    pausing_ = false;
  });
  if (!taken.ok()) pausing_ = false;
}

void ShardHost::AssumeRole(const v1::Member& member) {
  if (!options_.with_standby) return;
  if (member.role() == v1::ROLE_STANDBY) {
    receiver_.Begin(member.incarnation());
    return options_.on_part(member);
  }
  standby_journal_->BeginServing(member.incarnation());
  if (shard_.job_name().empty()) {
    serving_.Open();
    return options_.on_part(member);
  }
  // From here on the stream from the previous server is closed.
  receiver_.TakeOver([this, member](const absl::Status& status) {
    if (!status.ok()) return options_.on_fatal(status);
    standby_journal_->BeginJob();
    shard_.StartJournal(standby_journal_.get());
    serving_.Open();
    options_.on_part(member);
  });
}

ParameterShard::Options ShardHost::ShardOptions() {
  ParameterShard::Options options;
  options.rank = options_.rank;
  options.max_state_bytes = options_.max_state_bytes;
  options.max_wait_bytes = DataPlane::WaitBytes(options_.max_bytes_in_flight);
  if (!options_.state_dir.empty() || options_.with_standby) {
    options.open_journal = [this](const JobConfig& job) { return OpenJournal(job); };
  }
  options.keeps_checkpoints = !options_.checkpoint_dir.empty();
  options.resume_from = options_.resume;
  options.load_checkpoint = [](const std::string& path, const JobConfig& job, absl::Span<const OwnedTensor> tensors,
                               absl::Span<const std::unique_ptr<Table>> tables) -> absl::StatusOr<Resumption> {
    const absl::StatusOr<CheckpointSource> source = CheckpointSource::Open(path);
    if (!source.ok()) return source.status();
    return source->Load(job, tensors, tables);
  };
  return options;
}

absl::StatusOr<ShardJournal*> ShardHost::OpenJournal(const JobConfig& job) {
  if (job.durability.mode() == v1::Durability::STANDBY) {
    if (!options_.with_standby) {
      return WithReason(
          v1::ERROR_REASON_NO_STORAGE,
          absl::FailedPreconditionError(absl::StrCat("job \"", job.name, "\" needs durability STANDBY, but shard ",
                                                     options_.rank, " was started without --with_standby")),
          {{"job", job.name}});
    }
    // The changes that a standby receives are already in its server's journal.
    if (!serving_.Check().ok()) return nullptr;
    return standby_journal_.get();
  }
  if (options_.with_standby) {
    return WithReason(
        v1::ERROR_REASON_NO_STORAGE,
        absl::FailedPreconditionError(absl::StrCat(
            "job \"", job.name, "\" has durability ", v1::Durability::Mode_Name(job.durability.mode()), ", but shard ",
            options_.rank, " was started with --with_standby, which needs durability STANDBY")),
        {{"job", job.name}});
  }
  return store_->Start(job);
}

void ShardHost::Close(const absl::Status& reason) {
  shard_.Close(reason);
  if (standby_journal_ != nullptr) standby_journal_->Close(reason);
  services_.CloseStreams(reason);
}

}  // namespace ballast
