// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ballast/v1/job.pb.h"
#include "common/security/security_options.h"

namespace ballast {

// The settings of a program that its environment may give, by the variables that ballast_worker reads too.
struct ProgramEnvironment {
  // BALLAST_COORDINATOR: host:port of server 0. Default: 127.0.0.1:7700.
  std::string coordinator;
  // BALLAST_RANK: a number, or a name that ends in "-N".
  std::optional<uint32_t> rank;
  // BALLAST_GATHER_TIMEOUT: limit in seconds on the time until all servers and workers have joined. Default: 300.
  absl::Duration gather_timeout = absl::Minutes(5);
  // BALLAST_TLS_CERT, BALLAST_TLS_KEY, BALLAST_TLS_CA, BALLAST_TOKEN_FILE and BALLAST_INSECURE.
  SecurityOptions security;
  // BALLAST_JOB, BALLAST_POLICY, BALLAST_CODEC and BALLAST_DURABILITY, with which `ballast run` replaces a job's name,
  // policy, codec and mode of durability. Name and mode are texts, the others texts of their messages. Only those
  // fields are set.
  v1::Job job;
  // BALLAST_RUN_DIR: the run directory, in which worker 0 writes the job; empty: none.
  std::string run_dir;
  // BALLAST_FLIGHT_DIR: directory for a dump of the flight recorder when a call fails; empty: none.
  std::string flight_dir;
};

// Replaces the fields that the environment sets.
void ReplaceFields(const ProgramEnvironment& environment, v1::Job& job);

// Reads the variables that are set. INVALID_ARGUMENT names the variable, got and want.
absl::StatusOr<ProgramEnvironment> ReadProgramEnvironment();

}  // namespace ballast
