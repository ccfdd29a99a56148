// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/example_values.h"
#include "worker/data/files/data_file.h"

namespace ballast {
namespace {

enum class ElementType : uint8_t {
  kUint8 = 0x08,
  kInt8 = 0x09,
  kInt16 = 0x0b,
  kInt32 = 0x0c,
  kFloat32 = 0x0d,
  kFloat64 = 0x0e,
};

template <typename T>
double LoadBigEndian(const uint8_t* bytes) {
  std::array<uint8_t, sizeof(T)> reversed;
  for (size_t i = 0; i < sizeof(T); ++i) reversed[i] = bytes[sizeof(T) - 1 - i];
  T value;
  std::memcpy(&value, reversed.data(), sizeof(T));
  return static_cast<double>(value);
}

// Calls visit(T()) with the C++ type of the elements; not for an unknown type.
template <typename Visit>
void WithType(ElementType type, Visit visit) {
  switch (type) {
    case ElementType::kUint8:
      return visit(uint8_t());
    case ElementType::kInt8:
      return visit(int8_t());
    case ElementType::kInt16:
      return visit(int16_t());
    case ElementType::kInt32:
      return visit(int32_t());
    case ElementType::kFloat32:
      return visit(float());
    case ElementType::kFloat64:
      return visit(double());
  }
}

// Returns the size of an element, or 0 if the type is unknown.
size_t BytesOf(ElementType type) {
  size_t bytes = 0;
  WithType(type, [&](auto element) { bytes = sizeof(element); });
  return bytes;
}

// Calls visit(position, value) for `count` elements from `bytes` on. Each type has its own loop.
template <typename Visit>
void ForEachElement(ElementType type, const uint8_t* bytes, uint64_t count, Visit visit) {
  WithType(type, [&]<typename T>(T) {
    for (uint64_t i = 0; i < count; ++i) visit(i, LoadBigEndian<T>(bytes + i * sizeof(T)));
  });
}

struct Header {
  ElementType type = ElementType::kUint8;
  std::vector<uint64_t> dimensions;
  uint64_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  // Elements per example.
  uint64_t width = 1;
};

constexpr size_t kMagicBytes = 4;

// Reads the type and the rank from the first four bytes.
absl::StatusOr<Header> ParseMagic(const std::string& path, absl::Span<const uint8_t> bytes) {
  Header header;
  if (bytes.size() < kMagicBytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": truncated: expected 4 bytes of IDX magic from byte 0, got ", bytes.size()));
  }
  header.type = static_cast<ElementType>(bytes[2]);
  const size_t rank = bytes[3];
  if (bytes[0] != 0 || bytes[1] != 0 || BytesOf(header.type) == 0 || rank == 0 || rank > 8) {
    const bool gzip = bytes[0] == 0x1f && bytes[1] == 0x8b;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: bad IDX magic at byte 0: got %02x %02x %02x %02x, want 00 00, a type 08, 09, 0b, 0c, "
        "0d or 0e, a rank 01 to 08%s",
        path, bytes[0], bytes[1], bytes[2], bytes[3], gzip ? "; this is gzip data, whose name must end in .gz" : ""));
  }
  header.dimensions.resize(rank);
  header.header_bytes = kMagicBytes + 4 * rank;
  return header;
}

// Reads the rest of the header; `bytes` is shorter than the header if the file is truncated. Allocates nothing, because
// the dimensions are not yet trusted.
absl::Status ParseDimensions(const std::string& path, absl::Span<const uint8_t> bytes, Header& header) {
  if (bytes.size() < header.header_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": truncated: expected ", header.header_bytes - kMagicBytes,
                                            " bytes of dimensions from byte 4, got ", bytes.size() - kMagicBytes));
  }
  header.payload_bytes = BytesOf(header.type);
  for (size_t i = 0; i < header.dimensions.size(); ++i) {
    const size_t at = kMagicBytes + 4 * i;
    const uint32_t dimension = static_cast<uint32_t>(LoadBigEndian<uint32_t>(bytes.data() + at));
    if (dimension == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": empty data set: dimension ", i, " at byte ", at, " is 0"));
    }
    header.dimensions[i] = dimension;
    // The product stays below 2^62, so that later sums cannot overflow, either.
    if (__builtin_mul_overflow(header.payload_bytes, dimension, &header.payload_bytes) ||
        header.payload_bytes >> 62 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the dimensions claim more than 2^62 bytes at byte ", at));
    }
  }
  header.width = header.payload_bytes / BytesOf(header.type) / header.dimensions[0];
  return absl::OkStatus();
}

absl::Status WrongLength(const std::string& path, const Header& header, absl::string_view got) {
  return absl::DataLossError(
      absl::StrCat(path, ": expected ", header.payload_bytes, " bytes from byte ", header.header_bytes, ", got ", got));
}

// A complete IDX file whose header is checked.
struct IdxFile {
  Header header;
  FileBytes bytes;

  const uint8_t* Row(uint64_t index) const {
    return bytes.bytes().data() + header.header_bytes + index * header.width * BytesOf(header.type);
  }
};

absl::StatusOr<IdxFile> OpenPlain(const std::string& path) {
  absl::StatusOr<FileBytes> file = FileBytes::Map(path);
  if (!file.ok()) return file.status();
  const absl::Span<const uint8_t> bytes = file->bytes();
  absl::StatusOr<Header> header = ParseMagic(path, bytes);
  if (!header.ok()) return header.status();
  if (absl::Status status = ParseDimensions(path, bytes, *header); !status.ok()) return status;
  if (const uint64_t got = bytes.size() - header->header_bytes; got != header->payload_bytes) {
    return WrongLength(path, *header, absl::StrCat(got));
  }
  return IdxFile{*std::move(header), *std::move(file)};
}

absl::StatusOr<IdxFile> OpenCompressed(const std::string& path) {
  absl::StatusOr<std::unique_ptr<GzipReader>> reader = GzipReader::Open(path);
  if (!reader.ok()) return reader.status();
  std::vector<uint8_t> bytes(kMagicBytes);
  absl::StatusOr<size_t> got = (*reader)->Read(absl::MakeSpan(bytes));
  if (!got.ok()) return got.status();
  absl::StatusOr<Header> header = ParseMagic(path, absl::MakeSpan(bytes.data(), *got));
  if (!header.ok()) return header.status();

  bytes.resize(header->header_bytes);
  got = (*reader)->Read(absl::MakeSpan(bytes).subspan(kMagicBytes));
  if (!got.ok()) return got.status();
  const absl::Span<const uint8_t> read(bytes.data(), kMagicBytes + *got);
  if (absl::Status status = ParseDimensions(path, read, *header); !status.ok()) return status;

  if (header->payload_bytes > (*reader)->most_bytes()) {
    return WrongLength(path, *header,
                       absl::StrCat("at most ", (*reader)->most_bytes(), ", judging by the file's size"));
  }
  bytes.resize(header->header_bytes + header->payload_bytes);
  got = (*reader)->Read(absl::MakeSpan(bytes).subspan(header->header_bytes));
  if (!got.ok()) return got.status();
  if (*got != header->payload_bytes) return WrongLength(path, *header, absl::StrCat(*got));
  uint8_t beyond;
  got = (*reader)->Read(absl::MakeSpan(&beyond, 1));
  if (!got.ok()) return got.status();
  if (*got != 0) return WrongLength(path, *header, "more");
  return IdxFile{*std::move(header), FileBytes(std::move(bytes))};
}

// Returns an error if a floating-point element is not finite after conversion to float32.
absl::Status CheckFinite(const std::string& path, const IdxFile& file) {
  const ElementType type = file.header.type;
  if (type != ElementType::kFloat32 && type != ElementType::kFloat64) return absl::OkStatus();
  const uint64_t count = file.header.payload_bytes / BytesOf(type);
  uint64_t first_bad = count;
  ForEachElement(type, file.Row(0), count, [&](uint64_t i, double value) {
    if (!std::isfinite(static_cast<float>(value))) first_bad = std::min(first_bad, i);
  });
  if (first_bad == count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": the number at byte ", file.header.header_bytes + first_bad * BytesOf(type), " is not finite"));
}

absl::StatusOr<IdxFile> OpenChecked(const std::string& path) {
  absl::StatusOr<IdxFile> file = IsGzipPath(path) ? OpenCompressed(path) : OpenPlain(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = CheckFinite(path, *file); !status.ok()) return status;
  return file;
}

class IdxDataset : public Dataset {
 public:
  IdxDataset(IdxFile images, std::optional<IdxFile> labels, const Normalizer& normalizer,
             std::vector<PlacedLabel> extremes)
      : images_(std::move(images)),
        labels_(std::move(labels)),
        normalizer_(normalizer),
        extremes_(std::move(extremes)) {}

  uint64_t size() const override { return images_.header.dimensions[0]; }
  uint64_t features() const override { return images_.header.width; }
  bool has_labels() const override { return labels_.has_value(); }
  std::vector<PlacedLabel> ExtremeLabels() const override { return extremes_; }

  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                    IdBags* ids) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    ClearBags(ids);
    const uint64_t width = images_.header.width;
    for (size_t i = 0; i < indices.size(); ++i) {
      if (i + kRowsAhead < indices.size()) FetchRow(images_.Row(indices[i + kRowsAhead]));
      ReadRow(images_.Row(indices[i]), features.data() + i * width);
      labels[i] = std::numeric_limits<float>::quiet_NaN();
      if (!labels_.has_value()) continue;
      ForEachElement(labels_->header.type, labels_->Row(indices[i]), 1,
                     [&](uint64_t, double label) { labels[i] = static_cast<float>(label); });
    }
    return absl::OkStatus();
  }

 private:
  // Rows in random order come from memory, not from the caches; fetched so far ahead, they are there in time.
  static constexpr size_t kRowsAhead = 2;
  static constexpr uint64_t kLineBytes = 64;
  // More than that would evict what was fetched.
  static constexpr uint64_t kMostFetchedBytes = 8192;

  void FetchRow(const uint8_t* row) const {
    const uint64_t bytes = std::min(images_.header.width * BytesOf(images_.header.type), kMostFetchedBytes);
    for (uint64_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(row + at);
  }

  void ReadRow(const uint8_t* row, float* features) const {
    const uint64_t width = images_.header.width;
    if (images_.header.type == ElementType::kUint8) {
      for (uint64_t i = 0; i < width; ++i) features[i] = normalizer_.OfByte(row[i]);
      return;
    }
    ForEachElement(images_.header.type, row, width,
                   [&](uint64_t i, double value) { features[i] = normalizer_(value); });
  }

  const IdxFile images_;
  const std::optional<IdxFile> labels_;
  const Normalizer normalizer_;
  const std::vector<PlacedLabel> extremes_;
};

}  // namespace

// Opens a pair of IDX files (Y. LeCun, "THE MNIST DATABASE": two zero bytes, the element type, the rank, each dimension
// in 4 bytes, then the elements, all big-endian). Maps plain files. Decompresses .gz files into memory, limited by the
// size that the header gives and by the most that a file of that size can contain.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdx(const v1::DataSource& source, const DatasetOptions& options) {
  const std::string images_path = DataPath(options.base_folder, source.idx().images());
  const std::string labels_path = DataPath(options.base_folder, source.idx().labels());
  absl::StatusOr<IdxFile> images = OpenChecked(images_path);
  if (!images.ok()) return images.status();
  const Normalizer normalizer(options.normalization);
  if (options.labels_optional && source.idx().labels().empty()) {
    return std::make_unique<IdxDataset>(*std::move(images), std::nullopt, normalizer, std::vector<PlacedLabel>());
  }
  absl::StatusOr<IdxFile> labels = OpenChecked(labels_path);
  if (!labels.ok()) return labels.status();
  if (labels->header.dimensions.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(labels_path, ": has rank ", labels->header.dimensions.size(),
                                                   " at byte 3, want 1 for labels; are images and labels swapped?"));
  }
  if (labels->header.dimensions[0] != images->header.dimensions[0]) {
    return absl::InvalidArgumentError(absl::StrCat(labels_path, ": has ", labels->header.dimensions[0],
                                                   " labels at byte 4, want ", images->header.dimensions[0],
                                                   ", the number of examples in ", images_path));
  }
  LabelExtremes extremes;
  ForEachElement(labels->header.type, labels->Row(0), labels->header.dimensions[0],
                 [&](uint64_t i, double label) { extremes.Add(static_cast<float>(label), i); });
  const auto where = [&](uint64_t i) {
    return absl::StrCat(labels_path, ": byte ", labels->header.header_bytes + i * BytesOf(labels->header.type));
  };
  std::vector<PlacedLabel> placed = extremes.Describe(where);
  return std::make_unique<IdxDataset>(*std::move(images), *std::move(labels), normalizer, std::move(placed));
}

}  // namespace ballast
