// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Owns the logs of several processes: writes each one's output to its own file, keeps its last lines, and passes each
// line, prefixed with the process's name, to `print`. Interprets only the prefixes "error: " and "note: " of a line.
// Thread safety: confined to one thread.
class LogMerger {
 public:
  // Longer lines are cut when printed or kept, but never in the file.
  static constexpr size_t kMaxLineBytes = 2048;
  static constexpr size_t kLinesKept = 10;

  // `print` gets lines such as "[server 0] text", without a newline; the name is in color if `colour`. May be empty.
  // `note` gets the text after "note: " in lines with that prefix, which all people should read.
  LogMerger(
      std::function<void(absl::string_view)> print, bool colour,
      std::function<void(absl::string_view)> note = [](absl::string_view) {})
      : print_(std::move(print)), note_(std::move(note)), colour_(colour) {}

  // Sources are numbered from 0. Replaces the file, or appends to it if `append` (for a restarted process).
  absl::Status AddSource(const std::string& name, const std::string& path, bool append = false);

  // Takes the next bytes of a source, which may end in the middle of a line.
  void Write(int source, absl::string_view bytes);
  // Ends a last line without a newline, and closes the file.
  void Finish(int source);

  const std::string& name(int source) const { return sources_[source]->name; }
  const std::string& path(int source) const { return sources_[source]->path; }
  // The newest line is at the back.
  const std::deque<std::string>& last_lines(int source) const { return sources_[source]->last_lines; }
  // Returns the text after "error: " in the newest kept line with that prefix; empty if there is none.
  std::string LastError(int source) const;

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct Source {
    std::string name;
    std::string path;
    std::unique_ptr<std::FILE, CloseFile> file;
    std::string partial;
    // Bytes of the current line beyond kMaxLineBytes.
    size_t cut = 0;
    std::deque<std::string> last_lines;
  };

  void Append(Source& source, absl::string_view piece);
  void EndLine(int index);

  const std::function<void(absl::string_view)> print_;
  const std::function<void(absl::string_view)> note_;
  const bool colour_;
  std::vector<std::unique_ptr<Source>> sources_;
};

}  // namespace ballast
