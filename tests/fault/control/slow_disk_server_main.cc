// SPDX-License-Identifier: Apache-2.0
// Server 0 of a job, on a slow disk.
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/program/env_flags.h"
#include "common/program/signal_watch.h"
#include "common/storage/testing/slow_file_system.h"
#include "server/server.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:0", "HOST:PORT to serve on; port 0 picks a free port.");
ABSL_FLAG(uint32_t, workers, 2, "Number of workers of the job.");
ABSL_FLAG(std::string, checkpoint_dir, "", "Directory for checkpoints, on the slow disk.");
ABSL_FLAG(std::string, state_dir, "", "Directory for the log, on the slow disk.");
ABSL_FLAG(std::string, resume, "", "Manifest from which the job resumes.");
ABSL_FLAG(uint32_t, disk_mib_per_second, 20, "Speed of the disk in MiB/s.");
ABSL_FLAG(uint32_t, disk_operation_ms, 50, "Delay in ms of each sync, rename, removal and new file.");

namespace ballast {
namespace {

constexpr char kUsage[] = "slow_disk_server: a ballast_server on an artificially slow disk, for tests.";

int Fail(const absl::Status& status) {
  std::cerr << "error: " << status.message() << std::endl;
  return 2;
}

int Serve() {
  absl::Notification end;
  SignalWatch signals([&](int, int count) {
    if (count == 1) end.Notify();
  });
  SlowFileSystem files;
  files.SlowDown(uint64_t{absl::GetFlag(FLAGS_disk_mib_per_second)} << 20,
                 absl::Milliseconds(absl::GetFlag(FLAGS_disk_operation_ms)));
  Server::Options options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.workers = absl::GetFlag(FLAGS_workers);
  options.checkpoint_dir = absl::GetFlag(FLAGS_checkpoint_dir);
  options.state_dir = absl::GetFlag(FLAGS_state_dir);
  options.resume = absl::GetFlag(FLAGS_resume);
  options.files = &files;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(std::move(options));
  if (!server.ok()) return Fail(server.status());
  std::cerr << "slow_disk_server: server 0 serves on " << (*server)->address() << std::endl;
  end.WaitForNotification();
  (*server)->Drain(absl::Seconds(1));
  return 0;
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const absl::Status parsed = ballast::ParseFlags(
      argc, argv, ballast::kUsage,
      {"listen", "workers", "checkpoint_dir", "state_dir", "resume", "disk_mib_per_second", "disk_operation_ms"});
  if (!parsed.ok()) return ballast::Fail(parsed);
  return ballast::Serve();
}
