// SPDX-License-Identifier: Apache-2.0
#include "common/run/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/storage/file.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little);

constexpr char kMetadata[] = "__metadata__";
constexpr uint64_t kLengthBytes = 8;
// Limit of the reference implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Returns nullopt if a dimension is negative or the product of all of them overflows.
std::optional<uint64_t> BytesOf(const std::vector<int64_t>& shape, uint64_t element_bytes = sizeof(float)) {
  uint64_t bytes = element_bytes;
  for (int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

absl::Status CheckTensor(const EncodedTensorView& tensor) {
  if (tensor.name.empty() || tensor.name == kMetadata) {
    return absl::InvalidArgumentError(absl::StrCat("tensor name \"", tensor.name, "\" is not allowed"));
  }
  if (BytesOf(tensor.shape, tensor.element_bytes) != tensor.values.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" has ",
                                                   tensor.values.size() / tensor.element_bytes,
                                                   " elements, want shape [", absl::StrJoin(tensor.shape, ", "), "]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> EncodeHeader(absl::Span<const EncodedTensorView> tensors,
                                         const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::set<std::string> names;
  uint64_t offset = 0;
  for (const EncodedTensorView& tensor : tensors) {
    if (absl::Status status = CheckTensor(tensor); !status.ok()) return status;
    if (!names.insert(tensor.name).second || !IsUtf8(tensor.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name \"", tensor.name, "\" is not UTF-8 or occurs twice, want unique names"));
    }
    const uint64_t end = offset + tensor.values.size();
    header.push_back(
        {tensor.name, {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}}});
    offset = end;
  }
  std::string text = JsonLine(header);
  // Aligns the values for readers that map the file.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

absl::StatusOr<std::vector<uint64_t>> Counts(const Json& object, const char* key) {
  std::vector<uint64_t> counts;
  const auto it = object.find(key);
  bool valid = it != object.end() && it->is_array();
  for (size_t i = 0; valid && i < it->size(); ++i) {
    valid = (*it)[i].is_number_unsigned();
    if (valid) counts.push_back((*it)[i].get<uint64_t>());
  }
  if (!valid) return absl::InvalidArgumentError(absl::StrCat("\"", key, "\": want a list of counts"));
  return counts;
}

// Returns the size of an element of the type; UNIMPLEMENTED for one that is not read.
absl::StatusOr<uint64_t> ElementBytes(const std::string& dtype, bool only_floats) {
  if (dtype == "F32") return 4;
  if (dtype == "BF16" && !only_floats) return 2;
  if (dtype == "I64" && !only_floats) return 8;
  return absl::UnimplementedError(
      absl::StrCat("dtype is ", dtype, ", want ", only_floats ? "F32" : "F32, BF16 or I64"));
}

absl::StatusOr<Entry> DecodeEntry(const std::string& name, const Json& object, bool only_floats) {
  if (!object.is_object()) return absl::InvalidArgumentError("want an object");
  const absl::StatusOr<std::string> dtype = StringField(object, "dtype");
  if (!dtype.ok()) return dtype.status();
  const absl::StatusOr<uint64_t> element_bytes = ElementBytes(*dtype, only_floats);
  if (!element_bytes.ok()) return element_bytes.status();
  const absl::StatusOr<std::vector<uint64_t>> shape = Counts(object, "shape");
  if (!shape.ok()) return shape.status();
  const absl::StatusOr<std::vector<uint64_t>> offsets = Counts(object, "data_offsets");
  if (!offsets.ok()) return offsets.status();
  if (offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) {
    return absl::InvalidArgumentError("\"data_offsets\": want [begin, end]");
  }
  Entry entry = {.name = name, .dtype = *dtype, .shape = {}, .begin = (*offsets)[0], .end = (*offsets)[1]};
  // A dimension above int64's range becomes negative here, which BytesOf refuses.
  entry.shape.assign(shape->begin(), shape->end());
  if (BytesOf(entry.shape, *element_bytes) != entry.end - entry.begin) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry.end - entry.begin, " bytes, want shape [", absl::StrJoin(*shape, ", "), "]"));
  }
  return entry;
}

absl::Status DecodeMetadata(const Json& object, std::map<std::string, std::string>& metadata) {
  if (!object.is_object()) return absl::InvalidArgumentError("want an object");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", key, "\": want a string"));
    }
    metadata[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

// JSON libraries silently drop the first of two equal keys, which would hide a tensor.
absl::StatusOr<Json> ParseHeader(absl::string_view text) {
  std::set<std::string> names;
  std::string twice;
  const auto watch_keys = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  Json header = Json::parse(text.begin(), text.end(), watch_keys, /*allow_exceptions=*/false);
  if (!header.is_object()) return absl::InvalidArgumentError("header is not a JSON object");
  if (!twice.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", twice, "\" occurs twice"));
  }
  return header;
}

absl::Status InContext(const absl::Status& status, absl::string_view context) {
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

absl::StatusOr<std::vector<Entry>> DecodeEntries(const Json& header, bool only_floats,
                                                 std::map<std::string, std::string>& metadata) {
  std::vector<Entry> entries;
  for (const auto& [name, object] : header.items()) {
    if (name == kMetadata) {
      if (absl::Status status = DecodeMetadata(object, metadata); !status.ok()) {
        return InContext(status, kMetadata);
      }
      continue;
    }
    absl::StatusOr<Entry> entry = DecodeEntry(name, object, only_floats);
    if (!entry.ok()) return InContext(entry.status(), absl::StrCat("tensor \"", name, "\""));
    entries.push_back(*std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  return entries;
}

// A file whose tensors cover it.
struct DecodedFile {
  std::map<std::string, std::string> metadata;
  // In the order of their values.
  std::vector<Entry> entries;
  absl::string_view values;
};

absl::StatusOr<DecodedFile> Decode(absl::string_view file, bool only_floats) {
  uint64_t length = 0;
  if (file.size() < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("has ", file.size(), " bytes, want at least 8"));
  }
  std::memcpy(&length, file.data(), kLengthBytes);
  file.remove_prefix(kLengthBytes);
  if (length > std::min<uint64_t>(file.size(), kMaxHeaderBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("header of ", length, " bytes, want at most ",
                                                   std::min<uint64_t>(file.size(), kMaxHeaderBytes),
                                                   " (is the file truncated?)"));
  }
  const absl::StatusOr<Json> header = ParseHeader(file.substr(0, length));
  if (!header.ok()) return header.status();
  file.remove_prefix(length);
  DecodedFile result{.values = file};
  absl::StatusOr<std::vector<Entry>> entries = DecodeEntries(*header, only_floats, result.metadata);
  if (!entries.ok()) return entries.status();
  uint64_t offset = 0;
  for (const Entry& entry : *entries) {
    if (entry.begin != offset || entry.end > file.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", entry.name, "\" is at bytes ", entry.begin, " to ",
                                                     entry.end, " of ", file.size(), ", want it to begin at ", offset,
                                                     " and to fit"));
    }
    offset = entry.end;
  }
  if (offset != file.size()) {
    return absl::InvalidArgumentError(absl::StrCat("holds ", file.size(), " bytes of values, want ", offset));
  }
  result.entries = *std::move(entries);
  return result;
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, absl::Span<const TensorView> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<EncodedTensorView> encoded;
  for (const TensorView& tensor : tensors) {
    const absl::string_view bytes(reinterpret_cast<const char*>(tensor.values.data()),
                                  tensor.values.size() * sizeof(float));
    encoded.push_back({tensor.name, "F32", sizeof(float), tensor.shape, bytes});
  }
  return WriteEncodedTensors(path, encoded, metadata);
}

absl::Status WriteEncodedTensors(const std::string& path, absl::Span<const EncodedTensorView> tensors,
                                 const std::map<std::string, std::string>& metadata) {
  const absl::StatusOr<std::string> header = EncodeHeader(tensors, metadata);
  if (!header.ok()) return InContext(header.status(), path);
  const uint64_t header_bytes = header->size();
  std::vector<absl::string_view> parts = {absl::string_view(reinterpret_cast<const char*>(&header_bytes), kLengthBytes),
                                          *header};
  for (const EncodedTensorView& tensor : tensors) parts.push_back(tensor.values);
  return WriteFileAtomically(path, parts);
}

absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path) {
  const absl::StatusOr<std::string> file = ReadFile(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<DecodedFile> decoded = Decode(*file, /*only_floats=*/true);
  if (!decoded.ok()) return InContext(decoded.status(), path);
  Safetensors result{.metadata = std::move(decoded->metadata)};
  for (Entry& entry : decoded->entries) {
    LoadedTensor& tensor = result.tensors.emplace_back();
    tensor.name = std::move(entry.name);
    tensor.shape = std::move(entry.shape);
    tensor.values.resize((entry.end - entry.begin) / sizeof(float));
    if (tensor.values.empty()) continue;
    std::memcpy(tensor.values.data(), decoded->values.data() + entry.begin, entry.end - entry.begin);
  }
  return result;
}

absl::StatusOr<std::vector<LoadedEncodedTensor>> DecodeEncodedTensors(absl::string_view file) {
  absl::StatusOr<DecodedFile> decoded = Decode(file, /*only_floats=*/false);
  if (!decoded.ok()) return decoded.status();
  std::vector<LoadedEncodedTensor> tensors;
  for (Entry& entry : decoded->entries) {
    tensors.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                       std::string(decoded->values.substr(entry.begin, entry.end - entry.begin))});
  }
  return tensors;
}

}  // namespace ballast
