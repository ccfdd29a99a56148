// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker/data/datasets/dataset.h"

namespace ballast {

// Forms in which a data file reaches its reader: plain, plain under the name of a gzip file, or compressed.
enum class Wrapping { kPlain, kDamagedGzip, kGzip };

inline Wrapping WrappingOf(uint8_t choice) { return static_cast<Wrapping>(choice % 3); }

// Owns a file that is written under either name. Thread safety: none.
class DataFile {
 public:
  explicit DataFile(const std::string& suffix) : plain_(suffix), gzip_(suffix + ".gz") {}

  // Returns the path for the reader.
  const std::string& Put(absl::string_view content, Wrapping wrapping) {
    InputFile& file = wrapping == Wrapping::kPlain ? plain_ : gzip_;
    file.Put(wrapping == Wrapping::kGzip ? GzipForFuzzing(content) : content);
    return file.path();
  }

 private:
  InputFile plain_, gzip_;
};

// Requires that a data set that opens can be read: every example, with finite values.
inline void OpenAndRead(const v1::DataSource& source, const DatasetOptions& options = {}) {
  const absl::StatusOr<std::unique_ptr<Dataset>> dataset = OpenDataset(source, options);
  if (!dataset.ok()) {
    Require(!dataset.status().message().empty(), "an error has a message");
    return;
  }
  constexpr uint64_t kRows = 64, kElements = 1 << 16;
  const uint64_t size = (*dataset)->size(), width = (*dataset)->features();
  const uint64_t fields = (*dataset)->id_fields().size();
  Require(size >= 1 && width + fields >= 1, "a data set has examples, and features or ids");
  if (width + fields > kElements) return;
  const uint64_t rows = std::min({size, kRows, kElements / (width + fields)});
  // Reads the last examples, where a wrong end shows.
  std::vector<uint64_t> indices(rows);
  std::iota(indices.begin(), indices.end(), size - rows);
  std::vector<float> features(rows * width), labels(rows);
  IdBags ids;
  const absl::Status read = (*dataset)->Read(indices, absl::MakeSpan(features), absl::MakeSpan(labels), &ids);
  Require(read.ok(), "an open data set can be read");
  for (float value : features) Require(std::isfinite(value), "features are finite");
  for (float value : labels) Require(std::isfinite(value), "labels are finite");
  Require(ids.ends.size() == rows * fields, "each field of an example has a bag");
  Require(std::is_sorted(ids.ends.begin(), ids.ends.end()), "bags follow each other");
  Require(ids.ids.size() == (ids.ends.empty() ? 0 : ids.ends.back()), "the last bag ends with the ids");
  indices[0] = size;
  Require(absl::IsOutOfRange((*dataset)->Read(indices, absl::MakeSpan(features), absl::MakeSpan(labels))),
          "an index after the last example is out of range");
  Require(!(*dataset)->ExtremeLabels().empty(), "a data set has labels");
}

}  // namespace ballast
