// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/testing/lossy_file_system.h"
#include "common/tables/placed_table.h"
#include "common/tables/row_hash.h"
#include "common/tables/table_spec_fixture.h"
#include "common/tensors/shard_map.h"
#include "server/durability/checkpoint_source.h"
#include "server/durability/shard_checkpoint.h"
#include "server/durability/shard_snapshot.h"
#include "tests/fault/durability/disk_faults.h"
#include "tests/testing/tensors.h"

namespace ballast {
namespace {

constexpr uint32_t kShards = 2;
constexpr uint32_t kTensors = 6;
constexpr uint32_t kElements = 50;
constexpr uint32_t kTable = 100000;
constexpr uint64_t kRows = 300;
constexpr uint64_t kNever = ~uint64_t{0};

// A file system whose process dies at a given disk access: that append is cut short, and every later access fails.
// Thread safety: none.
class DyingFileSystem : public FileSystem {
 public:
  DyingFileSystem(LossyFileSystem* files, uint64_t death, uint64_t seed)
      : files_(*files), death_(death), random_(seed) {}

  uint64_t accesses() const { return accesses_; }

  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    if (Dies()) return Dead();
    absl::StatusOr<std::unique_ptr<AppendFile>> file = files_.Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(this, *std::move(file));
  }
  absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string& from, const std::string& to) override {
    if (Dies()) return Dead();
    absl::StatusOr<std::unique_ptr<AppendFile>> file = files_.Reuse(from, to);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(this, *std::move(file));
  }
  absl::Status Truncate(const std::string& path, uint64_t size) override {
    return Dies() ? Dead() : files_.Truncate(path, size);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Dies() ? Dead() : files_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return Dies() ? Dead() : files_.Remove(path); }
  absl::Status MakeFolder(const std::string& path) override { return Dies() ? Dead() : files_.MakeFolder(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override { return files_.List(folder); }

 private:
  class File : public AppendFile {
   public:
    File(DyingFileSystem* system, std::unique_ptr<AppendFile> file) : system_(*system), file_(std::move(file)) {}

    absl::Status Append(absl::Span<const absl::string_view> parts) override {
      const bool dead = system_.dead_;
      if (!system_.Dies()) return file_->Append(parts);
      if (dead) return Dead();
      std::string all;
      for (absl::string_view part : parts) all.append(part.data(), part.size());
      const absl::string_view kept = absl::string_view(all).substr(0, system_.random_() % (all.size() + 1));
      if (absl::Status status = file_->Append({kept}); !status.ok()) return status;
      return Dead();
    }
    absl::Status Sync() override { return system_.Dies() ? Dead() : file_->Sync(); }
    uint64_t size() const override { return file_->size(); }

   private:
    DyingFileSystem& system_;
    const std::unique_ptr<AppendFile> file_;
  };

  static absl::Status Dead() { return absl::AbortedError("the process is dead"); }

  bool Dies() {
    dead_ = dead_ || accesses_++ == death_;
    return dead_;
  }

  LossyFileSystem& files_;
  const uint64_t death_;
  std::mt19937_64 random_;
  uint64_t accesses_ = 0;
  bool dead_ = false;
};

// A table or a shard's part of it, empty at first.
struct Rows {
  explicit Rows(const v1::PlacedTable& part) : tables(1) {
    absl::StatusOr<std::unique_ptr<Table>> made =
        Table::Make({part.spec(), {part.spans().begin(), part.spans().end()}}, {}, &memory);
    if (made.ok()) tables[0] = *std::move(made);
  }

  std::map<uint64_t, std::string> Images() const {
    std::map<uint64_t, std::string> images;
    const auto capture = tables[0]->BeginCapture();
    while (const std::optional<RowsPiece> piece = capture->Next()) {
      const char* const words = reinterpret_cast<const char*>(piece->rows.words.data());
      for (size_t i = 0; i < piece->rows.hashes.size(); ++i) {
        images[piece->rows.hashes[i]] = std::string(words + i * capture->row_bytes(), capture->row_bytes());
      }
    }
    return images;
  }

  ByteBudget budget{uint64_t{1} << 30};
  TableMemory memory{&budget};
  std::vector<std::unique_ptr<Table>> tables;
};

class Trials {
 public:
  explicit Trials(const CheckpointDeathOptions& options)
      : options_(options), random_(options.seed), map_(std::vector<std::string>(kShards, "shard")) {}

  absl::StatusOr<CheckpointDeathCounts> Do() {
    std::vector<v1::TensorSpec> specs;
    for (uint32_t i = 0; i < kTensors; ++i) specs.push_back(SgdSpec(i + 1, absl::StrCat("t", i), kElements));
    if (absl::Status status = map_.Place(specs); !status.ok()) return status;
    table_ = SpreadRanges(SgdTable(kTable, "rows", 4), kShards);
    job_.name = "checkpoints";
    job_.policy.mutable_async();
    job_.workers = 1;
    const absl::StatusOr<uint64_t> accesses = CountAccesses();
    if (!accesses.ok()) return accesses.status();
    for (; counts_.deaths < options_.deaths; ++counts_.deaths) {
      if (absl::Status status = DieOnce(random_() % *accesses); !status.ok()) return status;
    }
    for (; counts_.bit_flips < options_.bit_flips; ++counts_.bit_flips) {
      if (absl::Status status = DamageOnce(/*flip=*/true); !status.ok()) return status;
    }
    for (; counts_.truncations < options_.truncations; ++counts_.truncations) {
      if (absl::Status status = DamageOnce(/*flip=*/false); !status.ok()) return status;
    }
    return counts_;
  }

 private:
  // The tensors of one shard with its slices of them, or with all slices.
  std::vector<OwnedTensor> Owned(std::optional<uint32_t> shard) const {
    std::vector<OwnedTensor> owned;
    for (const PlacedTensor& tensor : map_.tensors()) {
      OwnedTensor& to = owned.emplace_back();
      to.spec = tensor.spec;
      for (const PlacedSlice& slice : tensor.slices) {
        if (shard.has_value() && slice.shard != *shard) continue;
        v1::SliceRange& range = to.slices.emplace_back();
        range.set_index(slice.index);
        range.set_offset(slice.offset);
        range.set_elements(slice.elements);
      }
      if (to.slices.empty()) owned.pop_back();
    }
    return owned;
  }

  // Begins a new life of the shards, whose next part is whole.
  void Begin() {
    rows_.clear();
    parents_.assign(kShards, std::nullopt);
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      rows_.push_back(std::make_unique<Rows>(PartOfShard(table_, shard)));
    }
  }

  // Sets and removes some rows of a shard, others for each id.
  absl::Status ChangeRows(uint32_t shard, uint64_t id) {
    Table& table = *rows_[shard]->tables[0];
    std::vector<uint64_t> set, removed;
    for (uint64_t row = 0; row < kRows; ++row) {
      const uint64_t hash = RowHash(row, kTable);
      if (table_.OwnerOf(RangeOf(hash, 12)) != shard) continue;
      if (row % 2 == id % 2) set.push_back(hash);
      if (row % 7 == id % 7) removed.push_back(hash);
    }
    std::sort(set.begin(), set.end());
    std::sort(removed.begin(), removed.end());
    return table.RestoreChanges(removed, set, std::string(set.size() * table.image_bytes(), static_cast<char>(id)));
  }

  // A shard whose weights all equal the checkpoint's id, with its rows.
  ShardState Capture(uint32_t shard, uint64_t id) {
    ShardState capture;
    capture.job = job_;
    capture.tensors = Owned(shard);
    Table& table = *rows_[shard]->tables[0];
    capture.tables = {table.owned()};
    capture.table_entries.push_back(
        {kTable, table.state(), table.BeginCheckpoint(id, /*changes_alone=*/parents_[shard].has_value())});
    capture.windows.resize(job_.workers);
    for (const OwnedTensor& tensor : capture.tensors) {
      for (const v1::SliceRange& range : tensor.slices) {
        ShardState::SliceEntry& slice = capture.slices.emplace_back();
        slice.key = {tensor.spec.id(), range.index()};
        slice.weights.version = id;
        ValueBuffer& values = slice.weights.arrays.emplace_back(range.elements());
        std::fill(values.mutable_values().begin(), values.mutable_values().end(), static_cast<float>(id));
      }
    }
    return capture;
  }

  // Takes a checkpoint like servers: writes shard files and manifest, then removes the previous checkpoint.
  absl::Status Take(FileSystem* files, uint64_t id, bool& committed) {
    CheckpointFolder folder(files, options_.folder);
    if (absl::Status status = files->MakeFolder(options_.folder); !status.ok()) return status;
    internal::v1::CheckpointManifest manifest;
    manifest.set_id(id);
    manifest.mutable_job()->set_name(job_.name);
    *manifest.mutable_map() = map_.ToProto();
    *manifest.mutable_map()->add_tables() = ToProto(table_);
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      internal::v1::CheckpointManifest::File& file = *manifest.add_files();
      file.set_name(CheckpointFolder::ShardFileName(id, shard, kShards));
      const std::string path = folder.PathOf(file.name());
      const SnapshotPlace place{.shard = shard, .shards = kShards, .position = id, .parent = parents_[shard]};
      absl::Status status = ChangeRows(shard, id);
      if (status.ok()) status = files->Remove(path);
      if (status.ok()) status = WriteSnapshot(files, path, place, Capture(shard, id));
      if (!status.ok()) return status;
      const absl::StatusOr<FileDigest> digest = DigestFile(path);
      if (!digest.ok()) return digest.status();
      file.set_bytes(digest->bytes);
      file.set_checksum(digest->checksum);
      internal::v1::SnapshotHeader::Parent& parent = parents_[shard].emplace();
      parent.set_checkpoint(id);
      parent.set_bytes(digest->bytes);
      parent.set_checksum(digest->checksum);
    }
    saved_[id].clear();
    for (const auto& rows : rows_) saved_[id].merge(rows->Images());
    if (absl::Status status = folder.Commit(std::move(manifest)); !status.ok()) return status;
    committed = true;
    return folder.Prune(1, id);
  }

  // Takes a whole checkpoint and an increment of it, in an empty directory.
  absl::Status TakeTwo() {
    std::filesystem::remove_all(options_.folder);
    Begin();
    bool committed = false;
    absl::Status status = Take(PosixFileSystem(), 1, committed);
    return status.ok() ? Take(PosixFileSystem(), 2, committed) : status;
  }

  absl::StatusOr<uint64_t> CountAccesses() {
    bool committed = false;
    if (absl::Status status = TakeTwo(); !status.ok()) return status;
    LossyFileSystem files;
    DyingFileSystem counted(&files, kNever, 0);
    if (absl::Status status = Take(&counted, 3, committed); !status.ok()) return status;
    return counted.accesses();
  }

  // Returns the id of the newest checkpoint, if it is complete and consistent.
  absl::StatusOr<uint64_t> LoadNewest() const {
    const absl::StatusOr<CheckpointFolder::Entry> newest =
        CheckpointFolder(PosixFileSystem(), options_.folder).Newest();
    if (!newest.ok()) return newest.status();
    const absl::StatusOr<CheckpointSource> source = CheckpointSource::Open(newest->manifest_path);
    if (!source.ok()) return source.status();
    const Rows rows(ToProto(SpreadRanges(table_.spec, 1)));
    const absl::StatusOr<Resumption> resumption = source->Load(job_, Owned(std::nullopt), rows.tables);
    if (!resumption.ok()) return resumption.status();
    const uint64_t id = source->manifest().id();
    if (rows.Images() != saved_.find(id)->second) return absl::InternalError("got other rows than were saved");
    uint64_t elements = 0;
    for (const ShardState::SliceEntry& slice : resumption->slices) {
      for (float value : slice.weights.arrays.at(0).values()) {
        if (value != static_cast<float>(id)) return absl::InternalError(absl::StrCat("got ", value, ", want ", id));
        ++elements;
      }
    }
    if (elements == kTensors * kElements) return id;
    return absl::InternalError(absl::StrCat("got ", elements, " elements"));
  }

  absl::Status DieOnce(uint64_t access) {
    if (absl::Status status = TakeTwo(); !status.ok()) return status;
    bool committed = false;
    LossyFileSystem files;
    DyingFileSystem dying(&files, access, random_());
    const absl::Status died = Take(&dying, 3, committed);
    if (!absl::IsAborted(died)) return absl::InternalError(absl::StrCat("access ", access, ": ", died.ToString()));
    // Only the process dies, or the whole machine does.
    if (random_() % 2 == 0) {
      if (absl::Status status = files.LoseUnsynced(random_()); !status.ok()) return status;
    }
    const std::string what = absl::StrCat("death at access ", access, committed ? ", committed" : "");
    const absl::StatusOr<uint64_t> id = LoadNewest();
    if (!id.ok() || (committed && *id != 3)) {
      Wrong(absl::StrCat(what, ": ", id.ok() ? absl::StrCat("loaded ", *id) : id.status().ToString()));
      return absl::OkStatus();
    }
    ++(*id == 2 ? counts_.old_loaded : counts_.new_loaded);
    // Remains of a dead checkpoint must not block the next one.
    Begin();
    const absl::StatusOr<uint64_t> next = CheckpointFolder(PosixFileSystem(), options_.folder).NextId();
    absl::Status status = next.ok() ? Take(PosixFileSystem(), *next, committed) : next.status();
    const absl::StatusOr<uint64_t> after = status.ok() ? LoadNewest() : status;
    if (!after.ok() || *after != *next) Wrong(absl::StrCat(what, ": the next checkpoint: ", after.status().ToString()));
    return absl::OkStatus();
  }

  absl::Status DamageOnce(bool flip) {
    if (absl::Status status = TakeTwo(); !status.ok()) return status;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(options_.folder)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    const std::filesystem::path& path = paths[random_() % paths.size()];
    const uint64_t at = random_() % std::filesystem::file_size(path);
    if (flip) {
      FlipBit(path, at, random_() % 8);
    } else {
      std::filesystem::resize_file(path, at);
    }
    const absl::StatusOr<uint64_t> id = LoadNewest();
    if (!id.ok() && absl::StrContains(id.status().message(), path.filename().string())) {
      ++counts_.refused;
    } else {
      Wrong(absl::StrCat(path.filename().string(), flip ? ": bit flipped in byte " : ": cut to ", at, ": ",
                         id.ok() ? "loaded" : id.status().ToString()));
    }
    return absl::OkStatus();
  }

  static void FlipBit(const std::filesystem::path& path, uint64_t at, int bit) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ (1 << bit));
    file.seekp(at);
    file.put(byte);
  }

  void Wrong(const std::string& what) {
    if (counts_.wrong++ == 0) counts_.first_wrong = what;
  }

  const CheckpointDeathOptions options_;
  std::mt19937_64 random_;
  ShardMap map_;
  PlacedTable table_;
  JobConfig job_;
  // By shard: its rows, and its last part that was written.
  std::vector<std::unique_ptr<Rows>> rows_;
  std::vector<std::optional<internal::v1::SnapshotHeader::Parent>> parents_;
  // All rows at the moment of each checkpoint.
  std::map<uint64_t, std::map<uint64_t, std::string>> saved_;
  CheckpointDeathCounts counts_;
};

}  // namespace

void CheckpointDeathCounts::Add(const CheckpointDeathCounts& other) {
  AddFields(other, *this);
  if (first_wrong.empty()) first_wrong = other.first_wrong;
}

nlohmann::ordered_json CheckpointDeathCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  if (wrong > 0) json["first_wrong"] = first_wrong;
  return json;
}

absl::StatusOr<CheckpointDeathCounts> DieInCheckpoints(const CheckpointDeathOptions& options) {
  return Trials(options).Do();
}

}  // namespace ballast
