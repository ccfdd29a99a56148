// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fault/durability/disk_faults.h"
#include "tests/fault/durability/shard_host.h"

namespace ballast {
namespace {

// Enough for a snapshot and several log files after it.
constexpr uint64_t kPushes = 400;

using Folder = std::map<std::string, std::string>;

Folder ReadFolder(const std::string& path) {
  Folder folder;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    folder[entry.path().filename().string()] = text.str();
  }
  return folder;
}

void WriteFolder(const std::string& path, const Folder& folder) {
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  for (const auto& [name, content] : folder) std::ofstream(absl::StrCat(path, "/", name), std::ios::binary) << content;
}

class Trials {
 public:
  explicit Trials(const DamageOptions& options) : options_(options), random_(options.seed) {
    host_.folder = options.folder;
    // Each record is synced before the next is written, and the next records that; a mark does so for the last.
    host_.mode = v1::Durability::WAL_SYNC;
    host_.file_bytes = 8 << 10;
  }

  absl::StatusOr<DamageCounts> Do() {
    if (absl::Status status = Build(); !status.ok()) return status;
    for (; counts_.bit_flips < options_.bit_flips; ++counts_.bit_flips) FlipABit();
    for (; counts_.truncations < options_.truncations; ++counts_.truncations) CutAFile();
    return counts_;
  }

 private:
  absl::Status Build() {
    std::filesystem::remove_all(options_.folder);
    auto host = ShardHost::Open(host_, PosixFileSystem());
    if (!host.ok()) return host.status();
    for (uint64_t number = 1; number <= kPushes; ++number) {
      if (absl::Status status = (*host)->Push(0, number); !status.ok()) return status;
      if (number != kPushes / 4) continue;
      if (absl::Status status = (*host)->store().TakeSnapshot(); !status.ok()) return status;
    }
    host->reset();
    for (auto& [name, content] : ReadFolder(options_.folder)) {
      if (!content.empty()) whole_[name] = content;
    }
    if (whole_.size() >= 4) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the folder has ", whole_.size(), " files, want at least 4"));
  }

  std::string PickFile() {
    auto file = whole_.begin();
    std::advance(file, random_() % whole_.size());
    return file->first;
  }

  void FlipABit() {
    Folder folder = whole_;
    const std::string name = PickFile();
    const uint64_t at = random_() % folder[name].size();
    folder[name][at] ^= static_cast<char>(1 << random_() % 8);
    Judge(folder, absl::StrCat("a bit of byte ", at, " of ", name, " flipped"), kPushes);
  }

  void CutAFile() {
    Folder folder = whole_;
    const std::string name = PickFile();
    const uint64_t size = random_() % folder[name].size();
    folder[name].resize(size);
    // The last file, cut anywhere, looks like after a crash.
    Judge(folder, absl::StrCat(name, " cut to ", size, " bytes"), kPushes / 4);
  }

  // `least`: number of pushes that must be present if the shard recovers.
  void Judge(const Folder& folder, const std::string& what, uint64_t least) {
    WriteFolder(options_.folder, folder);
    const auto host = ShardHost::Open(host_, PosixFileSystem());
    if (!host.ok()) {
      if (absl::StrContains(host.status().message(), options_.folder)) {
        ++counts_.refused;
      } else {
        Silent(absl::StrCat(what, ": refused without naming the file: ", host.status().ToString()));
      }
      return;
    }
    const auto applied = (*host)->Applied();
    if (!applied.ok() || (*applied)[0] < least || (*applied)[0] > kPushes) {
      return Silent(absl::StrCat(what, ": ", applied.ok() ? absl::StrCat((*applied)[0], " pushes") : "wrong weights"));
    }
    ++((*applied)[0] == kPushes ? counts_.unharmed : counts_.cut);
  }

  void Silent(const std::string& what) {
    if (counts_.silent++ == 0) counts_.first_silent = what;
  }

  const DamageOptions options_;
  ShardHost::Options host_;
  std::mt19937_64 random_;
  Folder whole_;
  DamageCounts counts_;
};

}  // namespace

void DamageCounts::Add(const DamageCounts& other) {
  AddFields(other, *this);
  if (first_silent.empty()) first_silent = other.first_silent;
}

nlohmann::ordered_json DamageCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  if (silent > 0) json["first_silent"] = first_silent;
  return json;
}

absl::StatusOr<DamageCounts> DamageFolders(const DamageOptions& options) { return Trials(options).Do(); }

}  // namespace ballast
