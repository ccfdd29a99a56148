// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/data_lease.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/table_schema.h"
#include "worker/data/files/text_rows.h"

namespace ballast {

// Finds and reads the rows of an endless stream of training data: of a file that grows, or of a directory that gets new
// files (ballast.v1.DataStream). Every row is checked before it is returned. Knows nothing of leases or batches, nor how
// far the job is. Thread safety: none.
class StreamReader {
 public:
  // Rows, and the features, labels and ids that they have.
  struct Rows {
    StreamSpan span;
    std::shared_ptr<const Dataset> data;
  };

  // `data` is validated and has a stream. NOT_FOUND if there is neither file nor directory. For a table also reads the
  // sample or, without one, the first row of the stream; INVALID_ARGUMENT if there is none yet.
  static absl::StatusOr<std::unique_ptr<StreamReader>> Open(const v1::Data& data, const DatasetOptions& options);

  // Returns a data set without examples, or with those of the sample, that has the features, fields and schema of all
  // rows. Can be taken once.
  std::unique_ptr<Dataset> TakePrototype() { return std::move(prototype_); }

  // Returns up to `max_examples` complete rows that begin at that position, or the first rows of a later file; nothing
  // if there are none yet. Errors name file and line. DATA_LOSS if the file is shorter than before.
  absl::StatusOr<std::optional<Rows>> Find(const StreamPosition& from, uint64_t max_examples);

  // Reads rows again that another worker has found. DATA_LOSS if they have changed.
  absl::StatusOr<std::shared_ptr<const Dataset>> Read(const StreamSpan& span);

 private:
  StreamReader(const v1::DataSource& source, const DatasetOptions& options);

  absl::Status OpenPrototype(const std::string& sample);
  std::string PathOf(const std::string& file) const;
  // Returns the names of the files that are not before `file`, in order. Warns of files that came too late.
  absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& file);
  // Finds rows in one file. If it is `complete`, its last row needs no end of line.
  absl::StatusOr<std::optional<Rows>> FindIn(const StreamPosition& begin, bool complete, uint64_t max_examples);
  // Returns the first row of a table's file with its end of line; empty if it is not complete.
  absl::StatusOr<std::string> HeaderOf(const std::string& file);
  absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const StreamPosition& begin, absl::string_view text);
  bool IsExample(absl::string_view row) const;

  const v1::DataSource source_;
  const std::string path_;
  DatasetOptions options_;
  const TextRows::RowEnd row_end_;
  // True if each file begins with a row of names.
  const bool header_;
  bool directory_ = false;
  TableSchema schema_;
  std::unique_ptr<Dataset> prototype_;
  // The file of the newest header, and that header.
  std::string header_file_;
  std::string header_text_;
  // Names in the directory at the last look; empty before the first one.
  std::optional<std::set<std::string>> known_;
};

}  // namespace ballast
