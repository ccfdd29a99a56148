// SPDX-License-Identifier: Apache-2.0
#include "client/client_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/job/job_config.h"
#include "common/tensors/tensor_spec.h"

namespace ballast {
namespace {

absl::Status CheckRange(const char* field, absl::Duration got, absl::Duration low, absl::Duration high) {
  if (got >= low && got <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": got ", absl::FormatDuration(got), ", want ",
                                                 absl::FormatDuration(low), " to ", absl::FormatDuration(high)));
}

absl::Status CheckElements(const char* what, const PlacedTensor& tensor, uint64_t got) {
  const uint64_t want = CountElements(tensor.spec);
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of \"", tensor.spec.name(), "\" has ", got, " elements, want ", want));
}

absl::string_view NameOf(v1::Encoding encoding) {
  const absl::StatusOr<const Codec*> codec = FindCodec(encoding);
  return codec.ok() ? (*codec)->name() : "of an unknown encoding";
}

// Checks a tensor given as floats or encoded with the client's codec.
template <typename Tensor>
absl::Status CheckTensor(const char* what, const PlacedTensor& placed, const Tensor& got, v1::Encoding want) {
  if (got.encoded.empty()) return CheckElements(what, placed, got.values.size());
  const std::string name = absl::StrCat(what, " of \"", placed.spec.name(), "\"");
  if (!got.values.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is given both as floats and encoded, want one of them"));
  }
  const v1::Encoding encoding = got.encoded.encoding;
  if (encoding != want || (encoding != v1::ENCODING_BF16 && encoding != v1::ENCODING_FP16)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", NameOf(encoding),
                     ", want floats, or bf16 or fp16 if that is the client's codec, which is ", NameOf(want)));
  }
  const uint64_t want_bytes = CountElements(placed.spec) * got.encoded.kBytesEach;
  if (got.encoded.bytes.size() == want_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ", encoded, has ", got.encoded.bytes.size(), " bytes, want ", want_bytes));
}

}  // namespace

ClientOptions OptionsForWorker(const v1::Job& job, const v1::JoinResponse& joined) {
  ClientOptions options;
  options.job = job.name();
  options.policy = job.policy();
  options.codec = job.codec();
  options.durability = job.durability();
  options.workers = joined.workers();
  options.worker = joined.member().rank();
  options.incarnation = joined.member().incarnation();
  if (job.training().wait_seconds() > 0) options.wait_timeout = absl::Seconds(job.training().wait_seconds());
  options.wait_timeout = std::max(options.wait_timeout, 3 * absl::Milliseconds(joined.member_ttl_ms()));
  if (OutlivesAServer(options.durability)) {
    options.retry_timeout = std::max(options.retry_timeout, ReturnTime(options.durability));
  }
  return options;
}

absl::Status CheckOptions(const ClientOptions& options) {
  absl::Status status = ValidateJobName(options.job);
  if (options.coordinator.empty() == options.shards.empty()) {
    status.Update(absl::InvalidArgumentError(absl::StrCat("coordinator address and shard addresses: got ",
                                                          options.coordinator.empty() ? "neither" : "both",
                                                          ", want exactly one of them")));
  }
  if (options.worker >= options.workers) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("worker: got ", options.worker, ", want less than the job's ", options.workers, " workers")));
  }
  if (options.channels_per_shard == 0 || options.channels_per_shard > 64) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("channels_per_shard: got ", options.channels_per_shard, ", want 1 to 64")));
  }
  if (options.messages_in_flight == 0 || options.messages_in_flight > 256) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("messages_in_flight: got ", options.messages_in_flight, ", want 1 to 256")));
  }
  const absl::Duration tick = absl::Milliseconds(1), day = absl::Hours(24);
  status.Update(CheckRange("connect_timeout", options.connect_timeout, tick, day));
  status.Update(CheckRange("rpc_timeout", options.rpc_timeout, tick, day));
  status.Update(CheckRange("retry_timeout", options.retry_timeout, absl::ZeroDuration(), day));
  status.Update(CheckRange("wait_timeout", options.wait_timeout, tick, absl::Seconds(600)));
  status.Update(CheckRange("gather_timeout", options.gather_timeout, tick, day));
  return status;
}

absl::Status CheckMemory(const char* what, const PlacedTensor& placed, const TensorGradient& got, v1::Encoding want) {
  if (got.copier != nullptr && !SendsFloats(want)) {
    return absl::InvalidArgumentError(absl::StrCat(what, " of \"", placed.spec.name(),
                                                   "\" has a copier, want none or codec fp32, got ", NameOf(want)));
  }
  return CheckTensor(what, placed, got, want);
}

absl::Status CheckMemory(const char* what, const PlacedTensor& placed, const TensorValues& got, v1::Encoding want) {
  return CheckTensor(what, placed, got, want);
}

}  // namespace ballast
