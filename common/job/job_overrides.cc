// SPDX-License-Identifier: Apache-2.0
#include "common/job/job_overrides.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/codecs/codec.h"
#include "common/job/job_config.h"
#include "common/job/job_file.h"
#include "common/job/kind_names.h"
#include "common/text/nearest_name.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace ballast {
namespace {

constexpr uint32_t kMaxSteps = 1000000;
constexpr uint32_t kMaxWorkers = 4096;

absl::Status Refuse(absl::string_view flag, absl::string_view got, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got \"", got, "\", want ", want));
}

absl::Status RefuseName(absl::string_view flag, const std::string& got, const std::vector<std::string>& names) {
  const NearestName nearest = FindNearestName(got, names);
  const bool near = nearest.distance <= 2 && nearest.distance < got.size();
  return Refuse(flag, got,
                absl::StrCat(absl::StrJoin(names, ", "), near ? "; did you mean \"" : "", near ? *nearest.name : "",
                             near ? "\"?" : ""));
}

absl::StatusOr<uint32_t> Number(absl::string_view flag, const std::string& text, uint32_t least, uint32_t most,
                                absl::string_view of = "") {
  uint32_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) return number;
  return Refuse(flag, text, absl::StrCat("a number from ", least, " to ", most, of));
}

absl::StatusOr<v1::Encoding> ParseCodec(absl::string_view flag, const std::string& name, bool of_values) {
  const absl::StatusOr<const Codec*> codec = FindCodecByName(name);
  if (!codec.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": ", codec.status().message()));
  }
  if (of_values && !(*codec)->carries_values()) {
    v1::Codec refused;
    refused.set_values((*codec)->encoding());
    return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": ", ValidateCodec(refused).message()));
  }
  return (*codec)->encoding();
}

float LearningRate(const v1::Optimizer& optimizer) {
  const google::protobuf::FieldDescriptor* const kind = KindField(optimizer);
  if (kind == nullptr) return 0;
  const google::protobuf::Message& rule = optimizer.GetReflection()->GetMessage(optimizer, kind);
  const google::protobuf::FieldDescriptor* rate = rule.GetDescriptor()->FindFieldByName("learning_rate");
  return rate == nullptr ? 0 : rule.GetReflection()->GetFloat(rule, rate);
}

// Refuses a mode that needs a number which neither the file nor a flag gives.
absl::Status WantNumber(absl::string_view mode, absl::string_view flag, absl::string_view range) {
  return Refuse("mode", mode, absl::StrCat("--", flag, " too, ", range));
}

absl::Status SetMode(const JobOverrides& overrides, v1::Job& job) {
  const std::string& mode = overrides.mode;
  v1::ConsistencyPolicy& policy = *job.mutable_policy();
  if (mode.empty() || mode == KindName(policy)) return absl::OkStatus();
  const bool deterministic = policy.sync().deterministic() || policy.local_sgd().deterministic();
  const bool scale = policy.async().scale_by_staleness() || policy.bounded().scale_by_staleness();
  const auto of = CountsStalenessOfTables(policy) ? v1::ConsistencyPolicy::TABLE : v1::ConsistencyPolicy::ROW;
  if (mode == "sync") {
    policy.mutable_sync()->set_deterministic(deterministic);
  } else if (mode == "async") {
    policy.mutable_async()->set_scale_by_staleness(scale);
    policy.mutable_async()->set_staleness_of(of);
  } else if (mode == "bounded") {
    if (overrides.steps_ahead.empty()) return WantNumber(mode, "steps_ahead", "0 to 1000000");
    policy.mutable_bounded()->set_scale_by_staleness(scale);
    policy.mutable_bounded()->set_staleness_of(of);
  } else if (mode == "local_sgd") {
    if (overrides.local_steps.empty()) return WantNumber(mode, "local_steps", "1 to 1000000");
    policy.mutable_local_sgd()->set_deterministic(deterministic);
    policy.mutable_local_sgd()->set_learning_rate(LearningRate(job.optimizer()));
    job.mutable_optimizer()->Clear();
    job.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  } else {
    return RefuseName("mode", mode, KindNames(*v1::ConsistencyPolicy::descriptor()));
  }
  return absl::OkStatus();
}

// Refuses a number that belongs to another mode.
absl::Status CheckMode(absl::string_view flag, const std::string& got, absl::string_view wanted,
                       const v1::ConsistencyPolicy& policy) {
  if (got.empty() || KindName(policy) == wanted) return absl::OkStatus();
  return Refuse(flag, got, absl::StrCat("it with mode ", wanted, " only; the mode is ", KindName(policy)));
}

absl::Status SetNumbers(const JobOverrides& overrides, uint32_t workers, v1::ConsistencyPolicy& policy) {
  absl::Status status = CheckMode("steps_ahead", overrides.steps_ahead, "bounded", policy);
  status.Update(CheckMode("quorum", overrides.quorum, "sync", policy));
  status.Update(CheckMode("local_steps", overrides.local_steps, "local_sgd", policy));
  if (!status.ok()) return status;
  if (!overrides.steps_ahead.empty()) {
    const absl::StatusOr<uint32_t> number = Number("steps_ahead", overrides.steps_ahead, 0, kMaxSteps);
    if (!number.ok()) return number.status();
    policy.mutable_bounded()->set_steps_ahead(*number);
  }
  if (!overrides.quorum.empty()) {
    const absl::StatusOr<uint32_t> number = Number("quorum", overrides.quorum, 1, workers == 0 ? kMaxWorkers : workers,
                                                   workers == 0 ? "" : ", the number of workers");
    if (!number.ok()) return number.status();
    policy.mutable_sync()->set_quorum(*number);
  }
  if (!overrides.local_steps.empty()) {
    const absl::StatusOr<uint32_t> number = Number("local_steps", overrides.local_steps, 1, kMaxSteps);
    if (!number.ok()) return number.status();
    policy.mutable_local_sgd()->set_local_steps(*number);
  }
  return absl::OkStatus();
}

absl::Status SetCodec(const JobOverrides& overrides, v1::Codec& codec) {
  if (!overrides.codec.empty()) {
    const absl::StatusOr<v1::Encoding> encoding = ParseCodec("codec", overrides.codec, /*of_values=*/false);
    if (!encoding.ok()) return encoding.status();
    codec.set_gradients(*encoding);
    const bool both = *encoding == v1::ENCODING_FP16 || *encoding == v1::ENCODING_BF16;
    codec.set_values(both ? *encoding : v1::ENCODING_FP32);
  }
  if (!overrides.value_codec.empty()) {
    const absl::StatusOr<v1::Encoding> encoding = ParseCodec("value_codec", overrides.value_codec, /*of_values=*/true);
    if (!encoding.ok()) return encoding.status();
    codec.set_values(*encoding);
  }
  return absl::OkStatus();
}

absl::Status SetPrecision(const std::string& name, v1::Training& training) {
  const std::vector<std::string> names = ValueNames(*v1::Precision_descriptor());
  v1::Precision precision;
  if (std::find(names.begin(), names.end(), name) == names.end() ||
      !v1::Precision_Parse(absl::AsciiStrToUpper(name), &precision)) {
    return RefuseName("precision", name, names);
  }
  training.set_precision(precision);
  return absl::OkStatus();
}

absl::Status SetDurability(const std::string& name, v1::Durability& durability) {
  const std::vector<std::string> names = ValueNames(*v1::Durability::Mode_descriptor());
  v1::Durability::Mode mode;
  // "replica" is the old name of standby.
  if ((name != "replica" && std::find(names.begin(), names.end(), name) == names.end()) ||
      !v1::Durability::Mode_Parse(absl::AsciiStrToUpper(name), &mode)) {
    return RefuseName("durability", name, names);
  }
  durability.set_mode(mode);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Job> Override(v1::Job job, const JobOverrides& overrides, uint32_t workers) {
  absl::Status status = SetMode(overrides, job);
  if (status.ok()) status = SetNumbers(overrides, workers, *job.mutable_policy());
  if (!status.ok()) return status;
  if (!overrides.codec.empty() || !overrides.value_codec.empty()) status = SetCodec(overrides, *job.mutable_codec());
  if (status.ok() && !overrides.precision.empty()) {
    status = SetPrecision(overrides.precision, *job.mutable_training());
  }
  if (status.ok() && !overrides.durability.empty()) {
    status = SetDurability(overrides.durability, *job.mutable_durability());
  }
  if (!status.ok()) return status;
  return job;
}

absl::StatusOr<v1::Job> ResolveJob(const std::string& path, const JobOverrides& overrides, uint32_t workers) {
  absl::StatusOr<v1::Job> job = LoadJob(path);
  if (job.ok()) job = Override(*std::move(job), overrides, workers);
  if (!job.ok()) return job;
  if (absl::Status valid = ValidatePolicy(job->policy(), workers); !valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", valid.message()));
  }
  return job;
}

std::vector<std::string> ToFlags(const JobOverrides& overrides) {
  std::vector<std::string> flags;
  for (const OverrideFlag& flag : kOverrideFlags) {
    const std::string& value = overrides.*flag.value;
    if (!value.empty()) flags.insert(flags.end(), {absl::StrCat("--", flag.name), value});
  }
  return flags;
}

std::string DescribeMode(const v1::Job& job) {
  const v1::ConsistencyPolicy& policy = job.policy();
  std::string text(KindName(policy));
  if (policy.sync().quorum() > 0) absl::StrAppend(&text, ", quorum ", policy.sync().quorum());
  if (policy.has_bounded()) absl::StrAppend(&text, ", ", policy.bounded().steps_ahead(), " steps ahead");
  if (policy.has_local_sgd()) absl::StrAppend(&text, ", local steps ", policy.local_sgd().local_steps());
  const std::string gradients = EncodingName(job.codec().gradients()), values = EncodingName(job.codec().values());
  if (gradients != "fp32") absl::StrAppend(&text, ", codec ", gradients);
  if (values != "fp32" && values != gradients) absl::StrAppend(&text, ", values ", values);
  if (job.training().precision() != v1::FP32) {
    absl::StrAppend(&text, ", precision ", PrecisionName(job.training().precision()));
  }
  if (const std::string durability = DurabilityName(job.durability().mode()); durability != "none") {
    absl::StrAppend(&text, ", durability ", durability);
  }
  return text;
}

std::string EncodingName(v1::Encoding encoding) {
  const absl::StatusOr<const Codec*> codec = FindCodec(encoding);
  return codec.ok() ? std::string((*codec)->name()) : absl::StrCat("encoding ", encoding);
}

std::string DurabilityName(v1::Durability::Mode mode) { return absl::AsciiStrToLower(v1::Durability::Mode_Name(mode)); }

std::string PrecisionName(v1::Precision precision) { return absl::AsciiStrToLower(v1::Precision_Name(precision)); }

}  // namespace ballast
