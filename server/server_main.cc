// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/flight/flight_dump.h"
#include "common/http/status_server.h"
#include "common/program/env_flags.h"
#include "common/program/line_writer.h"
#include "common/program/memory_limit.h"
#include "common/program/signal_watch.h"
#include "common/program/this_process.h"
#include "common/security/security_options.h"
#include "common/status/job_failure.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file.h"
#include "common/storage/file_system.h"
#include "common/text/number_text.h"
#include "common/trace/call_timeline.h"
#include "common/trace/trace_file.h"
#include "google/protobuf/stubs/logging.h"
#include "server/memory/memory_keeper.h"
#include "server/server.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7700", "HOST:PORT to serve on; port 0 picks a free port.");
ABSL_FLAG(std::string, control_listen, "",
          "HOST:PORT for control calls (heartbeats, leases, status, health), which load on --listen does not delay. "
          "Empty: a free port on the same host.");
ABSL_FLAG(
    std::string, advertise, "",
    "HOST:PORT at which others reach this server; they reach its control port on the same host. Port 0: the port of "
    "--listen. Empty: --listen.");
ABSL_FLAG(std::string, rank, "0", "Rank of this server, or a pod name that ends in it (ballast-server-2).");
ABSL_FLAG(bool, with_standby, false,
          "Each server has a standby, for jobs with durability STANDBY: start two processes per rank, the second with "
          "the same rank or with that rank plus --servers. The one that joins second is the standby and takes over if "
          "the server is lost.");
ABSL_FLAG(uint32_t, servers, 1, "Number of servers in the job; the value of server 0 applies.");
ABSL_FLAG(uint32_t, workers, 1, "Number of workers in the job; the value of server 0 applies.");
ABSL_FLAG(std::string, coordinator, "",
          "HOST:PORT of server 0, preferably its control port; required for all other servers.");
ABSL_FLAG(std::string, address_file, "", "File to which the address is written once the server serves.");
ABSL_FLAG(
    std::string, http_port, "",
    "Port of the HTTP pages /healthz, /readyz and /metrics, on the host of --listen, or HOST:PORT; 0 picks a free "
    "port. With --tls_cert they are HTTPS. Empty: none.");
ABSL_FLAG(std::string, http_address_file, "", "File to which the address of the HTTP pages is written.");
ABSL_FLAG(std::string, flight_dir, "",
          "Directory to which the newest 10,000 events are written as flight-server-RANK-PID.jsonl when a wait times "
          "out, when the server fails, and at SIGQUIT. Empty: SIGQUIT ends the server.");
ABSL_FLAG(bool, flight_recorder, true, "Keep the newest 10,000 events in memory, for /flight and --flight_dir.");
ABSL_FLAG(std::string, control_address_file, "",
          "File to which the control address is written, before --address_file.");
ABSL_FLAG(bool, reflection, false, "Enable gRPC server reflection.");
ABSL_FLAG(std::string, tls_cert, "", "PEM file with this server's certificate; enables TLS.");
ABSL_FLAG(std::string, tls_key, "",
          "PEM file with the private key of --tls_cert; it must be readable by this user only.");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file with the certificate authorities that verify server 0 and clients. With it, clients must present a "
          "certificate.");
ABSL_FLAG(
    std::string, token_file, "",
    "File with the tokens that calls must present, one per line: reader, worker or admin; a job or *; the token.");
ABSL_FLAG(bool, insecure, false, "Serve other machines without TLS and tokens; logs a warning.");
ABSL_FLAG(
    double, memory_limit_gib, 0,
    "Limit on weights and optimizer state, in GiB; 0: three quarters of the memory, or of the container's limit.");
ABSL_FLAG(std::string, state_dir, "",
          "Directory for the state that the job's durability requires, used by this server only; state found there is "
          "recovered.");
ABSL_FLAG(std::string, checkpoint_dir, "",
          "Directory for checkpoints, shared by all servers of the job; the job's durability sets how often they are "
          "taken and how many are kept.");
ABSL_FLAG(std::string, resume, "",
          "Checkpoint from which the job resumes: auto (the newest one in --checkpoint_dir, if any) or the path of a "
          "checkpoint's manifest. All servers need the same value.");
ABSL_FLAG(std::string, trace, "",
          "Output file for a timeline of the calls that workers with --trace make (JSON; open it with ui.perfetto.dev "
          "or chrome://tracing), written when the server ends.");
ABSL_FLAG(uint32_t, gather_timeout, 0,
          "Seconds within which all servers and workers must join; otherwise the server names the missing ones and "
          "exits with 75. 0: no limit.");
ABSL_FLAG(
    std::string, run_by, "",
    "orchestrator: SIGTERM before the job has finished exits with 143, because an orchestrator reads exit codes; with "
    "--resume=auto, a job that was lost with a server's shard exits with 69.");
ABSL_FLAG(uint32_t, bytes_in_flight_mib, 256,
          "Limit on the requests and responses held at once, in MiB, 8 to 1048576; calls beyond it are refused.");
ABSL_FLAG(uint32_t, max_connections, 0,
          "Limit on open connections; further ones are closed unread. 0: 1024, or fewer if the limit on open files "
          "requires it; with more than 160 --workers, 64 and 6 for each.");
ABSL_FLAG(uint32_t, max_streams, 64,
          "Limit on concurrent calls per connection, 1 to 1024; further calls wait at the client.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "ballast_server: holds one shard of a job's weights and runs its optimizer. Server 0 also coordinates the job.\n"
    "On SIGTERM or SIGINT it completes the calls under way and exits with 0; with --run_by=orchestrator, SIGTERM\n"
    "exits with 143 if the job has not finished. Other exit codes: 1 for a failure, 2 for bad input, 75 if servers\n"
    "or workers have not joined within --gather_timeout, 69 if the job was lost with a server's shard and all its\n"
    "processes should start again, from the newest checkpoint (with --run_by=orchestrator --resume=auto).\n\n"
    "  ballast_server --servers 2 --workers 2\n"
    "  ballast_server --rank 1 --listen 127.0.0.1:7701 --coordinator 127.0.0.1:7700";

// Path of the manifest from which to resume; empty for none.
absl::StatusOr<std::string> FindResume() {
  const std::string resume = absl::GetFlag(FLAGS_resume);
  if (resume != "auto") return resume;
  const std::string folder = absl::GetFlag(FLAGS_checkpoint_dir);
  if (folder.empty()) return absl::InvalidArgumentError("--resume=auto needs --checkpoint_dir");
  const absl::StatusOr<CheckpointFolder::Entry> newest = CheckpointFolder(PosixFileSystem(), folder).Newest();
  if (absl::IsNotFound(newest.status())) return "";
  if (!newest.ok()) return newest.status();
  return newest->manifest_path;
}

// Owns the reason for which the main thread ends or restarts the server. Thread safety: safe from any thread.
class Ending {
 public:
  struct Reason {
    absl::Status status;
    bool restart = false;
    int signal = 0;  // 0: none.
  };

  // Keeps the first reason, except that a reason to end replaces a reason to restart.
  void Set(Reason reason) {
    absl::MutexLock lock(&mutex_);
    signaled_ = signaled_ || reason.signal != 0;
    if (!reason_.has_value() || (reason_->restart && !reason.restart)) reason_ = std::move(reason);
  }
  Reason Await() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&reason_, &std::optional<Reason>::has_value));
    return *reason_;
  }
  void Clear() {
    absl::MutexLock lock(&mutex_);
    if (reason_->restart) reason_.reset();
  }
  // Returns after `timeout`, or once a signal has arrived.
  void AwaitSignal(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&signaled_), timeout);
  }

 private:
  absl::Mutex mutex_;
  std::optional<Reason> reason_ ABSL_GUARDED_BY(mutex_);
  bool signaled_ ABSL_GUARDED_BY(mutex_) = false;
};

constexpr int kExitJobLost = 69;      // EX_UNAVAILABLE in sysexits.h.
constexpr int kExitTemporary = 75;    // EX_TEMPFAIL in sysexits.h.
constexpr int kExitTerminated = 143;  // A shell's exit code for a process that SIGTERM has killed.

// Time for calls under way at a server that another one has displaced.
constexpr absl::Duration kShortGrace = absl::Milliseconds(200);

// Time in which the other members learn with their heartbeats that the job is lost. Once one server has ended, an
// orchestrator ends them all.
constexpr absl::Duration kTimeToTell = absl::Seconds(1);

// Timeout for the checkpoint of a job that does not outlive this server; orchestrators allow 30 s in all.
constexpr absl::Duration kSaveTimeout = absl::Seconds(20);

absl::Status WriteAddress(const char* flag, const std::string& path, const std::string& address) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status written = WriteFileAtomically(path, {address, "\n"});
  if (written.ok()) return written;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", written.message()));
}

absl::Status WriteAddresses(const Server& server) {
  if (absl::Status written =
          WriteAddress("--control_address_file", absl::GetFlag(FLAGS_control_address_file), server.control_address());
      !written.ok())
    return written;
  if (absl::Status written =
          WriteAddress("--http_address_file", absl::GetFlag(FLAGS_http_address_file), server.http_address());
      !written.ok())
    return written;
  return WriteAddress("--address_file", absl::GetFlag(FLAGS_address_file), server.address());
}

int Fail(LineWriter& lines, const absl::Status& status, int code) {
  FlightDumper::Request(std::string(status.message()));
  lines.Write(absl::StrCat("error: ", status.message()));
  return code;
}

absl::StatusOr<uint64_t> StateLimit() {
  const double gib = absl::GetFlag(FLAGS_memory_limit_gib);
  if (!(gib >= 0 && gib <= 1048576)) {
    return absl::InvalidArgumentError(absl::StrCat("--memory_limit_gib: got ", gib, ", want 0 to 1048576"));
  }
  const MemoryLimit memory = ReadMemoryLimit();
  if (gib == 0) return memory.bytes / 4 * 3;
  const uint64_t bytes = gib * (1 << 30);
  // The kernel would kill the server in the middle of a job.
  if (!memory.source.empty() && bytes > memory.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("--memory_limit_gib: got ", gib, ", want at most ",
                                                   BytesText(memory.bytes), ", the limit in ", memory.source));
  }
  return bytes;
}

std::string PartName(const v1::Member& member) {
  return absl::StrCat(member.role() == v1::ROLE_STANDBY ? "standby " : "server ", member.rank());
}

std::string DescribeRecovery(int rank, const ShardStore::Recovered& recovered) {
  std::string text =
      absl::StrCat("server ", rank, " recovered its shard in ", absl::FormatDuration(recovered.took),
                   ": snapshot at record ", recovered.snapshot_position, ", ", recovered.records,
                   " later log records replayed, ", recovered.cut_bytes, " bytes of an incomplete record cut off");
  if (recovered.refused_records > 0) {
    absl::StrAppend(&text, ", ", recovered.refused_records,
                    " records skipped because their workers had restarted by then");
  }
  return text;
}

// Writes the timeline; a failure is only logged, because the job does not depend on it.
void WriteTrace(const CallTimeline& calls, const std::string& path, LineWriter& lines) {
  const CallTimeline::Recording recording = calls.Copy();
  const auto rank = static_cast<uint32_t>(std::max(ParseRank(absl::GetFlag(FLAGS_rank)), 0));
  if (absl::Status status = WriteFileAtomically(path, {ServerTraceJson(recording, rank)}); !status.ok()) {
    lines.Write(absl::StrCat("warning: could not write the timeline: ", status.message()));
  }
  if (recording.left_out == 0) return;
  lines.Write(absl::StrCat("warning: ", recording.left_out, " calls left out of the timeline, which holds ",
                           recording.calls.size(), "; choose fewer steps at the workers (--trace_steps)"));
}

// Null `calls`: records none.
int Serve(LineWriter& lines, CallTimeline* calls) {
  Ending ending;
  SignalWatch signals(
      [&](int signal, int count) {
        if (count > 1) _exit(130);
        ending.Set({absl::OkStatus(), /*restart=*/false, signal});
      },
      DumpAtQuit(absl::GetFlag(FLAGS_flight_dir)));
  Server::Options options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.control_listen = absl::GetFlag(FLAGS_control_listen);
  options.http_listen = HttpAddress(absl::GetFlag(FLAGS_http_port), HostOf(options.listen));
  options.advertise = absl::GetFlag(FLAGS_advertise);
  const int rank = ParseRank(absl::GetFlag(FLAGS_rank));
  if (rank < 0) {
    return Fail(lines,
                absl::InvalidArgumentError(absl::StrCat("--rank: got \"", absl::GetFlag(FLAGS_rank),
                                                        "\", want a number or a name that ends in -N")),
                2);
  }
  options.rank = rank;
  options.with_standby = absl::GetFlag(FLAGS_with_standby);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.workers = absl::GetFlag(FLAGS_workers);
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.security = {{absl::GetFlag(FLAGS_tls_cert), absl::GetFlag(FLAGS_tls_key), absl::GetFlag(FLAGS_tls_ca)},
                      absl::GetFlag(FLAGS_token_file),
                      absl::GetFlag(FLAGS_insecure)};
  options.reflection = absl::GetFlag(FLAGS_reflection);
  if (const std::string warning = InsecurityWarning(options.listen, options.security); !warning.empty()) {
    lines.Write(warning);
  }
  const absl::StatusOr<uint64_t> memory_limit = StateLimit();
  if (!memory_limit.ok()) return Fail(lines, memory_limit.status(), 2);
  options.max_state_bytes = *memory_limit;
  const uint64_t in_flight = absl::GetFlag(FLAGS_bytes_in_flight_mib);
  if (in_flight < 8 || in_flight > (1 << 20)) {
    return Fail(
        lines,
        absl::InvalidArgumentError(absl::StrCat("--bytes_in_flight_mib: got ", in_flight, ", want 8 to 1048576")), 2);
  }
  options.max_bytes_in_flight = in_flight << 20;
  options.max_connections = absl::GetFlag(FLAGS_max_connections);
  options.max_streams = absl::GetFlag(FLAGS_max_streams);
  if (options.max_streams < 1 || options.max_streams > 1024) {
    return Fail(
        lines, absl::InvalidArgumentError(absl::StrCat("--max_streams: got ", options.max_streams, ", want 1 to 1024")),
        2);
  }
  options.gather_timeout = absl::Seconds(absl::GetFlag(FLAGS_gather_timeout));
  const std::string run_by = absl::GetFlag(FLAGS_run_by);
  if (!run_by.empty() && run_by != "orchestrator") {
    return Fail(
        lines, absl::InvalidArgumentError(absl::StrCat("--run_by: got \"", run_by, "\", want orchestrator or nothing")),
        2);
  }
  options.state_dir = absl::GetFlag(FLAGS_state_dir);
  options.checkpoint_dir = absl::GetFlag(FLAGS_checkpoint_dir);
  const absl::StatusOr<std::string> resume = FindResume();
  if (!resume.ok()) return Fail(lines, resume.status(), absl::IsInvalidArgument(resume.status()) ? 2 : 1);
  options.resume = *resume;
  if (!resume->empty()) lines.Write(absl::StrCat("server ", rank, " resumes from ", *resume));
  options.calls = calls;
  options.log = [&](const std::string& line) { lines.Write(line); };
  options.on_recovered = [&](const ShardStore::Recovered& recovered) {
    lines.Write(DescribeRecovery(rank, recovered));
  };
  options.on_part = [&](const v1::Member& member) {
    lines.Write(absl::StrCat("this is ", PartName(member), ", incarnation ", member.incarnation()));
  };
  // Otherwise a server of a failed job stays, because it still says what has happened.
  const bool begins_again = run_by == "orchestrator" && absl::GetFlag(FLAGS_resume) == "auto";
  options.on_job_failed = [&ending, begins_again](const absl::Status& failure) {
    if (begins_again && IsLossOfServer(failure)) ending.Set({failure});
  };
  options.on_displaced = [&](absl::Status status) { ending.Set({std::move(status), /*restart=*/true}); };
  options.on_fatal = [&](absl::Status status) { ending.Set({std::move(status)}); };
  while (true) {
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
    if (!server.ok()) return Fail(lines, server.status(), absl::IsInvalidArgument(server.status()) ? 2 : 1);
    if (absl::Status written = WriteAddresses(**server); !written.ok()) return Fail(lines, written, 2);
    lines.Write(absl::StrCat("ballast_server ", kVersion, ": server ", rank, " serves on ", (*server)->address(),
                             " and answers control calls on ", (*server)->control_address()));
    const Ending::Reason reason = ending.Await();
    if (reason.restart) {
      lines.Write(absl::StrCat("server ", rank, " restarts and joins again: ", reason.status.message()));
      options.listen = (*server)->address();
      options.control_listen = (*server)->control_address();
      options.http_listen = (*server)->http_address();
      (*server)->Drain(kShortGrace);
      ending.Clear();
      continue;
    }
    const bool job_lost = IsLossOfServer(reason.status);
    if (job_lost) ending.AwaitSignal(kTimeToTell);
    lines.Write(absl::StrCat("server ", rank, " is shutting down"));
    if (reason.status.ok()) {
      if (const std::string saved = (*server)->SaveCheckpoint(kSaveTimeout); !saved.empty()) lines.Write(saved);
    }
    const bool cut_short = run_by == "orchestrator" && reason.signal == SIGTERM && !(*server)->job_finished();
    (*server)->Drain(absl::Seconds(5));
    if (job_lost) return Fail(lines, reason.status, kExitJobLost);
    if (absl::IsDeadlineExceeded(reason.status)) return Fail(lines, reason.status, kExitTemporary);
    if (!reason.status.ok()) return Fail(lines, reason.status, 1);
    lines.Write(absl::StrCat("server ", rank, " has ended", cut_short ? " before its job was finished" : ""));
    return cut_short ? kExitTerminated : 0;
  }
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  // Standard error may be a blocked terminal or a pipe that nobody reads; no call may wait for it.
  ballast::LineWriter lines(STDERR_FILENO);
  ballast::KeepFreedMemory();
  ballast::SkipLockOrderChecks();
  // gRPC's log lines would bury ours; setting GRPC_VERBOSITY brings them back.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Otherwise a peer that sends invalid UTF-8 could fill the log.
  google::protobuf::SetLogHandler(nullptr);
  const absl::Status parsed =
      ballast::ParseFlags(argc, argv, ballast::kUsage, {"listen",           "control_listen",
                                                        "advertise",        "rank",
                                                        "with_standby",     "servers",
                                                        "workers",          "coordinator",
                                                        "address_file",     "control_address_file",
                                                        "http_port",        "http_address_file",
                                                        "flight_dir",       "flight_recorder",
                                                        "tls_cert",         "tls_key",
                                                        "tls_ca",           "token_file",
                                                        "insecure",         "reflection",
                                                        "memory_limit_gib", "bytes_in_flight_mib",
                                                        "max_connections",  "max_streams",
                                                        "state_dir",        "checkpoint_dir",
                                                        "resume",           "gather_timeout",
                                                        "run_by",           "trace"});
  if (!parsed.ok()) return ballast::Fail(lines, parsed, 2);
  const ballast::MemoryKeeper keeper;
  ballast::FlightRecorder::OfProcess().set_on(absl::GetFlag(FLAGS_flight_recorder));
  const std::string flight_dir = absl::GetFlag(FLAGS_flight_dir);
  std::optional<ballast::FlightDumper> flight;
  if (!flight_dir.empty()) flight.emplace(flight_dir, absl::StrCat("server ", absl::GetFlag(FLAGS_rank)));
  const std::string trace = absl::GetFlag(FLAGS_trace);
  if (trace.empty()) return ballast::Serve(lines, nullptr);
  if (absl::Status writable = ballast::CheckTracePath(trace); !writable.ok()) return ballast::Fail(lines, writable, 2);
  ballast::CallTimeline calls;
  const int code = ballast::Serve(lines, &calls);
  ballast::WriteTrace(calls, trace, lines);
  return code;
}
