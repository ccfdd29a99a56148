// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// What flags of the same names say instead of the job file, as texts; empty where it stands.
struct JobOverrides {
  // "sync", "async", "bounded" or "local_sgd".
  std::string mode;
  // With mode bounded: 0 to 1000000.
  std::string staleness;
  // With mode sync: 1 to the number of workers.
  std::string quorum;
  // With mode local_sgd: 1 to 1000000.
  std::string local_steps;
  // "fp32", "fp16", "bf16", "int8", "top_k" or "sign": of gradients; fp16 and bf16 of values, too.
  std::string codec;
  // "fp32", "fp16", "bf16" or "int8".
  std::string value_codec;
  // "fp32", "tf32", "bf16" or "fp16".
  std::string precision;
  // "none", "checkpoint", "wal", "wal_sync" or "standby"; "replica" is an old name of the last.
  std::string durability;
};

// The job with what the flags say. Another mode keeps the options that both modes have; bounded and local_sgd want
// their number by a flag unless the file has it. A job that was not of mode local_sgd takes its optimizer's learning
// rate for the local steps then, and sgd with learning rate 1 on the servers. `workers` is 0 where it is not known yet.
// INVALID_ARGUMENT names the flag, got and want.
absl::StatusOr<v1::Job> Override(v1::Job job, const JobOverrides& overrides, uint32_t workers);

// Those that are set as words of a command line: {"--mode", "async"}.
std::vector<std::string> ToFlags(const JobOverrides& overrides);

// For people: "sync, quorum 3", "bounded, staleness 4, codec int8"; codecs and precision only where they are not
// fp32.
std::string DescribeMode(const v1::Job& job);

// "int8": as the flags name it.
std::string EncodingName(v1::Encoding encoding);
std::string PrecisionName(v1::Precision precision);
std::string DurabilityName(v1::Durability::Mode mode);

}  // namespace ballast
