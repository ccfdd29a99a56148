// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/checkpoint_command.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ballast/internal/v1/coordinator_state.pb.h"
#include "cli/command/checkpoint_request.h"
#include "cli/command/command.h"
#include "cli/command/server_connection.h"
#include "cli/target/run_target.h"
#include "common/program/arguments.h"
#include "common/rpc/credentials.h"
#include "common/run/safetensors.h"
#include "common/status/error_reason.h"
#include "common/storage/checkpoint_chain.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/coordinator_log.h"
#include "common/storage/file_system.h"
#include "common/storage/shard_log.h"
#include "common/storage/snapshot_file.h"
#include "common/tensors/shard_map.h"
#include "common/tensors/tensor_spec.h"
#include "common/text/number_text.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast checkpoint list DIR [--json]\n"
    "       ballast checkpoint verify DIR [--json]\n"
    "       ballast checkpoint export DIR FILE [--json]\n"
    "       ballast checkpoint save RUN_DIR|ADDRESS [flags]\n\n"
    "Lists, checks, exports and takes the checkpoints from which a job resumes. DIR is a run directory, a\n"
    "checkpoint directory, a checkpoint's manifest or, for verify, a server's --state_dir.\n"
    "list shows the complete checkpoints. verify reads and checks all files that each checkpoint needs, the logs and\n"
    "snapshots in each server's state directory, and the coordinator's log; it changes nothing, and exits with 1 if a\n"
    "file is damaged or missing. While a server runs, its newest file may be incomplete. export writes the newest\n"
    "checkpoint's weights in safetensors format.\n"
    "save asks the coordinator of a running job, at the ADDRESS (host:port) of its server 0, for a checkpoint now, "
    "and\n"
    "waits for it. Workers finish the data that they hold first. Programs that bring their own data are not held:\n"
    "pause them between two steps, or the checkpoint may have a step on one server that it lacks on another.\n\n";

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kSaveTimeout = absl::Seconds(90);

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>([] {
    std::vector<FlagSpec> all = {
        {"json", "", "Print only one JSON object to standard output."},
        {"job", "NAME", "save: fail if the server holds a job with another name."},
        {"run", "DIR", "save: run directory of the launch that the server at ADDRESS belongs to."}};
    all.insert(all.end(), SecurityFlags().begin(), SecurityFlags().end());
    return all;
  }());
  return *flags;
}

bool IsFolder(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// Returns the state directories in a run directory; includes `where` itself if it is a state directory.
absl::StatusOr<std::vector<std::string>> FindStates(const std::string& where) {
  std::vector<std::string> found;
  if (!IsFolder(where)) return found;
  const std::string inner = where + "/state";
  std::vector<std::string> candidates = {where};
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem()->List(inner);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) candidates.push_back(absl::StrCat(inner, "/", name));
  for (std::string& candidate : candidates) {
    const absl::StatusOr<std::vector<uint64_t>> logs = ListLogs(*PosixFileSystem(), candidate);
    if (!logs.ok()) return logs.status();
    const absl::StatusOr<std::vector<uint64_t>> snapshots = ListSnapshots(*PosixFileSystem(), candidate);
    if (!snapshots.ok()) return snapshots.status();
    if (!logs->empty() || !snapshots->empty()) found.push_back(std::move(candidate));
  }
  return found;
}

// Contents of a state directory: the snapshot's log position, log records, log bytes, and bytes of a torn last record.
struct StateContents {
  uint64_t snapshot = 0, records = 0, bytes = 0, unfinished = 0;
};

absl::Status ReadSnapshot(const std::string& path, std::optional<uint32_t>& shard) {
  const absl::StatusOr<std::unique_ptr<SnapshotReader>> reader = SnapshotReader::Open(path);
  if (!reader.ok()) return reader.status();
  shard = (*reader)->header().shard();
  while (true) {
    const absl::StatusOr<std::optional<SnapshotPart>> part = (*reader)->Next();
    if (!part.ok()) return part.status();
    if (!part->has_value()) return absl::OkStatus();
  }
}

// Reads the same files as a recovery.
absl::StatusOr<StateContents> ReadState(const std::string& directory) {
  StateContents contents;
  std::optional<uint32_t> shard;
  const absl::StatusOr<std::vector<uint64_t>> snapshots = ListSnapshots(*PosixFileSystem(), directory);
  if (!snapshots.ok()) return snapshots.status();
  for (uint64_t position : *snapshots) {
    contents.snapshot = position;
    if (absl::Status status = ReadSnapshot(SnapshotPath(directory, position), shard); !status.ok()) return status;
  }
  const absl::StatusOr<LogEnd> end =
      ReadShardLog(*PosixFileSystem(), directory, contents.snapshot + 1, shard, [&](const LogRecord&) {
        ++contents.records;
        return absl::OkStatus();
      });
  if (!end.ok()) return end.status();
  contents.bytes = end->bytes;
  contents.unfinished = end->unfinished;
  return contents;
}

// Returns the coordinator's directories inside the state directories.
std::vector<std::string> CoordinatorsOf(absl::Span<const std::string> states) {
  std::vector<std::string> found;
  for (const std::string& state : states) {
    std::string directory = state + "/coordinator";
    if (IsFolder(directory)) found.push_back(std::move(directory));
  }
  return found;
}

absl::StatusOr<CoordinatorStates> ReadCoordinator(const std::string& directory) {
  absl::StatusOr<CoordinatorStates> states = ReadCoordinatorLogs(*PosixFileSystem(), directory);
  if (!states.ok() || internal::v1::CoordinatorState().ParseFromString(states->last)) return states;
  return absl::DataLossError(
      absl::StrCat(directory, ": record ", states->last_position, " is not a valid coordinator state"));
}

uint64_t BytesOf(const internal::v1::CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const internal::v1::CheckpointManifest::File& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

// Bytes of files of earlier checkpoints that this one needs.
uint64_t EarlierBytesOf(const internal::v1::CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const internal::v1::CheckpointManifest::File& file : manifest.files()) {
    for (const internal::v1::CheckpointManifest::File& earlier : file.increment_of()) bytes += earlier.bytes();
  }
  return bytes;
}

uint64_t StepOf(const internal::v1::CheckpointManifest& manifest) {
  uint64_t step = 0;
  for (const internal::v1::ProgressTrackerState::Worker& worker : manifest.progress().workers()) {
    step = std::max<uint64_t>(step, worker.lease_steps());
  }
  return step;
}

nlohmann::json Describe(const std::string& path, const internal::v1::CheckpointManifest& manifest) {
  nlohmann::json json = {
      {"path", path},
      {"id", manifest.id()},
      {"job", manifest.job().name()},
      {"created",
       absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixMillis(manifest.created_unix_ms()), absl::UTCTimeZone())},
      {"version", manifest.version()},
      {"epoch", manifest.progress().epoch() + 1},
      {"step", StepOf(manifest)},
      {"examples", manifest.progress().examples()},
      {"servers", manifest.files_size()},
      {"bytes", BytesOf(manifest)},
      {"earlier_bytes", EarlierBytesOf(manifest)}};
  // Without an evaluation, it has no figure.
  const v1::Evaluation& evaluation = manifest.progress().evaluation();
  if (evaluation.has_accuracy()) json["test_accuracy"] = evaluation.accuracy();
  if (evaluation.has_auc()) json["test_auc"] = evaluation.auc();
  return json;
}

// Reads every record of every file, and of those that it is an increment of, and passes each slice's weights to `take`.
// DATA_LOSS if a slice of the map is
// missing or a record does not fit the map.
absl::Status ReadAll(
    const std::string& path, const internal::v1::CheckpointManifest& manifest, const ShardMap& map,
    absl::FunctionRef<void(const PlacedTensor&, const PlacedSlice&, absl::Span<const float> weights)> take) {
  std::map<std::pair<uint32_t, uint32_t>, bool> found;
  for (const PlacedTensor& tensor : map.tensors()) {
    for (const PlacedSlice& slice : tensor.slices) found[{tensor.spec.id(), slice.index}] = false;
  }
  const auto take_slice = [&](const SnapshotSlice& slice) -> absl::Status {
    const uint32_t id = slice.state.tensor_id(), index = slice.state.slice_index();
    const PlacedTensor* const tensor = map.Find(id);
    const bool fits = tensor != nullptr && index < tensor->slices.size() && !slice.arrays.empty() &&
                      slice.arrays[0].size() == tensor->slices[index].elements;
    if (!fits) {
      return absl::DataLossError(
          absl::StrCat(path, ": slice ", index, " of tensor ", id, " does not fit the shard map"));
    }
    found[{id, index}] = true;
    take(*tensor, tensor->slices[index], slice.arrays[0]);
    return absl::OkStatus();
  };
  for (const internal::v1::CheckpointManifest::File& file : manifest.files()) {
    const absl::Status read =
        ReadCheckpointChain(path, file, [&](const internal::v1::SnapshotHeader&, SnapshotPart part, ChainPlace place) {
          const auto* const slice = place.last ? std::get_if<SnapshotSlice>(&part) : nullptr;
          return slice == nullptr ? absl::OkStatus() : take_slice(*slice);
        });
    if (!read.ok()) return read;
  }
  for (const auto& [key, there] : found) {
    if (there) continue;
    return absl::DataLossError(absl::StrCat(path, ": slice ", key.second, " of tensor ", key.first, " is missing"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardMap> ReadMap(const std::string& path, const internal::v1::CheckpointManifest& manifest) {
  absl::StatusOr<ShardMap> map = ShardMap::FromProto(manifest.map());
  if (!map.ok()) return absl::DataLossError(absl::StrCat(path, ": ", map.status().message()));
  return map;
}

absl::Status Verify(const std::string& path, const internal::v1::CheckpointManifest& manifest) {
  const absl::StatusOr<ShardMap> map = ReadMap(path, manifest);
  if (!map.ok()) return map.status();
  return ReadAll(path, manifest, *map, [](const PlacedTensor&, const PlacedSlice&, absl::Span<const float>) {});
}

absl::Status Export(const std::string& path, const internal::v1::CheckpointManifest& manifest, const std::string& to) {
  const absl::StatusOr<ShardMap> map = ReadMap(path, manifest);
  if (!map.ok()) return map.status();
  std::map<uint32_t, std::vector<float>> values;
  for (const PlacedTensor& tensor : map->tensors()) values[tensor.spec.id()].resize(CountElements(tensor.spec));
  const auto copy = [&](const PlacedTensor& tensor, const PlacedSlice& slice, absl::Span<const float> weights) {
    std::copy(weights.begin(), weights.end(), values[tensor.spec.id()].begin() + slice.offset);
  };
  if (absl::Status status = ReadAll(path, manifest, *map, copy); !status.ok()) return status;
  std::vector<TensorView> tensors;
  for (const PlacedTensor& tensor : map->tensors()) {
    tensors.push_back(
        {tensor.spec.name(), {tensor.spec.shape().begin(), tensor.spec.shape().end()}, values[tensor.spec.id()]});
  }
  return WriteSafetensors(to, tensors, {{"job", manifest.job().name()}, {"checkpoint", absl::StrCat(manifest.id())}});
}

CommandResult List(absl::Span<const std::string> manifests, bool json, std::ostream& out, std::ostream& err) {
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& path : manifests) {
    const absl::StatusOr<internal::v1::CheckpointManifest> manifest = ReadManifest(path);
    if (!manifest.ok()) return Fail(err, manifest.status(), kExitFailure);
    const nlohmann::json one = Describe(path, *manifest);
    all.push_back(one);
    if (json) continue;
    const uint64_t earlier = EarlierBytesOf(*manifest);
    out << absl::StrFormat("%8d  %s  epoch %d  step %d  %d servers  %s%s  %s\n", manifest->id(),
                           one["created"].get<std::string>(), one["epoch"].get<uint32_t>(), StepOf(*manifest),
                           manifest->files_size(), BytesText(BytesOf(*manifest)),
                           earlier > 0 ? absl::StrCat(" + ", BytesText(earlier), " of earlier files") : "", path);
  }
  if (json) out << nlohmann::json{{"checkpoints", all}}.dump() << std::endl;
  return kExitSuccess;
}

// Collects the results of verify as JSON, or prints each as a line of text. Thread safety: none.
class Findings {
 public:
  Findings(bool json, std::ostream& out) : json_(json), out_(out) {}

  void Add(nlohmann::json& list, nlohmann::json one, const std::string& path, const absl::Status& status) {
    first_.Update(status);
    one["path"] = path;
    one["ok"] = status.ok();
    if (!status.ok()) one["error"] = std::string(status.message());
    list.push_back(std::move(one));
    if (!json_) out_ << path << ": " << (status.ok() ? "ok" : std::string(status.message())) << "\n";
  }

  // The first failure.
  const absl::Status& status() const { return first_; }

 private:
  const bool json_;
  std::ostream& out_;
  absl::Status first_;
};

CommandResult VerifyAll(absl::Span<const std::string> manifests, absl::Span<const std::string> states, bool json,
                        std::ostream& out, std::ostream& err) {
  Findings findings(json, out);
  nlohmann::json checkpoints = nlohmann::json::array(), shards = checkpoints, coordinators = checkpoints;
  for (const std::string& path : manifests) {
    const absl::StatusOr<internal::v1::CheckpointManifest> manifest = ReadManifest(path);
    findings.Add(checkpoints, manifest.ok() ? Describe(path, *manifest) : nlohmann::json::object(), path,
                 manifest.ok() ? Verify(path, *manifest) : manifest.status());
  }
  for (const std::string& path : states) {
    const absl::StatusOr<StateContents> state = ReadState(path);
    nlohmann::json one = nlohmann::json::object();
    if (state.ok()) {
      one = {{"snapshot", state->snapshot},
             {"log_records", state->records},
             {"log_bytes", state->bytes},
             {"unfinished_bytes", state->unfinished}};
    }
    findings.Add(shards, std::move(one), path, state.status());
  }
  for (const std::string& path : CoordinatorsOf(states)) {
    const absl::StatusOr<CoordinatorStates> found = ReadCoordinator(path);
    nlohmann::json one = nlohmann::json::object();
    if (found.ok()) {
      one = {{"log_records", found->records}, {"log_bytes", found->bytes}, {"unfinished_bytes", found->unfinished}};
    }
    findings.Add(coordinators, std::move(one), path, found.status());
  }
  if (json) {
    const nlohmann::json all = {{"ok", findings.status().ok()},
                                {"checkpoints", checkpoints},
                                {"shards", shards},
                                {"coordinators", coordinators}};
    out << all.dump() << std::endl;
  }
  if (findings.status().ok()) return kExitSuccess;
  return Fail(err, findings.status(), kExitFailure);
}

CommandResult Save(const std::string& where, const Arguments& arguments, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<RunTarget> target = FindRunningTarget("checkpoint", where, arguments, RunAccess::kAdmin);
  if (!target.ok()) {
    return Fail(err, target.status(), absl::IsUnavailable(target.status()) ? kExitTemporary : kExitBadInput);
  }
  const absl::StatusOr<Credentials> credentials = Credentials::Load(target->security);
  if (!credentials.ok()) return Fail(err, credentials.status(), kExitBadInput);
  if (absl::Status status = credentials->CheckTarget(target->address); !status.ok()) {
    return Fail(err, status, kExitBadInput);
  }
  const std::unique_ptr<ServerConnection> server =
      ServerConnection::Open(target->address, *credentials, /*patient=*/true, arguments.Get("job", ""));
  // Fails soon if nobody answers; a server that is only busy later gets more time.
  const absl::StatusOr<v1::GetProgressResponse> answers = server->GetProgress(kConnectTimeout);
  if (!answers.ok()) return Fail(err, WithTokenHint("checkpoint", answers.status(), *target), kExitFailure);
  const absl::StatusOr<v1::SaveCheckpointResponse> saved =
      RequestCheckpoint(*server, /*stop=*/false, kSaveTimeout, [](absl::Duration pause) {
        absl::SleepFor(pause);
        return true;
      });
  if (!saved.ok()) {
    const std::string why = absl::StrCat("no checkpoint was saved: ", saved.status().message());
    return Fail(err, WithTokenHint("checkpoint", WithMessage(saved.status(), why), *target), kExitFailure);
  }
  if (arguments.Has("json")) {
    out << nlohmann::json{{"id", saved->id()}, {"step", saved->step()}, {"epoch", saved->epoch()}}.dump() << std::endl;
  } else {
    out << "checkpoint " << saved->id() << " saved"
        << (saved->step() > 0 ? absl::StrCat(" at step ", saved->step(), ", epoch ", saved->epoch()) : "") << "\n";
  }
  return kExitSuccess;
}

}  // namespace

const std::vector<FlagSpec>& CheckpointFlags() { return Flags(); }

CommandResult CheckpointCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  const std::vector<std::string>& words = arguments->positional();
  const std::string verb = words.empty() ? "" : words[0];
  const size_t wanted = verb == "export" ? 3 : 2;
  const bool known = verb == "list" || verb == "verify" || verb == "export" || verb == "save";
  if (!known || words.size() != wanted) {
    return Fail(err,
                absl::InvalidArgumentError(absl::StrCat(
                    "checkpoint: got ",
                    words.empty() ? "nothing" : absl::StrCat("\"", verb, "\" and ", words.size() - 1, " words"),
                    ", want list DIR, verify DIR, export DIR FILE or save RUN_DIR|ADDRESS; see --help")),
                kExitBadInput);
  }
  if (verb == "save") return Save(words[1], *arguments, out, err);
  absl::StatusOr<std::vector<std::string>> manifests = FindManifests(words[1]);
  const bool json = arguments->Has("json");
  if (verb == "verify") {
    const absl::StatusOr<std::vector<std::string>> states = FindStates(words[1]);
    if (!states.ok()) return Fail(err, states.status(), kExitFailure);
    // A job with a log need not have checkpoints.
    if (absl::IsNotFound(manifests.status()) && !states->empty()) manifests = std::vector<std::string>();
    if (!manifests.ok()) return Fail(err, manifests.status(), kExitFailure);
    return VerifyAll(*manifests, *states, json, out, err);
  }
  if (!manifests.ok()) return Fail(err, manifests.status(), kExitFailure);
  if (verb == "list") return List(*manifests, json, out, err);
  const std::string& path = manifests->back();
  const absl::StatusOr<internal::v1::CheckpointManifest> manifest = ReadManifest(path);
  if (!manifest.ok()) return Fail(err, manifest.status(), kExitFailure);
  if (absl::Status status = Export(path, *manifest, words[2]); !status.ok()) return Fail(err, status, kExitFailure);
  if (json) {
    out << nlohmann::json{{"checkpoint", path}, {"file", words[2]}}.dump() << std::endl;
  } else {
    out << words[2] << "\n";
  }
  return kExitSuccess;
}

}  // namespace ballast
