// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

}  // namespace ballast
