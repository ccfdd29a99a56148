// SPDX-License-Identifier: Apache-2.0
#include "cli/display/log_merger.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

// Adjacent sources get different colors; red is reserved for errors.
constexpr const char* kColours[] = {"36", "33", "35", "32", "34"};

// Replaces control characters, because a child's output must not move the terminal's cursor.
void MakePrintable(std::string& line) {
  for (char& c : line) {
    if ((static_cast<unsigned char>(c) < ' ' && c != '\t') || c == '\x7f') c = '?';
  }
}

}  // namespace

absl::Status LogMerger::AddSource(const std::string& name, const std::string& path, bool append) {
  auto source = std::make_unique<Source>();
  source->name = name;
  source->path = path;
  source->file.reset(std::fopen(path.c_str(), append ? "ae" : "we"));
  if (source->file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  sources_.push_back(std::move(source));
  return absl::OkStatus();
}

void LogMerger::Write(int index, absl::string_view bytes) {
  Source& source = *sources_[index];
  if (source.file != nullptr) {
    // A full disk must not stop the run, only the log; workers report their own write errors.
    std::fwrite(bytes.data(), 1, bytes.size(), source.file.get());
    std::fflush(source.file.get());
  }
  for (size_t newline; (newline = bytes.find('\n')) != absl::string_view::npos; bytes.remove_prefix(newline + 1)) {
    Append(source, bytes.substr(0, newline));
    EndLine(index);
  }
  Append(source, bytes);
}

void LogMerger::Finish(int index) {
  Source& source = *sources_[index];
  if (!source.partial.empty()) EndLine(index);
  source.file.reset();
}

std::string LogMerger::LastError(int index) const {
  const std::deque<std::string>& lines = sources_[index]->last_lines;
  auto found = std::find_if(lines.rbegin(), lines.rend(),
                            [](const std::string& line) { return absl::StartsWith(line, "error: "); });
  return found == lines.rend() ? "" : found->substr(7);
}

void LogMerger::Append(Source& source, absl::string_view piece) {
  const size_t taken = std::min(piece.size(), kMaxLineBytes - source.partial.size());
  absl::StrAppend(&source.partial, piece.substr(0, taken));
  source.cut += piece.size() - taken;
}

void LogMerger::EndLine(int index) {
  Source& source = *sources_[index];
  std::string line = std::move(source.partial);
  source.partial.clear();
  if (absl::EndsWith(line, "\r")) line.pop_back();
  MakePrintable(line);
  if (source.cut > 0) absl::StrAppend(&line, " ... (", source.cut, " more bytes)");
  source.cut = 0;
  if (print_) {
    const std::string name = absl::StrCat("[", source.name, "]");
    const char* colour = kColours[index % std::size(kColours)];
    print_(absl::StrCat(colour_ ? absl::StrCat("\x1b[", colour, "m", name, "\x1b[0m") : name, " ", line));
  } else if (absl::string_view note = line; absl::ConsumePrefix(&note, "note: ")) {
    note_(note);
  }
  source.last_lines.push_back(std::move(line));
  if (source.last_lines.size() > kLinesKept) source.last_lines.pop_front();
}

}  // namespace ballast
