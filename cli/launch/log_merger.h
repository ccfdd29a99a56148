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

// The output of several processes: each one's whole in a file of its own, its last lines at hand, and line by line,
// the name before each, to whoever prints. Does not know what lines say, but for "error: ".
// Thread safety: confined to one thread.
class LogMerger {
 public:
  // A line longer than this is cut where it is printed or kept, never in its file.
  static constexpr size_t kMaxLineBytes = 2048;
  static constexpr size_t kLinesKept = 10;

  // `print` gets lines as "[server 0] text", without a newline, the name in colour where asked; may be empty.
  LogMerger(std::function<void(absl::string_view)> print, bool colour) : print_(std::move(print)), colour_(colour) {}

  // Sources are numbered from 0. The file is replaced; with `append` it goes on, as that of a process before.
  absl::Status AddSource(const std::string& name, const std::string& path, bool append = false);

  // The next bytes of a source, cut anywhere.
  void Write(int source, absl::string_view bytes);
  // Takes what is left as a line, and closes the file.
  void Finish(int source);

  const std::string& name(int source) const { return sources_[source]->name; }
  const std::string& path(int source) const { return sources_[source]->path; }
  // The newest at the back.
  const std::deque<std::string>& last_lines(int source) const { return sources_[source]->last_lines; }
  // What follows "error: " in the newest line kept that starts so; empty where none does.
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
    // Bytes of the current line that partial has no room for.
    size_t cut = 0;
    std::deque<std::string> last_lines;
  };

  void Append(Source& source, absl::string_view piece);
  void EndLine(int index);

  const std::function<void(absl::string_view)> print_;
  const bool colour_;
  std::vector<std::unique_ptr<Source>> sources_;
};

}  // namespace ballast
