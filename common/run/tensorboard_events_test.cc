// SPDX-License-Identifier: Apache-2.0
#include "common/run/tensorboard_events.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>

#include "common/storage/file.h"
#include "google/protobuf/unknown_field_set.h"

namespace ballast {
namespace {

using ::google::protobuf::UnknownField;
using ::google::protobuf::UnknownFieldSet;
using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// CRC-32C bit by bit, masked as in a record.
uint32_t MaskedCrc(absl::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

template <typename T>
T ReadNumber(absl::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// A field of a message: its bits, or its bytes.
struct Field {
  uint64_t bits = 0;
  std::string bytes;

  double AsDouble() const { return ReadNumber<double>({reinterpret_cast<const char*>(&bits), 8}); }
  float AsFloat() const { return ReadNumber<float>({reinterpret_cast<const char*>(&bits), 4}); }
};

// Returns the fields of a message by number, those of one number in their order.
std::multimap<int, Field> Fields(absl::string_view message) {
  UnknownFieldSet set;
  EXPECT_TRUE(set.ParseFromArray(message.data(), static_cast<int>(message.size())));
  std::multimap<int, Field> fields;
  for (int i = 0; i < set.field_count(); ++i) {
    const UnknownField& field = set.field(i);
    switch (field.type()) {
      case UnknownField::TYPE_VARINT:
        fields.insert({field.number(), {.bits = field.varint()}});
        break;
      case UnknownField::TYPE_FIXED32:
        fields.insert({field.number(), {.bits = field.fixed32()}});
        break;
      case UnknownField::TYPE_FIXED64:
        fields.insert({field.number(), {.bits = field.fixed64()}});
        break;
      default:
        fields.insert({field.number(), {.bytes = field.length_delimited()}});
    }
  }
  return fields;
}

// Returns the only field of that number.
Field Find(absl::string_view message, int number) {
  const std::multimap<int, Field> fields = Fields(message);
  EXPECT_EQ(fields.count(number), 1) << number;
  return fields.count(number) == 0 ? Field() : fields.find(number)->second;
}

std::vector<double> Packed(absl::string_view bytes) {
  std::vector<double> values;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) values.push_back(ReadNumber<double>(bytes));
  EXPECT_THAT(bytes, IsEmpty());
  return values;
}

class TensorboardEventsTest : public testing::Test {
 protected:
  TensorboardEventsTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& each : std::filesystem::directory_iterator(folder_)) files.push_back(each.path());
    return files;
  }

  // Returns the events of the only file, whose checksums must be right. An incomplete one at its end is left out.
  std::vector<std::string> Events() const {
    EXPECT_THAT(Files(), SizeIs(1));
    const std::string text = ReadFile(Files().at(0)).value();
    absl::string_view rest = text;
    std::vector<std::string> events;
    while (rest.size() >= 16 && rest.size() >= 16 + ReadNumber<uint64_t>(rest)) {
      const size_t length = ReadNumber<uint64_t>(rest);
      EXPECT_EQ(ReadNumber<uint32_t>(rest.substr(8)), MaskedCrc(rest.substr(0, 8)));
      events.emplace_back(rest.substr(12, length));
      EXPECT_EQ(ReadNumber<uint32_t>(rest.substr(12 + length)), MaskedCrc(events.back()));
      rest.remove_prefix(16 + length);
    }
    return events;
  }

  // Returns the numbers of an event by their tags.
  static std::map<std::string, double> Scalars(absl::string_view event) {
    std::map<std::string, double> scalars;
    for (const auto& [number, value] : Fields(Find(event, 5).bytes)) {
      EXPECT_EQ(number, 1);
      scalars[Find(value.bytes, 1).bytes] = Find(value.bytes, 2).AsFloat();
    }
    return scalars;
  }

  const std::string folder_ = testing::TempDir() + "/tensorboard_events_test";
};

TEST_F(TensorboardEventsTest, KnownChecksum) {
  // RFC 3720, appendix B.4: 32 bytes of 0 have the CRC 8a9136aa.
  const uint32_t crc = 0x8a9136aa;
  EXPECT_EQ(MaskedCrc(std::string(32, '\0')), ((crc >> 15) | (crc << 17)) + 0xa282ead8);
}

TEST_F(TensorboardEventsTest, TheFirstEventIsTheVersionAndTheNextAreTheFigures) {
  TensorboardEvents events(folder_);
  const absl::Time began = absl::Now();
  events.Write(TrainMetrics{.step = 300,
                            .loss = 2.25,
                            .learning_rate = 0.125,
                            .samples_per_second = 1280,
                            .wait_share = 0.25,
                            .max_staleness = 3});
  events.Write(TestMetrics{.step = 301, .loss = 0.5, .accuracy = 0.75});
  events.Write(TestMetrics{.step = 302, .loss = 0.25});
  const std::vector<std::string> written = Events();
  ASSERT_THAT(written, SizeIs(4));
  EXPECT_EQ(Find(written[0], 3).bytes, "brain.Event:2");
  EXPECT_NEAR(Find(written[0], 1).AsDouble(), absl::ToDoubleSeconds(began - absl::UnixEpoch()), 60);
  EXPECT_EQ(Find(written[1], 2).bits, 300);
  EXPECT_THAT(Scalars(written[1]), UnorderedElementsAre(Pair("train/loss", 2.25), Pair("train/learning_rate", 0.125),
                                                        Pair("perf/examples_per_second", 1280),
                                                        Pair("wait/share", 0.25), Pair("staleness/max", 3)));
  EXPECT_EQ(Find(written[2], 2).bits, 301);
  EXPECT_THAT(Scalars(written[2]), UnorderedElementsAre(Pair("test/loss", 0.5), Pair("test/accuracy", 0.75)));
  EXPECT_THAT(Scalars(written[3]), UnorderedElementsAre(Pair("test/loss", 0.25))) << "a regression has no accuracy";
}

TEST_F(TensorboardEventsTest, AHistogramHasTheBoundsOfItsBuckets) {
  v1::Histogram staleness;
  for (uint64_t count : {0, 5, 2, 0, 1}) staleness.add_buckets(count);
  staleness.set_count(8);
  staleness.set_sum(19);
  staleness.set_max(9);
  TensorboardEvents(folder_).Write(7, staleness);
  const std::string value = Find(Find(Events().at(1), 5).bytes, 1).bytes;
  EXPECT_EQ(Find(value, 1).bytes, "staleness/distribution");
  const std::string histogram = Find(value, 5).bytes;
  EXPECT_THAT(Find(histogram, 1).AsDouble(), DoubleEq(1)) << "no gradient had the staleness 0";
  EXPECT_THAT(Find(histogram, 2).AsDouble(), DoubleEq(9));
  EXPECT_THAT(Find(histogram, 3).AsDouble(), DoubleEq(8));
  EXPECT_THAT(Find(histogram, 4).AsDouble(), DoubleEq(19));
  EXPECT_THAT(Packed(Find(histogram, 6).bytes), ElementsAre(0, 1, 3, 7, 15));
  EXPECT_THAT(Packed(Find(histogram, 7).bytes), ElementsAre(0, 5, 2, 0, 1));
}

TEST_F(TensorboardEventsTest, ThereIsNoFileWithoutAFigure) {
  TensorboardEvents events(folder_);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(TensorboardEventsTest, ASecondProcessLeavesTheFileOfTheFirstAlone) {
  TensorboardEvents first(folder_), second(folder_);
  first.Write(TestMetrics{.loss = 1});
  second.Write(TestMetrics{.loss = 2});
  EXPECT_THAT(Files(), UnorderedElementsAre(StartsWith(folder_ + "/events.out.tfevents."),
                                            StartsWith(folder_ + "/events.out.tfevents.")));
}

TEST_F(TensorboardEventsTest, AMovedObjectGoesOnInTheSameFile) {
  TensorboardEvents first(folder_);
  first.Write(TestMetrics{.step = 1});
  TensorboardEvents second = std::move(first);
  second.Write(TestMetrics{.step = 2});
  EXPECT_THAT(Events(), SizeIs(3));
}

TEST_F(TensorboardEventsTest, AMissingDirectoryIsLoggedOnce) {
  testing::internal::CaptureStderr();
  TensorboardEvents events(folder_ + "/missing");
  for (int i = 0; i < 3; ++i) events.Write(TestMetrics{.loss = 1});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, StartsWith("warning: TensorBoard gets no more events of this run: "));
  EXPECT_THAT(log, HasSubstr(folder_ + "/missing/events.out.tfevents."));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

TEST_F(TensorboardEventsTest, AFullDiskIsLoggedOnceAndTheEventsBeforeStay) {
  TensorboardEvents events(folder_);
  events.Write(TestMetrics{.step = 1});
  // Limits the files of this process until the end of the test; also that of the captured log.
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit full = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) events.Write(TestMetrics{.step = 2});
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(log, HasSubstr("warning: TensorBoard gets no more events"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
  EXPECT_THAT(Events(), SizeIs(AllOf(Gt(10), Lt(500))));
}

}  // namespace
}  // namespace ballast
