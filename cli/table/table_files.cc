// SPDX-License-Identifier: Apache-2.0
#include "cli/table/table_files.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/run/safetensors.h"
#include "common/storage/checksum.h"
#include "common/storage/file.h"
#include "common/storage/file_system.h"

namespace ballast {

absl::StatusOr<std::unique_ptr<TableFiles>> TableFiles::Make(const v1::TableSpec& spec, Options options) {
  const absl::StatusOr<const Codec*> codec = FindCodec(options.encoding);
  if (!codec.ok()) return codec.status();
  if (absl::Status status = PosixFileSystem()->MakeFolder(options.folder); !status.ok()) return status;
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem()->List(options.folder);
  if (!names.ok()) return names.status();
  if (!names->empty()) {
    return absl::FailedPreconditionError(absl::StrCat(options.folder, ": has ", names->size(), " files, such as ",
                                                      names->front(), ", want a new or empty folder"));
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
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  uint64_t rows = 0;
  for (const File& file : files_) {
    rows += file.rows;
    files.push_back({{"name", file.name},
                     {"rows", file.rows},
                     {"bytes", file.bytes},
                     {"xxh3", absl::StrFormat("%016x", file.checksum)}});
  }
  const nlohmann::ordered_json manifest = {{"table", spec_.name()}, {"id", spec_.id()},
                                           {"dim", spec_.dim()},    {"encoding", std::string(codec_->name())},
                                           {"rows", rows},          {"files", std::move(files)}};
  return WriteFileAtomically(path, {manifest.dump(2), "\n"});
}

absl::StatusOr<TableFiles::Written> TableFiles::Finish() {
  absl::MutexLock lock(&mutex_);
  if (status_.ok() && !ids_.empty()) status_ = WriteFileLocked();
  if (!status_.ok()) return status_;
  Written written;
  written.manifest = absl::StrCat(options_.folder, "/manifest.json");
  status_ = WriteManifestLocked(written.manifest);
  if (!status_.ok()) return status_;
  written.files = files_.size();
  for (const File& file : files_) {
    written.rows += file.rows;
    written.bytes += file.bytes;
  }
  return written;
}

}  // namespace ballast
