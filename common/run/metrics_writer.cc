// SPDX-License-Identifier: Apache-2.0
#include "common/run/metrics_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/storage/file.h"
#include "common/text/json_fields.h"

namespace ballast {

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
  return WriteAll(fd_, JsonLine(line) + "\n", path_);
}

}  // namespace ballast
