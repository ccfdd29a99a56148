// SPDX-License-Identifier: Apache-2.0
// Requests for rows as a stranger may send them: each wrong one is refused by a clear error, and changes nothing.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/tables/row_hash.h"
#include "gmock/gmock.h"
#include "tests/testing/hostile_test.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr uint32_t kRows = 40;
constexpr uint32_t kWide = 41;
constexpr uint32_t kHalf = 42;
constexpr uint64_t kLargestId = std::numeric_limits<uint64_t>::max();

template <typename Element>
std::string Bytes(const std::vector<Element>& elements) {
  return std::string(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element));
}

// Tables "rows" of 2 weights, "wide" of 4,096, and "half", of whose ranges this shard has the lower half. All weights
// begin with 5; a gradient is subtracted. Row 7 of "rows" exists.
class HostileRowsTest : public HostileTest {
 protected:
  void SetUp() override {
    HostileTest::SetUp();
    ASSERT_EQ(Declare(Table(kRows, "rows", 2)).error_message(), "");
    ASSERT_EQ(Declare(Table(kWide, "wide", 4096)).error_message(), "");
    ASSERT_EQ(Declare(Table(kHalf, "half", 2, 2048)).error_message(), "");
    ASSERT_EQ(Outcome(Rows({7}, {1, 2})).created(), 1);
  }

  static v1::PlacedTable Table(uint32_t id, const std::string& name, uint32_t dim, uint32_t ranges = 4096) {
    auto table = Parse<v1::PlacedTable>(R"pb(spec {
                                               initializer { constant { value: 5 } }
                                               optimizer { sgd { learning_rate: 1 } }
                                             })pb");
    table.mutable_spec()->set_id(id);
    table.mutable_spec()->set_name(name);
    table.mutable_spec()->set_dim(dim);
    table.add_spans()->set_count(ranges);
    return table;
  }

  grpc::Status Declare(const v1::PlacedTable& table) const {
    v1::DeclareTensorsRequest request = declare_;
    request.clear_tensors();
    *request.add_tables() = table;
    return Call("ParameterService/DeclareTensors", request);
  }

  // A push of the next sequence number; the ids may be in any order.
  v1::PushRowsRequest Rows(const std::vector<uint64_t>& ids, const std::vector<float>& gradients,
                           uint32_t table = kRows) const {
    v1::PushRowsRequest request;
    *request.mutable_header() = push_.header();
    request.mutable_header()->set_sequence(next_sequence_);
    v1::RowGradients* const rows = request.add_gradients();
    rows->set_table_id(table);
    rows->set_ids(Bytes(ids));
    rows->set_unordered(true);
    rows->set_payload(Bytes(gradients));
    return request;
  }

  // Makes a push that must be accepted, and not as a retry.
  v1::RowsOutcome Outcome(const v1::PushRowsRequest& request) {
    const v1::RowsOutcome outcome =
        Ask<v1::ParameterService>(channel_, &v1::ParameterService::Stub::PushRows, request).outcome();
    EXPECT_FALSE(outcome.duplicate());
    ++next_sequence_;
    return outcome;
  }

  static v1::PullRowsRequest Query(const std::vector<uint64_t>& ids, uint32_t table = kRows) {
    v1::PullRowsRequest request;
    request.set_job("hostile");
    request.add_queries()->set_table_id(table);
    request.mutable_queries(0)->set_ids(Bytes(ids));
    request.mutable_queries(0)->set_unordered(true);
    return request;
  }

  std::vector<float> Pull(const std::vector<uint64_t>& ids, uint32_t table = kRows) const {
    const auto response = Ask<v1::ParameterService>(channel_, &v1::ParameterService::Stub::PullRows, Query(ids, table));
    if (response.values_size() != 1) return {};
    std::vector<float> values(response.values(0).payload().size() / sizeof(float));
    std::memcpy(values.data(), response.values(0).payload().data(), sizeof(float) * values.size());
    return values;
  }

  // Expects the error, and that a correct push with the same sequence number is still no retry.
  void ExpectRefused(const v1::PushRowsRequest& request, Code code, const std::string& message) {
    const grpc::Status status = Call("ParameterService/PushRows", request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(status.error_message(), message);
    ExpectNothingChanged();
  }
  void ExpectRefused(const v1::PullRowsRequest& request, Code code, const std::string& message) {
    const grpc::Status status = Call("ParameterService/PullRows", request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(status.error_message(), message);
    ExpectNothingChanged();
  }
  void ExpectNothingChanged() {
    EXPECT_THAT(Pull({7, 8}), ElementsAre(4, 3, 5, 5));
    const v1::GetStatusResponse status = GetStatus();
    ASSERT_EQ(status.tables_size(), 3);
    EXPECT_EQ(status.tables(0).rows(), 1);
    EXPECT_EQ(status.tables(1).rows(), 0);
    EXPECT_EQ(status.tables(2).rows(), 0);
    EXPECT_EQ(Outcome(Rows({}, {})).applied(), 0);
  }

  uint64_t next_sequence_ = 1;
};

constexpr char kPushed[] = "shard 0: rows of \"rows\" by worker 3 at step 0: ";

TEST_F(HostileRowsTest, RefusesIdsOutOfOrderThatAreNotCalledUnordered) {
  std::vector<uint64_t> ids = {7, 8};
  if (RowHash(7, kRows) < RowHash(8, kRows)) std::swap(ids[0], ids[1]);
  v1::PushRowsRequest push = Rows(ids, {1, 1, 1, 1});
  push.mutable_gradients(0)->set_unordered(false);
  const std::string got = absl::StrCat("ids[1]: got ", ids[1], " after ", ids[0],
                                       ", want ids in ascending order of their hash, or unordered");
  ExpectRefused(push, Code::INVALID_ARGUMENT, kPushed + got);
  v1::PullRowsRequest pull = Query(ids);
  pull.mutable_queries(0)->set_unordered(false);
  ExpectRefused(pull, Code::INVALID_ARGUMENT, "shard 0: table 40: " + got);
}

TEST_F(HostileRowsTest, RefusesRepeatedIdsThatAreNotCalledUnordered) {
  v1::PushRowsRequest push = Rows({7, 7}, {1, 1, 1, 1});
  push.mutable_gradients(0)->set_unordered(false);
  ExpectRefused(push, Code::INVALID_ARGUMENT,
                absl::StrCat(kPushed, "ids[1]: got 7 again, want each id once, or unordered"));
}

TEST_F(HostileRowsTest, AddsRepeatedIdsThatAreCalledUnordered) {
  EXPECT_EQ(Outcome(Rows({7, 8, 7}, {1, 2, 3, 4, 5, 6})).applied(), 2);
  EXPECT_THAT(Pull({8, 7, 8}), ElementsAre(2, 1, -2, -5, 2, 1));
}

TEST_F(HostileRowsTest, RefusesIncompleteIds) {
  v1::PushRowsRequest push = Rows({7}, {1, 1});
  push.mutable_gradients(0)->mutable_ids()->push_back('\0');
  ExpectRefused(push, Code::INVALID_ARGUMENT, absl::StrCat(kPushed, "ids: got 9 bytes, want a multiple of 8"));
  v1::PullRowsRequest pull = Query({7});
  pull.mutable_queries(0)->mutable_ids()->pop_back();
  ExpectRefused(pull, Code::INVALID_ARGUMENT, "shard 0: table 40: ids: got 7 bytes, want a multiple of 8");
}

TEST_F(HostileRowsTest, RefusesAPayloadThatDoesNotFitItsIds) {
  ExpectRefused(
      Rows({7}, {1, 2, 3}), Code::INVALID_ARGUMENT,
      absl::StrCat(kPushed, "payload of 1 ids of 2 elements: fp32 payload has 12 bytes, want 8 for 2 elements"));
  ExpectRefused(Rows({}, {1}), Code::INVALID_ARGUMENT, absl::StrCat(kPushed, "payload: got 4 bytes for no ids"));
  v1::PushRowsRequest odd = Rows({7}, {});
  odd.mutable_gradients(0)->set_encoding(v1::ENCODING_BF16);
  odd.mutable_gradients(0)->set_payload("12345");
  ExpectRefused(
      odd, Code::INVALID_ARGUMENT,
      absl::StrCat(kPushed, "payload of 1 ids of 2 elements: bf16 payload has 5 bytes, want 4 for 2 elements"));
}

TEST_F(HostileRowsTest, RefusesVersionsThatDoNotFitTheIds) {
  v1::PushRowsRequest push = Rows({7, 8}, {1, 1, 1, 1});
  push.mutable_gradients(0)->set_versions(Bytes<uint32_t>({1}));
  ExpectRefused(push, Code::INVALID_ARGUMENT,
                absl::StrCat(kPushed, "versions: got 4 bytes, want 4 for each of the 2 ids"));
}

TEST_F(HostileRowsTest, CountsAVersionThatTheRowNeverReached) {
  v1::PushRowsRequest push = Rows({7, 8}, {1, 1, 1, 1});
  push.mutable_gradients(0)->set_versions(Bytes<uint32_t>({1'000'000, 0}));
  const v1::RowsOutcome outcome = Outcome(push);
  EXPECT_EQ(outcome.applied(), 2);
  EXPECT_EQ(outcome.orphaned(), 1);
  EXPECT_EQ(outcome.max_staleness(), 0);
  EXPECT_THAT(Pull({7}), ElementsAre(3, 2));
}

TEST_F(HostileRowsTest, AClockThatTheTableNeverReachedIsNotStale) {
  v1::PlacedTable table = Table(43, "scaled", 2);
  table.mutable_spec()->mutable_policy()->mutable_async()->set_scale_by_staleness(true);
  table.mutable_spec()->mutable_policy()->mutable_async()->set_staleness_of(v1::ConsistencyPolicy::TABLE);
  ASSERT_EQ(Declare(table).error_message(), "");
  v1::PushRowsRequest push = Rows({7}, {1, 2}, 43);
  push.mutable_gradients(0)->set_clock(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Outcome(push).max_staleness(), 0);
  EXPECT_THAT(Pull({7}, 43), ElementsAre(4, 3));
  // A table that does not count it ignores it.
  push = Rows({7}, {1, 2});
  push.mutable_gradients(0)->set_clock(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Outcome(push).applied(), 1);
  EXPECT_THAT(Pull({7}), ElementsAre(3, 1));
}

TEST_F(HostileRowsTest, RefusesStalenessThatIsOfNothing) {
  v1::PlacedTable table = Table(43, "scaled", 2);
  v1::ConsistencyPolicy::Async& async = *table.mutable_spec()->mutable_policy()->mutable_async();
  async.set_scale_by_staleness(true);
  async.set_staleness_of(static_cast<v1::ConsistencyPolicy::StalenessOf>(2));
  EXPECT_EQ(Declare(table).error_message(), "table \"scaled\": policy.async.staleness_of: got 2, want ROW or TABLE");
  ExpectNothingChanged();
}

TEST_F(HostileRowsTest, RefusesNumbersThatAreNotFinite) {
  for (float number : {NAN, INFINITY, -INFINITY}) {
    ExpectRefused(Rows({7, 8}, {1, 1, 1, number}), Code::INVALID_ARGUMENT,
                  absl::StrCat(kPushed, "payload: has NaN or infinity, want finite numbers"));
  }
  // The sum of a repeated id overflows.
  ExpectRefused(Rows({7, 7}, {3e38f, 1, 3e38f, 1}), Code::INVALID_ARGUMENT,
                absl::StrCat(kPushed, "payload: has NaN or infinity, want finite numbers"));
}

TEST_F(HostileRowsTest, RefusesEncodingsOfBlocks) {
  v1::PushRowsRequest push = Rows({7}, {1, 1});
  push.mutable_gradients(0)->set_encoding(v1::ENCODING_INT8);
  ExpectRefused(push, Code::INVALID_ARGUMENT,
                absl::StrCat(kPushed, "encoding: got int8, want fp32, fp16 or bf16 for rows"));
  v1::PullRowsRequest pull = Query({7});
  pull.set_encoding(v1::ENCODING_INT8);
  ExpectRefused(pull, Code::INVALID_ARGUMENT, "shard 0: encoding: got int8, want fp32, fp16 or bf16 for rows");
}

TEST_F(HostileRowsTest, RefusesUnknownTablesAndTensorsIds) {
  for (uint32_t id : {1u, 43u}) {
    const std::string message = absl::StrCat("shard 0: table ", id, " is not declared");
    ExpectRefused(Rows({7}, {1, 1}, id), Code::NOT_FOUND, message);
    ExpectRefused(Query({7}, id), Code::NOT_FOUND, message);
  }
  v1::PullRequest tensor = pull_;
  tensor.mutable_slices(0)->set_tensor_id(kRows);
  EXPECT_EQ(Call("ParameterService/Pull", tensor).error_message(), "shard 0: tensor 40 is not declared");
}

TEST_F(HostileRowsTest, RefusesATableTwiceInAMessage) {
  v1::PushRowsRequest push = Rows({7}, {1, 1});
  *push.add_gradients() = push.gradients(0);
  ExpectRefused(push, Code::INVALID_ARGUMENT, "shard 0: got table 40 twice, want each table once in a message");
  v1::PullRowsRequest pull = Query({7});
  *pull.add_queries() = pull.queries(0);
  ExpectRefused(pull, Code::INVALID_ARGUMENT, "shard 0: got table 40 twice, want each table once in a message");
}

// The first table of the message is correct.
TEST_F(HostileRowsTest, RefusesTheWholeMessageForOneWrongTable) {
  v1::PushRowsRequest push = Rows({7}, {1, 1});
  *push.add_gradients() = Rows({7}, {1, 1}, 43).gradients(0);
  ExpectRefused(push, Code::NOT_FOUND, "shard 0: table 43 is not declared");
}

TEST_F(HostileRowsTest, RefusesRowsOfAnotherShard) {
  uint64_t lower = 0, upper = 0;
  while (RangeOf(RowHash(lower, kHalf), 12) >= 2048) ++lower;
  while (RangeOf(RowHash(upper, kHalf), 12) < 2048) ++upper;
  const uint32_t range = RangeOf(RowHash(upper, kHalf), 12);
  ExpectRefused(
      Rows({lower, upper}, {1, 1, 1, 1}, kHalf), Code::FAILED_PRECONDITION,
      absl::StrCat("shard 0: rows of \"half\" by worker 3 at step 0: does not own range ", range, " of \"half\""));
  const grpc::Status pulled = Call("ParameterService/PullRows", Query({lower, upper}, kHalf));
  EXPECT_EQ(pulled.error_code(), Code::FAILED_PRECONDITION);
  EXPECT_THAT(pulled.error_message(), HasSubstr(absl::StrCat("does not own range ", range, " of \"half\"")));
  EXPECT_EQ(Outcome(Rows({lower}, {1, 1}, kHalf)).created(), 1);
}

TEST_F(HostileRowsTest, RefusesDeclarationsThatDifferOrDoNotFit) {
  const auto refused = [&](const v1::PlacedTable& table, Code code, const std::string& message) {
    const grpc::Status status = Declare(table);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(message));
    ExpectNothingChanged();
  };
  EXPECT_EQ(Declare(Table(kRows, "rows", 2)).error_message(), "") << "repeating a declaration is OK";
  refused(Table(kRows, "rows", 3), Code::FAILED_PRECONDITION, "\"rows\"");
  refused(Table(kRows, "rows", 2, 2048), Code::FAILED_PRECONDITION, "declared before with other ranges");
  refused(Table(43, "more", 0), Code::INVALID_ARGUMENT, "dim");
  refused(Table(43, "more", 4097), Code::INVALID_ARGUMENT, "dim");
  refused(Table(43, "a name", 2), Code::INVALID_ARGUMENT, "without spaces");
  refused(Table(43, "more", 2, 4097), Code::INVALID_ARGUMENT, "4096 ranges");
  refused(Table(43, "more", 2, 0), Code::INVALID_ARGUMENT, "4096 ranges");
}

// Ids and names of tables and tensors are unique in the job together.
TEST_F(HostileRowsTest, RefusesIdsAndNamesThatAreTaken) {
  v1::DeclareTensorsRequest tensor = declare_;
  tensor.mutable_tensors(0)->mutable_spec()->set_name("more");
  tensor.mutable_tensors(0)->mutable_spec()->set_id(kRows);
  EXPECT_EQ(Call("ParameterService/DeclareTensors", tensor).error_code(), Code::FAILED_PRECONDITION);
  tensor.mutable_tensors(0)->mutable_spec()->set_name("rows");
  tensor.mutable_tensors(0)->mutable_spec()->set_id(50);
  EXPECT_EQ(Call("ParameterService/DeclareTensors", tensor).error_code(), Code::FAILED_PRECONDITION);
  EXPECT_EQ(Declare(Table(43, "rows", 2)).error_code(), Code::FAILED_PRECONDITION);
  EXPECT_EQ(Declare(Table(44, "w", 2)).error_code(), Code::FAILED_PRECONDITION);
  EXPECT_EQ(Declare(Table(1, "other", 2)).error_code(), Code::FAILED_PRECONDITION);
  ExpectNothingChanged();
}

TEST_F(HostileRowsTest, TakesEveryIdAndNone) {
  EXPECT_EQ(Outcome(Rows({kLargestId, 0}, {1, 2, 3, 4})).created(), 2);
  EXPECT_THAT(Pull({0, kLargestId}), ElementsAre(2, 1, 4, 3));
  EXPECT_EQ(Outcome(Rows({}, {})).applied(), 0);
  EXPECT_THAT(Pull({}), ElementsAre());
}

TEST_F(HostileRowsTest, TakesTheLongestRows) {
  EXPECT_EQ(Outcome(Rows({9}, std::vector<float>(4096, 1), kWide)).created(), 1);
  EXPECT_THAT(Pull({9}, kWide), Each(4));
}

TEST_F(HostileRowsTest, IgnoresFieldsOfLaterVersions) {
  v1::PushRowsRequest push = Rows({7}, {1, 1});
  push.GetReflection()->MutableUnknownFields(&push)->AddLengthDelimited(99, "bags");
  v1::RowGradients& rows = *push.mutable_gradients(0);
  rows.GetReflection()->MutableUnknownFields(&rows)->AddVarint(98, 3);
  EXPECT_EQ(Outcome(push).applied(), 1);
  EXPECT_THAT(Pull({7}), ElementsAre(3, 2));
}

TEST_F(HostileRowsTest, RefusesAPullOfMoreThanAMessageHolds) {
  std::vector<uint64_t> ids(257);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  ExpectRefused(Query(ids, kWide), Code::INVALID_ARGUMENT,
                "shard 0: the rows have more than 4194304 bytes as fp32; ask for fewer in one message");
}

// The shard's limit is 16 MiB.
TEST_F(HostileRowsTest, AtTheMemoryLimitRowsThatExistGoOn) {
  constexpr size_t kBatch = 200;
  const std::vector<float> ones(kBatch * 4096, 1);
  const auto batch = [&](uint64_t first) {
    std::vector<uint64_t> ids(kBatch);
    for (size_t i = 0; i < kBatch; ++i) ids[i] = first + i;
    return Rows(ids, ones, kWide);
  };
  uint64_t rows = 0;
  grpc::Status status;
  while (rows < 1024) {
    status = Call("ParameterService/PushRows", batch(rows));
    if (!status.ok()) break;
    ++next_sequence_;
    rows += kBatch;
  }
  ASSERT_GE(rows, 2 * kBatch);
  EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("rows of \"wide\" by worker 3 at step 0: 200 of 200 rows would begin, "
                                                "but of the memory limit of 16777216 bytes "));
  EXPECT_THAT(status.error_message(), HasSubstr("; rows that exist go on"));
  EXPECT_EQ(GetStatus().tables(1).rows(), rows);
  const v1::RowsOutcome again = Outcome(batch(0));
  EXPECT_EQ(again.applied(), kBatch);
  EXPECT_EQ(again.created(), 0);
  EXPECT_THAT(Pull({0, rows}, kWide), ElementsAreArray([&] {
                std::vector<float> want(2 * 4096, 3);
                std::fill(want.begin() + 4096, want.end(), 5);
                return want;
              }()));
}

}  // namespace
}  // namespace ballast
