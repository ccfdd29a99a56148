// SPDX-License-Identifier: Apache-2.0
#include "client/watch/table_files.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/run/safetensors.h"
#include "common/status/error_reason.h"
#include "common/storage/checksum.h"
#include "common/storage/file.h"
#include "common/storage/file_system.h"
#include "common/tables/table_spec.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kManifest[] = "manifest.json";

std::string ToJson(const v1::TableSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  // Fails only for messages that no spec contains, such as google.protobuf.Any.
  if (!google::protobuf::util::MessageToJsonString(spec, &json, options).ok()) json.clear();
  return json;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TableFiles>> TableFiles::Make(const v1::TableSpec& spec, Options options) {
  const absl::StatusOr<const Codec*> codec = FindCodec(options.encoding);
  if (!codec.ok()) return codec.status();
  if (absl::Status status = PosixFileSystem()->MakeFolder(options.folder); !status.ok()) return status;
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem()->List(options.folder);
  if (!names.ok()) return names.status();
  if (!names->empty()) {
    return WithReason(v1::ERROR_REASON_INVALID_REQUEST,
                      absl::AlreadyExistsError(absl::StrCat(options.folder, ": has ", names->size(), " files, such as ",
                                                            names->front(), ", want a new or empty folder")));
  }
  return std::unique_ptr<TableFiles>(new TableFiles(spec, std::move(options), *codec));
}

void TableFiles::Add(const RangeUpdate& update) {
  const size_t dim = spec_.dim();
  const size_t row_bytes = sizeof(uint64_t) + codec_->EncodedBytes(dim);
  absl::MutexLock lock(&mutex_);
  for (size_t begin = 0; begin < update.ids.size() && status_.ok();) {
    const size_t room = options_.file_bytes / row_bytes - std::min(options_.file_bytes / row_bytes, ids_.size());
    const size_t rows = std::min(update.ids.size() - begin, std::max<size_t>(room, ids_.empty() ? 1 : 0));
    if (rows == 0) {
      status_ = WriteFileLocked();
      continue;
    }
    ids_.insert(ids_.end(), update.ids.begin() + begin, update.ids.begin() + begin + rows);
    const auto values = absl::MakeConstSpan(update.values).subspan(begin * dim, rows * dim);
    const size_t before = values_.size();
    values_.resize(before + codec_->EncodedBytes(values.size()));
    values_.resize(before + codec_->Encode(values, /*seed=*/0, values_.data() + before));
    begin += rows;
  }
}

absl::Status TableFiles::WriteFileLocked() {
  File file;
  file.name = absl::StrFormat("rows-%05d.safetensors", files_.size());
  file.rows = ids_.size();
  const std::string path = absl::StrCat(options_.folder, "/", file.name);
  const bool half = options_.encoding == v1::ENCODING_BF16;
  const absl::string_view ids(reinterpret_cast<const char*>(ids_.data()), ids_.size() * sizeof(uint64_t));
  const auto rows = static_cast<int64_t>(ids_.size());
  const std::vector<EncodedTensorView> tensors = {
      {"ids", "I64", sizeof(int64_t), {rows}, ids},
      {"values", half ? "BF16" : "F32", half ? uint64_t{2} : uint64_t{4}, {rows, spec_.dim()}, values_}};
  if (absl::Status status = WriteEncodedTensors(path, tensors, {{"table", spec_.name()}}); !status.ok()) return status;
  ids_.clear();
  values_.clear();
  // The checksum is of the file as it was written, so that a copy of the folder can be checked.
  const absl::StatusOr<std::string> written = ReadFile(path);
  if (!written.ok()) return written.status();
  file.bytes = written->size();
  file.checksum = Checksum(*written);
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status TableFiles::WriteManifestLocked(const std::string& path) const {
  Json files = Json::array();
  uint64_t rows = 0;
  for (const File& file : files_) {
    rows += file.rows;
    files.push_back({{"name", file.name},
                     {"rows", file.rows},
                     {"bytes", file.bytes},
                     {"xxh3", absl::StrFormat("%016x", file.checksum)}});
  }
  const Json manifest = {{"table", spec_.name()},
                         {"id", spec_.id()},
                         {"dim", spec_.dim()},
                         {"encoding", std::string(codec_->name())},
                         {"rows", rows},
                         {"files", std::move(files)},
                         {"spec", Json::parse(ToJson(spec_), nullptr, false)}};
  return WriteFileAtomically(path, {manifest.dump(2), "\n"});
}

absl::StatusOr<TableFiles::Written> TableFiles::Finish() {
  absl::MutexLock lock(&mutex_);
  if (status_.ok() && !ids_.empty()) status_ = WriteFileLocked();
  if (!status_.ok()) return status_;
  Written written;
  written.manifest = absl::StrCat(options_.folder, "/", kManifest);
  status_ = WriteManifestLocked(written.manifest);
  if (!status_.ok()) return status_;
  written.files = files_.size();
  for (const File& file : files_) {
    written.rows += file.rows;
    written.bytes += file.bytes;
  }
  return written;
}

namespace {

// Waits as long as ranges come.
absl::Status AwaitRanges(RowWatcher& watcher, absl::Duration stall) {
  while (true) {
    const uint64_t before = watcher.counts().updates;
    const absl::Status status = watcher.AwaitComplete(stall);
    const bool goes_on = absl::IsDeadlineExceeded(status) && watcher.status().ok();
    if (!goes_on || watcher.counts().updates == before) return status;
  }
}

}  // namespace

absl::StatusOr<TableFiles::Written> WriteTableFiles(RowWatcherOptions servers, const v1::TableSpec& spec,
                                                    TableFiles::Options options, absl::Duration stall) {
  const v1::Encoding encoding = options.encoding;
  absl::StatusOr<std::unique_ptr<TableFiles>> files = TableFiles::Make(spec, std::move(options));
  if (!files.ok()) return files.status();
  servers.tables = {spec};
  servers.encoding = encoding;
  servers.once = true;
  servers.retry_timeout = stall;
  servers.on_update = [&files](const RangeUpdate& update) { (*files)->Add(update); };
  const absl::StatusOr<std::unique_ptr<RowWatcher>> watcher = RowWatcher::Start(std::move(servers));
  if (!watcher.ok()) return watcher.status();
  if (absl::Status status = AwaitRanges(**watcher, stall); !status.ok()) return status;
  return (*files)->Finish();
}

namespace {

// A file of rows, as the manifest describes it.
struct RowsFile {
  std::string path;
  uint64_t rows = 0;
  uint64_t bytes = 0;
  std::string checksum;
};

absl::StatusOr<RowsFile> ReadEntry(const std::string& folder, const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("\"files\": want a list of objects");
  const absl::StatusOr<std::string> name = StringField(json, "name");
  if (!name.ok()) return name.status();
  if (name->empty() || name->find('/') != name->npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"name\": got \"", *name, "\", want a file of this folder"));
  }
  const absl::StatusOr<int64_t> rows = CountField(json, "rows");
  if (!rows.ok()) return rows.status();
  const absl::StatusOr<int64_t> bytes = CountField(json, "bytes");
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<std::string> checksum = StringField(json, "xxh3");
  if (!checksum.ok()) return checksum.status();
  return RowsFile{absl::StrCat(folder, "/", *name), static_cast<uint64_t>(*rows), static_cast<uint64_t>(*bytes),
                  *std::move(checksum)};
}

struct Manifest {
  v1::TableSpec spec;
  std::vector<RowsFile> files;
};

absl::StatusOr<Manifest> ReadManifest(const std::string& folder, const std::string& text) {
  const absl::StatusOr<Json> json = ParseJsonObject(text);
  if (!json.ok()) return json.status();
  const auto spec = json->find("spec");
  if (spec == json->end()) {
    return absl::InvalidArgumentError("got no \"spec\", want a manifest that this version of Ballast has written");
  }
  Manifest manifest;
  const auto parsed = google::protobuf::util::JsonStringToMessage(JsonLine(*spec), &manifest.spec);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"spec\": ", absl::string_view(parsed.message().data(), parsed.message().size())));
  }
  if (absl::Status status = ValidateTableSpec(manifest.spec); !status.ok()) return Annotate(status, "\"spec\"");
  const auto files = json->find("files");
  if (files == json->end() || !files->is_array()) return absl::InvalidArgumentError("\"files\": want a list");
  for (const Json& one : *files) {
    absl::StatusOr<RowsFile> file = ReadEntry(folder, one);
    if (!file.ok()) return file.status();
    manifest.files.push_back(*std::move(file));
  }
  return manifest;
}

// Checks that the tensors are those of a file of rows, and returns the codec of the values.
absl::StatusOr<const Codec*> CheckTensors(const RowsFile& file, uint32_t dim,
                                          absl::Span<const LoadedEncodedTensor> tensors) {
  const auto rows = static_cast<int64_t>(file.rows);
  const bool fits = tensors.size() == 2 && tensors[0].name == "ids" && tensors[0].dtype == "I64" &&
                    tensors[0].shape == std::vector<int64_t>{rows} && tensors[1].name == "values" &&
                    tensors[1].dtype != "I64" && tensors[1].shape == std::vector<int64_t>{rows, dim};
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("want two tensors: ids, I64 [", rows, "], and values, F32 or BF16 [", rows, ", ", dim, "]"));
  }
  return FindCodec(tensors[1].dtype == "F32" ? v1::ENCODING_FP32 : v1::ENCODING_BF16);
}

absl::Status ReadRows(const RowsFile& file, RowCopy& to) {
  const absl::StatusOr<std::string> bytes = ReadFile(file.path);
  if (!bytes.ok()) return bytes.status();
  const std::string checksum = absl::StrFormat("%016x", Checksum(*bytes));
  if (bytes->size() != file.bytes || checksum != file.checksum) {
    return absl::DataLossError(absl::StrCat(file.path, ": got ", bytes->size(), " bytes with checksum ", checksum,
                                            ", want ", file.bytes, " with ", file.checksum,
                                            " as in the manifest; the file is damaged"));
  }
  const auto tensors = DecodeEncodedTensors(*bytes);
  if (!tensors.ok()) return Annotate(tensors.status(), file.path);
  const absl::StatusOr<const Codec*> codec = CheckTensors(file, to.dim(), *tensors);
  if (!codec.ok()) return Annotate(codec.status(), file.path);
  const absl::string_view values = (*tensors)[1].values;
  const absl::StatusOr<std::unique_ptr<PayloadDecoder>> decoder =
      (*codec)->OpenPayload({&values, 1}, file.rows * to.dim());
  if (!decoder.ok()) return Annotate(decoder.status(), file.path);
  std::vector<float> row(to.dim());
  for (uint64_t i = 0; i < file.rows; ++i) {
    uint64_t id = 0;
    std::memcpy(&id, (*tensors)[0].values.data() + i * sizeof(id), sizeof(id));
    (*decoder)->Next(absl::MakeSpan(row));
    to.Set(id, row);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedTable> ReadTableFiles(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifest);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<Manifest> manifest = ReadManifest(folder, *text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  LoadedTable table{std::move(manifest->spec), nullptr};
  table.rows = std::make_shared<RowCopy>(table.spec);
  for (const RowsFile& file : manifest->files) {
    if (absl::Status status = ReadRows(file, *table.rows); !status.ok()) return status;
  }
  return table;
}

}  // namespace ballast
