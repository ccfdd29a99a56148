// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/text_rows.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/strip.h"

namespace ballast {
namespace {

constexpr size_t kMaxLineBytes = 64 << 20;
constexpr size_t kChunkBytes = 1 << 20;

absl::Status AtLine(const std::string& path, uint64_t number, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ":", number, ": ", status.message()));
}

absl::Status TooLong(const std::string& path, uint64_t number) {
  return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": line is longer than ", kMaxLineBytes, " bytes"));
}

// Removes the "\r" of a line whose "\n" is already removed.
absl::string_view WithoutReturn(absl::string_view line) {
  absl::ConsumeSuffix(&line, "\r");
  return line;
}

}  // namespace

absl::StatusOr<TextRows> TextRows::Open(const std::string& path, const LineCheck& check) {
  absl::StatusOr<TextRows> rows = IsGzipPath(path) ? OpenCompressed(path, check) : OpenPlain(path, check);
  if (rows.ok() && rows->size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": empty data set: no line has a row"));
  }
  return rows;
}

absl::StatusOr<TextRows> TextRows::OpenPlain(const std::string& path, const LineCheck& check) {
  absl::StatusOr<FileBytes> bytes = FileBytes::Map(path);
  if (!bytes.ok()) return bytes.status();
  TextRows rows(*std::move(bytes));
  const absl::string_view text = rows.bytes_.text();
  uint64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++number;
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end - begin > kMaxLineBytes) return TooLong(path, number);
    const absl::string_view line = WithoutReturn(text.substr(begin, end - begin));
    absl::StatusOr<bool> is_row = check(line, number);
    if (!is_row.ok()) return AtLine(path, number, is_row.status());
    if (*is_row) rows.begins_.push_back(begin);
    begin = end + 1;
  }
  return rows;
}

absl::StatusOr<TextRows> TextRows::OpenCompressed(const std::string& path, const LineCheck& check) {
  absl::StatusOr<std::unique_ptr<GzipReader>> reader = GzipReader::Open(path);
  if (!reader.ok()) return reader.status();
  // Keeps only rows, each with a "\n", so that memory grows only with rows that passed the check.
  std::vector<uint8_t> kept;
  std::vector<uint64_t> begins;
  uint64_t number = 0;
  const auto take = [&](absl::string_view line) -> absl::Status {
    ++number;
    line = WithoutReturn(line);
    absl::StatusOr<bool> is_row = check(line, number);
    if (!is_row.ok()) return AtLine(path, number, is_row.status());
    if (!*is_row) return absl::OkStatus();
    begins.push_back(kept.size());
    kept.insert(kept.end(), line.begin(), line.end());
    kept.push_back('\n');
    return absl::OkStatus();
  };

  std::string pending;
  for (bool more = true; more;) {
    const size_t old_size = pending.size();
    pending.resize(old_size + kChunkBytes);
    absl::StatusOr<size_t> got =
        (*reader)->Read(absl::MakeSpan(reinterpret_cast<uint8_t*>(pending.data()) + old_size, kChunkBytes));
    if (!got.ok()) return got.status();
    more = *got == kChunkBytes;
    pending.resize(old_size + *got);
    size_t begin = 0;
    // The bytes before `searched` contain no "\n".
    size_t searched = old_size;
    for (size_t end; (end = pending.find('\n', std::max(begin, searched))) != std::string::npos; begin = end + 1) {
      absl::Status status = take(absl::string_view(pending).substr(begin, end - begin));
      if (!status.ok()) return status;
    }
    pending.erase(0, begin);
    if (pending.size() > kMaxLineBytes) return TooLong(path, number + 1);
  }
  if (!pending.empty()) {
    if (absl::Status status = take(pending); !status.ok()) return status;
  }
  kept.shrink_to_fit();
  TextRows rows(FileBytes(std::move(kept)));
  rows.begins_ = std::move(begins);
  return rows;
}

absl::string_view TextRows::Row(uint64_t index) const {
  const absl::string_view rest = bytes_.text().substr(begins_[index]);
  return WithoutReturn(rest.substr(0, rest.find('\n')));
}

}  // namespace ballast
