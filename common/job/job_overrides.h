// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/v1/job.pb.h"

namespace ballast {

// Flag values that override the job file; an empty text keeps the value in the file.
struct JobOverrides {
  // "sync", "async", "bounded" or "local_sgd".
  std::string mode;
  // Requires mode bounded: 0 to 1000000.
  std::string steps_ahead;
  // Requires mode sync: 1 to the number of workers.
  std::string quorum;
  // Requires mode local_sgd: 1 to 1000000.
  std::string local_steps;
  // Encoding of gradients: "fp32", "fp16", "bf16", "int8", "top_k" or "sign"; fp16 and bf16 apply to values too.
  std::string codec;
  // Encoding of values: "fp32", "fp16", "bf16" or "int8".
  std::string value_codec;
  // "fp32", "tf32", "bf16" or "fp16".
  std::string precision;
  // "none", "checkpoint", "wal", "wal_sync" or "standby"; "replica" is an old name of standby.
  std::string durability;
};

struct OverrideFlag {
  // The flag's name without leading dashes.
  const char* name;
  std::string JobOverrides::*value;
  // The fields of the job that it sets, with commas between them.
  const char* fields;
};
inline constexpr OverrideFlag kOverrideFlags[] = {
    {"mode", &JobOverrides::mode, "policy"},
    {"steps_ahead", &JobOverrides::steps_ahead, "policy.bounded.steps_ahead"},
    {"quorum", &JobOverrides::quorum, "policy.sync.quorum"},
    {"codec", &JobOverrides::codec, "codec.gradients,codec.values"},
    {"local_steps", &JobOverrides::local_steps, "policy.local_sgd.local_steps"},
    {"value_codec", &JobOverrides::value_codec, "codec.values"},
    {"precision", &JobOverrides::precision, "training.precision"},
    {"durability", &JobOverrides::durability, "durability.mode"},
};

// Applies flags to a job. A new mode keeps the options that both modes have; bounded and local_sgd need their number
// from a flag unless the file has it. A job that switches to local_sgd uses its optimizer's learning rate for the
// local steps, and sgd with learning rate 1 on the servers. `workers` is 0 if not known yet. INVALID_ARGUMENT names
// flag, got and want.
absl::StatusOr<v1::Job> Override(v1::Job job, const JobOverrides& overrides, uint32_t workers);

// Reads a job file, applies flags to it, and checks its policy against the number of workers. Errors are those of
// LoadJob, Override and ValidatePolicy.
absl::StatusOr<v1::Job> ResolveJob(const std::string& path, const JobOverrides& overrides, uint32_t workers);

// Returns the nonempty overrides as command-line words: {"--mode", "async"}.
std::vector<std::string> ToFlags(const JobOverrides& overrides);

// Text for people: "sync, quorum 3", "bounded, 4 steps ahead, codec int8"; omits codecs and precision of fp32.
std::string DescribeMode(const v1::Job& job);

// Names as used by the flags: "int8".
std::string EncodingName(v1::Encoding encoding);
std::string PrecisionName(v1::Precision precision);
std::string DurabilityName(v1::Durability::Mode mode);

}  // namespace ballast
