// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/program/env_flags.h"
#include "common/program/line_writer.h"
#include "common/program/signal_watch.h"
#include "common/program/this_process.h"
#include "common/program/version.h"
#include "common/security/security_options.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/file.h"
#include "common/storage/file_system.h"
#include "google/protobuf/stubs/logging.h"
#include "server/memory/memory_keeper.h"
#include "server/server.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7700", "HOST:PORT to serve on; port 0 takes a free one.");
ABSL_FLAG(std::string, control_listen, "",
          "HOST:PORT for calls whose time does not depend on data (heartbeats, leases, status, health), which what "
          "happens at --listen does not hold up; empty: a free port of the same host.");
ABSL_FLAG(
    std::string, advertise, "",
    "HOST:PORT that others reach this server by, its control port on the same host; the listen address if empty.");
ABSL_FLAG(std::string, rank, "0", "Rank of this server, or a pod's name that ends in it (ballast-server-2).");
ABSL_FLAG(bool, with_standby, false,
          "Servers come in pairs, for jobs of durability replica: two processes for each rank, the other one under the "
          "same rank or that many above it. Who joins second follows and takes over.");
ABSL_FLAG(uint32_t, servers, 1, "Number of servers in the job; what server 0 says counts.");
ABSL_FLAG(uint32_t, workers, 1, "Number of workers in the job; what server 0 says counts.");
ABSL_FLAG(std::string, coordinator, "", "HOST:PORT of server 0, best of its control port; required for the others.");
ABSL_FLAG(std::string, address_file, "", "File that the address is written to once the server serves.");
ABSL_FLAG(std::string, control_address_file, "", "File that the control port's address is written to before that.");
ABSL_FLAG(bool, reflection, false, "Offer gRPC server reflection.");
ABSL_FLAG(std::string, tls_cert, "", "PEM file of this server's certificate; turns TLS on.");
ABSL_FLAG(std::string, tls_key, "", "PEM file of its private key, which only this user may read.");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file of authorities: of clients, which then must show a certificate, and of server 0.");
ABSL_FLAG(std::string, token_file, "",
          "File of the tokens that calls must show, a line each: reader, worker or admin; a job or *; the token.");
ABSL_FLAG(bool, insecure, false, "Serve other machines without TLS and tokens, and say so.");
ABSL_FLAG(double, memory_limit_gib, 0, "Weights and optimizer state held at most; 0: three quarters of the memory.");
ABSL_FLAG(std::string, state_dir, "",
          "Folder for what a job's durability asks for, of this server alone; what is there is taken up again.");
ABSL_FLAG(std::string, checkpoint_dir, "",
          "Folder for checkpoints, which all servers of the job see; a job's durability says how often and how many.");
ABSL_FLAG(
    std::string, resume, "",
    "What the job goes on from: auto, the newest checkpoint in --checkpoint_dir if there is one, or the path of a "
    "checkpoint's manifest. All servers need the same.");
ABSL_FLAG(uint32_t, gather_timeout, 0,
          "Seconds for all servers and workers to join; then it ends with 75 and says who is missing. 0: no limit.");
ABSL_FLAG(
    std::string, run_by, "",
    "orchestrator: what starts this server asks how it ended, so that SIGTERM before its job is finished is 143.");
ABSL_FLAG(uint32_t, bytes_in_flight_mib, 256,
          "Requests and answers held at once at most, 8 MiB to 1 TiB; more is refused.");
ABSL_FLAG(uint32_t, max_connections, 0,
          "Connections at once, beyond which others are closed unread; 0: 1024, or as many as open files allow.");
ABSL_FLAG(uint32_t, max_streams, 64, "Calls of one connection at once, 1 to 1024; its others wait at the client.");

namespace ballast {
namespace {

constexpr char kUsage[] =
    "ballast_server: holds one shard of a job's weights and runs its optimizer. Server 0 also coordinates the job.\n"
    "SIGTERM or SIGINT ends it with 0 after the calls under way; with --run_by=orchestrator SIGTERM ends it with 143 "
    "while\n"
    "its job is not finished. It ends with 1 when it cannot go on, with 2 for bad input, and with 75 when others are\n"
    "missing for longer than --gather_timeout.\n\n"
    "  ballast_server --servers 2 --workers 2\n"
    "  ballast_server --rank 1 --listen 127.0.0.1:7701 --coordinator 127.0.0.1:7700";

// The manifest that --resume names; empty for none.
absl::StatusOr<std::string> FindResume() {
  const std::string resume = absl::GetFlag(FLAGS_resume);
  if (resume != "auto") return resume;
  const std::string folder = absl::GetFlag(FLAGS_checkpoint_dir);
  if (folder.empty()) return absl::InvalidArgumentError("--resume=auto: wants --checkpoint_dir, where to look");
  const absl::StatusOr<CheckpointFolder::Entry> newest = CheckpointFolder(PosixFileSystem(), folder).Newest();
  if (absl::IsNotFound(newest.status())) return "";
  if (!newest.ok()) return newest.status();
  return newest->manifest_path;
}

// Why the main thread may go on to the end.
class Ending {
 public:
  struct Reason {
    absl::Status status;
    // It may start anew, with nothing.
    bool again = false;
    // What it was told to end by; 0: nothing.
    int signal = 0;
  };

  // The first one counts, but an end before a new start.
  void Set(Reason reason) {
    absl::MutexLock lock(&mutex_);
    if (!reason_.has_value() || (reason_->again && !reason.again)) reason_ = std::move(reason);
  }
  Reason Await() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&reason_, &std::optional<Reason>::has_value));
    return *reason_;
  }
  // It starts anew.
  void Clear() {
    absl::MutexLock lock(&mutex_);
    if (reason_->again) reason_.reset();
  }

 private:
  absl::Mutex mutex_;
  std::optional<Reason> reason_ ABSL_GUARDED_BY(mutex_);
};

// As EX_TEMPFAIL of sysexits.h.
constexpr int kExitTemporary = 75;
// As a shell says of a process that SIGTERM ended.
constexpr int kExitTerminated = 143;

// For calls under way at a server that does not count any more.
constexpr absl::Duration kShortGrace = absl::Milliseconds(200);

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
  return WriteAddress("--address_file", absl::GetFlag(FLAGS_address_file), server.address());
}

int Fail(LineWriter& lines, const absl::Status& status, int code) {
  lines.Write(absl::StrCat("error: ", status.message()));
  return code;
}

uint64_t MemoryLimit() {
  const double gib = absl::GetFlag(FLAGS_memory_limit_gib);
  if (gib > 0) return gib * (1 << 30);
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE) / 4 * 3;
}

// What this process is, in a line: "server 1", "standby 1".
std::string PartName(const v1::Member& member) {
  return absl::StrCat(member.role() == v1::ROLE_STANDBY ? "standby " : "server ", member.rank());
}

std::string DescribeRecovery(int rank, const ShardStore::Recovered& recovered) {
  std::string text = absl::StrCat("server ", rank, " recovered its shard in ", absl::FormatDuration(recovered.took),
                                  ": snapshot of record ", recovered.snapshot_position, ", ", recovered.records,
                                  " records behind it, ", recovered.cut_bytes, " unfinished bytes cut off");
  if (recovered.refused_records > 0) {
    absl::StrAppend(&text, ", ", recovered.refused_records,
                    " records passed over that came from workers that had restarted by then");
  }
  return text;
}

int Serve(LineWriter& lines) {
  Ending ending;
  SignalWatch signals([&](int signal, int count) {
    if (count > 1) _exit(130);
    ending.Set({absl::OkStatus(), /*again=*/false, signal});
  });
  Server::Options options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.control_listen = absl::GetFlag(FLAGS_control_listen);
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
  options.max_state_bytes = MemoryLimit();
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
  options.log = [&](const std::string& line) { lines.Write(line); };
  options.on_recovered = [&](const ShardStore::Recovered& recovered) {
    lines.Write(DescribeRecovery(rank, recovered));
  };
  options.on_part = [&](const v1::Member& member) {
    lines.Write(absl::StrCat("this is ", PartName(member), ", incarnation ", member.incarnation()));
  };
  options.on_displaced = [&](absl::Status status) { ending.Set({std::move(status), /*again=*/true}); };
  options.on_fatal = [&](absl::Status status) { ending.Set({std::move(status)}); };
  while (true) {
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
    if (!server.ok()) return Fail(lines, server.status(), absl::IsInvalidArgument(server.status()) ? 2 : 1);
    if (absl::Status written = WriteAddresses(**server); !written.ok()) return Fail(lines, written, 2);
    lines.Write(absl::StrCat("ballast_server ", kVersion, ": server ", rank, " serves on ", (*server)->address(),
                             " and answers control calls on ", (*server)->control_address()));
    const Ending::Reason reason = ending.Await();
    if (reason.again) {
      lines.Write(absl::StrCat("server ", rank, " joins anew: ", reason.status.message()));
      options.listen = (*server)->address();
      options.control_listen = (*server)->control_address();
      (*server)->Drain(kShortGrace);
      ending.Clear();
      continue;
    }
    lines.Write(absl::StrCat("server ", rank, " drains"));
    const bool cut_short = run_by == "orchestrator" && reason.signal == SIGTERM && !(*server)->job_finished();
    (*server)->Drain(absl::Seconds(5));
    if (absl::IsDeadlineExceeded(reason.status)) return Fail(lines, reason.status, kExitTemporary);
    if (!reason.status.ok()) return Fail(lines, reason.status, 1);
    lines.Write(absl::StrCat("server ", rank, " has ended", cut_short ? " before its job was finished" : ""));
    return cut_short ? kExitTerminated : 0;
  }
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  // Standard error may be a pipe that nobody reads, or a terminal that stands still: no call waits for that.
  ballast::LineWriter lines(STDERR_FILENO);
  ballast::KeepFreedMemory();
  ballast::SkipLockOrderChecks();
  // gRPC's own lines would hide ours; GRPC_VERBOSITY brings them back.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // A peer that sends broken text must not fill the log.
  google::protobuf::SetLogHandler(nullptr);
  const absl::Status parsed = ballast::ParseFlags(argc, argv, ballast::kUsage,
                                                  {"listen",
                                                   "control_listen",
                                                   "advertise",
                                                   "rank",
                                                   "with_standby",
                                                   "servers",
                                                   "workers",
                                                   "coordinator",
                                                   "address_file",
                                                   "control_address_file",
                                                   "tls_cert",
                                                   "tls_key",
                                                   "tls_ca",
                                                   "token_file",
                                                   "insecure",
                                                   "reflection",
                                                   "memory_limit_gib",
                                                   "bytes_in_flight_mib",
                                                   "max_connections",
                                                   "max_streams",
                                                   "state_dir",
                                                   "checkpoint_dir",
                                                   "resume",
                                                   "gather_timeout",
                                                   "run_by"});
  if (!parsed.ok()) return ballast::Fail(lines, parsed, 2);
  const ballast::MemoryKeeper keeper;
  return ballast::Serve(lines);
}
