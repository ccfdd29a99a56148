// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/page/panel_figures.h"

namespace ballast {

// A line in at most `capacity` buckets, each with the lowest and the highest of the values that fell into it, so that a
// long line keeps its peaks. Thread safety: none.
class DownsampledLine {
 public:
  struct Bucket {
    // Place of the bucket's last value: seconds since 1970, and another place such as examples.
    double time = 0;
    double x = 0;
    float low = 0;
    float high = 0;
  };

  // `capacity` is even.
  explicit DownsampledLine(size_t capacity = 512) : capacity_(capacity) {}

  // Times do not decrease, except after DropFrom.
  void Add(double time, double x, float value) { Add({time, x, value, value}); }
  void Add(const Bucket& bucket);
  // Drops what has a larger `x`.
  void DropAfter(double x);
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  size_t capacity_;
  std::vector<Bucket> buckets_;
  // Additions that make a bucket, and those in the last one.
  size_t per_bucket_ = 1;
  size_t in_last_ = 0;
};

// Appends [[time...],[low...],[high...],[x...]] as JSON.
void AppendBuckets(const std::vector<DownsampledLine::Bucket>& buckets, std::string& json);
// Appends a number as JSON; null if it is not finite.
void AppendNumber(double value, std::string& json);
// Appends a text as JSON.
void AppendText(absl::string_view text, std::string& json);

// Content of one run's panels since it began: every line, and the last figures of all else. Bounded: at most
// 64 lines a series. Thread safety: none.
class PanelHistory {
 public:
  // Panel, series and legend.
  using LineName = std::tuple<int, int, std::string>;

  // Adds the figures of now; those of lines also to their lines.
  void Add(double time, double x, const std::vector<SeriesFigures>& figures);

  // Returns the line; null if its series has too many.
  DownsampledLine* Line(const LineName& name);

  const std::vector<SeriesFigures>& last() const { return last_; }
  // Returns the newest value of each line.
  std::vector<SeriesFigures> Newest() const;

  // Appends a line as JSON: [panel id, series, legend, buckets].
  static void AppendLine(const LineName& name, const DownsampledLine& line, std::string& json);
  // Appends the lines as elements of a JSON array. A comma goes before the first unless the text is empty.
  void AppendLines(std::string& json) const;

  // Atomically writes the lines and figures to a file, and reads them. Read returns NOT_FOUND if there is no file,
  // INVALID_ARGUMENT if it is damaged or too long.
  absl::Status Write(const std::string& path) const;
  absl::Status Read(const std::string& path);

 private:
  std::map<LineName, DownsampledLine> lines_;
  std::map<std::pair<int, int>, int> counts_;
  std::vector<SeriesFigures> last_;
};

// Appends the figures as [[panel, series, [[legend, value]...]]...].
void AppendFigures(const std::vector<SeriesFigures>& figures, std::string& json);

}  // namespace ballast
