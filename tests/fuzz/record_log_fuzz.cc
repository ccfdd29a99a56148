// SPDX-License-Identifier: Apache-2.0
// Files of records: a choice, then the file itself, or the position of damage in a whole file and its records'
// bodies. The records read from a damaged file are a prefix of those written.
#include "tests/fuzz/fuzz_files.h"

namespace ballast {
namespace {

constexpr uint64_t kFirst = 7;

// Returns the bodies up to the file's end, torn or not, or up to damage.
std::vector<std::string> Bodies(const std::string& path) {
  std::vector<std::string> bodies;
  auto reader = RecordReader::Open(path, kFirst);
  Require(reader.ok(), "a file can be opened");
  uint64_t end = 0;
  while (true) {
    const auto record = (*reader)->Next();
    if (!record.ok()) {
      Require(absl::IsDataLoss(record.status()), "damage is reported as DATA_LOSS");
      return bodies;
    }
    if (!record->has_value()) break;
    Require((*record)->offset == end, "records are contiguous");
    Require((*record)->position == kFirst + bodies.size(), "positions count the records");
    end = (*reader)->end();
    bodies.push_back((*record)->body);
  }
  Require((*reader)->torn() == ((*reader)->end() < (*reader)->size()), "torn() means bytes after the last record");
  return bodies;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string bodies = AsInput("first") + AsInput("") + AsInput(std::string(100, 'x'));
  const std::string whole =
      RecordsOf(FuzzInput(reinterpret_cast<const uint8_t*>(bodies.data()), bodies.size()), kFirst);
  return {std::string(1, '\0') + whole, std::string("\1\0\0\0", 4) + bodies, std::string("\1\x50\0\1", 4) + bodies,
          std::string("\2\x50\0\0", 4) + bodies};
}

void FuzzOne(FuzzInput input) {
  static InputFile file(".log");
  const uint8_t choice = input.Byte();
  if (choice % 3 == 0) {
    file.Put(input.Rest());
    Bodies(file.path());
    return;
  }
  const uint64_t where = input.Number(2);
  const uint8_t how = input.Byte();
  std::string content = RecordsOf(input, kFirst);
  file.Put(content);
  const std::vector<std::string> whole = Bodies(file.path());
  if (content.empty()) return;
  if (choice % 3 == 1) {
    content[where % content.size()] ^= static_cast<char>(how);
  } else {
    content.resize(where % content.size());
  }
  file.Put(content);
  const std::vector<std::string> left = Bodies(file.path());
  Require(left.size() <= whole.size() && std::equal(left.begin(), left.end(), whole.begin()),
          "records read from a damaged file are a prefix of those written");
}

}  // namespace ballast
