// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_flags.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/command/command.h"

namespace ballast {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;

struct Unit {
  const char* name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {{"GiB", uint64_t{1} << 30}, {"MiB", uint64_t{1} << 20}, {"KiB", uint64_t{1} << 10}};

}  // namespace

absl::StatusOr<double> GetNumber(const Arguments& arguments, absl::string_view flag, double otherwise, double least,
                                 double most) {
  if (!arguments.Has(flag)) return otherwise;
  const std::string text = arguments.Get(flag, "");
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || !(number >= least && number <= most)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("flag --%s: got \"%s\", want a number from %g to %g", flag, text, least, most));
  }
  return number;
}

absl::StatusOr<std::vector<uint64_t>> GetSizes(const Arguments& arguments, absl::string_view flag,
                                               const std::string& otherwise) {
  std::vector<uint64_t> sizes;
  for (absl::string_view text : absl::StrSplit(arguments.Get(flag, otherwise), ',')) {
    absl::string_view digits = text;
    uint64_t unit = 1;
    for (const Unit& known : kUnits) {
      if (absl::ConsumeSuffix(&digits, known.name)) {
        unit = known.bytes;
        break;
      }
    }
    uint64_t number = 0;
    if (!absl::SimpleAtoi(digits, &number) || number == 0 || number > kMaxBytes / unit || number * unit % 4 != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "flag --%s: got \"%s\", want comma-separated sizes from 4 bytes to 1GiB, multiples of 4: 4KiB,1MiB", flag,
          text));
    }
    sizes.push_back(number * unit);
  }
  return sizes;
}

absl::StatusOr<std::vector<int>> GetCounts(const Arguments& arguments, absl::string_view flag,
                                           const std::string& otherwise, int most) {
  std::vector<int> counts;
  for (absl::string_view text : absl::StrSplit(arguments.Get(flag, otherwise), ',')) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < 1 || number > most) {
      return absl::InvalidArgumentError(
          absl::StrFormat("flag --%s: got \"%s\", want comma-separated numbers from 1 to %d: 1,2,4", flag, text, most));
    }
    counts.push_back(number);
  }
  return counts;
}

absl::StatusOr<std::vector<std::string>> GetNames(const Arguments& arguments, absl::string_view flag,
                                                  const std::vector<std::string>& all) {
  if (!arguments.Has(flag)) return all;
  const std::vector<std::string> asked = absl::StrSplit(arguments.Get(flag, ""), ',');
  for (const std::string& name : asked) {
    if (std::find(all.begin(), all.end(), name) != all.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("flag --%s: got \"%s\", want any of %s", flag, name, absl::StrJoin(all, ",")));
  }
  std::vector<std::string> chosen;
  for (const std::string& name : all) {
    if (std::find(asked.begin(), asked.end(), name) != asked.end()) chosen.push_back(name);
  }
  return chosen;
}

std::string FormatSize(uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, " ", unit.name);
  }
  return absl::StrCat(bytes, " B");
}

absl::Status CheckNoWords(const Arguments& arguments) {
  if (arguments.positional().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unexpected word \"", arguments.positional()[0], "\""));
}

int Conclude(const absl::StatusOr<BenchReport>& report, bool json, std::ostream& out, std::ostream& err) {
  if (!report.ok()) return Fail(err, report.status(), kExitFailure);
  report->PrintConclusion(out);
  if (json) out << report->ToJson() << std::endl;
  return kExitSuccess;
}

}  // namespace ballast
