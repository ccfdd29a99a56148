// SPDX-License-Identifier: Apache-2.0
#include "common/run/tensorboard_events.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

// The wire format of protobuf, for the few fields of TensorFlow's event.proto and summary.proto that are written:
//   Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//   Summary { repeated Value value = 1; }   Value { string tag = 1; float simple_value = 2; HistogramProto histo = 5; }
//   HistogramProto { double min = 1, max = 2, num = 3, sum = 4, sum_squares = 5;
//                    repeated double bucket_limit = 6 [packed], bucket = 7 [packed]; }
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AppendVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void AppendKey(int field, WireType type, std::string& out) { AppendVarint(field << 3 | type, out); }

template <typename T>
void AppendLittleEndian(T value, std::string& out) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  out.append(bytes, sizeof(bytes));
}

void AppendDouble(int field, double value, std::string& out) {
  AppendKey(field, kFixed64, out);
  AppendLittleEndian(value, out);
}

void AppendBytes(int field, absl::string_view bytes, std::string& out) {
  AppendKey(field, kBytes, out);
  AppendVarint(bytes.size(), out);
  out.append(bytes.data(), bytes.size());
}

void AppendPacked(int field, const std::vector<double>& values, std::string& out) {
  std::string packed;
  for (double value : values) AppendLittleEndian(value, packed);
  AppendBytes(field, packed, out);
}

// A Summary.Value in a Summary.
void AppendScalar(absl::string_view tag, double number, std::string& values) {
  std::string value;
  AppendBytes(1, tag, value);
  AppendKey(2, kFixed32, value);
  AppendLittleEndian(static_cast<float>(number), value);
  AppendBytes(1, value, values);
}

// The values of a bucket in the histogram are at most 2^i - 1. The sum of squares is not known and taken as that of
// the middles of the buckets; TensorBoard does not show it.
std::string HistogramBytes(const v1::Histogram& histogram) {
  std::vector<double> limits, counts;
  double least = -1, squares = 0;
  for (int i = 0; i < histogram.buckets_size(); ++i) {
    const double low = i == 0 ? 0 : std::ldexp(1.0, i - 1), high = std::ldexp(1.0, i) - 1;
    const double count = static_cast<double>(histogram.buckets(i));
    if (count > 0 && least < 0) least = low;
    limits.push_back(high);
    counts.push_back(count);
    squares += count * (low + high) / 2 * (low + high) / 2;
  }
  std::string bytes;
  AppendDouble(1, std::max(least, 0.0), bytes);
  AppendDouble(2, static_cast<double>(histogram.max()), bytes);
  AppendDouble(3, static_cast<double>(histogram.count()), bytes);
  AppendDouble(4, histogram.sum(), bytes);
  AppendDouble(5, squares, bytes);
  AppendPacked(6, limits, bytes);
  AppendPacked(7, counts, bytes);
  return bytes;
}

std::string EventHead(absl::Time now) {
  std::string event;
  AppendDouble(1, absl::ToDoubleSeconds(now - absl::UnixEpoch()), event);
  return event;
}

// The table of CRC-32C (RFC 3720, appendix B.4): the remainders of all bytes, reflected.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    table[byte] = crc;
  }
  return table;
}();

// The checksum in a record: a CRC of data that contains CRCs would be of little use.
uint32_t MaskedCrc(absl::string_view bytes) {
  uint32_t crc = ~0u;
  for (char byte : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace

TensorboardEvents::TensorboardEvents(TensorboardEvents&& other) noexcept
    : directory_(std::move(other.directory_)),
      path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      failed_(other.failed_) {}

TensorboardEvents& TensorboardEvents::operator=(TensorboardEvents&& other) noexcept {
  std::swap(directory_, other.directory_);
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(failed_, other.failed_);
  return *this;
}

TensorboardEvents::~TensorboardEvents() {
  if (fd_ >= 0) close(fd_);
}

void TensorboardEvents::Write(const TrainMetrics& metrics) {
  std::string values;
  AppendScalar("train/loss", metrics.loss, values);
  AppendScalar("train/learning_rate", metrics.learning_rate, values);
  AppendScalar("perf/examples_per_second", metrics.samples_per_second, values);
  AppendScalar("wait/share", metrics.wait_share, values);
  AppendScalar("staleness/max", static_cast<double>(metrics.max_staleness), values);
  WriteSummary(metrics.step, values);
}

void TensorboardEvents::Write(const TestMetrics& metrics) {
  std::string values;
  AppendScalar("test/loss", metrics.loss, values);
  if (metrics.accuracy.has_value()) AppendScalar("test/accuracy", *metrics.accuracy, values);
  WriteSummary(metrics.step, values);
}

void TensorboardEvents::Write(int64_t step, const v1::Histogram& staleness) {
  std::string value, values;
  AppendBytes(1, "staleness/distribution", value);
  AppendBytes(5, HistogramBytes(staleness), value);
  AppendBytes(1, value, values);
  WriteSummary(step, values);
}

void TensorboardEvents::WriteSummary(int64_t step, absl::string_view values) {
  if (failed_) return;
  const absl::Time now = absl::Now();
  absl::Status status = fd_ < 0 ? Open(now) : absl::OkStatus();
  if (status.ok()) {
    std::string event = EventHead(now);
    AppendKey(2, kVarint, event);
    AppendVarint(static_cast<uint64_t>(step), event);
    AppendBytes(5, values, event);
    status = WriteRecord(event);
  }
  if (status.ok()) return;
  failed_ = true;
  std::cerr << "warning: TensorBoard gets no more events of this run: " << status.message() << std::endl;
}

absl::Status TensorboardEvents::WriteRecord(absl::string_view event) {
  std::string record;
  AppendLittleEndian(static_cast<uint64_t>(event.size()), record);
  AppendLittleEndian(MaskedCrc(record), record);
  record.append(event.data(), event.size());
  AppendLittleEndian(MaskedCrc(event), record);
  return WriteAll(fd_, record, path_);
}

absl::Status TensorboardEvents::Open(absl::Time now) {
  char host[256] = "unknown";
  gethostname(host, sizeof(host) - 1);
  // Another process may have begun in the same second; its file is left alone.
  for (int64_t seconds = absl::ToUnixSeconds(now), last = seconds + 1000; fd_ < 0; ++seconds) {
    path_ = absl::StrCat(directory_, "/events.out.tfevents.", seconds, ".", host);
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0 && (errno != EEXIST || seconds == last)) return absl::ErrnoToStatus(errno, path_);
  }
  std::string event = EventHead(now);
  AppendBytes(3, "brain.Event:2", event);
  return WriteRecord(event);
}

}  // namespace ballast
