// SPDX-License-Identifier: Apache-2.0
// Functions that libFuzzer calls: one before it reads its corpus, to write a target's seeds into the directory
// BALLAST_FUZZ_SEEDS, if that is set; and one for each input.
#include <fstream>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("BALLAST_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : ballast::FuzzSeeds()) {
    const std::string path = std::string(folder) + "/seed-" + std::to_string(number++);
    std::ofstream file(path, std::ios::binary);
    if (file << seed && file.flush()) continue;
    std::cerr << "error: cannot write " << path << std::endl;
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ballast::FuzzOne(ballast::FuzzInput(data, size));
  return 0;
}
