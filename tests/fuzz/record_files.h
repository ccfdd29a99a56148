// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/storage/record_log.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {

// A file system of one file, kept in a string: the output of a record writer. Thread safety: none.
class StringFileSystem : public FileSystem {
 public:
  const std::string& content() const { return content_; }

  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string&) override {
    content_.clear();
    return std::make_unique<File>(&content_);
  }
  absl::StatusOr<std::unique_ptr<AppendFile>> Reuse(const std::string&, const std::string&) override {
    return absl::UnimplementedError("there is only one file");
  }
  absl::Status Truncate(const std::string&, uint64_t size) override {
    content_.resize(size);
    return absl::OkStatus();
  }
  absl::Status Rename(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::Status Remove(const std::string&) override { return absl::OkStatus(); }
  absl::Status MakeFolder(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override { return std::vector<std::string>(); }

 private:
  class File : public AppendFile {
   public:
    explicit File(std::string* content) : content_(content) {}
    absl::Status Append(absl::Span<const absl::string_view> parts) override {
      for (absl::string_view part : parts) content_->append(part.data(), part.size());
      return absl::OkStatus();
    }
    absl::Status Sync() override { return absl::OkStatus(); }
    uint64_t size() const override { return content_->size(); }

   private:
    std::string* const content_;
  };

  std::string content_;
};

// Encodes a record's length and body for RecordsOf.
inline std::string AsInput(const std::string& body) {
  return std::string({static_cast<char>(body.size()), static_cast<char>(body.size() >> 8)}) + body;
}

// Builds a file of whole records with checksums from the input's bodies: only so does fuzzing reach the code behind
// the checksums.
inline std::string RecordsOf(FuzzInput input, uint64_t first) {
  StringFileSystem files;
  auto writer = RecordWriter::Create(&files, "records", first);
  Require(writer.ok(), "records can be written to a string");
  uint64_t synced = first;
  while (!input.Rest().empty()) {
    const absl::string_view body = input.Take(input.Number(2));
    Require((*writer)->Append({body}, synced).ok(), "a record can be written to a string");
    synced = (*writer)->next() - 1;
  }
  return files.content();
}

}  // namespace ballast
