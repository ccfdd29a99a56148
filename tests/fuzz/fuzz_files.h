// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/storage/record_log.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {

// Owns a named file in memory, for parsers that read files; its content changes with each input. Lives as long as the
// process. Thread safety: none.
class InputFile {
 public:
  // `suffix` selects the parser's format: ".csv.gz".
  explicit InputFile(absl::string_view suffix) : descriptor_(memfd_create("input", MFD_CLOEXEC)) {
    Require(descriptor_ >= 0, "memfd_create");
    folder_ = absl::StrCat(std::filesystem::temp_directory_path().string(), "/ballast-fuzz-XXXXXX");
    Require(mkdtemp(folder_.data()) != nullptr, "mkdtemp");
    path_ = absl::StrCat(folder_, "/input", suffix);
    std::filesystem::create_symlink(absl::StrCat("/proc/", getpid(), "/fd/", descriptor_), path_);
  }
  InputFile(const InputFile&) = delete;
  ~InputFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    close(descriptor_);
  }

  const std::string& path() const { return path_; }

  void Put(absl::string_view content) {
    Require(ftruncate(descriptor_, 0) == 0, "ftruncate");
    Require(pwrite(descriptor_, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()), "pwrite");
  }

 private:
  const int descriptor_;
  std::string folder_;
  std::string path_;
};

// Makes one gzip member at the fastest level.
inline std::string GzipForFuzzing(absl::string_view content) {
  z_stream stream = {};
  Require(deflateInit2(&stream, 1, Z_DEFLATED, 16 + MAX_WBITS, 1, Z_DEFAULT_STRATEGY) == Z_OK, "deflateInit2");
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = content.size();
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = out.size();
  Require(deflate(&stream, Z_FINISH) == Z_STREAM_END, "deflate");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

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
