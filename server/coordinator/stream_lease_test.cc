// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "server/coordinator/lease_table.h"

namespace ballast {
namespace {

// Leases of a stream with epochs of 100 examples; batches of 2, so a lease has at most 32 examples.
class StreamLeaseTest : public testing::Test {
 protected:
  static constexpr uint32_t kEpochs = 3;
  static StreamSpan Span(const std::string& file, uint64_t begin, uint64_t end, uint64_t line, uint64_t examples) {
    return {{file, begin, line}, end, line + examples, examples};
  }
  // Claims rows that must be leased.
  DataLease Claim(uint32_t rank, const StreamSpan& span) {
    const auto lease = book_.Claim(rank, span);
    EXPECT_TRUE(lease.ok() && lease->has_value()) << lease.status();
    return lease.ok() && lease->has_value() ? **lease : DataLease();
  }
  bool Refuses(uint32_t rank, const StreamSpan& span) {
    const auto lease = book_.Claim(rank, span);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() && !lease->has_value();
  }

  const LeaseTable::Options options_ = {100, kEpochs, 2, 2, false, 1, /*stream=*/true};
  LeaseTable book_{options_};
};

TEST_F(StreamLeaseTest, LeasesTheRowsAtThePositionOnce) {
  EXPECT_EQ(book_.stream_position(), StreamPosition());
  const DataLease first = Claim(0, Span("a", 0, 100, 0, 10));
  EXPECT_EQ(first.begin, 0);
  EXPECT_EQ(first.end, 10);
  EXPECT_EQ(first.steps, 5);
  EXPECT_EQ(first.span, Span("a", 0, 100, 0, 10));
  EXPECT_EQ(book_.stream_position(), (StreamPosition{"a", 100, 10}));
  EXPECT_TRUE(Refuses(1, Span("a", 0, 100, 0, 10))) << "worker 0 has them";
  EXPECT_TRUE(Refuses(1, Span("a", 90, 120, 9, 3))) << "they overlap";
  EXPECT_TRUE(Refuses(1, Span("a", 110, 120, 11, 1))) << "a gap";
  EXPECT_EQ(Claim(1, Span("a", 100, 150, 10, 7)).begin, 10);
}

TEST_F(StreamLeaseTest, GoesOnToALaterFileOnly) {
  Claim(0, Span("b", 0, 100, 0, 10));
  EXPECT_TRUE(Refuses(0, Span("a", 0, 100, 0, 10))) << "before";
  EXPECT_TRUE(Refuses(0, Span("c", 5, 100, 1, 10))) << "not from its beginning";
  EXPECT_EQ(Claim(0, Span("c", 0, 100, 0, 10)).begin, 10);
  EXPECT_TRUE(Refuses(0, Span("b", 100, 120, 10, 1))) << "the file is over";
}

TEST_F(StreamLeaseTest, RowsOfALostWorkerAreLeasedAgain) {
  const DataLease first = Claim(0, Span("a", 0, 100, 0, 10));
  EXPECT_EQ(book_.Acquire(1), std::nullopt);
  book_.Release(0);
  const auto again = book_.Acquire(1);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->span, first.span);
  EXPECT_EQ(book_.repeated_examples(), 10);
  EXPECT_FALSE(book_.all_reported());
  ASSERT_TRUE(book_.Complete(1, again->id).ok());
  EXPECT_TRUE(book_.all_reported());
}

TEST_F(StreamLeaseTest, ALeaseEndsWithItsEpoch) {
  uint64_t line = 0;
  for (const uint64_t examples : {32, 32, 32}) {
    Claim(0, Span("a", line * 10, (line + examples) * 10, line, examples));
    line += examples;
  }
  EXPECT_EQ(book_.MaxStreamExamples(), 4);
  EXPECT_TRUE(Refuses(0, Span("a", 960, 1010, 96, 5)));
  EXPECT_EQ(Claim(0, Span("a", 960, 1000, 96, 4)).epoch, 0);
  EXPECT_EQ(book_.MaxStreamExamples(), 32);
  EXPECT_EQ(Claim(0, Span("a", 1000, 1010, 100, 1)).epoch, 1);
}

TEST_F(StreamLeaseTest, IsFinishedAfterTheLastEpochOrItsEnd) {
  for (uint64_t line = 0; line < kEpochs * 100; line += 20) {
    const DataLease lease = Claim(0, Span("a", line * 10, (line + 20) * 10, line, 20));
    EXPECT_FALSE(book_.Finished());
    ASSERT_TRUE(book_.Complete(0, lease.id).ok());
  }
  EXPECT_TRUE(book_.Finished());
  EXPECT_EQ(book_.MaxStreamExamples(), 0);
  LeaseTable ended(options_);
  ended.End();
  EXPECT_TRUE(ended.Finished());
}

TEST_F(StreamLeaseTest, HandsOutNothingWhileHeld) {
  book_.Hold();
  EXPECT_TRUE(Refuses(0, Span("a", 0, 100, 0, 10)));
  EXPECT_TRUE(book_.AtRest());
  book_.Release();
  Claim(0, Span("a", 0, 100, 0, 10));
}

TEST_F(StreamLeaseTest, ItsPositionOutlivesTheProcess) {
  const DataLease held = Claim(0, Span("a", 0, 100, 0, 10));
  LeaseTable restored(options_);
  ASSERT_TRUE(restored.Restore(book_.Export()).ok());
  EXPECT_EQ(restored.stream_position(), (StreamPosition{"a", 100, 10}));
  restored.Release(0);
  EXPECT_EQ(restored.Acquire(1)->span, held.span);

  ASSERT_TRUE(book_.Complete(0, held.id).ok());
  book_.Hold();
  LeaseTable resumed(options_);
  ASSERT_TRUE(resumed.Resume(book_.Export()).ok());
  EXPECT_EQ(resumed.stream_position(), (StreamPosition{"a", 100, 10}));
  EXPECT_EQ((*resumed.Claim(1, Span("a", 100, 150, 10, 5)))->begin, 10);

  LeaseTable fixed({100, kEpochs, 2, 2, false});
  EXPECT_EQ(fixed.Restore(restored.Export()).message(),
            "saved lease 1048578: got rows of a stream, want data of this job");
}

TEST_F(StreamLeaseTest, RefusesImpossibleSpans) {
  const auto error = [&](const StreamSpan& span) { return std::string(book_.Claim(0, span).status().message()); };
  EXPECT_EQ(error(Span("", 0, 10, 0, 1)),
            "rows found in the stream: got file \"\", want a name of 1 to 255 bytes without \"/\"");
  EXPECT_EQ(error(Span("../a", 0, 10, 0, 1)),
            "rows found in the stream: got file \"../a\", want a name of 1 to 255 bytes without \"/\"");
  EXPECT_EQ(
      error(Span("a", 10, 10, 0, 1)),
      "rows found in the stream: got bytes 10 to 10, lines 0 to 1, want at least one line, and no more lines than "
      "bytes");
  EXPECT_EQ(
      error({{"a", 0, 0}, 10, 11, 1}),
      "rows found in the stream: got bytes 0 to 10, lines 0 to 11, want at least one line, and no more lines than "
      "bytes");
  EXPECT_EQ(error(Span("a", 0, 100, 0, 33)), "rows found in the stream: got 33 examples, want 1 to 32");
  EXPECT_EQ(error({{"a", 0, 0}, 10, 1, 0}), "rows found in the stream: got 0 examples, want 1 to 32");
}
}  // namespace
}  // namespace ballast
