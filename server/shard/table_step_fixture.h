// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/tables/table_spec_fixture.h"
#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/shard_fixture.h"

namespace ballast {

// A shard with a table of one weight per row, in a job of two workers that push in steps.
class TableStepFixture : public testing::Test {
 protected:
  static constexpr uint32_t kTable = 9;

  static std::string IdBytes(const std::vector<uint64_t>& ids) {
    return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t));
  }

  void Declare(const v1::ConsistencyPolicy& policy, uint64_t first_step = 0) {
    OwnedTable table{SgdTable(kTable, "rows", 1), {}};
    table.spec.set_first_step(first_step);
    table.spans.emplace_back().set_count(4096);
    const auto declared = shard_.Declare({"job", policy, 2, {}}, {}, {table});
    ASSERT_TRUE(declared.ok()) << declared.status();
  }

  absl::StatusOr<PushOutcome> Offer(const PushTicket& ticket, const std::vector<uint64_t>& ids, float gradient,
                                    uint32_t messages_of_step = 1) {
    const std::string id_bytes = IdBytes(ids);
    const std::vector<float> gradients(ids.size(), gradient);
    const absl::string_view payload = Bytes(gradients);
    const RowGradientsView view{kTable, id_bytes, /*unordered=*/true, {}, v1::ENCODING_FP32, {&payload, 1}};
    return shard_.PushRows("job", ticket, messages_of_step, {view});
  }

  PushOutcome Push(uint32_t worker, uint64_t step, const std::vector<uint64_t>& ids, float gradient,
                   uint32_t examples = 1, uint32_t messages_of_step = 1, uint64_t incarnation = 1) {
    const auto outcome = Offer({worker, incarnation, ++sequence_, step, examples}, ids, gradient, messages_of_step);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return outcome.value_or(PushOutcome());
  }

  std::vector<float> Pull(const std::vector<uint64_t>& ids) {
    const absl::StatusOr<MessageRows> order = MessageRows::Of(IdBytes(ids), kTable, /*unordered=*/true);
    EXPECT_TRUE(order.ok()) << order.status();
    if (!order.ok()) return {};
    const absl::StatusOr<PulledRows> rows = shard_.PullRows("job", kTable, *order, v1::RowQuery::MISSING_INITIAL);
    EXPECT_TRUE(rows.ok()) << rows.status();
    if (!rows.ok()) return {};
    const absl::Span<const float> values = rows->values.values();
    return {values.begin(), values.end()};
  }

  // Begins a pull at a step, and returns where its end will be.
  const std::optional<absl::Status>& Await(uint64_t step) {
    auto& end = ends_.emplace_back(std::make_unique<std::optional<absl::Status>>());
    shard_.AwaitRows("job", {step, std::nullopt}, {kTable}, 0, absl::Seconds(10), /*by_reader=*/false,
                     [to = end.get()](absl::Status status) { *to = std::move(status); });
    return *end;
  }

  // The error of a pull at a step that times out.
  absl::Status TimeOut(uint64_t step) {
    std::promise<absl::Status> end;
    std::future<absl::Status> ended = end.get_future();
    shard_.AwaitRows("job", {step, std::nullopt}, {kTable}, 0, absl::Seconds(1), /*by_reader=*/false,
                     [&](absl::Status status) { end.set_value(std::move(status)); });
    clock_.Advance(absl::Seconds(2));
    return ended.get();
  }

  ManualClock clock_;
  ParameterShard shard_{{.rank = 3, .max_state_bytes = 4 << 20}, &clock_};
  uint64_t sequence_ = 0;
  std::vector<std::unique_ptr<std::optional<absl::Status>>> ends_;
};

}  // namespace ballast
