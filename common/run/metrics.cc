// SPDX-License-Identifier: Apache-2.0
#include "common/run/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "common/storage/file.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

// Reads the fields of one line and keeps the first error.
class LineFields {
 public:
  explicit LineFields(const Json& line) : line_(line) {}

  int64_t Count(const char* key) { return Keep(CountField(line_, key), int64_t{0}); }
  // Returns 0 for a missing field: earlier releases did not write it.
  int64_t LaterCount(const char* key) { return line_.contains(key) ? Count(key) : 0; }
  double LaterNumber(const char* key) { return line_.contains(key) ? Number(key) : 0; }
  double Number(const char* key) { return Keep(NumberField(line_, key), 0.0); }
  std::optional<double> OptionalNumber(const char* key) {
    return Keep(OptionalNumberField(line_, key), std::optional<double>());
  }
  const absl::Status& status() const { return status_; }

 private:
  template <typename T>
  T Keep(absl::StatusOr<T> value, T otherwise) {
    status_.Update(value.status());
    return value.ok() ? *std::move(value) : otherwise;
  }

  const Json& line_;
  absl::Status status_;
};

// Drops the lines after the checkpoint to which the job has returned before this line: they come again.
void DropUndone(const TrainMetrics& line, Metrics& metrics) {
  if (metrics.train.empty() || line.examples >= metrics.train.back().examples) return;
  const int64_t begin = line.examples - line.over_examples;
  while (!metrics.train.empty() && metrics.train.back().examples > begin) metrics.train.pop_back();
  while (!metrics.test.empty() && metrics.test.back().epoch >= line.epoch) metrics.test.pop_back();
  while (!metrics.epochs.empty() && metrics.epochs.back().epoch >= line.epoch) metrics.epochs.pop_back();
}

absl::Status AddTrain(LineFields fields, Metrics& metrics) {
  const TrainMetrics line = {.epoch = fields.Count("epoch"),
                             .step = fields.Count("step"),
                             .examples = fields.Count("examples"),
                             .seconds = fields.Number("seconds"),
                             .over_examples = fields.LaterCount("over_examples"),
                             .over_seconds = fields.LaterNumber("over_seconds"),
                             .loss = fields.Number("loss"),
                             .learning_rate = fields.Number("learning_rate"),
                             .samples_per_second = fields.Number("samples_per_second"),
                             .staleness = fields.Number("staleness"),
                             .wait_share = fields.Number("wait_share"),
                             .max_staleness = fields.LaterCount("max_staleness"),
                             .bytes_sent = fields.LaterNumber("bytes_sent"),
                             .bytes_received = fields.LaterNumber("bytes_received"),
                             .dropped = fields.LaterCount("dropped"),
                             .skipped_steps = fields.LaterCount("skipped_steps"),
                             .loss_scale = fields.OptionalNumber("loss_scale")};
  if (!fields.status().ok()) return fields.status();
  DropUndone(line, metrics);
  metrics.train.push_back(line);
  return absl::OkStatus();
}

absl::Status AddTest(LineFields fields, Metrics& metrics) {
  const TestMetrics line = {.epoch = fields.Count("epoch"),
                            .step = fields.Count("step"),
                            .seconds = fields.Number("seconds"),
                            .loss = fields.Number("loss"),
                            .accuracy = fields.OptionalNumber("accuracy"),
                            .auc = fields.OptionalNumber("auc"),
                            .log_loss = fields.OptionalNumber("log_loss"),
                            .calibration = fields.OptionalNumber("calibration")};
  if (fields.status().ok()) metrics.test.push_back(line);
  return fields.status();
}

absl::Status AddEpoch(LineFields fields, Metrics& metrics) {
  const EpochMetrics line = {.epoch = fields.Count("epoch"),
                             .step = fields.Count("step"),
                             .examples = fields.Count("examples"),
                             .seconds = fields.Number("seconds"),
                             .epoch_examples = fields.Count("epoch_examples"),
                             .train_loss = fields.Number("train_loss"),
                             .samples_per_second = fields.Number("samples_per_second")};
  if (fields.status().ok()) metrics.epochs.push_back(line);
  return fields.status();
}

absl::Status AddLine(absl::string_view text, Metrics& metrics) {
  const absl::StatusOr<Json> line = ParseJsonObject(text);
  if (!line.ok()) return line.status();
  const absl::StatusOr<std::string> kind = StringField(*line, "kind");
  if (!kind.ok()) return kind.status();
  if (*kind == "train") return AddTrain(LineFields(*line), metrics);
  if (*kind == "test") return AddTest(LineFields(*line), metrics);
  if (*kind == "epoch") return AddEpoch(LineFields(*line), metrics);
  return absl::OkStatus();
}

}  // namespace

Metrics ParseMetrics(absl::string_view text) {
  Metrics metrics;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const absl::string_view line = text.substr(0, end);
    text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    if (AddLine(line, metrics).ok()) continue;
    if (end == absl::string_view::npos) {
      metrics.cut_off = true;
    } else {
      metrics.malformed_lines.push_back(number);
    }
  }
  return metrics;
}

Metrics MetricsTail::Next() {
  std::ifstream file(path_);
  file.seekg(offset_);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The writer may be in the middle of the last line.
  text.resize(text.rfind('\n') + 1);
  offset_ += static_cast<int64_t>(text.size());
  return ParseMetrics(text);
}

absl::StatusOr<Metrics> ReadMetrics(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  return ParseMetrics(*text);
}

absl::StatusOr<MetricsWriter> MetricsWriter::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  return MetricsWriter(path, fd);
}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

MetricsWriter& MetricsWriter::operator=(MetricsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MetricsWriter::Write(const TrainMetrics& metrics) {
  nlohmann::ordered_json line = {{"kind", "train"},
                                 {"epoch", metrics.epoch},
                                 {"step", metrics.step},
                                 {"examples", metrics.examples},
                                 {"seconds", metrics.seconds},
                                 {"over_examples", metrics.over_examples},
                                 {"over_seconds", metrics.over_seconds},
                                 {"loss", metrics.loss},
                                 {"learning_rate", metrics.learning_rate},
                                 {"samples_per_second", metrics.samples_per_second},
                                 {"staleness", metrics.staleness},
                                 {"wait_share", metrics.wait_share},
                                 {"max_staleness", metrics.max_staleness},
                                 {"bytes_sent", metrics.bytes_sent},
                                 {"bytes_received", metrics.bytes_received},
                                 {"dropped", metrics.dropped},
                                 {"skipped_steps", metrics.skipped_steps}};
  if (metrics.loss_scale.has_value()) line["loss_scale"] = *metrics.loss_scale;
  return WriteAll(fd_, JsonLine(line) + "\n", path_);
}

absl::Status MetricsWriter::Write(const TestMetrics& metrics) {
  nlohmann::ordered_json line = {{"kind", "test"},
                                 {"epoch", metrics.epoch},
                                 {"step", metrics.step},
                                 {"seconds", metrics.seconds},
                                 {"loss", metrics.loss}};
  if (metrics.accuracy.has_value()) line["accuracy"] = *metrics.accuracy;
  if (metrics.auc.has_value()) line["auc"] = *metrics.auc;
  if (metrics.log_loss.has_value()) line["log_loss"] = *metrics.log_loss;
  if (metrics.calibration.has_value()) line["calibration"] = *metrics.calibration;
  return WriteAll(fd_, JsonLine(line) + "\n", path_);
}

absl::Status MetricsWriter::Write(const EpochMetrics& metrics) {
  return WriteAll(fd_,
                  JsonLine({{"kind", "epoch"},
                            {"epoch", metrics.epoch},
                            {"step", metrics.step},
                            {"examples", metrics.examples},
                            {"seconds", metrics.seconds},
                            {"epoch_examples", metrics.epoch_examples},
                            {"train_loss", metrics.train_loss},
                            {"samples_per_second", metrics.samples_per_second}}) +
                      "\n",
                  path_);
}

}  // namespace ballast
