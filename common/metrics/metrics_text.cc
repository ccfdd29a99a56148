// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metrics_text.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ballast {
namespace {

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  // Counts up to 2^53 keep all their digits.
  return value == std::floor(value) && std::fabs(value) < 0x1p53 ? absl::StrCat(static_cast<int64_t>(value))
                                                                 : absl::StrFormat("%.15g", value);
}

// Fields of /proc/self/stat after the name of the command, which may have any characters. The first is field 3 of
// proc(5).
std::vector<double> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  std::vector<double> fields = {0};
  if (end == text.npos || end + 4 > text.size()) return fields;
  // Field 3 is a letter.
  std::istringstream rest(text.substr(end + 3));
  for (double value = 0; rest >> value;) fields.push_back(value);
  return fields;
}

// Returns the time of the boot, by the clock as it is now.
double BootSeconds() {
  timespec since = {};
  clock_gettime(CLOCK_BOOTTIME, &since);
  return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch() - absl::DurationFromTimespec(since));
}

}  // namespace

void MetricsText::Begin(absl::string_view name, absl::string_view help, absl::string_view type) {
  family_ = std::string(name);
  absl::StrAppend(&text_, "# HELP ", name, " ", absl::StrReplaceAll(help, {{"\\", "\\\\"}, {"\n", "\\n"}}), "\n# TYPE ",
                  name, " ", type, "\n");
}

void MetricsText::Line(absl::string_view name, const Labels& labels, absl::string_view value) {
  absl::StrAppend(&text_, name);
  absl::string_view before = "{";
  for (const auto& [label, of] : labels) {
    absl::StrAppend(&text_, before, label, "=\"",
                    absl::StrReplaceAll(of, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\"", "\\\""}}), "\"");
    before = ",";
  }
  absl::StrAppend(&text_, labels.empty() ? "" : "}", " ", value, "\n");
}

void MetricsText::Sample(const Labels& labels, double value) { Line(family_, labels, NumberText(value)); }

void MetricsText::Gauge(absl::string_view name, absl::string_view help, double value, const Labels& labels) {
  BeginGauges(name, help);
  Sample(labels, value);
}

void MetricsText::Counter(absl::string_view name, absl::string_view help, double value, const Labels& labels) {
  BeginCounters(name, help);
  Sample(labels, value);
}

void MetricsText::SampleHistogram(const Labels& labels, const v1::Histogram& histogram, double unit, int shortest,
                                  int longest) {
  Labels with_bound = labels;
  with_bound.emplace_back("le", "");
  uint64_t count = 0;
  int bucket = 0;
  for (int length = shortest; length <= longest; ++length) {
    // Bucket i counts whole numbers below 2^i.
    for (; bucket <= length && bucket < histogram.buckets_size(); ++bucket) count += histogram.buckets(bucket);
    with_bound.back().second = NumberText((std::ldexp(1.0, length) - 1) * unit);
    Line(absl::StrCat(family_, "_bucket"), with_bound, absl::StrCat(count));
  }
  for (; bucket < histogram.buckets_size(); ++bucket) count += histogram.buckets(bucket);
  with_bound.back().second = "+Inf";
  Line(absl::StrCat(family_, "_bucket"), with_bound, absl::StrCat(count));
  Line(absl::StrCat(family_, "_sum"), labels, NumberText(histogram.sum() * unit));
  // The sum of the buckets, which another thread may be filling.
  Line(absl::StrCat(family_, "_count"), labels, absl::StrCat(count));
}

void MetricsText::AddProcess() {
  const std::vector<double> fields = StatFields();
  // By proc(5): 14 and 15 are user and system time, 22 the start after boot, in ticks; 23 and 24 virtual bytes and
  // resident pages.
  const auto field = [&](size_t number) { return number - 3 < fields.size() ? fields[number - 3] : 0.0; };
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Counter("process_cpu_seconds_total", "User and system CPU time of the process.", (field(14) + field(15)) / ticks);
  Gauge("process_start_time_seconds", "Start of the process, in seconds since 1970.",
        BootSeconds() + field(22) / ticks);
  Gauge("process_virtual_memory_bytes", "Virtual memory of the process.", field(23));
  Gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.",
        field(24) * static_cast<double>(sysconf(_SC_PAGE_SIZE)));
  std::error_code failed;
  uint64_t files = 0;
  for (std::filesystem::directory_iterator each("/proc/self/fd", failed), end; !failed && each != end;
       each.increment(failed)) {
    ++files;
  }
  Gauge("process_open_fds", "Open file descriptors of the process.", static_cast<double>(files));
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  Gauge("process_max_fds", "Limit on the open file descriptors of the process.", static_cast<double>(limit.rlim_cur));
}

}  // namespace ballast
