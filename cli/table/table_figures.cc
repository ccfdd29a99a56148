// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/display/progress_display.h"
#include "cli/table/table_command.h"
#include "client/client.h"
#include "client/rows/row_report.h"
#include "common/text/number_text.h"

// `ballast table stats`, `top` and `dry-run`: numbers of a table's rows.
namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// Buckets of RowStatistics.rows_by_updates with one number of updates each.
constexpr int kExactUpdates = 16;

absl::StatusOr<RowReport> Inspect(const TableTarget& target, uint32_t top) {
  ClientOptions options;
  options.coordinator = target.address;
  options.credentials = target.credentials;
  options.job = target.job;
  options.shared_memory = false;
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(std::move(options));
  if (!client.ok()) return client.status();
  return (*client)->InspectRows(target.spec.id(), top);
}

std::string UpdatesText(int bucket) {
  if (bucket < kExactUpdates) return absl::StrCat(bucket + 1);
  const uint64_t least = uint64_t{kExactUpdates} << (bucket - kExactUpdates);
  return absl::StrCat(least + 1, " to ", 2 * least);
}

std::string AgeText(int bucket) {
  if (bucket < 2) return absl::StrCat(bucket);
  const uint64_t least = uint64_t{1} << (bucket - 1);
  return absl::StrCat(least, " to ", 2 * least - 1);
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

template <typename Numbers, typename Text>
void PrintRows(std::ostream& out, const char* heading, const Numbers& rows, uint64_t all, Text text) {
  out << absl::StrFormat("  %-18s %14s %9s\n", heading, "rows", "share");
  for (int bucket = 0; bucket < rows.size(); ++bucket) {
    if (rows[bucket] == 0) continue;
    out << absl::StrFormat("  %-18s %14s %9s\n", text(bucket), FormatCount(rows[bucket]),
                           Percent(Share(rows[bucket], all)));
  }
}

template <typename Numbers, typename Text>
Json RowsJson(const char* name, const Numbers& rows, Text text) {
  Json all = Json::array();
  for (int bucket = 0; bucket < rows.size(); ++bucket) {
    if (rows[bucket] > 0) all.push_back({{name, text(bucket)}, {"rows", rows[bucket]}});
  }
  return all;
}

double Mean(const v1::RowStatistics& statistics, double sum) {
  return statistics.rows() == 0 ? 0 : sum / static_cast<double>(statistics.rows());
}

// The numbers of uses that --min_uses names.
absl::StatusOr<std::vector<uint32_t>> ReadMinUses(const std::string& text) {
  std::vector<uint32_t> all;
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    uint32_t uses = 0;
    if (!absl::SimpleAtoi(word, &uses) || uses < 1 || uses > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("table dry-run: --min_uses: got \"", text, "\", want numbers of 1 to 65535, such as 2,4,8"));
    }
    all.push_back(uses);
  }
  return all;
}

// "31.0 %", or "30.1 % to 31.0 %" if rows are counted in groups.
std::string RangeText(double least, double most) {
  const std::string a = Percent(least), b = Percent(most);
  return a == b ? a : absl::StrCat(a, " to ", b);
}

}  // namespace

CommandResult StatsOfTable(const TableTarget& target, const Arguments& arguments, std::ostream& out,
                           std::ostream& err) {
  const absl::StatusOr<RowReport> report = Inspect(target, 0);
  if (!report.ok()) return Fail(err, report.status(), kExitFailure);
  const v1::RowStatistics& statistics = report->statistics();
  const double updates = Mean(statistics, static_cast<double>(statistics.updates()));
  const double norm = Mean(statistics, statistics.norm_sum());
  if (arguments.Has("json")) {
    const Json json = {{"table", target.spec.name()},
                       {"rows", statistics.rows()},
                       {"waiting", statistics.waiting()},
                       {"updates", statistics.updates()},
                       {"mean_updates", updates},
                       {"mean_norm", norm},
                       {"max_norm", statistics.norm_max()},
                       {"rows_by_updates", RowsJson("updates", statistics.rows_by_updates(), UpdatesText)},
                       {"rows_by_age", RowsJson("steps", statistics.rows_by_age(), AgeText)}};
    out << json.dump() << std::endl;
    return kExitSuccess;
  }
  out << absl::StrFormat("table %s: %s rows of %d weights\n", target.spec.name(), FormatCount(statistics.rows()),
                         target.spec.dim());
  out << absl::StrFormat("  updates   %s, %.3g for each row\n", FormatCount(statistics.updates()), updates);
  out << absl::StrFormat("  norms     %.3g on average, %.3g at most\n", norm, statistics.norm_max());
  if (statistics.waiting() > 0) {
    out << absl::StrFormat("  waiting   %s ids for admission\n", FormatCount(statistics.waiting()));
  }
  if (statistics.rows() == 0) return kExitSuccess;
  PrintRows(out, "updates", statistics.rows_by_updates(), statistics.rows(), UpdatesText);
  PrintRows(out, "last, steps ago", statistics.rows_by_age(), statistics.rows(), AgeText);
  return kExitSuccess;
}

CommandResult TopOfTable(const TableTarget& target, const Arguments& arguments, std::ostream& out, std::ostream& err) {
  const std::string text = arguments.Get("top", "20");
  uint32_t top = 0;
  if (!absl::SimpleAtoi(text, &top) || top < 1 || top > 10000) {
    return Fail(err, absl::InvalidArgumentError(absl::StrCat("table top: --top: got ", text, ", want 1 to 10000")),
                kExitBadInput);
  }
  const absl::StatusOr<RowReport> report = Inspect(target, top);
  if (!report.ok()) return Fail(err, report.status(), kExitFailure);
  if (arguments.Has("json")) {
    Json rows = Json::array();
    for (const v1::HotRow& row : report->top()) {
      rows.push_back({{"id", row.id()}, {"updates", row.updates()}, {"steps_ago", row.age()}, {"norm", row.norm()}});
    }
    out << Json({{"table", target.spec.name()}, {"rows", report->statistics().rows()}, {"top", rows}}).dump()
        << std::endl;
    return kExitSuccess;
  }
  const v1::RowStatistics& statistics = report->statistics();
  out << absl::StrFormat("table %s: %s rows, %s updates\n", target.spec.name(), FormatCount(statistics.rows()),
                         FormatCount(statistics.updates()));
  if (report->top().empty()) return kExitSuccess;
  out << absl::StrFormat("  %-20s %12s %9s %12s %10s\n", "id", "updates", "share", "steps ago", "norm");
  for (const v1::HotRow& row : report->top()) {
    out << absl::StrFormat("  %-20d %12s %9s %12s %10.4g\n", row.id(), FormatCount(row.updates()),
                           Percent(Share(row.updates(), statistics.updates())), FormatCount(row.age()), row.norm());
  }
  return kExitSuccess;
}

CommandResult DryRunOfTable(const TableTarget& target, const Arguments& arguments, std::ostream& out,
                            std::ostream& err) {
  const absl::StatusOr<std::vector<uint32_t>> min_uses = ReadMinUses(arguments.Get("min_uses", "2,4,8,16"));
  if (!min_uses.ok()) return Fail(err, min_uses.status(), kExitBadInput);
  const absl::StatusOr<RowReport> report = Inspect(target, 0);
  if (!report.ok()) return Fail(err, report.status(), kExitFailure);
  const v1::RowStatistics& statistics = report->statistics();
  Json forecasts = Json::array();
  if (!arguments.Has("json")) {
    out << absl::StrFormat("table %s: %s rows, %s updates\n", target.spec.name(), FormatCount(statistics.rows()),
                           FormatCount(statistics.updates()));
    if (target.spec.admission().min_uses() > 1) {
      out << "  its rows have begun after " << target.spec.admission().min_uses()
          << " uses, which are not in these numbers\n";
    }
  }
  for (uint32_t uses : *min_uses) {
    const AdmissionForecast forecast = Forecast(statistics, uses);
    const double rows_least = Share(forecast.rows_least, statistics.rows());
    const double rows_most = Share(forecast.rows_most, statistics.rows());
    const double updates_least = Share(forecast.updates_least, statistics.updates());
    const double updates_most = Share(forecast.updates_most, statistics.updates());
    if (arguments.Has("json")) {
      forecasts.push_back({{"min_uses", uses},
                           {"rows_share", {rows_least, rows_most}},
                           {"updates_share", {updates_least, updates_most}}});
    } else {
      out << absl::StrFormat("  min_uses %-5d would keep %s of the rows and %s of the updates\n", uses,
                             RangeText(rows_least, rows_most), RangeText(updates_least, updates_most));
    }
  }
  if (arguments.Has("json")) {
    out << Json({{"table", target.spec.name()},
                 {"rows", statistics.rows()},
                 {"updates", statistics.updates()},
                 {"forecasts", forecasts}})
               .dump()
        << std::endl;
  }
  return kExitSuccess;
}

}  // namespace ballast
