// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/row_reader.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"

namespace ballast {
namespace {

absl::StatusOr<LedgerReport> CompareTable(Client& client, size_t table, const std::vector<uint64_t>& ids,
                                          const RowLedger& ledger) {
  const v1::TableSpec spec = CountingTables()[table];
  std::vector<float> values(ids.size() * spec.dim(), 0.5f);
  std::vector<uint32_t> versions(ids.size());
  std::vector<uint8_t> present(ids.size());
  RowPull pull;
  pull.table_id = spec.id();
  pull.ids = ids;
  pull.values = absl::MakeSpan(values);
  pull.versions = absl::MakeSpan(versions);
  pull.present = absl::MakeSpan(present);
  const auto pulled = client.PullRows({pull}).Get();
  if (!pulled.ok()) return pulled.status();
  return ledger.Compare(table, {ids, values, versions, present});
}

}  // namespace

absl::StatusOr<LedgerReport> CompareAllRows(const CountingJob& job, uint32_t rows, const RowLedger& ledger) {
  if (ledger.most_uses() >= kMaxUses) {
    return absl::OutOfRangeError(
        absl::StrCat("a row has ", ledger.most_uses(), " uses, want fewer than ", kMaxUses, ", which fp32 can count"));
  }
  LedgerReport report;
  for (const bool shared_memory : {false, true}) {
    ClientOptions options = ClientOf(job);
    options.shared_memory = shared_memory;
    auto client = Client::Connect(std::move(options));
    if (!client.ok()) return client.status();
    if (absl::Status status = (*client)->DeclareTables(CountingTables()); !status.ok()) return status;
    for (size_t table = 0; table < CountingTables().size(); ++table) {
      std::vector<uint64_t> ids;
      for (uint32_t row = 0; row < rows; ++row) ids.push_back(RowDraw::IdOf(row));
      const absl::flat_hash_set<uint64_t> drawn(ids.begin(), ids.end());
      for (const uint64_t id : ledger.Ids(table)) {
        if (!drawn.contains(id)) ids.push_back(id);
      }
      const absl::StatusOr<LedgerReport> of_table = CompareTable(**client, table, ids, ledger);
      if (!of_table.ok()) return of_table.status();
      report.Add(*of_table);
    }
  }
  return report;
}

}  // namespace ballast
