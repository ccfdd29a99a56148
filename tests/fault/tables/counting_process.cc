// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/tables/counting_process.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast {

CountingProcess::CountingProcess(Options options)
    : options_(std::move(options)),
      draw_(options_.seed, options_.rows, options_.servers),
      ledger_(CountingTables().size()) {}

absl::Status CountingProcess::Start() {
  std::vector<std::string> words = {options_.program};
  const auto add = [&words](const char* flag, const auto& value) {
    words.push_back(absl::StrCat("--", flag, "=", value));
  };
  add("servers", absl::StrJoin(options_.job.servers, ","));
  add("coordinator", options_.job.coordinator);
  add("durability", v1::Durability::Mode_Name(options_.job.durability));
  add("workers", options_.job.workers);
  add("worker", options_.worker);
  add("incarnation", IncarnationOf(life_));
  add("life", life_);
  add("seed", options_.seed);
  add("rows", options_.rows);
  add("shards", options_.servers);
  add("log", LogPath());
  auto program = Program::Start(std::move(words));
  if (!program.ok()) return program.status();
  const absl::Status counts = (*program)->AwaitLine("counts", options_.timeout).status();
  if (!counts.ok()) return counts;
  program_ = *std::move(program);
  return absl::OkStatus();
}

absl::Status CountingProcess::Kill() {
  if (!program_->Runs()) {
    return absl::InternalError(
        absl::StrCat("counting worker ", options_.worker, " ended by itself; output:\n", program_->output()));
  }
  if (absl::Status status = program_->Kill(); !status.ok()) return status;
  program_.reset();
  ++counts_.kills;
  const absl::StatusOr<LoggedPushes> pushes = PushLog::Read(LogPath());
  if (!pushes.ok()) return pushes.status();
  if (absl::Status status = Settle(*pushes); !status.ok()) return status;
  ++life_;
  return absl::OkStatus();
}

absl::Status CountingProcess::Settle(const LoggedPushes& pushes) {
  for (const uint64_t number : pushes.acknowledged) {
    RowUses uses = draw_.Uses(KeyOf(number));
    draw_.Mark(KeyOf(number), uses);
    ledger_.Add(uses);
    ++counts_.pushes;
  }
  std::vector<uint64_t> marks;
  for (const uint64_t number : pushes.unknown) {
    for (uint32_t server = 0; server < options_.servers; ++server) marks.push_back(draw_.MarkOf(KeyOf(number), server));
  }
  const absl::StatusOr<std::vector<uint8_t>> present = Present(marks);
  if (!present.ok()) return present.status();
  size_t next = 0;
  for (const uint64_t number : pushes.unknown) {
    RowUses uses = draw_.Uses(KeyOf(number));
    draw_.Mark(KeyOf(number), uses);
    for (uint32_t server = 0; server < options_.servers; ++server) {
      const bool applied = (*present)[next++] != 0;
      ++(applied ? counts_.unknown_applied : counts_.unknown_lost);
      if (applied) ledger_.Add(draw_.OnServer(uses, server));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint8_t>> CountingProcess::Present(const std::vector<uint64_t>& ids) const {
  ClientOptions client_options = ClientOf(options_.job);
  client_options.worker = options_.worker;
  client_options.incarnation = IncarnationOf(life_) + 1;
  auto client = Client::Connect(std::move(client_options));
  if (!client.ok()) return client.status();
  const std::vector<v1::TableSpec> specs = CountingTables();
  if (absl::Status status = (*client)->DeclareTables(specs); !status.ok()) return status;
  // A push of a new incarnation to all servers: later ones of the killed process are refused.
  const auto fence = (*client)->PushRows(0, 1, {}, /*last_of_step=*/true).Get();
  if (!fence.ok()) return fence.status();
  std::vector<float> values(ids.size() * specs[0].dim());
  std::vector<uint8_t> present(ids.size());
  RowPull pull;
  pull.table_id = specs[0].id();
  pull.ids = ids;
  pull.values = absl::MakeSpan(values);
  pull.present = absl::MakeSpan(present);
  const auto pulled = (*client)->PullRows({pull}).Get();
  if (!pulled.ok()) return pulled.status();
  return present;
}

}  // namespace ballast
