// SPDX-License-Identifier: Apache-2.0
// The short form of the counting tables: servers and workers are killed, and every use of a row is counted once.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/oracle/server_fleet.h"
#include "tests/fault/tables/counting_threads.h"
#include "tests/fault/tables/row_reader.h"
#include "tests/fault/tables/table_faults.h"

namespace ballast {
namespace {

using testing::HasSubstr;

std::string EmptyFolder(absl::string_view name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

TableFaultOptions Killing(v1::Durability::Mode durability, uint64_t kills) {
  TableFaultOptions options;
  options.server = std::filesystem::absolute("server/ballast_server");
  options.counting_worker = std::filesystem::absolute("tests/fault/tables/counting_worker_main");
  options.folder = EmptyFolder(absl::StrCat("table-kills-", durability));
  options.durability = durability;
  options.rows = 5000;
  options.kills = kills;
  options.kill_every = absl::Milliseconds(50);
  options.kills_per_process = 2;
  return options;
}

void ExpectEveryUseOnce(const absl::StatusOr<TableFaultCounts>& counts, uint64_t kills) {
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->kills, kills);
  EXPECT_EQ(counts->restarts, kills);
  EXPECT_GT(counts->pushes_acknowledged, 0u);
  // Both tables, by TCP and by shared memory.
  EXPECT_GE(counts->rows_checked, 4u * 5000u);
  EXPECT_EQ(counts->rows_wrong, 0u) << counts->first_wrong;
  EXPECT_EQ(counts->hangs, 0u);
}

TEST(TableKillsTest, WalAppliesEveryUseOfARowOnce) {
  const auto counts = CountRowsUnderKills(Killing(v1::Durability::WAL, 4));
  ExpectEveryUseOnce(counts, 4);
  EXPECT_EQ(counts->worker_kills, 3u);
}

TEST(TableKillsTest, StandbyAppliesEveryUseOfARowOnce) {
  ExpectEveryUseOnce(CountRowsUnderKills(Killing(v1::Durability::STANDBY, 2)), 2);
}

TEST(TableKillsTest, SyncGivesTheSameRowsAfterEveryStep) {
  TableFaultOptions options = Killing(v1::Durability::WAL, 3);
  options.sync = true;
  const auto counts = CountRowsUnderKills(options);
  ExpectEveryUseOnce(counts, 3);
  EXPECT_GT(counts->rows_pulled, 0u);
  EXPECT_EQ(counts->rows_pulled_wrong, 0u) << counts->first_wrong;
}

// A real server whose rows are compared with ledgers that are not of its pushes.
class WrongLedgerTest : public testing::Test {
 protected:
  static constexpr uint32_t kRows = 1000;

  WrongLedgerTest() {
    auto fleet = ServerFleet::Start({.server = "server/ballast_server", .servers = 2, .workers = 1});
    EXPECT_TRUE(fleet.ok()) << fleet.status();
    fleet_ = *std::move(fleet);
    job_.servers = fleet_->addresses();
    auto threads = CountingThreads::Connect({.client = ClientOf(job_), .rows = kRows}, 1);
    EXPECT_TRUE(threads.ok()) << threads.status();
    threads_ = *std::move(threads);
    PushOnce(*threads_);
  }

  // Pushes until one is acknowledged, or more.
  static void PushOnce(CountingThreads& threads) {
    const absl::Time begun = absl::Now();
    threads.Begin();
    EXPECT_TRUE(threads.AwaitAcknowledgement(begun, begun + absl::Seconds(30)).ok());
    EXPECT_EQ(threads.End(), absl::OkStatus());
  }

  LedgerReport Compare(const RowLedger& ledger) const {
    const auto report = CompareAllRows(job_, kRows, ledger);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(LedgerReport());
  }

  std::unique_ptr<ServerFleet> fleet_;
  CountingJob job_;
  std::unique_ptr<CountingThreads> threads_;
};

TEST_F(WrongLedgerTest, WithAUseTooManyIsReported) {
  RowLedger ledger = threads_->ledger();
  EXPECT_EQ(Compare(ledger).rows_wrong, 0u);
  EXPECT_EQ(Compare(ledger).rows_checked, 4u * kRows);
  // A use that no server has, of a row of each table.
  ledger.Add(RowUses{{RowDraw::IdOf(5)}, {RowDraw::IdOf(6)}});
  const LedgerReport report = Compare(ledger);
  EXPECT_EQ(report.rows_wrong, 4u) << "two rows, by TCP and by shared memory";
  EXPECT_THAT(report.first_wrong, HasSubstr(absl::StrCat("table \"count1\" row ", RowDraw::IdOf(5), ": got values ")));
}

TEST_F(WrongLedgerTest, WithoutAPushIsReported) {
  CountingWorkerOptions options = {.client = ClientOf(job_), .seed = 2, .rows = kRows};
  const RowLedger before = threads_->ledger();
  auto more = CountingThreads::Connect(options, 1);
  ASSERT_TRUE(more.ok()) << more.status();
  PushOnce(**more);
  EXPECT_GT(Compare(before).rows_wrong, 0u);
  RowLedger both = before;
  both.Add((*more)->ledger());
  EXPECT_EQ(Compare(both).rows_wrong, 0u);
}

}  // namespace
}  // namespace ballast
