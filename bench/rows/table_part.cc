// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/rows/random_lines.h"
#include "bench/rows/row_sampler.h"
#include "bench/rows/row_store.h"
#include "bench/rows/row_workload.h"
#include "bench/rows/rows_parts.h"

namespace ballast {
namespace {

constexpr double kZipf = 1.05;
constexpr int kBatches = 40;
// Tables of more rows are compared with peers at one dim only, because filling them takes long.
constexpr uint64_t kManyRows = 1'000'000;
// Bytes of index per row, for the memory in which the limit is measured.
constexpr uint64_t kIndexBytes = 20;

using Batches = std::vector<std::vector<uint64_t>>;

// Rows per second of CPU time.
struct Rates {
  double pull = 0;
  double push = 0;
};

struct Distribution {
  const char* name;
  double exponent;
};
constexpr Distribution kDistributions[] = {{"uniform", 0}, {"zipf", kZipf}};

Batches DrawBatches(uint64_t rows, double exponent, size_t ids) {
  RowSampler sampler(rows, exponent, 5);
  Batches batches(kBatches);
  for (std::vector<uint64_t>& batch : batches) batch = SortedHashes(sampler.Draw(ids));
  return batches;
}

// Repeats calls for all batches, after each has been called once, until `seconds` of CPU time are over; returns rows
// per second of the median call.
double RateOf(const Batches& batches, double seconds, auto call) {
  for (const std::vector<uint64_t>& batch : batches) call(batch);
  std::vector<double> times;
  for (double sum = 0; sum < seconds;) {
    for (const std::vector<uint64_t>& batch : batches) {
      times.push_back(call(batch));
      sum += times.back();
    }
  }
  return static_cast<double>(batches[0].size()) / Median(std::move(times));
}

// The least ratio of each name over dims and distributions.
class LeastRatios {
 public:
  void Add(const std::string& name, double value, double wanted, const std::string& what) {
    const auto [ratio, added] = ratios_.try_emplace(name, Ratio{name, value, wanted, false, what});
    if (!added) ratio->second.value = std::min(ratio->second.value, value);
  }
  void MoveTo(BenchReport& report) {
    for (auto& [name, ratio] : ratios_) report.ratios.push_back(std::move(ratio));
  }

 private:
  std::map<std::string, Ratio> ratios_;
};

// Measures one table after the other and compares them. Thread safety: confined to the main thread.
class TablePart {
 public:
  TablePart(const RowsOptions& options, BenchReport& report, std::ostream& out)
      : options_(options), report_(report), out_(out) {}

  absl::Status Measure(uint64_t rows_at_16) {
    for (int dim : options_.dims) {
      const uint64_t rows = RowsAtDim(rows_at_16, dim);
      if (!HasMemoryFor(rows, dim, report_)) continue;
      const absl::StatusOr<double> limit = MeasureLimit(rows, dim);
      if (!limit.ok()) return limit.status();
      const size_t ids = std::min<uint64_t>(options_.ids, std::max<uint64_t>(1, rows / 2));
      std::vector<Batches> batches;
      for (const Distribution& distribution : kDistributions) {
        batches.push_back(DrawBatches(rows, distribution.exponent, ids));
      }
      // Ours, by distribution.
      std::vector<Rates> ours;
      for (const RowStoreKind& kind : RowStoreKinds()) {
        const bool first = ours.empty();
        if (!first && dim != kRowDim && rows > kManyRows) break;
        const std::vector<Rates> rates = MeasureStore(kind, rows, dim, *limit, batches);
        if (first) ours = rates;
        AddRatios(kind.name, rows_at_16, dim, *limit, ours, rates);
      }
    }
    ratios_.MoveTo(report_);
    ratios_ = {};
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<double> MeasureLimit(uint64_t rows, int dim) {
    const uint64_t bytes = rows * (RowLayout(dim, 1).bytes() + kIndexBytes);
    const absl::StatusOr<std::vector<RandomLines>> lines = MeasureRandomLines(bytes, options_.seconds / 4);
    if (!lines.ok()) return lines.status();
    out_ << absl::StrFormat("limit: %.0f MB, M lines/s with", bytes / 1e6);
    for (const RandomLines& one : *lines) {
      report_.rows.push_back({{"part", "table"},
                              {"store", "limit"},
                              {"rows", rows},
                              {"dim", dim},
                              {"bytes", bytes},
                              {"in_flight", one.in_flight},
                              {"lines_per_second", one.rate}});
      out_ << absl::StrFormat("%s %d in flight %.1f", &one == &lines->front() ? "" : ",", one.in_flight,
                              one.rate / 1e6);
    }
    out_ << std::endl;
    return BestRate(*lines);
  }

  // Returns the rates of a new store by distribution.
  std::vector<Rates> MeasureStore(const RowStoreKind& kind, uint64_t rows, int dim, double limit,
                                  const std::vector<Batches>& all_batches) {
    const std::unique_ptr<RowStore> store = kind.make(rows, dim);
    RowWorkload workload(dim, options_.ids);
    const double created =
        static_cast<double>(std::min<uint64_t>(options_.ids, rows)) / Median(workload.Fill(*store, rows));
    const RowLayout layout(dim, 1);
    std::vector<Rates> found;
    for (size_t i = 0; i < all_batches.size(); ++i) {
      const Batches& batches = all_batches[i];
      Rates rates;
      rates.pull = RateOf(batches, options_.seconds, [&](const auto& hashes) { return workload.Pull(*store, hashes); });
      rates.push = RateOf(batches, options_.seconds, [&](const auto& hashes) { return workload.Push(*store, hashes); });
      found.push_back(rates);
      const double bytes = static_cast<double>(store->MemoryBytes()) / static_cast<double>(rows);
      report_.rows.push_back({{"part", "table"},
                              {"store", kind.name},
                              {"rows", rows},
                              {"dim", dim},
                              {"distribution", kDistributions[i].name},
                              {"pull_rows_per_second", rates.pull},
                              {"push_rows_per_second", rates.push},
                              {"create_rows_per_second", created},
                              {"pull_of_limit", rates.pull * LinesPerPull(layout) / limit},
                              {"push_of_limit", rates.push * LinesPerPush(layout) / limit},
                              {"bytes_per_row", bytes}});
      out_ << absl::StrFormat(
                  "%-9s %9d rows, dim %3d, %-7s: M rows/s pulled %6.2f (%.2f of the limit), pushed %6.2f (%.2f), "
                  "created %5.2f\n",
                  kind.name, rows, dim, kDistributions[i].name, rates.pull / 1e6,
                  rates.pull * LinesPerPull(layout) / limit, rates.push / 1e6,
                  rates.push * LinesPerPush(layout) / limit, created / 1e6)
           << std::flush;
    }
    return found;
  }

  void AddRatios(const std::string& store, uint64_t rows, int dim, double limit, const std::vector<Rates>& ours,
                 const std::vector<Rates>& rates) {
    const RowLayout layout(dim, 1);
    const std::string size = absl::StrFormat("%g rows", static_cast<double>(rows));
    for (size_t i = 0; i < ours.size(); ++i) {
      if (store == RowStoreKinds()[0].name) {
        ratios_.Add(absl::StrCat("pull_of_limit_", RowsKey(rows)), ours[i].pull * LinesPerPull(layout) / limit, 0.6,
                    absl::StrCat("pull in process, ", size, ", of random lines, the least over dims"));
        ratios_.Add(absl::StrCat("push_of_limit_", RowsKey(rows)), ours[i].push * LinesPerPush(layout) / limit, 0.6,
                    absl::StrCat("push in process, ", size, ", of random lines, the least over dims"));
      } else if (store == "libcuckoo" && dim == kRowDim) {
        ratios_.Add(absl::StrCat("pull_to_libcuckoo_", RowsKey(rows)), ours[i].pull / rates[i].pull, 3,
                    absl::StrCat("pull in process, ", size, " of dim 16, to libcuckoo"));
        ratios_.Add(absl::StrCat("push_to_libcuckoo_", RowsKey(rows)), ours[i].push / rates[i].push, 3,
                    absl::StrCat("push in process, ", size, " of dim 16, to libcuckoo"));
      }
    }
  }

  const RowsOptions& options_;
  BenchReport& report_;
  std::ostream& out_;
  LeastRatios ratios_;
};

}  // namespace

absl::Status MeasureTables(const RowsOptions& options, BenchReport& report, std::ostream& out) {
  TablePart part(options, report, out);
  for (uint64_t rows : options.rows) {
    if (absl::Status status = part.Measure(rows); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ballast
