// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/stream_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/job/data_validation.h"
#include "worker/data/datasets/csv_row.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/files/data_file.h"

namespace ballast {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kMaxRowBytes = 64 << 20;

v1::DataSource WithPath(v1::DataSource source, const std::string& path) {
  switch (source.format_case()) {
    case v1::DataSource::kCsv:
      source.mutable_csv()->set_path(path);
      break;
    case v1::DataSource::kLibsvm:
      source.mutable_libsvm()->set_path(path);
      break;
    case v1::DataSource::kLibffm:
      source.mutable_libffm()->set_path(path);
      break;
    default:
      source.mutable_criteo()->set_path(path);
  }
  return source;
}

TextRows::RowEnd RowEndOf(const v1::DataSource& source) {
  if (!source.has_csv()) return TextRows::LineEnd;
  const char delimiter = source.csv().delimiter().empty() ? ',' : source.csv().delimiter()[0];
  return [delimiter](absl::string_view text) { return CsvRowEnd(text, delimiter); };
}

// Reads a file on from `offset`, piece by piece. Thread safety: none.
class GrowingText {
 public:
  GrowingText(const OpenedFile& file, uint64_t offset) : file_(file), offset_(offset) {}

  // Appends a piece to the text; false at the end of the file.
  absl::StatusOr<bool> ReadOn() {
    const size_t old_size = text_.size();
    text_.resize(old_size + kPieceBytes);
    ssize_t got;
    do {
      got = pread(file_.descriptor(), text_.data() + old_size, kPieceBytes, static_cast<off_t>(offset_ + old_size));
    } while (got < 0 && errno == EINTR);
    text_.resize(old_size + std::max<ssize_t>(got, 0));
    if (got < 0) return absl::UnavailableError(std::strerror(errno));
    return got > 0;
  }

  absl::string_view text() const { return text_; }

 private:
  const OpenedFile& file_;
  const uint64_t offset_;
  std::string text_;
};

bool IsHidden(absl::string_view name) { return name.empty() || name[0] == '.' || name[0] == '_'; }

}  // namespace

StreamReader::StreamReader(const v1::DataSource& source, const DatasetOptions& options)
    : source_(source),
      path_(DataPath(options.base_folder, StreamPath(source))),
      options_(options),
      row_end_(RowEndOf(source)),
      header_(source.csv().header()) {
  options_.base_folder.clear();
}

absl::StatusOr<std::unique_ptr<StreamReader>> StreamReader::Open(const v1::Data& data, const DatasetOptions& options) {
  std::unique_ptr<StreamReader> reader(new StreamReader(data.train(), options));
  std::error_code error;
  reader->directory_ = std::filesystem::is_directory(reader->path_, error);
  if (!reader->directory_) {
    if (absl::StatusOr<OpenedFile> file = OpenedFile::Open(reader->path_); !file.ok()) return file.status();
  }
  const std::string& sample = data.stream().sample();
  absl::Status status = reader->OpenPrototype(sample.empty() ? "" : DataPath(options.base_folder, sample));
  if (!status.ok()) return status;
  return reader;
}

absl::Status StreamReader::OpenPrototype(const std::string& sample) {
  absl::StatusOr<std::unique_ptr<Dataset>> prototype;
  if (!sample.empty()) {
    prototype = OpenDataset(WithPath(source_, sample), options_);
  } else if (source_.has_csv()) {
    absl::StatusOr<std::vector<std::string>> files = ListFiles("");
    if (!files.ok()) return files.status();
    const absl::StatusOr<std::string> first = files->empty() ? std::string() : HeaderOf(files->front());
    if (!first.ok()) return first.status();
    if (first->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": got no complete first row, want one, or data.stream.sample, that tells the columns"));
    }
    prototype = OpenText({.file = files->front()}, *first);
  } else {
    prototype = OpenText({.file = std::filesystem::path(path_).filename().string()}, "");
  }
  if (!prototype.ok()) return prototype.status();
  prototype_ = *std::move(prototype);
  if (const TableSchema* schema = prototype_->schema(); schema != nullptr) {
    schema_ = *schema;
    options_.schema = &schema_;
  }
  return absl::OkStatus();
}

std::string StreamReader::PathOf(const std::string& file) const {
  return directory_ ? absl::StrCat(path_, "/", file) : path_;
}

absl::StatusOr<std::vector<std::string>> StreamReader::ListFiles(const std::string& file) {
  if (!directory_) return std::vector<std::string>{std::filesystem::path(path_).filename().string()};
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!IsHidden(name)) names.insert(name);
  }
  if (error) return absl::UnavailableError(absl::StrCat(path_, ": ", error.message()));
  for (auto name = names.begin(); known_.has_value() && name != names.end() && *name < file; ++name) {
    if (known_->contains(*name)) continue;
    std::cerr << "warning: " << PathOf(*name) << " is not read: it has come after " << file
              << ", want names in ascending order" << std::endl;
  }
  std::vector<std::string> files(names.lower_bound(file), names.end());
  known_ = std::move(names);
  return files;
}

bool StreamReader::IsExample(absl::string_view row) const {
  row = absl::StripLeadingAsciiWhitespace(row);
  return !row.empty() && !(source_.has_libsvm() && row[0] == '#');
}

absl::StatusOr<std::optional<StreamReader::Rows>> StreamReader::Find(const StreamPosition& from,
                                                                     uint64_t max_examples) {
  // Listed before any file is read: what a file lacks when a later one exists will not come.
  absl::StatusOr<std::vector<std::string>> files = ListFiles(from.file);
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) {
    const StreamPosition begin = file == from.file ? from : StreamPosition{.file = file};
    absl::StatusOr<std::optional<Rows>> rows = FindIn(begin, &file != &files->back(), max_examples);
    if (!rows.ok() || rows->has_value()) return rows;
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<StreamReader::Rows>> StreamReader::FindIn(const StreamPosition& begin, bool complete,
                                                                       uint64_t max_examples) {
  const std::string path = PathOf(begin.file);
  if (IsGzipPath(path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": got a compressed file, want plain text in a stream"));
  }
  const absl::StatusOr<OpenedFile> file = OpenedFile::Open(path);
  if (!file.ok()) return file.status();
  if (file->size() < begin.offset) {
    return absl::DataLossError(absl::StrCat(path, ": got ", file->size(), " bytes, want at least ", begin.offset,
                                            ", which were read before: a file of a stream may not shrink"));
  }
  GrowingText growing(*file, begin.offset);
  size_t end = 0;
  uint64_t lines = 0, examples = 0;
  const uint64_t limit = max_examples + (header_ && begin.offset == 0 ? 1 : 0);
  bool more = true;
  while (examples < limit) {
    const absl::string_view rest = growing.text().substr(end);
    size_t size = row_end_(rest.substr(0, kMaxRowBytes + 1));
    if (size == rest.npos && rest.size() > kMaxRowBytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", begin.lines + lines + 1, ": row is longer than ",
                                                     kMaxRowBytes, " bytes"));
    }
    if (size == rest.npos && more) {
      const absl::StatusOr<bool> read = growing.ReadOn();
      if (!read.ok()) return absl::Status(read.status().code(), absl::StrCat(path, ": ", read.status().message()));
      more = *read;
      continue;
    }
    if (size == rest.npos && (!complete || rest.empty())) break;
    const bool ended = size != rest.npos;
    const absl::string_view row = rest.substr(0, size);
    lines += 1 + std::count(row.begin(), row.end(), '\n');
    examples += IsExample(row) ? 1 : 0;
    end += row.size() + (ended ? 1 : 0);
  }
  if (examples == 0) return std::nullopt;
  absl::StatusOr<std::unique_ptr<Dataset>> data = OpenText(begin, growing.text().substr(0, end));
  if (!data.ok()) return data.status();
  if ((*data)->size() == 0) return std::nullopt;
  const StreamSpan span{begin, begin.offset + end, begin.lines + lines, (*data)->size()};
  return Rows{span, *std::move(data)};
}

absl::StatusOr<std::shared_ptr<const Dataset>> StreamReader::Read(const StreamSpan& span) {
  const std::string path = PathOf(span.begin.file);
  const absl::StatusOr<OpenedFile> file = OpenedFile::Open(path);
  if (!file.ok()) return file.status();
  GrowingText growing(*file, span.begin.offset);
  const uint64_t size = span.end_offset - span.begin.offset;
  for (absl::StatusOr<bool> more = true; growing.text().size() < size && *more;) {
    more = growing.ReadOn();
    if (!more.ok()) return absl::Status(more.status().code(), absl::StrCat(path, ": ", more.status().message()));
  }
  absl::StatusOr<std::unique_ptr<Dataset>> data = OpenText(span.begin, growing.text().substr(0, size));
  if (!data.ok()) return data.status();
  if ((*data)->size() == span.examples) return std::shared_ptr<const Dataset>(*std::move(data));
  return absl::DataLossError(absl::StrCat(path, ": got ", (*data)->size(), " rows in bytes ", span.begin.offset, " to ",
                                          span.end_offset, ", want ", span.examples, " as before: it has changed"));
}

absl::StatusOr<std::string> StreamReader::HeaderOf(const std::string& file) {
  if (header_file_ == file && !header_text_.empty()) return header_text_;
  const std::string path = PathOf(file);
  const absl::StatusOr<OpenedFile> opened = OpenedFile::Open(path);
  if (!opened.ok()) return opened.status();
  GrowingText growing(*opened, 0);
  for (bool more = true; more && growing.text().size() <= kMaxRowBytes;) {
    if (const size_t size = row_end_(growing.text()); size != growing.text().npos) {
      header_file_ = file;
      header_text_ = std::string(growing.text().substr(0, size + 1));
      return header_text_;
    }
    const absl::StatusOr<bool> read = growing.ReadOn();
    if (!read.ok()) return absl::Status(read.status().code(), absl::StrCat(path, ": ", read.status().message()));
    more = *read;
  }
  return std::string();
}

absl::StatusOr<std::unique_ptr<Dataset>> StreamReader::OpenText(const StreamPosition& begin, absl::string_view text) {
  DatasetOptions options = options_;
  options.lines_before = begin.lines;
  options.may_be_empty = true;
  std::string with_header;
  if (header_ && begin.offset > 0) {
    const absl::StatusOr<std::string> header = HeaderOf(begin.file);
    if (!header.ok()) return header.status();
    with_header = absl::StrCat(*header, text);
    text = with_header;
    options.lines_before -= std::count(header->begin(), header->end(), '\n');
  }
  options.content = text;
  return OpenDataset(WithPath(source_, PathOf(begin.file)), options);
}

}  // namespace ballast
