// SPDX-License-Identifier: Apache-2.0
#include "worker/data/files/text_rows.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

constexpr size_t kMaxRowBytes = 64 << 20;
constexpr size_t kChunkBytes = 1 << 20;

absl::Status AtLine(const std::string& path, uint64_t number, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ":", number, ": ", status.message()));
}

// `text` begins with the row.
absl::Status TooLong(const std::string& path, uint64_t number, absl::string_view text) {
  const bool quoted = text.substr(0, kMaxRowBytes).find('\n') != text.npos;
  return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", quoted ? "row" : "line", " is longer than ",
                                                 kMaxRowBytes, " bytes",
                                                 quoted ? "; does a quoted field lack its closing quote?" : ""));
}

// Removes the "\r" of a line whose "\n" is already removed.
absl::string_view WithoutReturn(absl::string_view line) {
  absl::ConsumeSuffix(&line, "\r");
  return line;
}

// Returns the number of bytes to skip at the beginning of a file.
absl::StatusOr<size_t> ByteOrderMark(const std::string& path, absl::string_view text) {
  if (absl::StartsWith(text, "\xff\xfe") || absl::StartsWith(text, "\xfe\xff")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is UTF-16 text, want UTF-8"));
  }
  return absl::StartsWith(text, "\xef\xbb\xbf") ? 3 : 0;
}

absl::StatusOr<TextRows> NotEmpty(const std::string& name, absl::StatusOr<TextRows> rows) {
  if (rows.ok() && rows->size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": empty data set: no line has a row"));
  }
  return rows;
}

// Passes the rows of a file to the check, and counts lines. Thread safety: none.
class RowReader {
 public:
  RowReader(const std::string& path, const TextRows::RowCheck& check, const TextRows::RowEnd& row_end,
            uint64_t first_line = 1)
      : path_(path), check_(check), row_end_(row_end), line_(first_line) {}

  // Takes the rows of `text` from `begin` on and returns where the first incomplete one begins. If `last`, no text
  // follows, and the last row needs no "\n". Calls keep(row, begin of the row) for each row that the check accepts.
  template <typename Keep>
  absl::StatusOr<size_t> Take(absl::string_view text, size_t begin, bool last, Keep keep) {
    while (begin < text.size()) {
      const absl::string_view window = text.substr(begin, kMaxRowBytes + 1);
      size_t size = row_end_(window);
      if (size == window.npos) {
        if (window.size() > kMaxRowBytes) return TooLong(path_, line_, window);
        if (!last) return begin;
        size = window.size();
      }
      const absl::string_view row = window.substr(0, size);
      absl::StatusOr<bool> is_row = check_(WithoutReturn(row), line_);
      if (!is_row.ok()) return AtLine(path_, line_, is_row.status());
      if (*is_row) keep(WithoutReturn(row), begin);
      ++line_;
      // Few rows have several lines.
      if (row.find('\n') != row.npos) line_ += std::count(row.begin(), row.end(), '\n');
      begin += size + 1;
    }
    return text.size();
  }

 private:
  const std::string& path_;
  const TextRows::RowCheck& check_;
  const TextRows::RowEnd& row_end_;
  uint64_t line_;
};

}  // namespace

absl::StatusOr<TextRows> TextRows::Open(const std::string& path, const RowCheck& check, RowEnd row_end) {
  return NotEmpty(path, IsGzipPath(path) ? OpenCompressed(path, check, row_end) : OpenPlain(path, check, row_end));
}

absl::StatusOr<TextRows> TextRows::OfText(const std::string& name, absl::string_view text, const RowCheck& check,
                                          RowEnd row_end, const TextOptions& options) {
  absl::StatusOr<TextRows> rows = TakeAll(name, FileBytes(std::vector<uint8_t>(text.begin(), text.end())), check,
                                          row_end, options.lines_before);
  return options.may_be_empty ? std::move(rows) : NotEmpty(name, std::move(rows));
}

absl::StatusOr<TextRows> TextRows::OpenPlain(const std::string& path, const RowCheck& check, const RowEnd& row_end) {
  absl::StatusOr<FileBytes> bytes = FileBytes::Map(path);
  if (!bytes.ok()) return bytes.status();
  return TakeAll(path, *std::move(bytes), check, row_end);
}

absl::StatusOr<TextRows> TextRows::TakeAll(const std::string& name, FileBytes bytes, const RowCheck& check,
                                           const RowEnd& row_end, uint64_t lines_before) {
  TextRows rows(std::move(bytes), row_end);
  const absl::string_view text = rows.bytes_.text();
  const absl::StatusOr<size_t> mark = ByteOrderMark(name, text);
  if (!mark.ok()) return mark.status();
  RowReader reader(name, check, row_end, lines_before + 1);
  const absl::StatusOr<size_t> end =
      reader.Take(text, *mark, true, [&](absl::string_view, size_t begin) { rows.begins_.push_back(begin); });
  if (!end.ok()) return end.status();
  return rows;
}

absl::StatusOr<TextRows> TextRows::OpenCompressed(const std::string& path, const RowCheck& check,
                                                  const RowEnd& row_end) {
  absl::StatusOr<std::unique_ptr<GzipReader>> file = GzipReader::Open(path);
  if (!file.ok()) return file.status();
  // Keeps only rows, each with a "\n", so that memory grows only with rows that passed the check.
  std::vector<uint8_t> kept;
  std::vector<uint64_t> begins;
  const auto keep = [&](absl::string_view row, size_t) {
    begins.push_back(kept.size());
    kept.insert(kept.end(), row.begin(), row.end());
    kept.push_back('\n');
  };
  RowReader reader(path, check, row_end);
  std::string pending;
  bool first = true;
  for (bool more = true; more; first = false) {
    const size_t old_size = pending.size();
    pending.resize(old_size + kChunkBytes);
    absl::StatusOr<size_t> got =
        (*file)->Read(absl::MakeSpan(reinterpret_cast<uint8_t*>(pending.data()) + old_size, kChunkBytes));
    if (!got.ok()) return got.status();
    more = *got == kChunkBytes;
    pending.resize(old_size + *got);
    absl::StatusOr<size_t> taken = first ? ByteOrderMark(path, pending) : 0;
    if (taken.ok()) taken = reader.Take(pending, *taken, !more, keep);
    if (!taken.ok()) return taken.status();
    pending.erase(0, *taken);
  }
  kept.shrink_to_fit();
  TextRows rows(FileBytes(std::move(kept)), row_end);
  rows.begins_ = std::move(begins);
  return rows;
}

absl::string_view TextRows::Row(uint64_t index) const {
  const absl::string_view rest = bytes_.text().substr(begins_[index]);
  return WithoutReturn(rest.substr(0, row_end_(rest)));
}

}  // namespace ballast
